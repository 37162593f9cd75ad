"""Embedding store: vectors on disk by content, so that scoring a corpus again reads its vectors.

A store is a folder of spaces. A space holds the vectors of one way to embed (weights, dtype, read-out, similarity) in
immutable shards: first a file of vectors, then a file of keys. A shard without keys is ignored, so a killed process or
two concurrent writers never leave a broken shard.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unified_lm.files import strings_digest, write_atomically
from unified_lm.packing import Sequence

KEY_BYTES = 16  # bytes
SHARD_VECTORS = 4096  # most vectors that wait for a write
MAX_WAIT_SECONDS = 15.0  # longest wait of a vector while others arrive: a killed process loses no more


def vector_key(sequence: Sequence) -> bytes:
    """Key of a vector in its space: hash of token ids, attention mode and the spans that a read-out may pool."""
    told = (sequence.mode, sequence.prefix, sorted(sequence.spans.items()))
    tokens = np.asarray(sequence.tokens, dtype=np.int64).tobytes()
    return hashlib.blake2b(tokens + repr(told).encode(), digest_size=KEY_BYTES).digest()


def weights_digest(model: nn.Module) -> str:
    """Digest of the name, shape, dtype and bits of every parameter and buffer; tensors are hashed in parallel."""

    def line(item: tuple[str, Tensor]) -> str:
        name, tensor = item
        bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return f"{name} {tuple(tensor.shape)} {tensor.dtype} {hashlib.sha256(bits).hexdigest()}"

    with ThreadPoolExecutor(thread_name_prefix="digest") as pool:
        return strings_digest(*pool.map(line, [*model.named_parameters(), *model.named_buffers()]))


@dataclass(frozen=True, kw_only=True)
class EmbeddingStore:
    """A folder of spaces. It grows by 4 d bytes per text and model and may be deleted at any time.

    `trusting`: identify the weights by the encoder's `weights` instead of by a digest of all parameters.
    """

    folder: Path
    trust_weights: bool = False

    @classmethod
    def from_environment(cls) -> EmbeddingStore | None:
        """The store in the folder of the environment variable UNIFIED_LM_EMBEDDINGS (None: it is not set)."""
        folder = os.environ.get("UNIFIED_LM_EMBEDDINGS")
        return cls(folder=Path(folder).expanduser()) if folder else None

    def open_space(self, identity: dict[str, Any]) -> VectorSpace:
        """Open the space of an identity and write the identity to its space.json."""
        told = json.dumps(identity, sort_keys=True, default=str)
        folder = self.folder / strings_digest(told)
        if not (folder / "space.json").exists():
            with write_atomically(folder / "space.json") as partial:
                partial.write_text(told + "\n", encoding="utf-8")
        return VectorSpace(folder=folder)


@dataclass(frozen=True)
class VectorSpace:
    """The vectors of one identity; shards that are written later are not seen."""

    folder: Path

    @cached_property
    def shards(self) -> list[Shard]:
        return [Shard.open(path) for path in sorted(self.folder.glob("*.keys.npy"))]

    def look_up(self, keys: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the keys that are stored, and their vectors [m, d]."""
        wanted = np.frombuffer(b"".join(keys), dtype=np.uint64).reshape(-1, 2)
        numbers, vectors = [np.empty(0, dtype=np.int64)], []
        open_ = np.ones(len(keys), dtype=bool)
        for shard in self.shards:
            asked = np.flatnonzero(open_)
            hit, rows = shard.find_rows(wanted[asked])
            if len(rows):
                numbers.append(asked[hit])
                vectors.append(shard.vectors[rows])
                open_[asked[hit]] = False
        return np.concatenate(numbers), np.concatenate(vectors) if vectors else np.empty((0, 0), dtype=np.float32)

    @contextmanager
    def open_writer(self) -> Iterator[ShardWriter]:
        """Open a background writer; the end of the block waits for all writes, also after an error."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="store") as pool:
            writer = ShardWriter(self.folder, pool)
            try:
                yield writer
            finally:
                writer.flush()
                writer.wait_for_writes()


@dataclass(frozen=True)
class Shard:
    """Sorted keys [m, 2] uint64 and their vectors [m, d], memory-mapped."""

    keys: np.ndarray
    vectors: np.ndarray

    @classmethod
    def open(cls, path: Path) -> Shard:
        vectors = path.with_name(path.name.replace(".keys.npy", ".npy"))
        return cls(np.load(path, mmap_mode="r"), np.load(vectors, mmap_mode="r"))

    def find_rows(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the wanted keys that this shard has, and their rows."""
        at = np.minimum(np.searchsorted(self.keys[:, 0], wanted[:, 0]), len(self.keys) - 1)
        hit = np.flatnonzero((self.keys[at] == wanted).all(axis=1))
        return hit, at[hit]


class ShardWriter:
    """Collects finite vectors and writes a shard when enough of them wait, or one has waited long."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._folder = folder
        self._pool = pool
        self._keys: list[bytes] = []
        self._vectors: list[np.ndarray] = []
        self._writes: list[Future[None]] = []
        self._flushed = time.monotonic()

    def add(self, keys: list[bytes], vectors: np.ndarray) -> None:
        finite = np.isfinite(vectors).all(axis=1)
        self._keys += [key for key, good in zip(keys, finite, strict=True) if good]
        self._vectors.append(vectors[finite])
        if len(self._keys) >= SHARD_VECTORS or time.monotonic() - self._flushed >= MAX_WAIT_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self._keys:
            self._writes.append(self._pool.submit(write_shard, self._folder, self._keys, np.concatenate(self._vectors)))
            self._keys, self._vectors = [], []
        self._flushed = time.monotonic()

    def wait_for_writes(self) -> None:
        """Wait for all writes, and raise the error of a write, such as `OSError` for a full disk."""
        for done in self._writes:
            done.result()


def write_shard(folder: Path, keys: list[bytes], vectors: np.ndarray) -> None:
    numbers = np.frombuffer(b"".join(keys), dtype=np.uint64).reshape(-1, 2)
    order = np.argsort(numbers[:, 0], kind="stable")
    name = uuid.uuid4().hex
    for suffix, array in ((".npy", vectors[order]), (".keys.npy", numbers[order])):
        with write_atomically(folder / f"{name}{suffix}") as partial, partial.open("wb") as file:
            np.save(file, array)
