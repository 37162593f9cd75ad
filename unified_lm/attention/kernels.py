"""The attention kernels, and the choice of one that can compute what a run asks for.

`sdpa` (per sequence, CPU and CUDA) and `dense` (the reference) are here, the CUDA kernels in `varlen` and `flex`.

Shapes: q [1, h, T, d], k and v [1, g, S, d] with g dividing h (grouped-query attention); result [1, h, T, d]. S is T,
plus `layout.prefix_length`: the first rows of k and v belong to the shared prefix of all sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from unified_lm.attention import varlen
from unified_lm.attention.flex import flex_kernel
from unified_lm.attention.layout import ALL_MODES, COMMON_MODES, Layout, Segment, segment_mask

Q = Float[Tensor, "one h T d"]
K = Float[Tensor, "one g S d"]
Run = Callable[..., Q]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A way to compute attention, and what it supports: modes, device types, soft-capped scores.

    `find_missing()` says which requirement this machine lacks (None: nothing).
    """

    name: str
    run: Run
    modes: frozenset[str]
    devices: frozenset[str]
    find_missing: Callable[[], str | None] = lambda: None
    softcap: bool = False

    def explain_refusal(
        self, modes: frozenset[str], device: str, softcap: bool, half: bool, dropout: bool
    ) -> str | None:
        """Say why this kernel cannot compute what is asked for (None: it can)."""
        if not modes <= self.modes:
            return f"it cannot express {', '.join(sorted(modes - self.modes))} attention"
        if device not in self.devices:
            return f"it runs on {', '.join(sorted(self.devices))}, not on {device}"
        if self.find_missing() is not None:
            return self.find_missing()
        if softcap and not self.softcap:
            return "it cannot cap attention scores, as this decoder does"
        if self.name in ("flash", "varlen") and not half:
            return "it computes in bfloat16 or float16 only (set autocast=bfloat16)"
        if dropout and self.name in ("flash", "varlen", "flex"):
            return "it has no attention dropout, which this decoder asks for"
        return None


def repeat_heads(x: K, heads: int) -> Q:
    """Repeat key or value heads to the number of query heads (grouped-query attention)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def sdpa_kernel(
    q: Q, k: K, v: K, layout: Layout, *, scale: float | None, dropout: float = 0.0, window: int | None = None
) -> Q:
    """Run torch's scaled-dot-product attention on each sequence; neighbours of equal shape share one call.

    The pack is split, not sliced: the gradient of n slices would be n whole tensors of zeros, added up.
    """
    groups = layout.derive_once("groups", group_equal_neighbours)
    sizes = [count * (first.stop - first.start) for first, count in groups]
    queries = q.squeeze(0).split(sizes, dim=1)
    (keys_ahead, *keys), (values_ahead, *values) = (
        x.squeeze(0).split([layout.prefix_length, *sizes], dim=1) for x in (k, v)
    )
    out = []
    for (first, count), *own in zip(groups, queries, keys, values, strict=True):
        length = first.stop - first.start
        rows, *seen = (x.unflatten(1, (count, length)).transpose(0, 1) for x in own)
        if layout.prefix_length:
            before = [x.expand(count, -1, -1, -1) for x in (keys_ahead, values_ahead)]
            seen = [torch.cat(pair, dim=2) for pair in zip(before, seen, strict=True)]
        mask = layout.derive_once(
            f"sdpa/{segment_shape(first)}/{window}", partial(explicit_mask, first, q.device, window)
        )
        result = F.scaled_dot_product_attention(
            rows,
            *seen,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=mask is None and first.mode == "causal",
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        out.append(result.transpose(1, 2).flatten(0, 1))  # a token's heads are adjacent, as sdpa returns them
    return (out[0] if len(out) == 1 else torch.cat(out)).transpose(0, 1)[None]


def segment_shape(segment: Segment) -> tuple[int, str, int, int]:
    """Return what a segment's mask depends on: length, mode, prefix, slots."""
    return segment.stop - segment.start, segment.mode, segment.prefix, segment.slots


