"""Attention over packs: layouts, modes, plans and kernels. The transformers entry point is `attention.function`."""

from unified_lm.attention.layout import COMMON_MODES, Layout, Segment, segment_mask
from unified_lm.attention.modes import Plan

__all__ = ["COMMON_MODES", "Layout", "Plan", "Segment", "segment_mask"]
