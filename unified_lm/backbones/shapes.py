"""Shapes of known decoders, so that memory and hours can be told, and a small twin be built, without the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from unified_lm.backbones.hub import Hub
from unified_lm.backbones.smollm2 import SmolLM2
from unified_lm.backbones.tiny import Tiny

Shape = tuple[type[PretrainedConfig], int, int, int, int, int, int, int, bool]
# configuration class, hidden size, feed-forward size, layers, heads, key-value heads, head size, vocabulary, tied head.
# Source: config.json of each checkpoint on the hub.
KNOWN: dict[str, Shape] = {
    "Qwen/Qwen3-0.6B": (Qwen3Config, 1024, 3072, 28, 16, 8, 128, 151936, True),
    "Qwen/Qwen3-1.7B": (Qwen3Config, 2048, 6144, 28, 16, 8, 128, 151936, True),
    "Qwen/Qwen3-4B": (Qwen3Config, 2560, 9728, 36, 32, 8, 128, 151936, True),
    "Qwen/Qwen3-8B": (Qwen3Config, 4096, 12288, 36, 32, 8, 128, 151936, False),
    "Qwen/Qwen2.5-0.5B-Instruct": (Qwen2Config, 896, 4864, 24, 14, 2, 64, 151936, True),
    "Qwen/Qwen2.5-1.5B-Instruct": (Qwen2Config, 1536, 8960, 28, 12, 2, 128, 151936, True),
    "Qwen/Qwen2.5-3B-Instruct": (Qwen2Config, 2048, 11008, 36, 16, 2, 128, 151936, True),
    "Qwen/Qwen2.5-7B-Instruct": (Qwen2Config, 3584, 18944, 28, 28, 4, 128, 152064, False),
    "Qwen/Qwen1.5-0.5B-Chat": (Qwen2Config, 1024, 2816, 24, 16, 16, 64, 151936, True),
    "Qwen/Qwen1.5-1.8B-Chat": (Qwen2Config, 2048, 5504, 24, 16, 16, 128, 151936, False),
    "Qwen/Qwen1.5-4B-Chat": (Qwen2Config, 2560, 6912, 40, 20, 20, 128, 151936, False),
    "Qwen/Qwen1.5-7B-Chat": (Qwen2Config, 4096, 11008, 32, 32, 32, 128, 151936, False),
    "meta-llama/Meta-Llama-3-8B-Instruct": (LlamaConfig, 4096, 14336, 32, 32, 8, 128, 128256, False),
    "mistralai/Mistral-7B-Instruct-v0.2": (MistralConfig, 4096, 14336, 32, 32, 8, 128, 32000, False),
    "Dream-org/Dream-v0-Instruct-7B": (Qwen2Config, 3584, 18944, 28, 28, 4, 128, 152064, False),
    "GSAI-ML/LLaDA-8B-Instruct": (LlamaConfig, 4096, 12288, 32, 32, 32, 128, 126464, False),
}


def decoder_config(backbone: Any) -> PretrainedConfig:
    """transformers' configuration of a backbone, read without its weights.

    A hub id that is not in the table above costs one download of config.json. Raises `ValueError` where the backbone
    is no decoder of ours, and what `Hub` raises where the hub does not answer.
    """
    if isinstance(backbone, Tiny):
        return backbone.config()
    if isinstance(backbone, SmolLM2):
        return AutoConfig.from_pretrained(backbone.converted_folder(), local_files_only=True)
    if not isinstance(backbone, Hub):
        raise ValueError(f"{type(backbone).__name__} is no decoder whose shape can be read")
    if backbone.id in KNOWN and not Path(backbone.id).is_dir():
        return known_config(backbone.id)
    return backbone.config()


def known_config(name: str) -> PretrainedConfig:
    """The configuration of a decoder of the table, by hub id."""
    kind, hidden, feed_forward, layers, heads, kv_heads, head_size, vocabulary, tied = KNOWN[name]
    more: dict[str, Any] = {"head_dim": head_size} if kind is not Qwen2Config else {}
    if kind is MistralConfig:
        more["sliding_window"] = None
    return kind(
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        **more,
    )
