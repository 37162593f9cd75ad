"""Losses as pure functions of tensors: no model, no config, no process group.

Letters: b queries, n candidates, d width, V vocabulary, t labelled tokens. Similarities and log-sums are taken in
float32 or wider, whatever the vectors' dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unified_lm.readout import normalize_vectors
from unified_lm.tiled_cross_entropy import DuplicateMask, tiled_cross_entropy

FEWEST_ROWS = 256
"""Smallest number of rows in a tile: smaller tiles mean small products and many additions to `weight`'s gradient."""


def info_nce(
    queries: Float[Tensor, "b d"],
    candidates: Float[Tensor, "n d"],
    targets: Int[Tensor, " b"],
    *,
    temperature: float,
    excluded: DuplicateMask | Bool[Tensor, "b n"] | None = None,
    similarity: str = "cosine",
) -> Float[Tensor, ""]:
    """Mean cross-entropy of each query against every candidate; `targets[i]` is the index of query i's positive.

    `excluded` marks candidates that are not negatives of a query (its duplicates and false negatives); a target is
    never excluded. `similarity`: "cosine" or "dot". No b x n matrix is built: see `unified_lm.tiled_cross_entropy`.
    Source: van den Oord et al. 2018 (InfoNCE), in the form of Karpukhin et al. 2020 and Muennighoff et al. 2024.
    """
    if similarity == "cosine":
        queries, candidates = normalize_vectors(queries), normalize_vectors(candidates)
    total = tiled_cross_entropy(queries, candidates, targets, scale=1 / temperature, excluded=excluded)
    return total / len(queries)


def margin_hinge(
    anchors: Float[Tensor, "b d"],
    candidates: Float[Tensor, "n d"],
    *,
    threshold: float,
    excluded: Bool[Tensor, "b n"],
) -> Float[Tensor, ""]:
    """Mean of max(0, threshold² - squared distance) over all pairs of an anchor and a candidate not `excluded`.

    Source: the released code of LLM2Vec-Gen (`compute_margin_loss`).
    """
    wide = torch.promote_types(anchors.dtype, torch.float32)
    a, c = anchors.to(wide), candidates.to(wide)
    squared = a.square().sum(1)[:, None] + c.square().sum(1)[None] - 2 * a @ c.T
    short = (threshold**2 - squared.clamp(min=0)).clamp(min=0)
    return short[~excluded].mean()


def same_text_mask(rows: Int[Tensor, " b"], candidates: Int[Tensor, " n"], targets: Int[Tensor, " b"]) -> DuplicateMask:
    """Mask candidates whose text equals that of the query or of its positive: they are not negatives.

    `rows`: text hashes of the queries. `candidates`: text hashes of the candidates.
    """
    return DuplicateMask(rows=torch.stack([candidates[targets], rows]), columns=torch.stack([candidates, candidates]))


def same_row_mask(*hashes: Int[Tensor, " b"]) -> DuplicateMask:
    """Mask pairs of rows (i, j) that share a text of any kind: they are not negatives of each other."""
    return DuplicateMask(rows=torch.stack(hashes), columns=torch.stack(hashes))


def token_cross_entropy(logits: Float[Tensor, "t V"], labels: Int[Tensor, " t"]) -> Float[Tensor, ""]:
    """*Sum* of next-token cross-entropies; the caller divides by the global number of labels."""
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels, reduction="sum")


def head_cross_entropy(
    states: Float[Tensor, "t d"],
    weight: Float[Tensor, "V d"],
    labels: Int[Tensor, " t"],
    *,
    bias: Float[Tensor, " V"] | None = None,
    compute: torch.dtype | None = None,
    kernel: str = "tiles",
) -> Float[Tensor, ""]:
    """`token_cross_entropy` of the logits `states @ weight.T + bias`, without all logits in memory at once.

    `compute`: the dtype of the products (None: that of `weight`). `kernel`: "tiles" (ours), "torch" (chunks of
    `torch.nn.functional.linear_cross_entropy`) or "liger" (Liger's fused Triton kernel, CUDA only; not yet run).
    Up to `d` rows, "tiles" computes all logits: they are no larger than the gradient of `weight`.
    """
    compute = compute or weight.dtype
    if kernel == "liger":
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        return LigerFusedLinearCrossEntropyLoss(reduction="sum")(weight.to(compute), states.to(compute), labels, bias)
    if kernel == "torch":
        found = F.linear_cross_entropy(
            states.to(compute),
            weight.to(compute),
            labels,
            linear_bias=None if bias is None else bias.to(compute),
            reduction="sum",
            options=torch.nn.LinearCrossEntropyOptions(),
        )
        return found.to(torch.promote_types(compute, torch.float32))
    tile = max(FEWEST_ROWS, states.shape[1])
    if len(states) <= tile:
        logits = F.linear(states.to(compute), weight.to(compute), None if bias is None else bias.to(compute))
        return token_cross_entropy(logits, labels)
    return tiled_cross_entropy(states, weight, labels, bias=bias, compute=compute, tile=tile)


def cosine_distance(a: Float[Tensor, "b d"], b: Float[Tensor, "b d"]) -> Float[Tensor, ""]:
    """Mean of 1 - cos over rows (the coupling loss of LLM-JEPA)."""
    return (1 - (normalize_vectors(a) * normalize_vectors(b)).sum(dim=1)).mean()
