"""Losses alone: InfoNCE over a full matrix, and the head over all positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.bench.material import Material
from experiments.bench.measure import Comparison, compare_costs
from unified_lm.losses import head_cross_entropy, info_nce

QUERIES, CANDIDATES, WIDTH = 4096, 8192, 256
POSITIONS, VOCABULARY, LABELLED = 2048, 32_000, 0.25


def compare_losses(material: Material, repeats: int) -> Iterator[Comparison]:
    draw = torch.Generator().manual_seed(0)
    size = material.size
    queries = torch.randn(QUERIES // size, WIDTH, generator=draw, requires_grad=True)
    candidates = torch.randn(CANDIDATES // size, WIDTH, generator=draw, requires_grad=True)
    targets = torch.arange(len(queries))

    def full() -> Tensor:
        scores = F.normalize(queries, dim=1) @ F.normalize(candidates, dim=1).T / 0.05
        return F.cross_entropy(scores, targets)

    def tiled() -> Tensor:
        return info_nce(queries, candidates, targets, temperature=0.05)

    yield compare_costs(
        f"InfoNCE {len(queries)} x {len(candidates)}",
        run_backward(tiled),
        {"the full matrix": run_backward(full)},
        parity=assert_equal_losses(tiled, full, queries, candidates),
        repeats=repeats,
        goal=1.0,
        memory_goal=0.25,
    )

    states = torch.randn(POSITIONS // size, WIDTH, generator=draw, requires_grad=True)
    weight = torch.randn(VOCABULARY // size, WIDTH, generator=draw).mul_(0.05).requires_grad_()
    labels = torch.randint(0, len(weight), (len(states),), generator=draw)
    labels[torch.rand(len(states), generator=draw) > LABELLED] = -100

    def everywhere() -> Tensor:
        return F.cross_entropy(states @ weight.T, labels, ignore_index=-100, reduction="sum")

    def labelled() -> Tensor:
        where = labels.ge(0).nonzero().squeeze(1)
        return head_cross_entropy(states[where], weight, labels[where])

    yield compare_costs(
        f"head, {LABELLED:.0%} of {len(states)} positions labelled, V = {len(weight)}",
        run_backward(labelled),
        {"logits of every position": run_backward(everywhere)},
        parity=assert_equal_losses(labelled, everywhere, states, weight),
        repeats=repeats,
        goal=1 / 0.35,
    )


def run_backward(loss: Callable[[], Tensor]) -> Callable[[], None]:
    return lambda: loss().backward()


def assert_equal_losses(ours: Callable[[], Tensor], plain: Callable[[], Tensor], *inputs: Tensor) -> str:
    """Largest relative difference of value and gradients. Raises AssertionError beyond 1e-4."""
    found, wanted = ours(), plain()
    pairs = zip(torch.autograd.grad(found, inputs), torch.autograd.grad(wanted, inputs), strict=True)
    off = float((abs(found - wanted) / abs(wanted)).detach())
    worst = max(off, *(float((a - b).norm() / b.norm()) for a, b in pairs))
    if not worst <= 1e-4:
        raise AssertionError(f"loss or gradient differs from the plain form by {worst:.1e}")
    return f"value and gradient within {worst:.0e}"
