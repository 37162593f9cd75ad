"""A real training process for the kill-and-resume laws: `python -m tests.laws.train_script FOLDER [PAUSE]`.

Prints a line a step; PAUSE seconds are slept in each, so that a test can kill it at any of them.
"""

import json
import sys
import time
from pathlib import Path

import torch

from tests.laws.ranks_worker import OPTIM, Rows
from tests.laws.test_objective import METHODS
from tests.models import form, unified
from unified_lm.trainable import Lora
from unified_lm.training.loop import Runtime, train
from unified_lm.training.watch import REQUEUE, Preempted


def main(folder: Path, pause: float) -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = unified(slots=4, dropout=0.1)
    Lora(r=4, alpha=8, dropout=0.1, targets=("ffn", "attention")).apply(model)

    def on_log(entry: dict) -> None:
        print(json.dumps({"step": entry["step"], "loss": entry["loss"]}), flush=True)
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
            complain=lambda text: print(json.dumps({"said": text}), flush=True),
        )
    except Preempted:
        return REQUEUE
    print(json.dumps({"digest": result.digest}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0))
