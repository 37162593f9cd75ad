"""Watchdogs of a run: what must stop it, with a reason, rather than be trained on."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

REQUEUE = 75  # EX_TEMPFAIL: "try again later", the exit code on which schedulers requeue a job


class Diverged(RuntimeError):
    """The loss or a gradient is not a number any more, or nothing is learnt any more."""


class Preempted(RuntimeError):
    """The run was asked to stop, and did so behind a checkpoint; the same command continues it."""


@dataclass
class Watchdog:
    """Looks at every step. `patience`: steps that a loss or a group's gradient may be exactly zero."""

    folder: Path
    vocabulary: int
    warn: Callable[[str], None]
    patience: int = 5
    zeros: dict[str, int] = field(default_factory=dict)

    def check_step(
        self,
        step: int,
        loss: float,
        terms: Mapping[str, float],
        norms: Mapping[str, float],
        ids: list[str],
        next_token_loss: float | None = None,
    ) -> None:
        """Raises `Diverged` naming the step, the reason, the batch's rows (`ids`: where each stands in the data) and
        where to continue."""
        if not math.isfinite(loss) or not all(map(math.isfinite, norms.values())):
            said = ", ".join(f"{name} {value}" for name, value in {"loss": loss, **terms, **norms}.items())
            raise Diverged(
                f"step {step} is not finite ({said}); rows of the batch: {', '.join(ids)}; the last good checkpoint is "
                f"under {self.folder}"
            )
        for name, value in {"the loss": loss, **{f"the gradient of {g}": n for g, n in norms.items()}}.items():
            self.zeros[name] = self.zeros.get(name, 0) + 1 if value == 0 else 0
            if self.zeros[name] >= self.patience:
                raise Diverged(
                    f"{name} was exactly zero for {self.patience} steps up to step {step}: nothing of it is trained; "
                    "check trainable=, the method's weights and the data's rows, of which the last batch had "
                    f"{', '.join(ids)}"
                )
        chance = math.log(self.vocabulary)
        if step == 0 and next_token_loss is not None and next_token_loss > chance:
            self.warn(
                f"the first next-token loss is {next_token_loss:.2f}, above ln V = {chance:.2f}: a pretrained "
                "decoder starts far below it, so its weights may not have been loaded"
            )


@contextmanager
def catch_stop_signals() -> Iterator[Callable[[], bool]]:
    """Tells whether SIGTERM or SIGUSR1 has come, instead of dying from it."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.signal(number, lambda *_: asked.set()) for number in numbers]
    try:
        yield asked.is_set
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
