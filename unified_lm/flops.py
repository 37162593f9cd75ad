"""Model FLOPs of a pack, and model FLOPs utilization (MFU): their share of a GPU's peak.

Formula: forward = 2 P T + 4 L h d_h (pairs of tokens that see each other) + 2 V d (labelled rows), with P the weights
of the decoder's linear layers (without embeddings and head). Training adds the backward through the activations (as
much) and through the trainable linear weights (their share): 6 P a token for full training, 4 P with adapters.
Recomputation is not counted.
Source: Chowdhery et al. 2022 (PaLM), appendix B, with the attention of packs counted pair by pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from unified_lm.attention.layout import Layout, segment_mask
from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch

PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "B200": 2250e12, "RTX 4090": 165e12}
"""Part of a GPU's name -> its dense bfloat16 FLOP/s, from the vendors' data sheets (SXM variants)."""


def count_attended_pairs(layout: Layout, window: int | None = None) -> int:
    """Count the (token, attended token) pairs of a layout; a sliding window w allows at most w a token and side."""
    if layout.prefix_length and window is not None:
        return sum(int(segment_mask(bound, "cpu", window, layout.prefix_length).sum()) for bound in layout.segments)
    total = 0
    for bound in layout.segments:
        length = bound.stop - bound.start
        if bound.mode == "causal":
            total += count_causal_pairs(length, window) + layout.prefix_length * length
        elif bound.mode == "bidirectional":
            total += 2 * count_causal_pairs(length, window) - length
        elif bound.mode == "prefix" and window is None:
            total += count_causal_pairs(length, None) + count_causal_pairs(bound.prefix, None) - bound.prefix
        else:
            total += int(segment_mask(bound, "cpu", window).sum())
    return total


def count_causal_pairs(length: int, window: int | None) -> int:
    wide = length if window is None else min(length, window)
    return wide * (wide + 1) // 2 + (length - wide) * wide


def linear_layers(model: UnifiedLM) -> list[nn.Linear]:
    return [module for module in model.backbone.base_model.modules() if isinstance(module, nn.Linear)]


def forward_flops(model: UnifiedLM, batch: PackedBatch) -> int:
    """Model FLOPs of one forward of a pack, with the head on labelled rows only and full attention in every layer."""
    config = model.backbone.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    body = 2 * sum(layer.weight.numel() for layer in linear_layers(model)) * len(batch)
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * width * count_attended_pairs(batch.layout)
    return body + attention + 2 * model.vocabulary_size * model.width * batch.label_count


def training_flops(model: UnifiedLM, batches: Iterable[PackedBatch]) -> float:
    """Model FLOPs of the forward and backward of packs."""
    layers = linear_layers(model)
    learning = sum(layer.weight.numel() for layer in layers if layer.weight.requires_grad)
    factor = 2 + learning / max(1, sum(layer.weight.numel() for layer in layers))
    return factor * sum(forward_flops(model, batch) for batch in batches)


def model_flops_utilization(flops: Callable[[], float], seconds: float, device: torch.device) -> dict[str, float]:
    """Return {"mfu": share of the device's peak}, or {} for a device whose peak is unknown."""
    if device.type != "cuda" or seconds <= 0:
        return {}
    name = torch.cuda.get_device_name(device)
    peaks = [peak for key, peak in PEAKS.items() if key in name]
    return {"mfu": flops() / seconds / peaks[0]} if peaks else {}
