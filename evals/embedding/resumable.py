"""On-disk embedding cache of the task in progress: an interrupted evaluation resumes in the middle of a corpus.

The cache is deleted when its task is scored. An encoder with a store of its own keeps its vectors there instead.
"""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from evals.score import Subject, canonical_json
from unified_lm.inference.embedder import DelegatingEmbedder, Side
from unified_lm.inference.embedding_store import KEY_BYTES, EmbeddingStore
from unified_lm.inference.encode import Encoder

BLOCK = 256
"""Texts that are embedded and written to disk at a time."""


@contextlib.contextmanager
def cache_embeddings(subject: Subject, folder: Path) -> Iterator[Subject]:
    """The subject with an embedder that caches its vectors in `folder` until the block ends without an error."""
    embedder, store = subject.embedder, EmbeddingStore(folder=folder, trust_weights=True)
    if isinstance(embedder, Encoder):
        if embedder.store is None:
            subject = replace(subject, embedder=replace(embedder, store=store))
    elif embedder is not None and not isinstance(embedder, CachedEmbedder):
        subject = replace(subject, embedder=CachedEmbedder(embedder=embedder, store=store))
    yield subject
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class CachedEmbedder(DelegatingEmbedder):
    """An embedder with an on-disk cache: it reads each text once per side and instruction, the longest texts first."""

    store: EmbeddingStore

    def encode(self, texts: Sequence[str], *, side: Side, instruction: str = "") -> np.ndarray:
        """n texts -> float32 [n, d], in the order of the texts."""
        unique = list(dict.fromkeys(texts))
        names = [text_key(side, instruction, text) for text in unique]
        space = self.store.open_space(dict(self.identity))
        found, vectors = space.look_up(names)
        numbers, parts = found.tolist(), [vectors] if len(found) else []
        missing = sorted(set(range(len(unique))) - set(numbers), key=lambda i: (-len(unique[i]), i))
        with space.open_writer() as writer:
            for start in range(0, len(missing), BLOCK):
                block = missing[start : start + BLOCK]
                new = self.embedder.encode([unique[i] for i in block], side=side, instruction=instruction)
                writer.add([names[i] for i in block], new)
                numbers += block
                parts.append(new)
        rows = np.concatenate(parts)
        row_of = {unique[number]: row for row, number in enumerate(numbers)}
        return rows[[row_of[text] for text in texts]]


def text_key(side: str, instruction: str, text: str) -> bytes:
    """The key of a text in the store, among vectors of one embedder."""
    return blake2b(canonical_json({"what": [side, instruction, text]}).encode(), digest_size=KEY_BYTES).digest()
