"""Cross-entropy over a product of two matrices, tile by tile: the matrix of scores is never in memory as a whole.

The forward computes the loss and both gradients in one pass over the tiles. It keeps the gradients, which are as large
as the inputs, and one tile of scores. Values and gradients equal those of the plain form.

Letters: b rows (queries, hidden states), n columns (candidates, vocabulary), d width, c kinds of text.
Source: Cai et al. 2024 (Inf-CL), Wijmans et al. 2024 (cut cross-entropy): the same idea with other tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE = 2**20
"""Number of scores in a tile, but at least `NARROWEST` rows."""

NARROWEST = 64


@dataclass(frozen=True, kw_only=True)
class DuplicateMask:
    """Mask [b, n] of pairs (row, column) with an equal hash of at least one kind; only tiles of it are computed.

    `rows`: [c, b], `columns`: [c, n]. `a | b` masks the pairs that either masks.
    """

    rows: Int[Tensor, "c b"]
    columns: Int[Tensor, "c n"]

    def mask_rows(self, start: int = 0, stop: int | None = None) -> Bool[Tensor, "rows n"]:
        """Return the mask of rows [start, stop)."""
        pairs = zip(self.rows[:, start:stop], self.columns, strict=True)
        first, *more = [row[:, None] == column[None] for row, column in pairs]
        for other in more:
            first |= other
        return first

    def __or__(self, other: DuplicateMask) -> DuplicateMask:
        return DuplicateMask(rows=torch.cat([self.rows, other.rows]), columns=torch.cat([self.columns, other.columns]))


class TiledCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy of `scale * rows @ columns.T + bias` against `targets`, see `cross_entropy`."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        columns: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        scale: float,
        excluded: DuplicateMask | Tensor | None,
        compute: torch.dtype,
        tile: int,
        wanted: tuple[bool, bool, bool],
    ) -> Tensor:
        exact = torch.promote_types(compute, torch.float32)
        a, b = rows.to(compute), columns.to(compute)
        by_row = torch.empty_like(rows, dtype=exact) if wanted[0] else None
        by_column = torch.zeros_like(columns, dtype=exact) if wanted[1] else None
        by_bias = torch.zeros_like(bias, dtype=exact) if wanted[2] else None
        total = torch.zeros((), dtype=exact, device=rows.device)
        for start in range(0, len(rows), tile):
            part, own = a[start : start + tile], targets[start : start + tile, None]
            scores = (part @ b.T).to(exact)
            if scale != 1:
                scores *= scale
            if bias is not None:
                scores += bias
            right = scores.gather(1, own)
            if excluded is not None:
                hidden = exclusion_mask(excluded, start, start + tile)
                scores.masked_fill_(hidden, float("-inf")).scatter_(1, own, right)
            top = scores.amax(1, keepdim=True)
            scores.sub_(top).exp_()
            mass = scores.sum(1, keepdim=True)
            total += (mass.log() + top - right).sum()
            if not any(wanted):
                continue
            scores.div_(mass).scatter_add_(1, own, scores.new_full(own.shape, -1))
            if by_bias is not None:
                by_bias += scores.sum(0)
            if scale != 1:
                scores *= scale
            errors = scores.to(compute)
            if by_row is not None:
                by_row[start : start + tile] = errors @ b
            if by_column is not None and compute == exact:
                by_column.addmm_(errors.T, part)
            elif by_column is not None:
                by_column += errors.T @ part
        ctx.save_for_backward(by_row, by_column, by_bias)
        ctx.dtypes = rows.dtype, columns.dtype, None if bias is None else bias.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        grads = [
            None if grad is None else (grad * upstream[0]).to(dtype)
            for grad, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return (*grads, *[None] * 6)


def exclusion_mask(excluded: DuplicateMask | Tensor, start: int, stop: int) -> Tensor:
    return excluded.mask_rows(start, stop) if isinstance(excluded, DuplicateMask) else excluded[start:stop]


def tiled_cross_entropy(
    rows: Float[Tensor, "b d"],
    columns: Float[Tensor, "n d"],
    targets: Int[Tensor, " b"],
    *,
    scale: float = 1.0,
    bias: Float[Tensor, " n"] | None = None,
    excluded: DuplicateMask | Bool[Tensor, "b n"] | None = None,
    compute: torch.dtype | None = None,
    tile: int | None = None,
) -> Float[Tensor, ""]:
    """*Sum* over rows of the cross-entropy of `scale * rows @ columns.T + bias` against the columns `targets`.

    `excluded`: columns left out of a row's sum; its target is never left out. `compute`: the dtype of the products
    (None: the inputs', in float32 or wider); log-sums are in float32 or wider. `tile`: rows at a time. It needs
    O((b + n) d + tile n) memory and three products of b x n x d, and can be differentiated once.
    """
    inputs = (rows, columns, bias)
    wanted = tuple(torch.is_grad_enabled() and x is not None and x.requires_grad for x in inputs)
    if compute is None:
        compute = torch.promote_types(torch.promote_types(rows.dtype, columns.dtype), torch.float32)
    tile = tile or max(NARROWEST, TILE // len(columns))
    with torch.autocast(rows.device.type, enabled=False):
        return TiledCrossEntropy.apply(rows, columns, bias, targets, scale, excluded, compute, tile, wanted)
