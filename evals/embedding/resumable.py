"""Vectors of tasks that are not scored yet, on disk: a killed scoring goes on within a corpus.

They are deleted when nothing needs them any more. An embedder with a store of its own keeps its vectors there instead.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np

from evals.score import Embedder, Side, Subject, canonical_json
from unified_lm.inference.embedding_store import KEY, Store

BLOCK = 256
"""Texts that an embedder without a store is given at a time."""


@contextlib.contextmanager
def cache_embeddings(subject: Subject, folder: Path) -> Iterator[Subject]:
    """The subject, the vectors of its embedder kept in `folder` until the block ends without an error."""
    embedder, store = subject.embedder, Store(folder=folder, trusting=True)
    if embedder is not None and not has_store(embedder):
        kind = KeptPrompted if hasattr(embedder, "describe_prompt") else CachedEmbedder
        subject = replace(subject, embedder=kind(embedder=embedder, store=store))
    elif embedder is not None and embedder.store is None:
        subject = replace(subject, embedder=replace(embedder, store=store))
    yield subject
    shutil.rmtree(folder, ignore_errors=True)


def has_store(embedder: Embedder) -> bool:
    return is_dataclass(embedder) and "store" in {field.name for field in fields(embedder)}


@dataclass(frozen=True, kw_only=True)
class CachedEmbedder:
    """An embedder that is given each text once per side and instruction, in blocks of the longest first."""

    embedder: Embedder
    store: Store

    @property
    def identity(self) -> Mapping[str, Any]:
        return self.embedder.identity

    @property
    def similarity(self) -> Literal["cosine", "dot"]:
        return self.embedder.similarity

    @property
    def readout(self) -> str:
        return self.embedder.readout

    @property
    def attention(self) -> str:
        return self.embedder.attention

    def encode(self, texts: Sequence[str], *, side: Side, instruction: str = "") -> np.ndarray:
        """n texts -> float32 [n, d], in the order of the texts."""
        unique = list(dict.fromkeys(texts))
        names = [text_key(side, instruction, text) for text in unique]
        space = self.store.space(dict(self.identity))
        found, vectors = space.get(names)
        numbers, parts = found.tolist(), [vectors] if len(found) else []
        missing = sorted(set(range(len(unique))) - set(numbers), key=lambda i: (-len(unique[i]), i))
        with space.writer() as writer:
            for start in range(0, len(missing), BLOCK):
                block = missing[start : start + BLOCK]
                new = self.embedder.encode([unique[i] for i in block], side=side, instruction=instruction)
                writer.put([names[i] for i in block], new)
                numbers += block
                parts.append(new)
        rows = np.concatenate(parts)
        place = {unique[number]: row for row, number in enumerate(numbers)}
        return rows[[place[text] for text in texts]]


@dataclass(frozen=True, kw_only=True)
class KeptPrompted(CachedEmbedder):
    """The same of an embedder with prompts of its own, which says what stood before a text."""

    def describe_prompt(self, side: Side, instruction: str) -> str:
        return self.embedder.describe_prompt(side, instruction)


def text_key(side: str, instruction: str, text: str) -> bytes:
    return blake2b(canonical_json({"what": [side, instruction, text]}).encode(), digest_size=KEY).digest()
