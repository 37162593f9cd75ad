"""The backbone protocol, and helpers to load weights and tokenizers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

# The ChatML chat template, for backbones that bring none of their own.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class LoadedBackbone:
    """A loaded decoder with its head and tokenizer.

    ``logits_shift`` is the distance from a position to the token that its logits predict: 1 for autoregressive
    decoders and for diffusion models adapted from one (Dream), 0 for masked models that predict in place (LLaDA).
    ``mask_token_id`` is the id of the mask token, if the checkpoint was trained with one.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    logits_shift: int = 1
    mask_token_id: int | None = None


@runtime_checkable
class Backbone(Protocol):
    """A decoder that can be loaded, and identified without loading."""

    @property
    def name(self) -> str: ...

    def load(self) -> LoadedBackbone: ...

    def fingerprint(self) -> str: ...


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a name. Raises ValueError for an unknown name, with the known ones."""
    if name not in DTYPES:
        raise ValueError(f"backbone.dtype={name} is not a dtype to load weights in; use one of {sorted(DTYPES)}")
    return DTYPES[name]


def read_weights(
    model_class: type[PreTrainedModel],
    folder: Path | None,
    dtype: torch.dtype,
    *,
    config: PreTrainedConfig | None = None,
    weights: dict[str, Tensor] | None = None,
) -> PreTrainedModel:
    """Load a model of a class from the safetensors of a folder, or from ``weights`` under transformers' names.

    transformers initializes missing tensors at random and drops unexpected ones, with only a log line; here both raise
    a ValueError that names the tensors.
    """
    with refused_where_unreadable(f"the weights of {folder or model_class.__name__}"):
        model, report = model_class.from_pretrained(
            folder,
            config=config,
            state_dict=weights,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    wrong = {problem: sorted(report[problem])[:5] for problem in ("missing_keys", "unexpected_keys") if report[problem]}
    if wrong:
        raise ValueError(
            f"the weights of {folder or model_class.__name__} do not fit {model_class.__name__}: {wrong}; "
            "is config.json from the same checkpoint?"
        )
    require_finite(model, str(folder or model_class.__name__), dtype)
    return train_padding_row(model).eval()


def require_finite(model: PreTrainedModel, source: str, dtype: torch.dtype) -> None:
    """Raises ValueError where a weight is NaN or infinite: each vector and each score of such a model would be, too."""
    for name, weight in model.named_parameters():
        if weight.numel() and not torch.stack(weight.detach().aminmax()).isfinite().all():
            raise ValueError(
                f"the weights of {source} hold NaN or infinity in {name} as {str(dtype).removeprefix('torch.')}: the "
                "checkpoint is damaged, or needs backbone.dtype=bfloat16 or float32"
            )


@contextmanager
def refused_where_unreadable(what: str) -> Iterator[None]:
    """Turns whatever a library makes of a damaged file into one line. A lack of memory stays what it is."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # each library has classes of its own, and some raise Exception itself
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
        raise ValueError(
            f"{what} cannot be read ({type(error).__name__}: {reason}); fetch the whole checkpoint anew"
        ) from error


def read_facts(path: Path) -> dict[str, Any]:
    """config.json as a mapping. Raises ValueError for anything else."""
    with refused_where_unreadable(str(path)):
        facts = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(facts, dict):
        raise ValueError(f"{path} holds a {type(facts).__name__} and no mapping of settings: it is no config.json")
    if not isinstance(facts.get("model_type"), str | None):
        raise ValueError(f"{path} has model_type={facts['model_type']!r}, which is no name: it is no config.json")
    return facts


def train_padding_row(model: PreTrainedModel) -> PreTrainedModel:
    """Give the padding token's embedding a gradient again, which it needs where it is the end token too."""
    model.get_input_embeddings().padding_idx = None
    return model


def read_tokenizer(folder: Path, otherwise: type[PreTrainedTokenizerFast] | None = None) -> PreTrainedTokenizerFast:
    """Load the tokenizer exactly as in a folder's tokenizer.json; without that file, by the class ``otherwise``.

    transformers' own choice by model type rebuilds the pre-tokenizer of that family (Qwen2's, say) even where
    tokenizer.json states another, so the same text would silently become other tokens. Padding is on the left, as
    a decoder's generation needs it; packs have no padding.
    """
    tokenizer_class = PreTrainedTokenizerFast if (folder / "tokenizer.json").is_file() else otherwise or AutoTokenizer
    with refused_where_unreadable(f"the tokenizer of {folder}"):
        return tokenizer_class.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, padding_side="left"
        )


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars inside the block, for loads that take a moment."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
