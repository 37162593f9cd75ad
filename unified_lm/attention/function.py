"""The attention function of all decoders, registered with transformers under the name `unified`.

Decoder files are never copied or patched: every layer of Llama, Qwen2, Qwen3, Mistral and Gemma3 calls this function
with the keyword `layout` that `UnifiedLM` passes to the forward. Without a layout (generation, with left
padding or any cache) it is transformers' own sdpa attention, and the mask function registered under the same name
builds transformers' own mask for it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from unified_lm.attention.kernels import KERNELS, repeat_heads
from unified_lm.attention.layout import Layout, PrefixCache

ATTENTION_NAME = "unified"


@torch.compiler.disable  # shapes vary with the sequences, so a compiled layer leaves it out of its graphs
def unified_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: Layout | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """Compute one layer's attention by the layout's kernel, or by transformers' sdpa without a layout.

    q [1, h, T, d], k, v [1, g, T, d] -> [1, T, h, d]; see `AttentionInterface` for the calling convention.
    """
    if layout is not None and layout.prefix_cache is not None:
        key, value = prepend_prefix_cache(layout, layout.prefix_cache, module.layer_idx, key, value)
    if layout is None and softcap is not None:
        return softcapped_attention(query, key, value, attention_mask, scaling, softcap), None
    if layout is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    run = KERNELS[layout.kernel].run
    query, key, value = cast_to_autocast(query, key, value)
    more = {} if softcap is None else {"softcap": softcap}
    if layout.observe is not None:
        layout.observe(query, key, scale=scaling, window=sliding_window, **more)
    out = run(query, key, value, layout, scale=scaling, dropout=dropout, window=sliding_window, **more)
    return out.transpose(1, 2).contiguous(), None


def cast_to_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast to the data type of an autocast forward, which autocast itself does for torch's own functions only.

    With float32 weights the rotary embedding leaves queries and keys in float32 and values in bfloat16, and flash-attn,
    `varlen_attn` and FlexAttention take one data type for all three.
    """
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(device)) for x in tensors)


def prepend_prefix_cache(
    layout: Layout, cache: PrefixCache, layer: int, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Put the shared prefix's keys and values before a layer's own; without a prefix, write its own to the cache."""
    if not layout.prefix_length:
        cache[layer] = key, value
        return key, value
    keys, values = cache[layer]
    return torch.cat([keys, key], dim=2), torch.cat([values, value], dim=2)


def softcapped_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None, softcap: float
) -> Tensor:
    """Compute soft-capped attention for generation (the sdpa attention of transformers ignores the cap)."""
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = (softcap * torch.tanh(scores / softcap)).float()
    if mask is None:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(k.shape[2] - q.shape[2])
    scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return (scores.softmax(dim=-1).to(q.dtype) @ v).transpose(1, 2).contiguous()


AttentionInterface.register(ATTENTION_NAME, unified_attention)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
