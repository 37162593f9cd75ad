"""Variable-length kernels on CUDA: flash-attn 2, 3 or 4, and torch's own `varlen_attn`.

They support causal and full attention over sequences given by cumulative lengths (`cu_seqlens`). A pack of mixed modes
becomes at most three calls: (1) causal sequences; (2) sequences with full attention, and the bidirectional prefixes of
"prefix" sequences; (3) the rest of "prefix" sequences. In (3), and behind a shared prefix, queries end where their keys
end, so the kernels' bottom-right causal mask is right. Kernels are imported when first used; a CPU needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unified_lm.attention.layout import COMMON_MODES, Layout

LARGEST_HEAD = 256


@dataclass(frozen=True, kw_only=True)
class VarlenCall:
    """One kernel call over n ranges: rows of the queries and of the keys (None: the whole pack, in order)."""

    queries: Int[Tensor, " a"] | None
    keys: Int[Tensor, " b"] | None
    cu_q: Int[Tensor, " n1"]
    cu_k: Int[Tensor, " n1"]
    max_q: int
    max_k: int
    causal: bool


def plan_calls(layout: Layout) -> list[VarlenCall]:
    """Return the calls that compute a layout; every token is a query in exactly one of them.

    Raises `ValueError` for a mode that varlen kernels do not have.
    """
    modes = {segment.mode for segment in layout.segments}
    if not modes <= set(COMMON_MODES):
        raise ValueError(f"varlen kernels have no {', '.join(modes - set(COMMON_MODES))} attention; use kernel=sdpa")
    if len(modes) == 1 and "prefix" not in modes:
        edges = layout.cu_seqlens
        longest = layout.longest
        causal = modes == {"causal"}
        whole = VarlenCall(queries=None, keys=None, cu_q=edges, cu_k=edges, max_q=longest, max_k=longest, causal=causal)
        return [prepend_shared_prefix(layout, whole) if layout.prefix_length else whole]
    parts: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}  # (first query, stop, first key)
    suffixes = []
    for segment in layout.segments:
        if segment.mode == "prefix":
            open_until = segment.start + segment.prefix
            parts[False].append((segment.start, open_until, segment.start))
            if open_until < segment.stop:
                suffixes.append((open_until, segment.stop, segment.start))
        else:
            parts[segment.mode == "causal"].append((segment.start, segment.stop, segment.start))
    device = layout.cu_seqlens.device
    groups = [(parts[True], True), (parts[False], False), (suffixes, True)]
    return [build_call(ranges, causal, device) for ranges, causal in groups if ranges]


def prepend_shared_prefix(layout: Layout, own: VarlenCall) -> VarlenCall:
    """Return the call in which each sequence's keys are a copy of the shared prefix's keys, then its own."""
    prefix, device = layout.prefix_length, layout.cu_seqlens.device
    first = torch.arange(prefix)
    rows = [torch.cat([first, torch.arange(prefix + b.start, prefix + b.stop)]) for b in layout.segments]
    more = prefix * torch.arange(len(layout.segments) + 1, dtype=torch.int32, device=device)
    keys = torch.cat(rows).to(device, non_blocking=True)
    return replace(own, keys=keys, cu_k=own.cu_k + more, max_k=own.max_k + prefix)


def build_call(ranges: list[tuple[int, int, int]], causal: bool, device: torch.device) -> VarlenCall:
    """Build a call from ranges (first query, stop, first key); queries and keys of a range stop at the same token."""
    q = [stop - first for first, stop, _ in ranges]
    k = [stop - first for _, stop, first in ranges]
    rows = [torch.cat([torch.arange(a, b) for a, b in spans]) for spans in split_ranges(ranges)]
    edges = [torch.tensor([0, *lengths]).cumsum(0).to(torch.int32) for lengths in (q, k)]
    queries, keys, cu_q, cu_k = (tensor.to(device, non_blocking=True) for tensor in (*rows, *edges))
    return VarlenCall(queries=queries, keys=keys, cu_q=cu_q, cu_k=cu_k, max_q=max(q), max_k=max(k), causal=causal)


def split_ranges(ranges: list[tuple[int, int, int]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Split ranges (first query, stop, first key) into query ranges and key ranges."""
    return [(first, stop) for first, stop, _ in ranges], [(first, stop) for _, stop, first in ranges]


Attend = Callable[..., Float[Tensor, "a h d"]]


