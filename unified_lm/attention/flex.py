"""FlexAttention: any mask of a layout as a block mask, compiled on CUDA (forward only where it is not)."""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from unified_lm.attention.layout import Layout


def build_block_mask(layout: Layout, window: int | None) -> BlockMask:
    """The layout's definition (`layout.allowed`) as a block mask: the flat row over what is ahead of it and itself."""
    device, ahead = layout.cu_seqlens.device, layout.prefix_length
    lengths = torch.tensor([bound.stop - bound.start for bound in layout.segments])
    both_ways = torch.tensor(
        [
            {"causal": 0, "bidirectional": layout.longest, "prefix": bound.prefix}[bound.mode]
            for bound in layout.segments
        ]
    )
    until = torch.repeat_interleave(both_ways, lengths).to(device)
    owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths).to(device)
    place = torch.cat([torch.arange(ahead, ahead + length) for length in lengths.tolist()]).to(device)
    owner_of_key = torch.cat([owner.new_full((ahead,), -1), owner])  # -1: before every sequence
    place_of_key = torch.cat([torch.arange(ahead, device=device), place])
    reach = ahead + layout.longest if window is None else window
    return create_block_mask(
        lambda b, h, i, j: (
            ((owner_of_key[j] == owner[i]) | (owner_of_key[j] < 0))
            & ((place_of_key[j] <= place[i]) | ((place[i] < until[i]) & (place_of_key[j] < until[i])))
            & ((place[i] - place_of_key[j]).abs() < reach)
        ),
        None,
        None,
        len(owner),
        len(owner_of_key),
        device=device,
    )


@cache
def compile_flex_attention():
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
    """Attention over a pack. The block mask is made once a forward and window."""
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
