"""Attention dependence: how much of its attention a token gives to earlier tokens, later tokens and itself.

UBMoE-LLM (PMLR 267:34564-34577) calls the three means DP-B (before), DP-A (after) and DP-M (itself). They are taken
from the softmax attention of every layer and head of a text. No attention map is ever stored: blocks of scores with a
running maximum and running sums give the three shares, so a layer needs memory for one block only.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch, Sequence, pack

PARTS = ("self", "before", "after")
SELF, BEFORE, AFTER = range(3)
BLOCK = 256  # queries, and keys, of one block of scores

Forward = Literal["bidirectional", "causal"]
"""The forward whose attention is measured.

bidirectional: every token attends to all tokens, and this attention is measured. causal: a token attends to itself and
earlier tokens; what is measured is the softmax of the same scores over all tokens, that is, the attention that a
causal model would give to later tokens. The released code of UBMoE-LLM measures the second for all its models.
"""


@dataclass(frozen=True, kw_only=True)
class AttentionDependence:
    """The dependence of one text of `tokens` tokens; [3, layers, heads], in the order of `PARTS`.

    `mass`: the share of a row of the attention map, mean over all rows; the three parts sum to 1 (the released code,
    there times 100). `per_token`: the attention to one token of the part, mean over the rows that have such a token:
    the mass of row i over i - 1 earlier or l - i later tokens (the paper's words).
    """

    tokens: int
    mass: Float[Tensor, "parts layers heads"]
    per_token: Float[Tensor, "parts layers heads"]


@torch.no_grad()
def measure_dependence(
    model: UnifiedLM, sequences: Many[Sequence], *, forward: Forward, budget: int = 4096, block: int = BLOCK
) -> list[AttentionDependence]:
    """Measure the attention dependence of texts, in packs of at most `budget` tokens.

    Raises `ValueError` for a text of one token, which has no other token to attend to.
    """
    if short := [sequence.row for sequence in sequences if len(sequence) < 2]:
        raise ValueError(f"text {short[0]} has one token; attention dependence needs at least two")
    was_training = model.training
    model.eval()
    try:
        packs = pack([replace(sequence, mode=forward, prefix=0) for sequence in sequences], budget)
        return [found for batch in packs for found in measure_pack(model, batch, block)]
    finally:
        model.train(was_training)


def measure_pack(model: UnifiedLM, batch: PackedBatch, block: int) -> list[AttentionDependence]:
    """Run the decoder on a pack and measure every text in it."""
    layers: list[list[tuple[Tensor, Tensor]]] = [[] for _ in batch.sequences]

    def observe(
        q: Tensor, k: Tensor, *, scale: float | None, window: int | None = None, softcap: float | None = None
    ) -> None:
        for segment, found in zip(batch.layout.segments, layers, strict=True):
            rows = slice(segment.start, segment.stop)
            shares = attention_shares(
                q[0, :, rows], k[0, :, rows], scale=scale, window=window, softcap=softcap, block=block
            )
            found.append((shares.mean(-1), shares_per_token(shares)))

    model.hidden_states(replace(batch, layout=replace(batch.layout, observe=observe)).to(model.device))
    return [
        AttentionDependence(
            tokens=len(sequence),
            mass=torch.stack([mass for mass, _ in found], dim=1).cpu(),
            per_token=torch.stack([mean for _, mean in found], dim=1).cpu(),
        )
        for sequence, found in zip(batch.sequences, layers, strict=True)
    ]


def attention_shares(
    q: Float[Tensor, "h l d"],
    k: Float[Tensor, "g l d"],
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    block: int = BLOCK,
) -> Float[Tensor, "parts h l"]:
    """Return each token's share of attention on itself, on earlier and on later tokens; the three sum to 1.

    The softmax runs over all l tokens, or those nearer than the sliding `window`. The scores of `block` queries and
    `block` keys exist at a time. A query head uses the key head of its group.
    """
    length, size = q.shape[1:]
    scale = size**-0.5 if scale is None else scale
    dtype = torch.promote_types(q.dtype, torch.float32)
    q = q.unflatten(0, (k.shape[0], -1))
    out = q.new_empty((3, *q.shape[:3]), dtype=dtype)
    for start in range(0, length, block):
        rows = q[:, :, start : start + block].to(dtype) * scale
        found = Shares(rows)
        # the tokens' own block comes first: every row sees itself, so its maximum is finite from then on
        for first in sorted(range(0, length, block), key=lambda first: first != start):
            if window is None or abs(first - start) - block < window:
                found.add_block(k[:, first : first + block].to(dtype), first - start, window, softcap)
        out[..., start : start + block] = found.sums / found.sums.sum(0)
    return out.flatten(1, 2)


class Shares:
    """Running sums of exponentials of a block of queries [g, r, b, d] over blocks of keys.

    `sums`: [3, g, r, b], relative to exp(`peak`), the largest score so far.
    """

    def __init__(self, rows: Float[Tensor, "g r b d"]) -> None:
        self.rows = rows
        self.peak = rows.new_full(rows.shape[:3], -torch.inf)
        self.sums = rows.new_zeros((3, *rows.shape[:3]))

    def add_block(self, keys: Float[Tensor, "g c d"], offset: int, window: int | None, softcap: float | None) -> None:
        """Add the keys that begin `offset` tokens behind the first query."""
        scores = (self.rows.flatten(1, 2) @ keys.transpose(1, 2)).unflatten(1, self.rows.shape[1:3])
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if window is not None:
            queries, places = (torch.arange(n, device=keys.device) for n in scores.shape[-2:])
            outside = (queries[:, None] - places[None] - offset).abs() >= window
            scores = scores.masked_fill(outside, -torch.inf)
        peak = torch.maximum(self.peak, scores.amax(-1))
        self.sums *= (self.peak - peak).exp()
        weights = scores.sub_(peak[..., None]).exp_()
        if offset:
            self.sums[BEFORE if offset < 0 else AFTER] += weights.sum(-1)
        else:
            self.sums[SELF] += weights.diagonal(dim1=-2, dim2=-1)
            self.sums[BEFORE] += weights.tril(-1).sum(-1)
            self.sums[AFTER] += weights.triu_(1).sum(-1)
        self.peak = peak


def shares_per_token(shares: Float[Tensor, "parts h l"]) -> Float[Tensor, "parts h"]:
    """Divide the mass of each row by the number of tokens of the part; mean over the rows that have such a token."""
    length = shares.shape[-1]
    earlier = torch.arange(1, length, device=shares.device)
    before = shares[BEFORE, :, 1:] / earlier
    after = shares[AFTER, :, :-1] / earlier.flip(0)
    return torch.stack([shares[SELF].mean(-1), before.mean(-1), after.mean(-1)])
