"""Adapters: mteb calls our embedders and search models through its own protocols."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.similarity_functions import cos_sim, dot_score, pairwise_cos_sim, pairwise_dot_score
from mteb.types import PromptType

from evals.instructions import QUERY_INSTRUCTION, Instructions
from evals.score import Searcher
from unified_lm.inference.embedder import Embedder, Side

EMPTY_TEXT = "."
"""Stands in for an empty text, which published corpora hold: a model needs at least one token."""

SCORING_FUNCTIONS = {"cosine": ScoringFunction.COSINE, "dot": ScoringFunction.DOT_PRODUCT}


def model_meta(name: str, digest: str, similarity: ScoringFunction | None) -> ModelMeta:
    """A model whose revision is the digest of everything that decides its scores."""
    return ModelMeta.create_empty(
        overwrites={
            "name": f"unified_lm/{name.replace('/', '-')}",
            "revision": digest,
            "experiment_kwargs": None,
            "similarity_fn_name": similarity,
        }
    )


@dataclass(frozen=True, kw_only=True)
class MtebEncoder:
    """mteb's EncoderProtocol over an embedder, with the side and the instruction that our table gives."""

    embedder: Embedder
    instructions: Instructions
    mteb_model_meta: ModelMeta

    def encode(
        self,
        inputs: Iterable[dict[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **ignored: Any,
    ) -> np.ndarray:
        """Every text of `inputs` -> float32 [n, d], in order. Raises ValueError where a vector is not finite."""
        side: Side = "document" if prompt_type == PromptType.document else "query"
        instruction = self.instructions.instruction_for(task_metadata.name, side)
        texts, instructions = _texts_and_instructions(inputs, instruction)
        vectors = np.concatenate(
            [
                np.asarray(
                    self.embedder.encode([texts[i] for i in group], side=side, instruction=instructions[group[0]])
                )
                for group in _group_by_instruction(instructions)
            ]
        ).astype(np.float32, copy=False)
        if not np.isfinite(vectors).all():
            first = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise ValueError(f"{task_metadata.name}: the vector of {side} {first} is not finite: {texts[first][:80]!r}")
        return vectors

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """[n, d] and [m, d] -> [n, m]."""
        score = cos_sim if self.embedder.similarity == "cosine" else dot_score
        return score(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n, d] and [n, d] -> [n]."""
        score = pairwise_cos_sim if self.embedder.similarity == "cosine" else pairwise_dot_score
        return score(embeddings1, embeddings2)


@dataclass(frozen=True, kw_only=True)
class MtebSearch:
    """mteb's SearchProtocol over a search model of ours."""

    searcher: Searcher
    mteb_model_meta: ModelMeta

    def index(self, corpus: Any, **where: Any) -> None:
        self.searcher.index(corpus, **where)

    def search(self, queries: Any, **where: Any) -> dict[str, dict[str, float]]:
        return self.searcher.search(queries, **where)


def _texts_and_instructions(batches: Iterable[dict[str, Any]], instruction: str) -> tuple[list[str], list[str]]:
    """Texts and their instructions. mteb appends a query's own instruction to its text; where the table has a place
    for it, the bare query is read and the instruction goes there."""
    texts: list[str] = []
    instructions: list[str] = []
    for batch in batches:
        if QUERY_INSTRUCTION in instruction:
            if "instruction" not in batch:
                raise ValueError(f"the instruction {instruction!r} has a place for the query's own, but there is none")
            texts.extend(text if text.strip() else EMPTY_TEXT for text in batch["query"])
            instructions.extend(instruction.replace(QUERY_INSTRUCTION, own) for own in batch["instruction"])
        else:
            texts.extend(text if text.strip() else EMPTY_TEXT for text in batch["text"])
            instructions.extend(instruction for _ in batch["text"])
    return texts, instructions


def _group_by_instruction(instructions: list[str]) -> list[list[int]]:
    """Indices of neighbours that share an instruction, in order."""
    return [list(group) for _, group in itertools.groupby(range(len(instructions)), key=instructions.__getitem__)]
