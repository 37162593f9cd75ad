"""HyDE: the model answers a text first, and its answer is embedded. Nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unified_lm.inference.embedder import DelegatingEmbedder
from unified_lm.inference.encode import Encoder
from unified_lm.inference.generate import BatchedGenerator
from unified_lm.methods.untrained import Untrained
from unified_lm.prompts.conversation import answer_header


@dataclass(frozen=True, kw_only=True)
class Hyde(Untrained):
    """Source: Gao et al. 2023 (hypothetical document embeddings), with the scored model as its own generator.

    `prompt`: what the model is asked, with {text} and perhaps {instruction}. `max_new_tokens`: length limit of an
    answer (greedy decoding). `sides`: whose texts are answered ("query", "document"). `with_text`: the mean of the unit
    vectors of the text and of its answer, as in the paper, instead of the answer's vector alone.
    """

    prompt: str
    max_new_tokens: int
    sides: Sequence[str]
    with_text: bool

    @property
    def instruction_sides(self) -> Sequence[str]:
        return self.sides

    def __post_init__(self) -> None:
        super().__post_init__()
        if "{text}" not in self.prompt:
            raise ValueError(f"method.prompt={self.prompt!r} needs {{text}}; it may hold {{instruction}} as well")
        if unknown := set(self.sides) - {"query", "document"}:
            raise ValueError(f"method.sides={sorted(unknown)} is unknown; use query and document")

    def build_embedder(self, encoder: Encoder, generator: BatchedGenerator | None) -> HydeEmbedder:
        """Raises `ValueError` where the model cannot generate."""
        if generator is None:
            raise ValueError("method hyde answers before it embeds, so it needs attention=causal, gritlm or prefix")
        return HydeEmbedder(hyde=self, embedder=encoder, generator=generator)


@dataclass(frozen=True, kw_only=True)
class HydeEmbedder(DelegatingEmbedder):
    """An embedder that replaces each text of `hyde.sides` by the model's answer to it."""

    hyde: Hyde
    embedder: Encoder
    generator: BatchedGenerator

    @property
    def identity(self) -> dict[str, Any]:
        settings = {"prompt": self.hyde.prompt, "max_new_tokens": self.hyde.max_new_tokens}
        more = {"sides": list(self.hyde.sides), "with_text": self.hyde.with_text}
        if self.similarity == "dot":  # versions whose dot products were cosines had no such entry
            more["normalized"] = False
        return self.embedder.identity | {"hyde": {**settings, **more, "generator": dict(self.generator.identity)}}

    def generate_answers(self, texts: Sequence[str], instruction: str = "") -> list[str]:
        """The model's answer to each text; the text itself where the answer is empty."""
        form = self.embedder.format
        asked = [self.hyde.prompt.replace("{instruction}", instruction).replace("{text}", text) for text in texts]
        parts = form.render(form.template.prompt, asked, limit=form.query_length)
        prompts = [form.prepend_bos(part.ids) + list(answer_header(form)) for part in parts]
        made = self.generator.generate(prompts, self.hyde.max_new_tokens)
        return [text if answer.empty else answer.text for answer, text in zip(made, texts, strict=True)]

    def encode(self, texts: Sequence[str], *, side: str, instruction: str = "") -> np.ndarray:
        """Vectors [n, d] float32 of n texts, or of the answers to them. An answer is embedded as a document."""
        texts = list(texts)
        if side not in self.hyde.sides or not texts:
            return self.embedder.encode(texts, side=side, instruction=instruction)
        unique = list(dict.fromkeys(texts))
        vectors = self.embedder.encode(self.generate_answers(unique, instruction), side="document")
        if self.hyde.with_text:
            own = self.embedder.encode(unique, side=side, instruction=instruction)
            vectors = (normalize_rows(vectors) + normalize_rows(own)) / 2
            vectors = normalize_rows(vectors) if self.similarity == "cosine" else vectors
        index = {text: i for i, text in enumerate(unique)}
        return vectors[[index[text] for text in texts]]


def normalize_rows(vectors: np.ndarray) -> np.ndarray:
    """Rows [n, d] scaled to unit length."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
