"""FlexAttention: any mask of a layout as a block mask, compiled on CUDA (forward only where it is not)."""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from unified_lm.attention.layout import Layout


def block_mask(layout: Layout, window: int | None) -> BlockMask:
    """The layout's definition (`layout.allowed`) as a block mask over the flat row."""
    device = layout.cu_seqlens.device
    lengths = torch.tensor([bound.stop - bound.start for bound in layout.bounds])
    open_until = torch.tensor(
        [
            {"causal": bound.start, "bidirectional": bound.stop, "prefix": bound.start + bound.prefix}[bound.mode]
            for bound in layout.bounds
        ]
    )
    owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths).to(device)
    until = torch.repeat_interleave(open_until, lengths).to(device)

    size = int(lengths.sum())
    reach = size if window is None else window
    return create_block_mask(
        lambda b, h, i, j: (
            ((j <= i) | ((i < until[i]) & (j < until[i]))) & (owner[i] == owner[j]) & ((i - j).abs() < reach)
        ),
        None,
        None,
        size,
        size,
        device=device,
    )


@cache
def compiled():
    return torch.compile(flex_attention, dynamic=True)


def flex(
    q: Float[Tensor, "one h T d"],
    k: Float[Tensor, "one g T d"],
    v: Float[Tensor, "one g T d"],
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
    attend = compiled() if q.is_cuda else flex_attention
    return attend(
        q,
        k,
        v,
        score_mod=None if softcap is None else lambda score, b, h, i, j: softcap * torch.tanh(score / softcap),
        block_mask=layout.once(f"flex/{window}", lambda layout: block_mask(layout, window)),
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
