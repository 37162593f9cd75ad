"""Which parameters are trained: parts of the model, or low-rank adapters on a frozen backbone.

Parts are found by the decoder's structure (attention and feed-forward modules of its layers, its embeddings), not by
names in a state dict. Parameters outside the backbone (slots, heads) are always trained.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from unified_lm.model import UnifiedLM

PARTS = ("all", "ffn", "attention", "embeddings", "slots")
TARGETS = ("ffn", "attention")


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """Train the parameters of these parts and freeze the others.

    ``ffn`` and ``attention`` are the layers' feed-forward and attention matrices (with their biases); norms belong to
    ``all`` only. ``embeddings`` is the input matrix; a tied head is trained with it, an untied head belongs to ``all``
    only. ``slots`` alone freezes the backbone.
    """

    parts: Sequence[str]

    def __post_init__(self) -> None:
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or not self.parts:
            raise ValueError(f"trainable.parts={list(self.parts)}: give one or more of {', '.join(PARTS)}")
        if "all" in self.parts and len(self.parts) > 1:
            raise ValueError(
                f"trainable.parts={list(self.parts)}: `all` holds every other part; use [all] or leave it out"
            )

    def apply(self, model: UnifiedLM) -> tuple[str, ...]:
        """Set ``requires_grad`` of every parameter and return the names of the trained ones.

        Raises ValueError for a part that the model does not have, and for a model that carries adapters.
        """
        _refuse_adapters(model)
        chosen: set[int] = set()
        for part in self.parts:
            parameters = _part_parameters(model, part)
            if not parameters:
                raise ValueError(_no_match_message(model, part))
            chosen.update(id(parameter) for parameter in parameters)
        chosen.update(id(parameter) for parameter in _parameters_outside_backbone(model))
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in chosen)
        return trainable_names(model)

    def describe(self, model: UnifiedLM) -> dict[str, Any]:
        """What a record says about this choice on this model, after ``apply``."""
        return {"trainable": "+".join(self.parts), **_count_parameters(model)}


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters (Hu et al., 2022) on the linear layers of ``targets``, beside a frozen backbone.

    The update is ``alpha / r * B A`` (``alpha / sqrt(r) * B A`` with ``rslora``, Kalajdzievski, 2023). B starts at
    zero, A is drawn from torch's global generator, both in float32 whatever the backbone's dtype. The backbone is
    changed in place: its modules keep their names, an adapted layer's own weight is ``<layer>.base_layer.weight``.
    ``embed_only``: use the adapters for embedding only; generation runs the base model.
    """

    r: int
    alpha: int | float
    dropout: int | float
    targets: Sequence[str]
    rslora: bool = False
    embed_only: bool = False

    def __post_init__(self) -> None:
        unknown = [target for target in self.targets if target not in TARGETS]
        if unknown or not self.targets:
            raise ValueError(f"trainable.targets={list(self.targets)}: give one or both of {', '.join(TARGETS)}")
        if self.r < 1 or not 0 <= self.dropout < 1:
            raise ValueError(f"trainable.r={self.r} must be 1 or more and trainable.dropout={self.dropout} in [0, 1)")

    def apply(self, model: UnifiedLM) -> tuple[str, ...]:
        """Add adapters to the backbone, freeze the rest of it, and return the names of the trained parameters."""
        from peft import LoraConfig, inject_adapter_in_model  # two seconds that runs without adapters do not pay

        _refuse_adapters(model)
        wanted = {
            id(linear)
            for target in self.targets
            for block in _layer_modules(model, target)
            for linear in _linear_modules(block)
        }
        names = [name for name, module in model.backbone.named_modules() if id(module) in wanted]
        if not names:
            raise ValueError(_no_match_message(model, " and ".join(self.targets)))
        config = LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            use_rslora=self.rslora,
            target_modules=names,
            bias="none",
        )
        inject_adapter_in_model(config, model.backbone)
        new = [parameter for layer in _adapted_layers(model) for parameter in _adapter_parameters(layer)]
        for parameter in new:
            parameter.data = parameter.data.float()
        chosen = {id(parameter) for parameter in (*new, *_parameters_outside_backbone(model))}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in chosen)
        return trainable_names(model)

    def describe(self, model: UnifiedLM) -> dict[str, Any]:
        """What a record says about this choice on this model, after ``apply``."""
        return {
            "trainable": f"lora r={self.r} alpha={self.alpha} on {'+'.join(self.targets)}",
            **_count_parameters(model),
        }


