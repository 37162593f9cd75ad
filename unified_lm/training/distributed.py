"""Ranks: the few collectives that a global-batch objective needs. One process is a world of one, not a special case.

Gradients are *summed* over ranks, since every rank's backward holds the exact share of its own chunks. There is no
DistributedDataParallel: its reducer, with kept graphs or a last chunk that skips a parameter, returns wrong gradients
without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unified_lm.methods.base import Vectors, gathered
from unified_lm.packing import PackedBatch


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among the processes of a run."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> Ranks:
        if not dist.is_initialized():
            return cls()
        return cls(rank=dist.get_rank(), size=dist.get_world_size())

    def deal(self, chunks: list[PackedBatch]) -> list[PackedBatch]:
        """This rank's whole chunks of the global batch.

        Raises `ValueError` where a rank would get none.
        """
        if len(chunks) < self.size:
            raise ValueError(
                f"{self.size} ranks but only {len(chunks)} chunks in the global batch; use launch with at most "
                f"{len(chunks)} processes, a smaller runtime.chunk_tokens, or more rows a step"
            )
        return chunks[self.rank :: self.size]

    def total(self, counts: Mapping[str, int | float]) -> dict[str, int | float]:
        """Counts (or sums) added over ranks; every rank sees the same names, whatever it counted."""
        if self.size == 1:
            return dict(counts)
        everyone: list[Mapping[str, int | float]] = [{}] * self.size
        dist.all_gather_object(everyone, counts)
        return {name: sum(c.get(name, 0) for c in everyone) for name in sorted({n for c in everyone for n in c})}

    def gather(self, parts: Iterable[dict[str, Vectors]]) -> dict[str, Vectors]:
        """Detached vectors of all chunks of all ranks by name, ordered by row id."""
        mine: dict[str, list[Vectors]] = {}
        for part in parts:
            for name, vectors in part.items():
                mine.setdefault(name, []).append(vectors)
        local = {name: gathered(found) for name, found in mine.items()}
        local = {
            name: Vectors(rows=v.rows, hashes=v.hashes, values=v.values.detach()) for name, v in local.items()
        }
        return local if self.size == 1 else self.exchange(local)

    def exchange(self, local: dict[str, Vectors]) -> dict[str, Vectors]:
        """Every rank's vectors on every rank: shapes first, then one padded all-gather a name."""
        shapes: list[dict[str, tuple]] = [{}] * self.size
        dist.all_gather_object(shapes, {n: (*v.values.shape, v.values.dtype) for n, v in local.items()})
        device = next((v.values.device for v in local.values()), torch.device("cpu"))
        out = {}
        for name in sorted({name for shape in shapes for name in shape}):
            counts = [shape.get(name, (0,))[0] for shape in shapes]
            _, width, dtype = next(shape[name] for shape in shapes if name in shape)
            own = local.get(name)
            values = torch.zeros(max(counts), width, dtype=dtype, device=device)
            keys = torch.zeros(max(counts), 2, dtype=torch.long, device=device)
            if own is not None:
                values[: counts[self.rank]] = own.values
                keys[: counts[self.rank]] = torch.stack([own.rows, own.hashes], dim=1)
            all_values = [torch.empty_like(values) for _ in counts]
            all_keys = [torch.empty_like(keys) for _ in counts]
            dist.all_gather(all_values, values)
            dist.all_gather(all_keys, keys)
            found = [
                Vectors(rows=k[:n, 0], hashes=k[:n, 1], values=v[:n])
                for k, v, n in zip(all_keys, all_values, counts, strict=True)
                if n
            ]
            out[name] = gathered(found)
        return out

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """One coalesced all-reduce a dtype; a parameter that took no part on this rank counts as zero."""
        if self.size == 1:
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
