"""Parts of a step on a GPU: one product, the attention kernels, the head and InfoNCE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from experiments.bench.cuda.encoding import usable
from experiments.bench.cuda.shapes import Measured, Shape, lengths, seconds
from unified_lm.attention.kernels import KERNELS
from unified_lm.attention.layout import COMMON_MODES, Layout, Segment
from unified_lm.losses import head_cross_entropy, info_nce


def product_peak(shape: Shape, device: torch.device, dtype: torch.dtype, repeats: int) -> tuple[float, float]:
    """FLOP/s and seconds of the largest product of a layer, [budget, hidden] x [hidden, inner]."""
    a = torch.randn(shape.budget, shape.hidden, device=device, dtype=dtype)
    b = torch.randn(shape.hidden, shape.inner, device=device, dtype=dtype)
    taken, _ = seconds(lambda: a @ b, device, repeats)
    return 2 * shape.budget * shape.hidden * shape.inner / taken, taken


def kernels(shape: Shape, device: torch.device, dtype: torch.dtype, repeats: int) -> Iterator[Measured]:
    """Every kernel in every mode, forward and backward, on one pack of passages."""
    found = lengths(replace(shape, tokens=shape.budget), "passages")
    for mode in COMMON_MODES:
        at, bounds = 0, []
        for length in found:
            bounds.append(Segment(start=at, stop=at + length, mode=mode, prefix=length // 2 if mode == "prefix" else 0))
            at += length
        layout = Layout.from_segments(bounds).to(device)
        q, k, v = (
            torch.randn(1, heads, at, shape.head, device=device, dtype=dtype, requires_grad=True)
            for heads in (shape.heads, shape.groups, shape.groups)
        )
        for name in usable(device, (mode,)):
            run = KERNELS[name].run

            def both(run=run, q=q, k=k, v=v, layout=layout) -> None:
                torch.autograd.grad(run(q, k, v, layout, scale=None).sum(), (q, k, v))

            taken, memory = seconds(both, device, repeats)
            yield Measured(what=f"kernel {name}, {mode}, forward and backward", seconds=taken, peak_gib=memory)


def losses(shape: Shape, device: torch.device, dtype: torch.dtype, repeats: int) -> Iterator[Measured]:
    """The head on one pack by each way there is, and InfoNCE of 8 rows a candidate block, tiled and whole."""
    states = torch.randn(shape.budget, shape.hidden, device=device, dtype=dtype, requires_grad=True)
    weight = torch.randn(shape.vocab, shape.hidden, device=device, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, shape.vocab, (shape.budget,), device=device)
    for name in ("tiles", "torch", *(["liger"] if liger(device) else [])):

        def head(name=name) -> None:
            loss = head_cross_entropy(states, weight, labels, kernel=name)
            torch.autograd.grad(loss, (states, weight))

        taken, memory = seconds(head, device, repeats)
        yield Measured(what=f"head of {shape.budget} tokens, {name}", seconds=taken, peak_gib=memory)
    queries, candidates = (
        torch.randn(n, shape.hidden, device=device, requires_grad=True) for n in (shape.budget // 2, shape.budget * 4)
    )
    targets = torch.arange(len(queries), device=device)

    def contrast() -> None:
        torch.autograd.grad(info_nce(queries, candidates, targets, temperature=0.05), (queries, candidates))

    taken, memory = seconds(contrast, device, repeats)
    yield Measured(what=f"InfoNCE {len(queries)} x {len(candidates)}, tiled", seconds=taken, peak_gib=memory)


def liger(device: torch.device) -> bool:
    from importlib.util import find_spec

    return device.type == "cuda" and find_spec("liger_kernel") is not None
