"""FlexAttention: the layout as a block mask. Compiled on CUDA; without compilation it has a forward only."""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from unified_lm.attention.layout import Layout


def build_block_mask(layout: Layout, window: int | None) -> BlockMask:
    """Build the block mask of a layout: rows are the pack, columns the shared prefix and the pack."""
    device, prefix = layout.cu_seqlens.device, layout.prefix_length
    lengths = torch.tensor([segment.stop - segment.start for segment in layout.segments])
    both_ways = torch.tensor(
        [
            {"causal": 0, "bidirectional": layout.longest, "prefix": segment.prefix}[segment.mode]
            for segment in layout.segments
        ]
    )
    until = torch.repeat_interleave(both_ways, lengths).to(device)
    owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths).to(device)
    position = torch.cat([torch.arange(prefix, prefix + length) for length in lengths.tolist()]).to(device)
    key_owner = torch.cat([owner.new_full((prefix,), -1), owner])  # -1: the shared prefix, which every sequence sees
    key_position = torch.cat([torch.arange(prefix, device=device), position])
    reach = prefix + layout.longest if window is None else window
    return create_block_mask(
        lambda b, h, i, j: (
            ((key_owner[j] == owner[i]) | (key_owner[j] < 0))
            & ((key_position[j] <= position[i]) | ((position[i] < until[i]) & (key_position[j] < until[i])))
            & ((position[i] - key_position[j]).abs() < reach)
        ),
        None,
        None,
        len(owner),
        len(key_owner),
        device=device,
    )


@cache
def compile_flex_attention():
    """Compile `flex_attention` for dynamic shapes, once a process."""
    return torch.compile(flex_attention, dynamic=True)


def flex_kernel(
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
    """Compute attention over a pack. The block mask is built once a forward and window size."""
    if dropout:
        raise ValueError(f"kernel=flex has no attention dropout (the decoder asks for {dropout}); use kernel=sdpa")
    attend = compile_flex_attention() if q.is_cuda else flex_attention
    return attend(
        q,
        k,
        v,
        score_mod=None if softcap is None else lambda score, b, h, i, j: softcap * torch.tanh(score / softcap),
        block_mask=layout.derive_once(f"flex/{window}", lambda layout: build_block_mask(layout, window)),
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
