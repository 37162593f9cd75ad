"""What every backbone hands over, and what it must be able to say about itself."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A decoder with its head, its tokenizer, and how its logits are to be read.

    ``logits_shift`` is the distance from a position to the token that its logits predict: 1 for autoregressive
    decoders and for diffusion models adapted from one (Dream), 0 for masked models that predict in place (LLaDA).
    ``mask_token_id`` is the id that stands for a hidden token, where the checkpoint was trained with one.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    logits_shift: int = 1
    mask_token_id: int | None = None


@runtime_checkable
class Backbone(Protocol):
    """A decoder that can be loaded, and identified without being loaded."""

    @property
    def name(self) -> str: ...

    def load(self) -> Loaded: ...

    def fingerprint(self) -> str: ...


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of that name; ValueError with the known names otherwise."""
    if name not in DTYPES:
        raise ValueError(f"backbone.dtype={name} is not a dtype to load weights in; use one of {sorted(DTYPES)}")
    return DTYPES[name]


def digest(content: Any) -> str:
    """Sixteen hex digits that stand for JSON-like content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]
