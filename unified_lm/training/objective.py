"""The objective on the global batch: exact gradients for any cut into chunks and any number of ranks.

The graph is always cut at the vectors. Chunks are read (graphs kept while they fit), the detached vectors of all ranks
are gathered, the batch-level terms are computed alike on every rank, and each rank feeds the gradient of its own
vectors back, chunk by chunk, together with its token sums over the *global* label count. Whether a chunk's graph was
kept or its forward is run again decides memory and time, never the gradient: a chunk's randomness is keyed by
(seed, step, chunk), so both forwards draw the same dropout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor, nn

from unified_lm.methods.base import ChunkOutput, Method, Vectors
from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch, halve_chunk
from unified_lm.training.distributed import Ranks, is_filler
from unified_lm.training.sparse_embedding_gradient import densify_gradient, sparse_embedding_gradient

VectorGradients = dict[str, tuple[Tensor, Tensor]]  # name -> (row ids in order, the gradient of each row's vector)


class TrainingModule(nn.Module):
    """The one module that training calls: all that has parameters runs inside its forward, which is what FSDP shards.

    `anchored`: the output of every forward has an `anchor`, so that a chunk without objective (or without labels, or
    without slots) gives each parameter a gradient too. Under FSDP all ranks must run the layers equally often, so every
    chunk runs the decoder once, or twice for a method with `second_forward`. A forward that does not raises
    `RuntimeError` before it could leave the other ranks waiting.
    """

    def __init__(self, model: UnifiedLM, method: Method, *, anchored: bool = False) -> None:
        super().__init__()
        self.model = model
        self.method = method
        self.anchored = anchored

    @property
    def embedding(self) -> nn.Module:
        return self.model.backbone.get_input_embeddings()

    def forward(self, batch: PackedBatch, tokens: bool = True) -> ChunkOutput:
        filler = is_filler(batch)
        with self.checked_decoder_runs(), sparse_embedding_gradient(self.embedding, on=not self.anchored):
            states = self.model.hidden_states(batch)
            output = ChunkOutput() if filler else self.method.read(states, batch, self.model, tokens=tokens)
            if filler and self.method.second_forward:
                states = states + self.model.hidden_states(batch)
        if not self.anchored:
            return output
        inside = {id(p) for p in self.model.backbone.base_model.parameters()}
        outside = [p for p in self.model.parameters() if p.requires_grad and id(p) not in inside]
        anchor = sum((p.sum() for p in outside), start=states.sum()) * 0
        return ChunkOutput(vectors=output.vectors, token_sums=output.token_sums, anchor=anchor)

    @contextmanager
    def checked_decoder_runs(self) -> Iterator[None]:
        """Raises `RuntimeError` where a chunk runs the decoder more or less often than the method declares."""
        expected, runs = 2 if self.method.second_forward else 1, 0

        def refuse() -> NoReturn:
            raise RuntimeError(
                f"{type(self.method).__name__} ran the decoder {runs} times in a chunk, but its second_forward is "
                f"{self.method.second_forward}, so {expected} are due in every chunk: mend `read` or `second_forward`"
            )

        def count(*_: object) -> None:
            nonlocal runs
            runs += 1
            if runs > expected:
                refuse()

        with self.model.backbone.base_model.register_forward_pre_hook(count):
            yield
        if runs < expected:
            refuse()


@dataclass(frozen=True, kw_only=True)
class ChunkRandomness:
    """Seeds the forward of a chunk: dropout depends on the seed, the step and the chunk's name alone."""

    seed: int
    step: int

    def seed_chunk(self, chunk: str) -> None:
        """Seed torch's generators for one chunk."""
        text = f"{self.seed}/{self.step}/{chunk}".encode()
        torch.manual_seed(int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little"))


class RedoStep(RuntimeError):
    """A rank ran out of memory after its first backward: chunks were halved, and every rank redoes the step."""


@dataclass
class ChunkBudget:
    """Most tokens that a chunk may hold. It shrinks where a device runs out of memory, and never grows again."""

    tokens: int

    def cut(self, chunks: list[PackedBatch], start: int = 0) -> None:
        """Halve, in place, every chunk from `start` on that holds too much and more than one sequence."""
        while any(self.can_cut(chunk) for chunk in chunks[start:]):
            parts = [halve_chunk(chunk) if self.can_cut(chunk) else [chunk] for chunk in chunks[start:]]
            chunks[start:] = [part for pair in parts for part in pair]

    def can_cut(self, chunk: PackedBatch) -> bool:
        return len(chunk) > self.tokens and len(chunk.sequences) > 1

    def shrink(self, failed: PackedBatch) -> None:
        """Halve the budget below a chunk that did not fit.

        Raises `ValueError` where that chunk is one sequence: no budget can help.
        """
        halve_chunk(failed)
        self.tokens = min(self.tokens, max(1, len(failed) // 2))


class ChunkTooLarge(RuntimeError):
    """A device ran out of memory in a chunk that cannot be halved, because other ranks run in lockstep."""

    def __init__(self, tokens: int) -> None:
        super().__init__(
            f"out of memory in a chunk of {tokens} tokens under FSDP; the last checkpoint stands: continue with "
            f"runtime.chunk_tokens={max(1, tokens // 2)}"
        )


def accumulate_gradients(
    module: nn.Module,
    chunks: list[PackedBatch],
    *,
    ranks: Ranks,
    randomness: ChunkRandomness,
    budget: ChunkBudget | None = None,
    keep_chunks: int = 1,
    batch_scale: float = 1.0,
    on_backward: Callable[[nn.Module, bool], None] = lambda reader, last: None,
) -> dict[str, float]:
    """Add this rank's share of the global objective's gradient to the parameters; returns the terms' values.

    `keep_chunks`: number of graphs kept from the first pass (one needs no more memory than a second forward).
    `batch_scale` multiplies the batch-level terms (1 is exact). `on_backward(module, last)` is called before each
    backward. Where a chunk does not fit the device, `budget` (None: one for this step alone) shrinks on every rank, and
    all chunks above it are halved in place in `chunks`: at once in the first pass, and later by raising `RedoStep` on
    every rank, because gradients were already added. In lockstep they cannot be halved: `ChunkTooLarge`.
    """
    method: Method = module.method
    weights = method.weights_at(randomness.step)
    counts: dict[str, int | float] = {}
    for chunk in chunks:
        for name, count in ({} if is_filler(chunk) else method.counts(chunk)).items():
            counts[name] = counts.get(name, 0) + count
    totals = ranks.sum_counts(counts)

    budget = budget or ChunkBudget(max(map(len, chunks), default=1))
    before = budget.tokens
    held, kept = first_pass(module, chunks, ranks, randomness, keep_chunks, budget)
    whole = ranks.gather_vectors(reading.vectors for reading in held.values())
    feed, values = vector_gradients(method, weights, whole, batch_scale)

    sums: dict[str, float] = {}
    redo = False
    for n, chunk in enumerate(chunks):
        reading = held.pop(n, None)
        try:
            if n not in kept:
                randomness.seed_chunk(chunk.index)
                reading = module(chunk, tokens=True)
            on_backward(module, n == len(chunks) - 1)
            backward_chunk(reading, feed, weights, totals)
            densify_gradient(module.embedding)
        except torch.OutOfMemoryError as error:
            if ranks.lockstep:
                raise ChunkTooLarge(len(chunk)) from error
            budget.shrink(chunk)
            redo = True
            break
        for name, value in reading.token_sums.items():
            sums[name] = sums.get(name, 0.0) + float(value.detach()) / totals[name]
    redo, shrunk = ranks.any_rank(redo, budget.tokens < before)
    if shrunk:
        budget.tokens = ranks.minimum(budget.tokens)
    if redo:
        budget.cut(chunks)
        raise RedoStep
    return {name: float(value) for name, value in values.items()} | ranks.sum_counts(sums)


def first_pass(
    module: nn.Module,
    chunks: list[PackedBatch],
    ranks: Ranks,
    randomness: ChunkRandomness,
    keep_chunks: int,
    budget: ChunkBudget,
) -> tuple[dict[int, ChunkOutput], set[int]]:
    """Outputs of the chunks that have vectors, by index, and the indices of those that keep graph and token sums."""
    roles = module.method.roles
    held: dict[int, ChunkOutput] = {}
    kept: set[int] = set()
    n = 0
    while n < len(chunks):
        if roles and (ranks.lockstep or any(s.role.startswith(roles) for s in chunks[n].sequences)):
            keep = len(kept) < keep_chunks
            randomness.seed_chunk(chunks[n].index)
            try:
                with torch.set_grad_enabled(keep):
                    held[n] = module(chunks[n], tokens=keep)
                kept |= {n} if keep else set()
            except torch.OutOfMemoryError as error:
                if ranks.lockstep:
                    raise ChunkTooLarge(len(chunks[n])) from error
                budget.shrink(chunks[n])
                budget.cut(chunks, start=n)
                continue
        n += 1
    return held, kept


def vector_gradients(
    method: Method, weights: Mapping[str, float], whole: dict[str, Vectors], batch_scale: float
) -> tuple[VectorGradients, dict[str, Tensor]]:
    """Gradient of the weighted batch-level terms in every gathered vector, and the terms' values."""
    leaves = {
        name: Vectors(rows=v.rows, hashes=v.hashes, values=v.values.requires_grad_()) for name, v in whole.items()
    }
    terms = method.objective(leaves) if leaves else {}
    if not terms:
        return {}, {}
    loss = sum(weights[name] * batch_scale * term for name, term in terms.items())
    names = list(leaves)
    grads = torch.autograd.grad(loss, [leaves[name].values for name in names], allow_unused=True)
    feed = {name: (leaves[name].rows, grad) for name, grad in zip(names, grads, strict=True) if grad is not None}
    return feed, {name: term.detach() for name, term in terms.items()}


def backward_chunk(
    reading: ChunkOutput, feed: VectorGradients, weights: Mapping[str, float], counts: Mapping[str, int | float]
) -> None:
    """Backward of one chunk, from its vectors' gradients and its token sums divided by the global counts."""
    roots, seeds = [], []
    for name, vectors in reading.vectors.items():
        if name in feed and vectors.values.requires_grad:
            rows, grads = feed[name]
            roots.append(vectors.values)
            seeds.append(grads[torch.searchsorted(rows, vectors.rows)])
    for name, value in reading.token_sums.items():
        if value.requires_grad:
            roots.append(value)
            seeds.append(torch.full_like(value, weights[name] / counts[name]))
    if reading.anchor is not None:
        roots.append(reading.anchor)
        seeds.append(torch.ones_like(reading.anchor))
    if roots:
        torch.autograd.backward(roots, seeds)
