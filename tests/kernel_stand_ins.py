"""Strict CPU stand-ins of the CUDA attention kernels.

Each has the signature of the real function and refuses what the real one refuses: data types, shapes, contiguity, head
sizes, offsets. What they compute is float32 attention, so a result can be compared with the dense oracle. Signatures
were read in flash-attn 2.8.4 (flash_attn/flash_attn_interface.py, hopper/flash_attn_interface.py and
flash_attn/cute/interface.py at commit 0251105) and in torch 2.13.0 (torch/nn/attention/varlen.py).
"""

import importlib.machinery
import itertools
import sys
import types
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from unified_lm.attention import kernels, varlen

CALLS: Counter[str] = Counter()  # of each stand-in
NAMES = ("flash 2", "flash 3", "flash 4", "varlen")


def install(monkeypatch: pytest.MonkeyPatch, name: str, *, everywhere: bool = True) -> str:
    """Put one stand-in where the real package would be; the kernel's name in `unified_lm.attention.kernels`.

    `everywhere`: let the kernel run on a CPU; False where a fake CUDA device carries the tensors.
    """
    kernel, _, version = name.partition(" ")
    for package in ("flash_attn", "flash_attn_interface", "flash_attn.cute"):
        monkeypatch.delitem(sys.modules, package, raising=False)
    if kernel == "varlen":
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    else:
        package = {"2": "flash_attn", "3": "flash_attn_interface", "4": "flash_attn.cute"}[version]
        if version == "4":
            monkeypatch.setitem(sys.modules, "flash_attn", package_of("flash_attn"))
        monkeypatch.setitem(sys.modules, package, package_of(package, FLASH[version]))
    varlen.flash_version.cache_clear()
    if everywhere:
        found = kernels.KERNELS[kernel]
        here = replace(found, devices=found.devices | {"cpu"}, find_missing=lambda: None)
        monkeypatch.setitem(kernels.KERNELS, kernel, here)
    return kernel


def package_of(name: str, function=None) -> types.ModuleType:
    package = types.ModuleType(name)
    package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    package.__path__ = []
    if function is not None:
        package.flash_attn_varlen_func = function
    return package


def check(name: str, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int) -> None:
    """Refuse what the real kernels refuse."""
    for what, x in (("q", q), ("k", k), ("v", v)):
        assert x.dtype in (torch.bfloat16, torch.float16), f"{name}: supports fp16 and bf16 only, {what} is {x.dtype}"
        assert x.dim() == 3, f"{name}: {what} has {x.dim()} dimensions"
        assert x.stride(-1) == 1, f"{name}: the last dimension of {what} must be contiguous"
    assert q.dtype == k.dtype == v.dtype, f"{name}: one dtype is needed, not {q.dtype}, {k.dtype}, {v.dtype}"
    for what, x, rows in (("cu_seqlens_q", cu_q, len(q)), ("cu_seqlens_k", cu_k, len(k))):
        assert x.device == q.device, f"{name}: {what} is on {x.device}, q on {q.device}"
        assert x.dtype == torch.int32, f"{name}: {what} must be int32, is {x.dtype}"
        assert x.dim() == 1 and x.is_contiguous(), f"{name}: {what} must be one contiguous row"
        assert edges_of(x)[-1] == rows, f"{name}: {what} ends at {edges_of(x)[-1]} of {rows} rows"
    assert len(cu_q) == len(cu_k), f"{name}: {len(cu_q)} and {len(cu_k)} edges"
    assert type(max_q) is int and type(max_k) is int, f"{name}: lengths must be int, not {type(max_q)}, {type(max_k)}"
    assert longest(cu_q) <= max_q and longest(cu_k) <= max_k, f"{name}: a sequence is longer than max_seqlen"
    assert k.shape[:2] == v.shape[:2] and q.shape[1] % k.shape[1] == 0, f"{name}: heads {q.shape}, {k.shape}, {v.shape}"
    assert q.shape[2] % 8 == 0 and q.shape[2] <= 256, f"{name}: head size {q.shape[2]}"
    CALLS[name] += 1


def edges_of(cu_seqlens: Tensor) -> list[int]:
    """Offsets on the host, read past a fake device: a real kernel reads them on the GPU."""
    return getattr(cu_seqlens, "host", cu_seqlens).tolist()


def longest(cu_seqlens: Tensor) -> int:
    edges = edges_of(cu_seqlens)
    return max(b - a for a, b in itertools.pairwise(edges))


def attention(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, sides: tuple[int, int], scale, softcap=0.0, dropout=0.0
) -> Tensor:
    """Attention in float32 on each sequence; windows are aligned to the bottom right, as in all these kernels."""
    left, right = sides
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out, edges_q, edges_k = [], edges_of(cu_q), edges_of(cu_k)
    with torch.autocast(q.device.type, enabled=False):
        for a, b, c, d in zip(edges_q, edges_q[1:], edges_k, edges_k[1:], strict=False):
            keys, values = (x[c:d].float().repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
            scores = torch.einsum("qhd,khd->hqk", q[a:b].float(), keys) * scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            n, m = b - a, d - c
            behind = torch.arange(m - n, m, device=q.device)[:, None] - torch.arange(m, device=q.device)
            seen = torch.ones_like(behind, dtype=torch.bool)
            if left >= 0:
                seen &= behind <= left
            if right >= 0:
                seen &= -behind <= right
            weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
            out.append(torch.einsum("hqk,khd->qhd", torch.dropout(weights, dropout, dropout > 0), values))
        return torch.cat(out).to(q.dtype)


def flash_2(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
    block_table=None,
):  # fmt: skip
    check("flash 2", q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    sides = (window_size[0], 0 if causal else window_size[1])
    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, sides, softmax_scale, softcap, dropout_p)


def flash_3(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None, softmax_scale=None,
    causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1), attention_chunk=0,
    softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False,
):  # fmt: skip
    check("flash 3", q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    sides = (window_size[0], 0 if causal else window_size[1])
    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, sides, softmax_scale, softcap)


def flash_4(
    q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, min_seqlen_k=None,
    seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None, softmax_scale=None, causal=False,
    window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
    score_mod=None, score_mod_bwd=None, mask_mod=None, block_sparse_tensors=None, aux_tensors=None, aux_scalars=None,
    return_lse=False, scheduler_metadata=None, seqlen_k_per_split=None, disable_scheduler_metadata=False,
):  # fmt: skip
    check("flash 4", q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    assert all(side is None or side >= 0 for side in window_size), "flash 4: an open side is None"
    left, right = (-1 if side is None else side for side in window_size)
    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, (left, 0 if causal else right), softmax_scale, softcap), None


def varlen_attn(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1),
    enable_gqa=False, seqused_k=None, block_table=None, num_splits=None,
):  # fmt: skip
    check("varlen", query, key, value, cu_seq_q, cu_seq_k, max_q, max_k)
    assert enable_gqa or query.size(1) == key.size(1), "varlen: grouped heads need enable_gqa"
    assert num_splits is None or not torch.is_grad_enabled(), "varlen: num_splits is for inference"
    return attention(query, key, value, cu_seq_q, cu_seq_k, window_size, scale)


FLASH = {"2": flash_2, "3": flash_3, "4": flash_4}
