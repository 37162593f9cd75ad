"""Masked-diffusion decoders, loaded into the classes of transformers, so that no checkpoint's code is run.

Dream (Ye et al., 2025) has Qwen2's mathematics and tensor names; LLaDA (Nie et al., 2025) has Llama's mathematics under
OLMo's names. Their configuration classes have defaults that differ from the published checkpoints, so every value is
read from config.json and a missing one is an error.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from packaging.specifiers import SpecifierSet
from safetensors.torch import load_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

from unified_lm.backbones.base import read_weights

# The versions whose Qwen2 and Llama classes these mappings were checked against.
TRANSFORMERS = SpecifierSet(">=5.23,<6")


@dataclass(frozen=True, kw_only=True)
class DiffusionFormat:
    """How one family's checkpoint becomes a transformers decoder; ``logits_shift`` as in ``Loaded``."""

    model_class: type[PreTrainedModel]
    tokenizer_class: type[PreTrainedTokenizerFast]
    logits_shift: int
    config: Callable[[dict[str, Any]], PreTrainedConfig]
    rename: Callable[[str], str]

    def load_model(self, facts: dict[str, Any], folder: Path, dtype: torch.dtype) -> PreTrainedModel:
        """Load the decoder from a folder's safetensors. Raises ValueError for a missing or unknown tensor."""
        weights = {
            self.rename(name): tensor
            for shard in sorted(folder.glob("*.safetensors"))
            for name, tensor in load_file(shard).items()
        }
        return read_weights(self.model_class, None, dtype, config=self.config(facts), weights=weights)


def require_supported_transformers() -> None:
    """Raise ValueError if the installed transformers is outside the tested range."""
    if transformers.__version__ not in TRANSFORMERS:
        raise ValueError(
            f"diffusion backbones are mapped onto the decoder classes of transformers {TRANSFORMERS}, "
            f"but {transformers.__version__} is installed; install a version in that range"
        )


def _dream_config(facts: dict[str, Any]) -> Qwen2Config:
    """Convert Dream's configuration to Qwen2's."""
    read = _CheckpointConfig("Dream", facts)
    read.refuse("rope_scaling", "use_sliding_window")
    return Qwen2Config(
        vocab_size=read("vocab_size"),
        hidden_size=read("hidden_size"),
        intermediate_size=read("intermediate_size"),
        num_hidden_layers=read("num_hidden_layers"),
        num_attention_heads=read("num_attention_heads"),
        num_key_value_heads=read("num_key_value_heads"),
        hidden_act=read("hidden_act"),
        max_position_embeddings=read("max_position_embeddings"),
        rms_norm_eps=read("rms_norm_eps"),
        rope_parameters={"rope_type": "default", "rope_theta": read("rope_theta")},
        tie_word_embeddings=read("tie_word_embeddings"),
    )


def _llada_config(facts: dict[str, Any]) -> LlamaConfig:
    """Convert LLaDA's configuration to Llama's; only its Llama-like block is supported."""
    read = _CheckpointConfig("LLaDA", facts)
    read.require(
        block_type="llama",
        layer_norm_type="rms",
        activation_type="silu",
        rope=True,
        include_bias=False,
        include_qkv_bias=False,
    )
    read.refuse("alibi", "scale_logits", "input_emb_norm", "attention_layer_norm", "bias_for_layer_norm")
    read.refuse("attention_dropout", "embedding_dropout", "residual_dropout")
    return LlamaConfig(
        vocab_size=read("embedding_size") or read("vocab_size"),
        hidden_size=read("d_model"),
        intermediate_size=read("mlp_hidden_size"),
        num_hidden_layers=read("n_layers"),
        num_attention_heads=read("n_heads"),
        num_key_value_heads=read("n_kv_heads"),
        hidden_act=read("activation_type"),
        max_position_embeddings=read("max_sequence_length"),
        rms_norm_eps=read("rms_norm_eps"),
        rope_parameters={"rope_type": "default", "rope_theta": read("rope_theta")},
        tie_word_embeddings=read("weight_tying"),
    )


@dataclass(frozen=True)
class _CheckpointConfig:
    """A checkpoint's config.json, read without default values."""

    family: str
    facts: dict[str, Any]

    def __call__(self, name: str) -> Any:
        if name not in self.facts:
            raise ValueError(
                f"config.json of this {self.family} checkpoint has no {name}; its value decides what the model "
                "computes, so it is never assumed: add the field, or pin a revision that has it"
            )
        return self.facts[name]

    def require(self, **values: Any) -> None:
        """Raise ValueError unless the fields are present with exactly these values."""
        for name, value in values.items():
            if self(name) != value:
                raise ValueError(
                    f"config.json of this {self.family} checkpoint has {name}={self(name)!r}; only {value!r} can be "
                    "mapped onto transformers' decoder"
                )

    def refuse(self, *names: str) -> None:
        """Raise ValueError unless these features are absent or off."""
        for name in names:
            if self.facts.get(name):
                raise ValueError(
                    f"config.json of this {self.family} checkpoint has {name}={self.facts[name]!r}, which "
                    "transformers' decoder does not compute; use a checkpoint without it"
                )


_LLADA_BLOCK = re.compile(r"model\.transformer\.blocks\.(\d+)\.(\w+)\.weight")
_LLADA_LAYER = {
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
_LLADA_OUTER = {
    "model.transformer.wte.weight": "model.embed_tokens.weight",
    "model.transformer.ln_f.weight": "model.norm.weight",
    "model.transformer.ff_out.weight": "lm_head.weight",
}


def _rename_llada(name: str) -> str:
    """Convert LLaDA's tensor name to Llama's; an unknown name stays as it is, and the loader refuses it."""
    block = _LLADA_BLOCK.fullmatch(name)
    if block and block[2] in _LLADA_LAYER:
        return f"model.layers.{block[1]}.{_LLADA_LAYER[block[2]]}.weight"
    return _LLADA_OUTER.get(name, name)


# By config.json's model_type.
DIFFUSION_FORMATS = {
    "Dream": DiffusionFormat(
        model_class=Qwen2ForCausalLM,
        tokenizer_class=Qwen2Tokenizer,
        logits_shift=1,
        config=_dream_config,
        rename=lambda name: name,
    ),
    "llada": DiffusionFormat(
        model_class=LlamaForCausalLM,
        tokenizer_class=PreTrainedTokenizerFast,
        logits_shift=0,
        config=_llada_config,
        rename=_rename_llada,
    ),
}