def run_varlen(
    attend: Attend,
    q: Float[Tensor, "one h T d"],
    k: Float[Tensor, "one g S d"],
    v: Float[Tensor, "one g S d"],
    layout: Layout,
    *,
    scale: float | None,
    dropout: float = 0.0,
    window: int | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "one h T d"]:
    """Compute attention over a pack by a varlen kernel `attend(q, k, v, call, window, scale, dropout, softcap)`.

    The kernel gets tensors [T, h, d].

    Raises `ValueError` for a dtype or head size that these kernels do not have.
    """
    if q.shape[-1] > LARGEST_HEAD:
        raise ValueError(f"head size {q.shape[-1]} exceeds the {LARGEST_HEAD} of flash kernels; use kernel=sdpa")
    q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
    out = torch.empty_like(q)
    for part in layout.derive_once("varlen", plan_calls):
        rows_q = q if part.queries is None else q[part.queries]
        rows_k, rows_v = (k, v) if part.keys is None else (k[part.keys], v[part.keys])
        right = 0 if part.causal else -1 if window is None else window - 1
        sides = (-1 if window is None else window - 1, right)
        found = attend(rows_q, rows_k, rows_v, part, sides, scale, dropout, softcap)
        out = found if part.queries is None else out.index_copy(0, part.queries, found)
    return out.transpose(0, 1)[None]


def require_half_precision(q: Tensor, name: str) -> None:
    """Raise `ValueError` unless the tensor is bfloat16 or float16."""
    if q.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"kernel={name} computes in bfloat16 or float16, not {str(q.dtype).removeprefix('torch.')}; "
            "set autocast=bfloat16 or kernel=sdpa"
        )


def torch_varlen_attention(q, k, v, part: VarlenCall, sides: tuple[int, int], scale, dropout, softcap) -> Tensor:
    """Call torch.nn.attention.varlen; `num_splits=1` makes a sequence's result independent of the rest of its pack."""
    from torch.nn.attention.varlen import varlen_attn

    require_half_precision(q, "varlen")
    if dropout:
        raise ValueError(f"kernel=varlen has no attention dropout (the decoder asks for {dropout}); use kernel=sdpa")
    return varlen_attn(
        q,
        k.contiguous(),
        v.contiguous(),
        part.cu_q,
        part.cu_k,
        part.max_q,
        part.max_k,
        scale=scale,
        window_size=sides,
        enable_gqa=q.shape[1] != k.shape[1],
        num_splits=None if torch.is_grad_enabled() else 1,
    )


@cache
def flash_version() -> int | None:
    """Return the newest major version of flash-attn that can be imported: 4, 3, 2 or None."""
    for version, module in ((4, "flash_attn.cute"), (3, "flash_attn_interface"), (2, "flash_attn")):
        try:
            __import__(module)
        except (ImportError, OSError):  # OSError: a wheel built against another torch (undefined symbol)
            continue
        return version
    return None


def flash_varlen_attention(q, k, v, part: VarlenCall, sides: tuple[int, int], scale, dropout, softcap) -> Tensor:
    """Call the varlen function of the installed flash-attn."""
    require_half_precision(q, "flash")
    version = flash_version()
    shared = {"softmax_scale": scale, "causal": part.causal, "softcap": softcap or 0.0}
    if dropout and version != 2:
        raise ValueError(f"flash-attn {version} has no attention dropout (the decoder asks for {dropout})")
    if version == 4:
        from flash_attn.cute import flash_attn_varlen_func as attend

        sides = tuple(None if side < 0 else side for side in sides)
        out = attend(
            q, k, v, cu_seqlens_q=part.cu_q, cu_seqlens_k=part.cu_k, max_seqlen_q=part.max_q, max_seqlen_k=part.max_k,
            window_size=sides, **shared,
        )  # fmt: skip
    elif version == 3:
        from flash_attn_interface import flash_attn_varlen_func as attend

        out = attend(q, k, v, part.cu_q, part.cu_k, part.max_q, part.max_k, window_size=sides, **shared)
    else:
        from flash_attn import flash_attn_varlen_func as attend

        out = attend(
            q, k, v, part.cu_q, part.cu_k, part.max_q, part.max_k, dropout_p=dropout, window_size=sides, **shared
        )
    return out[0] if isinstance(out, tuple) else out


varlen_kernel = partial(run_varlen, torch_varlen_attention)
flash_kernel = partial(run_varlen, flash_varlen_attention)