def trainable_names(model: UnifiedLM) -> tuple[str, ...]:
    """Return the names of the trained parameters; a tied matrix has one name."""
    return tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)


@contextmanager
def disable_adapters(model: UnifiedLM) -> Iterator[UnifiedLM]:
    """Run the model without its adapters inside the block; slots stay in use."""
    layers = _adapted_layers(model)
    learns = [(parameter, parameter.requires_grad) for layer in layers for parameter in _adapter_parameters(layer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield model
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for parameter, learnt in learns:
            parameter.requires_grad_(learnt)


@torch.no_grad()
def merge_adapters(model: UnifiedLM) -> UnifiedLM:
    """Merge the adapters into the weights in place; the decoder's parameters get their original names back.

    The sum is computed in float32 and rounded once to the weight's dtype. Raises ValueError without adapters.
    """
    layers = {name: module for name, module in model.backbone.named_modules() if _is_adapted(module)}
    if not layers:
        raise ValueError("the model has no adapters to merge; apply trainable=lora first")
    for name, layer in layers.items():
        base = layer.get_base_layer()
        update = sum(layer.get_delta_weight(adapter).float() for adapter in layer.active_adapters)
        base.weight.copy_(base.weight.float() + update)
        parent, _, leaf = name.rpartition(".")
        setattr(model.backbone.get_submodule(parent), leaf, base)
    del model.backbone.peft_config
    return model


def _part_parameters(model: UnifiedLM, part: str) -> list[nn.Parameter]:
    """Return the parameters of one part; an empty list if the model has no such part."""
    if part == "all":
        return list(model.backbone.parameters())
    if part == "slots":
        return list(model.slots.parameters()) if model.slots is not None else []
    if part == "embeddings":
        return list(model.backbone.get_input_embeddings().parameters())
    return [
        parameter
        for block in _layer_modules(model, part)
        for linear in _linear_modules(block)
        for parameter in linear.parameters()
    ]


def _layer_modules(model: UnifiedLM, part: str) -> list[nn.Module]:
    """Return every layer's attention or feed-forward module, by the attribute names of transformers' decoders."""
    attribute = {"attention": "self_attn", "ffn": "mlp"}[part]
    layers = getattr(model.backbone.base_model, "layers", ())
    return [getattr(layer, attribute) for layer in layers if hasattr(layer, attribute)]


def _linear_modules(module: nn.Module) -> list[nn.Linear]:
    return [inner for inner in module.modules() if isinstance(inner, nn.Linear)]


def _parameters_outside_backbone(model: UnifiedLM) -> list[nn.Parameter]:
    """Return the parameters outside the backbone: they are new, so they are always trained."""
    inside = {id(parameter) for parameter in model.backbone.parameters()}
    return [parameter for parameter in model.parameters() if id(parameter) not in inside]


def _is_adapted(module: nn.Module) -> bool:
    """Whether a module is an adapted layer of peft (its original layer is ``base_layer``)."""
    return hasattr(module, "base_layer") and hasattr(module, "lora_A")


def _adapted_layers(model: UnifiedLM) -> list[Any]:
    return [module for module in model.backbone.modules() if _is_adapted(module)]


def _adapter_parameters(layer: Any) -> list[nn.Parameter]:
    """Return the matrices A and B of a layer's adapter."""
    return [*layer.lora_A.parameters(), *layer.lora_B.parameters()]


def _refuse_adapters(model: UnifiedLM) -> None:
    if _adapted_layers(model):
        raise ValueError(
            "the model already carries adapters; merge them first (unified_lm.trainable.merge), or start from its base"
        )


def _no_match_message(model: UnifiedLM, part: str) -> str:
    if part == "slots":
        return "trainable.parts=slots, but the method has no slots; give it method.slots=N or choose another trainable="
    return (
        f"trainable={part} matches no parameter of {type(model.backbone).__name__}: its layers have no module of that "
        f"kind under the usual name; choose another of {', '.join(PARTS)}"
    )


def _count_parameters(model: UnifiedLM) -> dict[str, Any]:
    """Count parameters and slots, and say whether the head is tied and trained."""
    rows, head = model.backbone.get_input_embeddings().weight, model.backbone.get_output_embeddings()
    fate = "learns" if head.weight.requires_grad else "frozen"
    learn = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    return {
        "head": f"tied to the embeddings, {fate} with them" if head.weight is rows else f"separate, {fate}",
        "slots": 0 if model.slots is None else len(model.slots),
        "parameters_learning": sum(learn),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
