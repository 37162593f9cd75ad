"""Heads: small trained modules that hidden states pass through before pooling."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from unified_lm.readout import normalize_vectors


class LatentAttention(nn.Module):
    """Cross-attention of every hidden state to `count` trained latents (keys and values), then a two-layer network.

    A state's result depends on that state only, so packing changes nothing. `residual` adds the input at both steps.
    Source: Lee et al. 2025 (NV-Embed), section 3.1: 512 latents, 8 heads.
    """

    def __init__(self, width: int, count: int, heads: int, *, residual: bool) -> None:
        super().__init__()
        if count < 1 or width % heads:
            raise ValueError(f"method.latent_heads={heads} must divide the width {width}; method.latents: 1 or more")
        self.heads = heads
        self.residual = residual
        self.latents = nn.Parameter(normalize_vectors(torch.randn(count, width)))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width)
        if residual:  # the head starts as the identity
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.network[2].weight)
            nn.init.zeros_(self.network[2].bias)

    def forward(self, states: Float[Tensor, "T d"]) -> Float[Tensor, "T d"]:
        q, k, v = (
            project(x).unflatten(1, (self.heads, -1)).transpose(0, 1)
            for project, x in ((self.query, self.norm(states)), (self.key, self.latents), (self.value, self.latents))
        )
        found = self.out(F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))
        found = found + states if self.residual else found
        made = self.network(found)
        return made + found if self.residual else made
