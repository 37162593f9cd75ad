"""AdamW with the papers' schedules; slots have a learning rate of their own, and each group its own clipping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from unified_lm.model import UnifiedLM

SCHEDULES = ("linear", "cosine", "constant")


@dataclass(frozen=True, kw_only=True)
class Optim:
    """Settings of AdamW and its learning-rate schedule.

    `steps`: length of the schedule. `stop_after`: end the run earlier *inside* the schedule (None: run to the end); a
    shorter schedule is something else. `warmup`: steps, or a share of `steps` when below 1. `floor`: share of the peak
    rate at which linear and cosine decay end. `slots_ratio`: learning rate of slots (and heads) over the backbone's.
    `clip`: largest gradient norm of each group (None: no clipping). `states`: of AdamW, "float32" or "8bit" (CUDA,
    bitsandbytes). `paper_emulation_world_size`=W scales batch-level terms by 1/W, the effect that the released GritLM
    code has on W GPUs (it gathers with local gradients and averages); 1 is exact.
    """

    learning_rate: float
    steps: int
    schedule: str
    warmup: int | float
    weight_decay: float
    betas: Sequence[float]
    eps: float
    clip: float | None
    slots_ratio: float
    floor: float = 0.0
    stop_after: int | None = None
    states: str = "float32"
    paper_emulation_world_size: int = 1

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"optim.schedule={self.schedule} is unknown; use one of {', '.join(SCHEDULES)}")
        if self.steps < 1 or self.learning_rate <= 0:
            raise ValueError("optim.steps and optim.learning_rate must be positive")
        if self.warmup < 0 or self.weight_decay < 0 or self.slots_ratio < 0 or not 0 <= self.floor <= 1:
            raise ValueError(
                f"optim.warmup={self.warmup}, optim.weight_decay={self.weight_decay} and optim.slots_ratio="
                f"{self.slots_ratio} must not be negative, and optim.floor={self.floor} is a share from 0 to 1"
            )
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"optim.clip={self.clip} would stop every step; use a norm above 0, or null")
        if self.stop_after is not None and not 0 < self.stop_after <= self.steps:
            raise ValueError(f"optim.stop_after={self.stop_after} must lie within optim.steps={self.steps}")
        if self.states not in ("float32", "8bit"):
            raise ValueError(f"optim.states={self.states} is unknown; use float32 or 8bit")
        if self.paper_emulation_world_size < 1:
            raise ValueError("optim.paper_emulation_world_size is a number of GPUs: 1 (exact) or more")

    @property
    def batch_scale(self) -> float:
        return 1 / self.paper_emulation_world_size

    @property
    def last_step(self) -> int:
        return self.stop_after or self.steps

    def learning_rate_factor(self, step: int) -> float:
        """Share of the peak learning rate at a step (from 0)."""
        warmup = round(self.warmup * self.steps) if self.warmup < 1 else int(self.warmup)
        if step < warmup:
            return (step + 1) / warmup
        if self.schedule == "constant":
            return 1.0
        done = (step - warmup) / max(1, self.steps - warmup)
        left = 1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.floor + (1 - self.floor) * left

    def build_optimizer(self, model: UnifiedLM) -> torch.optim.AdamW:
        """AdamW over the trainable parameters, in two groups: the backbone, and the new parts (slots, heads).

        Raises `ValueError` where nothing is trainable.
        """
        backbone = [p for p in model.backbone.parameters() if p.requires_grad]
        mine = {id(p) for p in model.backbone.parameters()}
        new = [p for p in model.parameters() if p.requires_grad and id(p) not in mine]
        groups = []
        if backbone:
            groups.append({"params": backbone, "name": "backbone", "peak": self.learning_rate})
        if new:
            peak = self.learning_rate * self.slots_ratio
            groups.append({"params": new, "name": "slots", "peak": peak, "weight_decay": 0.0})
        if not groups:
            raise ValueError("nothing is trainable: choose another trainable=, or a method with slots")
        options = {"betas": tuple(self.betas), "eps": self.eps, "weight_decay": self.weight_decay}
        if self.states == "8bit":
            return load_adamw_8bit()(groups, lr=self.learning_rate, **options)
        fused = all(p.dtype == torch.float32 and type(p) is nn.Parameter for g in groups for p in g["params"])
        return torch.optim.AdamW(groups, lr=self.learning_rate, fused=fused, **options)

    def set_learning_rates(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Set every group's learning rate for a step; returns the backbone's, or the first group's."""
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * self.learning_rate_factor(step)
        return optimizer.param_groups[0]["lr"]

    def clip_gradients(self, optimizer: torch.optim.Optimizer) -> dict[str, float]:
        """Clip the gradient norm of each group; returns the norms before clipping, by group name."""
        norms = {}
        for group in optimizer.param_groups:
            limit = math.inf if self.clip is None else self.clip
            norm = nn.utils.clip_grad_norm_(group["params"], limit)
            norms[group["name"]] = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        return norms


def load_adamw_8bit() -> type[torch.optim.Optimizer]:
    """AdamW with 8-bit states.

    Raises `ValueError` without a CUDA GPU or without bitsandbytes.
    """
    if not torch.cuda.is_available():
        raise ValueError("optim.states=8bit needs a CUDA GPU; use optim.states=float32")
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise ValueError("optim.states=8bit needs bitsandbytes: pip install bitsandbytes") from error
    return AdamW8bit
