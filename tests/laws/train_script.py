"""What a training process of the kill-and-resume laws does."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.laws.ranks_worker import OPTIM, Rows
from tests.methods import METHODS
from tests.models import form, unified
from unified_lm.trainable import Lora
from unified_lm.training.loop import Runtime, train
from unified_lm.training.watchdog import REQUEUE, Preempted


def main(folder: Path, pause: float, say: Callable[[dict[str, Any]], None]) -> int:
    """Says each step, and sleeps `pause` seconds in it, so that a test can kill the process at any of them."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = unified(slots=4, dropout=0.1)
    Lora(r=4, alpha=8, dropout=0.1, targets=("ffn", "attention")).apply(model)

    def on_log(entry: dict) -> None:
        say({"step": entry["step"], "loss": entry["loss"]})
        time.sleep(pause)

    try:
        result = train(
            model=model,
            method=METHODS["ulme"],
            form=form(model),
            batches=Rows(),
            optim=OPTIM,
            seed=0,
            runtime=Runtime(chunk_tokens=90, save_every=3, keep_last=2),
            folder=folder,
            identity="killed",
            on_log=on_log,
            warn=lambda text: say({"said": text}),
        )
    except Preempted:
        return REQUEUE
    say({"digest": result.digest})
    return 0
