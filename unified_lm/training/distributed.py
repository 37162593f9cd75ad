"""Collective operations of a global-batch objective. One process is a world of size one, not a special case.

Gradients are *summed* over ranks, since every rank's backward holds the exact share of its own chunks. There is no
DistributedDataParallel: its reducer, with kept graphs or a last chunk that skips a parameter, returns wrong gradients
without an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unified_lm.methods.base import Vectors, merge_vectors
from unified_lm.packing import FILLER_ROLE, PackedBatch, Sequence, collate, halve_chunk


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process and the number of processes. `lockstep`: all ranks must call the model equally often (FSDP2)."""

    rank: int = 0
    size: int = 1
    lockstep: bool = False

    @classmethod
    def current(cls, *, lockstep: bool = False) -> Ranks:
        if not dist.is_initialized():
            return cls(lockstep=lockstep)
        return cls(rank=dist.get_rank(), size=dist.get_world_size(), lockstep=lockstep)

    def distribute_chunks(self, chunks: list[PackedBatch], *, first: bool = True) -> list[PackedBatch]:
        """This rank's chunks of the global batch. In lockstep, filler chunks make the count equal on all ranks.

        Where there are fewer chunks than ranks, the largest are halved until each rank has one: the objective is the
        same. Raises `ValueError` where the `first` batch of a run has fewer sequences than ranks; a later, smaller one
        leaves a rank without objective for that step.
        """
        chunks = list(chunks)
        while len(chunks) < self.size and any(len(chunk.sequences) > 1 for chunk in chunks):
            n = max((i for i, c in enumerate(chunks) if len(c.sequences) > 1), key=lambda i: len(chunks[i]))
            chunks[n : n + 1] = halve_chunk(chunks[n])
        if first and len(chunks) < self.size:
            raise ValueError(
                f"{self.size} ranks but only {len(chunks)} sequences in the global batch; use launch with at most "
                f"{len(chunks)} processes, or more rows a step"
            )
        mine = chunks[self.rank :: self.size]
        if not mine or (self.lockstep and len(mine) < -(-len(chunks) // self.size)):
            mine.append(collate([Sequence(tokens=(0,), role=FILLER_ROLE)], index=f"{FILLER_ROLE}-{self.rank}"))
        return mine

    def sum_counts(self, counts: Mapping[str, int | float]) -> dict[str, int | float]:
        """Add counts (or sums) over ranks by name; every rank gets all names."""
        if self.size == 1:
            return dict(counts)
        everyone: list[Mapping[str, int | float]] = [{}] * self.size
        dist.all_gather_object(everyone, dict(counts))
        return {name: sum(c.get(name, 0) for c in everyone) for name in sorted({n for c in everyone for n in c})}

    def any_rank(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is true on any rank; for decisions that all ranks must share."""
        if self.size == 1:
            return list(flags)
        tensor = torch.tensor([int(flag) for flag in flags], device=collective_device())
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [bool(flag) for flag in tensor.tolist()]

    def minimum(self, value: int) -> int:
        """The smallest of the ranks' values, on every rank."""
        if self.size == 1:
            return value
        tensor = torch.tensor([value], device=collective_device())
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
        return int(tensor)

    def gather_vectors(self, parts: Iterable[dict[str, Vectors]]) -> dict[str, Vectors]:
        """Detached vectors of all chunks of all ranks, by name, in the order of row ids."""
        mine: dict[str, list[Vectors]] = {}
        for part in parts:
            for name, vectors in part.items():
                mine.setdefault(name, []).append(vectors)
        local = {name: merge_vectors(found) for name, found in mine.items()}
        local = {name: Vectors(rows=v.rows, hashes=v.hashes, values=v.values.detach()) for name, v in local.items()}
        return local if self.size == 1 else self.all_gather_vectors(local)

    def all_gather_vectors(self, local: dict[str, Vectors]) -> dict[str, Vectors]:
        """All-gather the ranks' vectors: shapes first, then one padded all-gather a name."""
        shapes: list[dict[str, tuple]] = [{}] * self.size
        dist.all_gather_object(shapes, {n: (*v.values.shape, v.values.dtype) for n, v in local.items()})
        device = collective_device()
        out = {}
        for name in sorted({name for shape in shapes for name in shape}):
            counts = [shape.get(name, (0,))[0] for shape in shapes]
            _, width, dtype = next(shape[name] for shape in shapes if name in shape)
            values = torch.zeros(max(counts), width, dtype=dtype, device=device)
            keys = torch.zeros(max(counts), 2, dtype=torch.long, device=device)
            if name in local:
                values[: counts[self.rank]] = local[name].values
                keys[: counts[self.rank]] = torch.stack([local[name].rows, local[name].hashes], dim=1)
            all_values = [torch.empty_like(values) for _ in counts]
            all_keys = [torch.empty_like(keys) for _ in counts]
            dist.all_gather(all_values, values)
            dist.all_gather(all_keys, keys)
            out[name] = merge_vectors(
                Vectors(rows=k[:n, 0], hashes=k[:n, 1], values=v[:n])
                for k, v, n in zip(all_keys, all_values, counts, strict=True)
                if n
            )
        return out

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's `value` on every rank."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def broadcast_module(self, module: nn.Module) -> None:
        """Copy rank 0's parameters and buffers to every rank."""
        if self.size > 1:
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor.detach(), src=0)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum gradients over ranks, with one all-reduce a dtype; a parameter without gradient counts as zero."""
        if self.size == 1 or self.lockstep:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            by_dtype.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        for grads in by_dtype.values():
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            dist.all_reduce(flat)
            parts = flat.split([grad.numel() for grad in grads])
            torch._foreach_copy_(grads, [part.view_as(grad) for part, grad in zip(parts, grads, strict=True)])


def is_filler(chunk: PackedBatch) -> bool:
    """Whether a chunk only makes the ranks' counts equal: it runs through the model and has no objective."""
    return chunk.sequences[0].role == FILLER_ROLE


def collective_device() -> torch.device:
    """The device on which the backend of the process group works."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


@contextmanager
def process_group() -> Iterator[None]:
    """The process group that torchrun's environment describes (nccl on CUDA, else gloo); nothing in a lone process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()
