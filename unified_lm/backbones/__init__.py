"""Pretrained decoders to start from; each can be loaded, and identified without loading."""

from unified_lm.backbones.base import Backbone, LoadedBackbone
from unified_lm.backbones.hub import Hub
from unified_lm.backbones.smollm2 import SmolLM2
from unified_lm.backbones.tiny import Tiny

__all__ = ["Backbone", "Hub", "LoadedBackbone", "SmolLM2", "Tiny"]
