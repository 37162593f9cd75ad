"""Texts to vectors: the one engine behind encoding, retrieval, mteb and reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from unified_lm.model import UnifiedLM
from unified_lm.packing import Sequence, collate
from unified_lm.prompts import Format
from unified_lm.readout import Readout, normalized

SIDES = ("query", "document")


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """A model, the format of its texts and the read-out of its vectors.

    `weights`: what identifies the parameters (a checkpoint's digest and step, or a backbone's fingerprint).
    `budget`: tokens a pack; it changes speed and memory, not a vector. `similarity`: "cosine" gives unit vectors.
    """

    model: UnifiedLM
    form: Format
    readout: str
    weights: dict[str, Any] = field(default_factory=dict)
    similarity: str = "cosine"
    budget: int = 2048

    @property
    def attention(self) -> str:
        return self.form.plan.embed

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides a vector, for keys of scores and stores."""
        compute = self.model.autocast or next(self.model.parameters()).dtype
        return {
            "weights": self.weights,
            "dtype": str(compute).removeprefix("torch."),
            "attention": self.attention,
            "template": asdict(self.form.template),
            "readout": self.readout,
            "slots": [self.form.slots, self.form.document_slots],
            "lengths": [self.form.query_length, self.form.document_length],
            "similarity": self.similarity,
        }

    def sequences(self, texts: list[str], side: str, instruction: str = "") -> list[Sequence]:
        """The sequences that are encoded for these texts."""
        if side not in SIDES:
            raise ValueError(f"side={side!r} is unknown; use query or document")
        return (self.form.queries if side == "query" else self.form.documents)(texts, instruction)

    @torch.inference_mode()
    def encode(self, texts: list[str], *, side: str, instruction: str = "") -> np.ndarray:
        """Vectors [n, d] float32 of n texts, in their order; equal texts are computed once.

        Raises `ValueError` for an empty text, with its number.
        """
        for number, text in enumerate(texts):
            if not text.strip():
                raise ValueError(f"text {number} is empty; drop it or give it a placeholder")
        unique = list(dict.fromkeys(texts))
        if not unique:
            return np.zeros((0, self.model.width), dtype=np.float32)
        was_training = self.model.training
        self.model.eval()
        sequences = self.sequences(unique, side, instruction)
        out = torch.empty(len(unique), self.model.width)
        readout = Readout.named(self.readout)
        for part in self.packs(sequences):
            batch = collate(sequences[i] for i in part).to(self.model.device)
            vectors = readout.vectors(self.model.states(batch), batch, list(range(len(part))), self.model.heads)
            out[part] = (normalized(vectors) if self.similarity == "cosine" else vectors).float().cpu()
        self.model.train(was_training)
        place = {text: i for i, text in enumerate(unique)}
        return out[[place[text] for text in texts]].numpy()

    def packs(self, sequences: list[Sequence]) -> Iterator[list[int]]:
        """Indices of sequences, longest first, in packs of at most `budget` tokens."""
        part: list[int] = []
        room = self.budget
        for i in sorted(range(len(sequences)), key=lambda i: -len(sequences[i])):
            if part and len(sequences[i]) > room:
                yield part
                part, room = [], self.budget
            part.append(i)
            room -= len(sequences[i])
        if part:
            yield part
