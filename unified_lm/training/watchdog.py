"""Stops a run that does not train: losses and gradients that are not finite or stay zero, and stop signals."""

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
    """The loss or a gradient is not finite, or was exactly zero for several steps."""


class Preempted(RuntimeError):
    """The run was asked to stop and wrote a checkpoint; the same command continues it."""


@dataclass
class Watchdog:
    """Checks every step. `patience`: number of steps for which a loss or a group's gradient may be exactly zero."""

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
        """Raises `Diverged` for a step that is not finite or was zero too often, naming the rows of its batch (`ids`).

        Warns where the first `next_token_loss` is worse than chance (ln V).
        """
        if not math.isfinite(loss) or not all(map(math.isfinite, norms.values())):
            values = ", ".join(f"{name} {value}" for name, value in {"loss": loss, **terms, **norms}.items())
            raise Diverged(
                f"step {step} is not finite ({values}); rows of the batch: {', '.join(ids)}; "
                f"the last good checkpoint is under {self.folder}"
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
    """Yield a function that tells whether SIGTERM or SIGUSR1 has arrived; neither ends the process inside."""
    received = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield received.is_set
        return
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.signal(number, lambda *_: received.set()) for number in numbers]
    try:
        yield received.is_set
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
