"""Losses as pure functions of tensors: no model, no config, no process group.

Letters: b queries, n candidates, d width, V vocabulary, t labelled tokens. Similarities and log-sums are taken in
float32 or wider, whatever the vectors' dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unified_lm.readout import normalized


def info_nce(
    queries: Float[Tensor, "b d"],
    candidates: Float[Tensor, "n d"],
    targets: Int[Tensor, " b"],
    *,
    temperature: float,
    excluded: Bool[Tensor, "b n"] | None = None,
    similarity: str = "cosine",
) -> Float[Tensor, ""]:
    """Mean cross-entropy of each query against every candidate; `targets[i]` is the index of query i's positive.

    `excluded` marks candidates that are no negatives of a query (its duplicates and false negatives); a target is
    never excluded. `similarity`: "cosine" or "dot".
    Source: van den Oord et al. 2018 (InfoNCE), in the form of Karpukhin et al. 2020 and Muennighoff et al. 2024.
    """
    if similarity == "cosine":
        queries, candidates = normalized(queries), normalized(candidates)
    scores = queries @ candidates.T / temperature
    if excluded is not None:
        keep = F.one_hot(targets, candidates.shape[0]).bool()
        scores = scores.masked_fill(excluded & ~keep, float("-inf"))
    return F.cross_entropy(scores, targets)


def same_text(
    rows: Int[Tensor, " b"], candidates: Int[Tensor, " n"], targets: Int[Tensor, " b"]
) -> Bool[Tensor, "b n"]:
    """Candidates whose text equals that of a query's own positive, from text hashes: none of them is a negative.

    `rows` are the hashes of the queries, `candidates` those of the candidates: a candidate that repeats the query's
    text, or the text of the query's positive, is masked.
    """
    positives = candidates[targets]
    return (candidates[None] == positives[:, None]) | (candidates[None] == rows[:, None])


def token_cross_entropy(logits: Float[Tensor, "t V"], labels: Int[Tensor, " t"]) -> Float[Tensor, ""]:
    """*Sum* of next-token cross-entropies: the caller divides by the global count of labels."""
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels, reduction="sum")


def cosine_distance(a: Float[Tensor, "b d"], b: Float[Tensor, "b d"]) -> Float[Tensor, ""]:
    """Mean of 1 - cos over rows (LLM-JEPA's coupling)."""
    return (1 - (normalized(a) * normalized(b)).sum(dim=1)).mean()
