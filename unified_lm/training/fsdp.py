"""FSDP2 for models that do not fit one device: the whole `TrainingModule` is one sharded root, gradients are summed.

Everything with parameters (embedding, slots, layers, head, read-outs) runs inside the root's forward. All ranks call it
equally often (`Ranks.lockstep`), and gradients are reduced once a step, with the last chunk's backward.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from unified_lm.training.objective import TrainingModule

DTYPES = {None: None, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How many processes train a run, and what each of them holds. The global batch is the same for all launches.

    `sharding`: "replicated" (each rank the whole model; one coalesced all-reduce a step) or "fsdp" (FSDP2).
    `checkpointing`: recompute each layer's activations in the backward. `param_dtype`, `reduce_dtype`: FSDP2's mixed
    precision (None: the parameters' own).
    """

    processes: int
    nodes: int = 1
    sharding: str = "replicated"
    checkpointing: bool = False
    param_dtype: str | None = None
    reduce_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.sharding not in ("replicated", "fsdp"):
            raise ValueError(f"launch.sharding={self.sharding} is unknown; use replicated or fsdp")
        for name in ("param_dtype", "reduce_dtype"):
            if getattr(self, name) not in DTYPES:
                raise ValueError(f"launch.{name}={getattr(self, name)} is unknown; use null, float32 or bfloat16")
        if self.sharding == "replicated" and (self.param_dtype or self.reduce_dtype):
            raise ValueError("launch.param_dtype and launch.reduce_dtype are FSDP2's; use launch.sharding=fsdp or null")

    @property
    def sharded(self) -> bool:
        return self.sharding == "fsdp"


def shard_module(module: TrainingModule, launch: Launch) -> None:
    """Shard each decoder layer and then the rest, in place; gradients are summed over ranks, not averaged."""
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[launch.param_dtype], reduce_dtype=DTYPES[launch.reduce_dtype], cast_forward_inputs=False
    )
    for layer in decoder_layers(module.model.backbone):
        fully_shard(layer, mp_policy=policy)
    fully_shard(module, mp_policy=policy)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo has no premultiplied sum


def decoder_layers(backbone: nn.Module) -> nn.ModuleList:
    """The decoder's layers.

    Raises `ValueError` where there is no single list of them.
    """
    found = [m for name, m in backbone.named_modules() if isinstance(m, nn.ModuleList) and name.endswith("layers")]
    if len(found) != 1:
        raise ValueError(f"{type(backbone).__name__} has {len(found)} lists of layers; sharding needs exactly one")
    return found[0]


def set_gradient_sync(module: nn.Module, last: bool) -> None:
    """Reduce gradients in the next backward only if it is the step's last one."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
        module.set_is_last_backward(last)
