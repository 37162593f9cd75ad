"""Bars for a person at a terminal, a line now and then for a log."""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

LOG_SECONDS = 15.0
PROGRESS = re.compile(r"\S.* \d+/\d+ \|.*|\S[^|]*: +\d+%\|.*|score .*")  # a line of `bar`, of tqdm's own, of `scoring`


def progress_bar(total: int, label: str, *, done: int = 0) -> tqdm:
    """A bar on stderr that redraws twice a second on a terminal and prints a line every 15 seconds elsewhere."""
    terminal = sys.stderr.isatty()
    return tqdm(
        total=total,
        initial=done,
        desc=label,
        file=sys.stderr,
        dynamic_ncols=terminal,
        mininterval=0.5 if terminal else LOG_SECONDS,
        bar_format="{desc} {n_fmt}/{total_fmt} |{bar:20}| {elapsed} elapsed, {remaining} left{postfix}",
        leave=True,
    )


def training_progress(steps: int) -> tuple[tqdm, Callable[[Mapping[str, Any]], None]]:
    """A bar of training steps, and the function that shows a logged row on it: loss and tokens a second."""
    shown = progress_bar(steps, "train")

    def advance(row: Mapping[str, Any]) -> None:
        shown.set_postfix_str(f"loss {row['loss']:.3f}, {row['tokens_per_s']:.0f} tokens/s", refresh=False)
        shown.update(row["step"] - shown.n)

    return shown, advance


def scoring_progress(suite: str) -> Callable[[str, int, int], None]:
    """What a suite calls when task i of n begins."""

    def begin(task: str, number: int, count: int) -> None:
        print(f"score {suite}: task {number} of {count}, {task}", file=sys.stderr, flush=True)

    return begin


class LogFollower:
    """How far a worker is, by the log that its bars go to. What the log holds already is not news."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.read = log.stat().st_size if log.exists() else 0

    def latest_progress(self) -> str | None:
        """The last line of progress since the last call."""
        with self.log.open("rb") as file:
            file.seek(self.read)
            told = file.read()
        self.read += len(told)
        lines = re.split(r"[\r\n]+", told.decode("utf-8", errors="replace"))
        return next((line for line in reversed(lines) if PROGRESS.fullmatch(line)), None)
