"""What an embedder is, and the base of embedders that stand around another one. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

Side = Literal["query", "document"]
Similarity = Literal["cosine", "dot"]


@runtime_checkable
class Embedder(Protocol):
    """Texts to vectors. `identity` is JSON-safe and holds everything that decides a vector, similarity included."""

    @property
    def identity(self) -> Mapping[str, Any]: ...
    @property
    def similarity(self) -> Similarity: ...
    @property
    def readout(self) -> str: ...
    @property
    def attention(self) -> str: ...

    def encode(self, texts: Sequence[str], *, side: Side, instruction: str = "") -> np.ndarray:
        """n texts -> float32 [n, d], in the order of the texts."""
        ...


@runtime_checkable
class DescribesPrompt(Protocol):
    """An embedder that puts a prompt of its own before a text."""

    def describe_prompt(self, side: Side, instruction: str) -> str:
        """What stands before a text of this side, for the record of a score."""
        ...


@runtime_checkable
class ChangesSimilarity(Protocol):
    """An embedder that can give its vectors as another similarity needs them."""

    def with_similarity(self, similarity: Similarity) -> Embedder: ...


def describe_prompt(embedder: Embedder, side: Side, instruction: str) -> str:
    """What stands before a text: the instruction, or what an embedder with prompts of its own says."""
    return embedder.describe_prompt(side, instruction) if isinstance(embedder, DescribesPrompt) else instruction


def with_similarity(embedder: Embedder, similarity: Similarity) -> Embedder:
    """The embedder under another similarity; one that normalizes its vectors for cosine does not do so for dot."""
    if embedder.similarity == similarity:
        return embedder
    if isinstance(embedder, ChangesSimilarity):
        return embedder.with_similarity(similarity)
    return ComparedBy(embedder=embedder, other=similarity)


@dataclass(frozen=True, kw_only=True)
class DelegatingEmbedder:
    """An embedder around another one. Whatever a subclass does not override is that of `embedder`."""

    embedder: Any

    @property
    def identity(self) -> Mapping[str, Any]:
        return self.embedder.identity

    @property
    def similarity(self) -> Similarity:
        return self.embedder.similarity

    @property
    def readout(self) -> str:
        return self.embedder.readout

    @property
    def attention(self) -> str:
        return self.embedder.attention

    def encode(self, texts: Sequence[str], *, side: Side, instruction: str = "") -> np.ndarray:
        """n texts -> float32 [n, d], in the order of the texts."""
        return self.embedder.encode(texts, side=side, instruction=instruction)

    def describe_prompt(self, side: Side, instruction: str) -> str:
        return describe_prompt(self.embedder, side, instruction)

    def with_similarity(self, similarity: Similarity) -> Embedder:
        return replace(self, embedder=with_similarity(self.embedder, similarity))


@dataclass(frozen=True, kw_only=True)
class ComparedBy(DelegatingEmbedder):
    """An embedder whose vectors, unchanged, are compared by the `other` similarity."""

    other: Similarity

    @property
    def identity(self) -> Mapping[str, Any]:
        return {**self.embedder.identity, "similarity": self.other}

    @property
    def similarity(self) -> Similarity:
        return self.other

    def with_similarity(self, similarity: Similarity) -> Embedder:
        return with_similarity(self.embedder, similarity)
