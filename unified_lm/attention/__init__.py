"""Attention over packs: layouts, modes, plans and kernels. The transformers entry point is `attention.function`."""

from unified_lm.attention.layout import MODES, Bound, Layout, allowed
from unified_lm.attention.modes import Plan

__all__ = ["MODES", "Bound", "Layout", "Plan", "allowed"]
