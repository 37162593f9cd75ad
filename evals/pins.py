"""Pins of a suite: what it is scored with, the digest that names all of it, and the mark of a suite that differs.

A suite that was cut or changed on the command line is scored under another name, so that its scores can stand in no
column of a table that asks for the whole one.
"""

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from evals.score import SUBSET_MARK, identity_key
from unified_lm.files import closest_names

CHANGED_MARK = " (changed)"
"""Ends the name of a suite whose pins are not those that its file commits to."""

PRINT_DIGEST = "python -m experiments.check_data suites={name}"
"""The command that prints the digest of a suite's pins."""

Pins = Mapping[str, Mapping[str, Any]]
"""Task -> name of a pin -> its value."""


def pins_digest(library: str, tasks: Pins, metrics: Sequence[str]) -> str:
    """Sixteen hexadecimal digits that name a list of tasks and everything that is pinned about them."""
    return identity_key(
        library=library, tasks={task: dict(pins) for task, pins in tasks.items()}, metrics=list(metrics)
    )[:16]


def check_installed_version(package: str, pinned: str, suite: str) -> None:
    """Raises ValueError where another version of the scoring library is installed than the suite is pinned at."""
    if version(package) != pinned:
        raise ValueError(
            f"suite {suite} is pinned at {package} {pinned}, but {version(package)} is installed: "
            f"pip install {package}=={pinned}"
        )


def check_pins(suite: str, tasks: Pins, pins: Sequence[str]) -> None:
    """Raises ValueError for a task without one of the pins."""
    for task, own in tasks.items():
        if missing := [pin for pin in pins if own.get(pin) is None]:
            raise ValueError(f"task {task} of suite {suite} is not pinned: it needs {', '.join(missing)}")


def mark_name(
    name: str, tasks: Mapping[str, Any], only: Sequence[str] | None, digest: str, committed: str | None
) -> str:
    """The suite's name, with a mark where its pins are not the `committed` ones and where `only` leaves tasks out.

    A suite that commits to no digest keeps its name. Raises ValueError for a task in `only` that the suite does not
    have, and for a `committed` that is no digest.
    """
    for task in only or ():
        if task not in tasks:
            near = closest_names(task, tasks)
            raise ValueError(f"suite {name} has no task {task!r}" + (f"; did you mean {near[0]}?" if near else ""))
    if committed is not None and not re.fullmatch("[0-9a-f]{16}", committed):
        raise ValueError(
            f"suite {name} has committed={committed!r}, which is no digest of pins; "
            f"`{PRINT_DIGEST.format(name=name)}` prints it"
        )
    changed = committed not in (None, digest)
    return name + (CHANGED_MARK if changed else "") + (SUBSET_MARK if only is not None else "")
