"""Attention over a pack, one function a kernel: `sdpa` per sequence (CPU and CUDA) and `dense`, the oracle.

Shapes: q [1, h, T, d], k and v [1, g, T, d] with g dividing h (grouped-query attention); result [1, h, T, d].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from unified_lm.attention.layout import MODES, Layout, allowed

Q = Float[Tensor, "one h T d"]
K = Float[Tensor, "one g T d"]
Run = Callable[..., Q]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A way to compute attention, the modes that it can express and the device types that it runs on."""

    name: str
    run: Run
    modes: frozenset[str]
    devices: frozenset[str]


def repeated(x: K, heads: int) -> Q:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def sdpa(
    q: Q, k: K, v: K, layout: Layout, *, scale: float | None, dropout: float = 0.0, window: int | None = None
) -> Q:
    """torch's scaled-dot-product attention on each sequence alone; equal neighbours of equal length share one call."""
    out, bounds, i = [], layout.bounds, 0
    while i < len(bounds):
        first, j = bounds[i], i + 1
        length = first.stop - first.start
        while j < len(bounds) and same_shape(bounds[j], first):
            j += 1
        stop, count = bounds[j - 1].stop, j - i
        part = [x[0, :, first.start : stop].unflatten(1, (count, length)).transpose(0, 1) for x in (q, k, v)]
        narrow = window is not None and length > window
        mask = allowed(first, q.device, window) if narrow or first.mode == "prefix" else None
        result = F.scaled_dot_product_attention(
            *part,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=mask is None and first.mode == "causal",
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        out.append(result.transpose(0, 1).flatten(1, 2))
        i = j
    return (out[0] if len(out) == 1 else torch.cat(out, dim=1))[None]


def same_shape(a, b) -> bool:
    return a.stop - a.start == b.stop - b.start and a.mode == b.mode and a.prefix == b.prefix


def dense(
    q: Q, k: K, v: K, layout: Layout, *, scale: float | None, dropout: float = 0.0, window: int | None = None
) -> Q:
    """The definition, written out: one T x T mask, a softmax in float32. Slow, and what every kernel must equal."""
    mask = torch.block_diag(*[allowed(bound, q.device, window).float() for bound in layout.bounds]).bool()
    k, v = repeated(k, q.shape[1]), repeated(v, q.shape[1])
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    weights = scores.float().masked_fill(~mask, float("-inf")).softmax(dim=-1).to(q.dtype)
    return F.dropout(weights, dropout, training=dropout > 0) @ v


ALL = frozenset(MODES)
KERNELS = {
    "sdpa": Kernel(name="sdpa", run=sdpa, modes=ALL, devices=frozenset({"cpu", "cuda"})),
    "dense": Kernel(name="dense", run=dense, modes=ALL, devices=frozenset({"cpu", "cuda"})),
}


def choose(name: str, modes: frozenset[str], device: str) -> Kernel:
    """The kernel of that name, or for "auto" the first that fits; refused when it cannot express what is asked."""
    fits = [k for k in KERNELS.values() if modes <= k.modes and device in k.devices]
    if name == "auto":
        return fits[0]
    if name not in KERNELS:
        raise ValueError(f"kernel={name} is unknown; use auto or one of {', '.join(sorted(KERNELS))}")
    if KERNELS[name] not in fits:
        able = ", ".join(kernel.name for kernel in fits)
        raise ValueError(f"kernel={name} cannot run {', '.join(sorted(modes))} attention on {device}; use one of {able}")
    return KERNELS[name]
