"""What the processes of the laws on CUDA do, each on a fake device of its own (`tests.fake_cuda`)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests import fake_cuda, kernel_stand_ins
from tests.models import form, unified
from unified_lm.inference.encode import Encoder

Say = Callable[[dict[str, Any]], None]
TEXTS = [f"text number {i} " * (1 + i % 9) for i in range(40)]


def start(device: int, kernel: str) -> str:
    """Believe in a GPU, as rank `device` does after `process_group`, with a stand-in of a kernel; the kernel's name."""
    torch.set_num_threads(1)
    fake_cuda.enable(device)
    torch.cuda.set_device(device)
    return kernel_stand_ins.install(pytest.MonkeyPatch(), kernel, everywhere=False)


def encode_on(device: int, say: Say) -> int:
    """Says the vectors of one pack and of many on that device, and those of a CPU."""
    here = {"autocast": torch.bfloat16, "dtype": "bfloat16"}
    model = unified("qwen3", **here)
    budgets = (64, 10_000)

    def encode(model):
        encoders = [Encoder(model=model, format=form(model), readout="mean", budget=budget) for budget in budgets]
        return [encoder.encode(TEXTS, side="document").tolist() for encoder in encoders]

    wanted = encode(model)
    kernel = start(device, "flash 2")
    model = model.to("cuda")
    model.kernel = kernel
    say({"budgets": budgets, "wanted": wanted, "found": encode(model)})
    return 0
