"""The objective on the global batch: exact gradients for any cut into chunks and any number of ranks.

The graph is always cut at the vectors. Chunks are read (graphs kept while they fit), the detached vectors of all ranks
are gathered, the batch-level terms are computed alike on every rank, and each rank feeds the gradient of its own
vectors back, chunk by chunk, together with its token sums over the *global* label count. Whether a chunk's graph was
kept or its forward is run again decides memory and time, never the gradient: a chunk's randomness is keyed by
(seed, step, chunk), so both forwards draw the same dropout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unified_lm.methods.base import Method, Reading, Vectors
from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch
from unified_lm.training.distributed import Ranks


class Reader(nn.Module):
    """The one module that is called: everything with parameters runs inside its forward, which is what FSDP shards."""

    def __init__(self, model: UnifiedLM, method: Method) -> None:
        super().__init__()
        self.model = model
        self.method = method

    def forward(self, batch: PackedBatch, tokens: bool = True) -> Reading:
        return self.method.read(self.model.states(batch), batch, self.model, tokens=tokens)


@dataclass(frozen=True, kw_only=True)
class Randomness:
    """What a chunk's forward draws from: dropout depends on nothing but the seed, the step and the chunk's number."""

    seed: int
    step: int

    def key(self, chunk: int) -> None:
        """Seed torch's generators for one chunk."""
        text = f"{self.seed}/{self.step}/{chunk}".encode()
        torch.manual_seed(int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little"))


def accumulate(
    reader: Reader,
    chunks: Sequence[PackedBatch],
    *,
    ranks: Ranks,
    randomness: Randomness,
    keep_tokens: int,
    batch_scale: float = 1.0,
    on_chunk: Callable[[bool], None] = lambda last: None,
) -> dict[str, float]:
    """Add the gradient of the global objective over this rank's chunks to the parameters; returns the terms' values.

    Graphs are kept while the chunks read so far hold at most `keep_tokens` tokens (the first chunk's always is: it
    costs no memory that a second forward would not). `batch_scale` multiplies the batch-level terms (1 is exact).
    `on_chunk(last)` is called before each backward, for gradient synchronisation under FSDP2.
    """
    method, weights = reader.method, reader.method.weights
    counts: dict[str, int] = {}
    for chunk in chunks:
        for name, count in method.counts(chunk).items():
            counts[name] = counts.get(name, 0) + count
    counts = ranks.total(counts)

    held = first_pass(reader, chunks, randomness, keep_tokens)
    whole = ranks.gather(reading.vectors for reading in held.values())
    feed, values = vector_gradients(method, whole, batch_scale)

    totals: dict[str, Tensor] = {}
    order = sorted(range(len(chunks)), key=lambda n: not (n in held and kept(held[n])))  # free kept graphs first
    for at, n in enumerate(order):
        reading = held.pop(n, None)
        if reading is None or not kept(reading):
            randomness.key(chunks[n].index)
            reading = reader(chunks[n], tokens=True)
        on_chunk(at == len(order) - 1)
        backward(reading, feed, weights, counts)
        for name, value in reading.sums.items():
            totals[name] = totals.get(name, torch.zeros(())) + value.detach().double().cpu() / counts[name]
    sums = ranks.total({name: float(value) for name, value in totals.items()})
    return {name: float(value) for name, value in values.items()} | sums


def first_pass(
    reader: Reader, chunks: Sequence[PackedBatch], randomness: Randomness, keep_tokens: int
) -> dict[int, Reading]:
    """Vectors of every chunk that has any; with a graph (and token sums) for the chunks that are kept."""
    held: dict[int, Reading] = {}
    read = 0
    for n, chunk in enumerate(chunks):
        if not any(sequence.role.startswith(reader.method.roles) for sequence in chunk.sequences):
            continue
        keep = not held or read + len(chunk) <= keep_tokens
        read += len(chunk) if keep else 0
        randomness.key(chunk.index)
        with torch.set_grad_enabled(keep):
            held[n] = reader(chunk, tokens=keep)
    return held


def kept(reading: Reading) -> bool:
    tensors = [vectors.values for vectors in reading.vectors.values()] + list(reading.sums.values())
    return any(tensor.requires_grad for tensor in tensors)


def vector_gradients(
    method: Method, whole: dict[str, Vectors], batch_scale: float
) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
    """Gradient of the weighted batch-level terms for every gathered vector, as name -> (row ids, gradients)."""
    leaves = {
        name: Vectors(rows=v.rows, hashes=v.hashes, values=v.values.requires_grad_()) for name, v in whole.items()
    }
    terms = method.objective(leaves) if leaves else {}
    if not terms:
        return {}, {}
    loss = sum(method.weights[name] * batch_scale * term for name, term in terms.items())
    names = list(leaves)
    grads = torch.autograd.grad(loss, [leaves[name].values for name in names], allow_unused=True)
    feed = {name: (leaves[name].rows, grad) for name, grad in zip(names, grads, strict=True) if grad is not None}
    return feed, {name: term.detach() for name, term in terms.items()}


def backward(
    reading: Reading,
    feed: dict[str, tuple[Tensor, Tensor]],
    weights: dict[str, float],
    counts: Mapping[str, int | float],
) -> None:
    """Backward of one chunk from its vectors' gradients and its token sums over the global counts."""
    roots, seeds = [], []
    for name, vectors in reading.vectors.items():
        if name in feed and vectors.values.requires_grad:
            rows, grads = feed[name]
            roots.append(vectors.values)
            seeds.append(grads[torch.searchsorted(rows, vectors.rows)])
    for name, value in reading.sums.items():
        if value.requires_grad:
            roots.append(value)
            seeds.append(torch.full_like(value, weights[name] / counts[name]))
    if roots:
        torch.autograd.backward(roots, seeds)