def group_equal_neighbours(layout: Layout) -> list[tuple[Segment, int]]:
    """Group neighbouring segments of equal shape: the first segment of each group and the group's size."""
    runs = [list(run) for _, run in groupby(layout.segments, key=segment_shape)]
    return [(run[0], len(run)) for run in runs]


def explicit_mask(
    segment: Segment, device: torch.device, window: int | None, layout: Layout
) -> Bool[Tensor, "l s"] | None:
    """Return a segment's mask, or None where torch's own causal or full attention computes the same."""
    length = segment.stop - segment.start
    narrow = window is not None and layout.prefix_length + length > window
    free = bool(layout.prefix_length) or narrow or segment.mode in ("prefix", "bottleneck")
    return segment_mask(segment, device, window, layout.prefix_length) if free else None


def dense_kernel(
    q: Q,
    k: K,
    v: K,
    layout: Layout,
    *,
    scale: float | None,
    dropout: float = 0.0,
    window: int | None = None,
    softcap: float | None = None,
) -> Q:
    """Compute attention with one T x T mask and a softmax in float32: the slow reference for every other kernel."""
    seen = [segment_mask(segment, q.device, window, layout.prefix_length).float() for segment in layout.segments]
    before = torch.cat([mask[:, : layout.prefix_length] for mask in seen])
    mask = torch.cat([before, torch.block_diag(*[mask[:, layout.prefix_length :] for mask in seen])], dim=1).bool()
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = scores.float().masked_fill(~mask, float("-inf")).softmax(dim=-1).to(q.dtype)
    return F.dropout(weights, dropout, training=dropout > 0) @ v


def missing_cuda() -> str | None:
    return None if torch.cuda.is_available() else "torch sees no CUDA GPU"


def missing_varlen() -> str | None:
    if missing_cuda():
        return missing_cuda()
    major, minor = torch.cuda.get_device_capability()
    return None if major >= 8 else f"it needs compute capability 8.0 or more, this GPU has {major}.{minor}"


def missing_flash() -> str | None:
    if missing_varlen():
        return missing_varlen()
    return (
        None
        if varlen.flash_version()
        else "flash-attn is not installed (docs/paper_scale.md says which one fits a GPU)"
    )


PLAIN, ALL = frozenset(COMMON_MODES), frozenset(ALL_MODES)
ANYWHERE, CUDA = frozenset({"cpu", "cuda"}), frozenset({"cuda"})
KERNELS = {  # in the order of "auto"
    "flash": Kernel(
        name="flash", run=varlen.flash_kernel, modes=PLAIN, devices=CUDA, find_missing=missing_flash, softcap=True
    ),
    "varlen": Kernel(name="varlen", run=varlen.varlen_kernel, modes=PLAIN, devices=CUDA, find_missing=missing_varlen),
    "sdpa": Kernel(name="sdpa", run=sdpa_kernel, modes=ALL, devices=ANYWHERE),
    "flex": Kernel(name="flex", run=flex_kernel, modes=PLAIN, devices=CUDA, find_missing=missing_cuda, softcap=True),
    "dense": Kernel(name="dense", run=dense_kernel, modes=ALL, devices=ANYWHERE, softcap=True),
}


def choose_kernel(
    name: str,
    modes: frozenset[str],
    device: str,
    *,
    softcap: bool = False,
    half: bool = True,
    dropout: bool = False,
) -> Kernel:
    """Return the kernel of this name, or for "auto" the first that is available and supports what is asked for.

    `softcap`: the decoder caps its attention scores; `half`: it computes in bfloat16 or float16; `dropout`: it drops
    attention weights. Raises `ValueError` for a kernel that cannot; the message names those that can.
    """
    why = {kernel.name: kernel.explain_refusal(modes, device, softcap, half, dropout) for kernel in KERNELS.values()}
    able = [kernel_name for kernel_name, reason in why.items() if reason is None]
    if name == "auto":
        return KERNELS[able[0]]
    if name not in KERNELS:
        raise ValueError(f"kernel={name} is unknown; use auto or one of {', '.join(sorted(KERNELS))}")
    if why[name] is not None:
        raise ValueError(f"kernel={name} cannot be used here: {why[name]}; use kernel=auto or one of {', '.join(able)}")
    return KERNELS[name]
