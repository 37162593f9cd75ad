"""Benchmarks of papers as suites: every task with its pins, and no other tasks than the committed ones.

A suite that was cut or changed on the command line is scored under another name, so that its scores can stand in no
column of a table that asks for the whole one.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from evals.averages import Mean
from evals.embedding.suite import MtebSuite
from evals.embedding.tasks import HubTask, TaskSource
from evals.generation.generated_code import GeneratedCode
from evals.generation.sandbox.trial import described
from evals.generation.suite import LmEvalSuite
from evals.generation.tasks import LmTask, LmTaskSource, RegisteredTask, Style
from evals.instructions import read_instructions
from evals.score import SUBSET_MARK, identity_key
from unified_lm.names import closest

CHANGED_MARK = " (changed)"

SECONDS, MEMORY = 10.0, 4.0
"""Limits of one generated program: seconds of processor time, and GiB."""

Pins = Mapping[str, Mapping[str, Any]]


def mteb_suite(
    *,
    name: str,
    library: str,
    instructions: str,
    tasks: Pins,
    committed: str,
    metrics: Sequence[str] = (),
    means: Sequence[Mean] = (),
    only: Sequence[str] | None = None,
    mirror: str | None = None,
) -> MtebSuite:
    """Tasks of mteb `library`, each pinned by data set, revision, splits, subsets and metric.

    `instructions` names a table of evals/instructions or is the path of one. `metrics` are reported beside each task's
    own. `only`: names of tasks, for a try; `mirror`: the folder of data sets to read instead of the hub.
    `committed`: what `pins_digest` gives for the tasks as they are in the repository.
    """
    check_installed_version("mteb", library, name)
    named = mark_name(name, tasks, only, pins_digest(library, tasks, metrics), committed)
    check_pins(name, tasks, ("dataset", "revision", "splits", "metric", "category"))
    sources: list[TaskSource] = [HubTask(name=task, mirror=mirror, **pins) for task, pins in tasks.items()
                                 if only is None or task in only]  # fmt: skip
    return MtebSuite(
        name=named, sources=sources, instructions=read_instructions(instructions), metrics=metrics, means=means
    )


def lm_suite(
    *,
    name: str,
    library: str,
    dataset: str,
    commit: str,
    split: str,
    tasks: Pins,
    shots: int,
    template: Style,
    multiturn: bool,
    budget: int | None,
    metrics: Sequence[str],
    committed: str,
    means: Sequence[Mean] = (),
    run_generated_code: bool | None = None,
    unsafe: bool = False,
    only: Sequence[str] | None = None,
    mirror: str | None = None,
) -> LmEvalSuite:
    """Tasks of lm-eval `library` over one data set: `dataset` at `commit`, scored on `split`; the rest as in `LmTask`.

    `tasks`: name -> its `file` below lm_eval/tasks, and the `rows` that are published. `run_generated_code`: whether it
    may be run, for tasks that need it; `unsafe`: also where the system cannot keep it apart.
    """
    check_installed_version("lm_eval", library, name)
    check_pins(name, tasks, ("file", "rows"))
    pins = {"dataset": dataset, "commit": commit, "split": split, "shots": shots, "template": template,
            "multiturn": multiturn, "budget": budget}  # fmt: skip
    all_pins = {task: {**own, **pins} for task, own in tasks.items()}
    named = mark_name(name, tasks, only, pins_digest(library, all_pins, metrics), committed)
    note = f"code run with {described()}" if run_generated_code else ""
    entries = []
    for task, own in tasks.items():
        source: LmTaskSource = RegisteredTask(
            file=own["file"], commit=commit, dataset=dataset, split=split, mirror=mirror
        )
        if run_generated_code is not None:
            source = GeneratedCode(registered=source, allowed=run_generated_code, unsafe=unsafe,
                                   seconds=SECONDS, memory=MEMORY)  # fmt: skip
        if only is None or task in only:
            entries.append(
                LmTask(name=task, source=source, shots=shots, template=template, multiturn=multiturn, budget=budget,
                       metrics=metrics, rows=own["rows"], note=note)
            )  # fmt: skip
    return LmEvalSuite(name=named, entries=entries, means=means)


def pins_digest(library: str, tasks: Pins, metrics: Sequence[str]) -> str:
    """Sixteen hexadecimal digits that name a list of tasks and everything that is pinned about them."""
    return identity_key(
        library=library, tasks={task: dict(pins) for task, pins in tasks.items()}, metrics=list(metrics)
    )[:16]


def check_installed_version(package: str, wanted: str, name: str) -> None:
    if version(package) != wanted:
        raise ValueError(
            f"suite {name} is pinned at {package} {wanted}, but {version(package)} is installed: "
            f"pip install {package}=={wanted}"
        )


def check_pins(name: str, tasks: Pins, pins: Sequence[str]) -> None:
    """Raises ValueError for a task without one of the pins."""
    for task, own in tasks.items():
        if missing := [pin for pin in pins if own.get(pin) is None]:
            raise ValueError(f"task {task} of suite {name} is not pinned: it needs {', '.join(missing)}")


def mark_name(name: str, tasks: Mapping[str, Any], only: Sequence[str] | None, digest: str, committed: str) -> str:
    """The suite's name, with a mark where it is not the committed one.

    Raises ValueError for a task in `only` that the suite does not have.
    """
    for task in only or ():
        if task not in tasks:
            near = closest(task, tasks)
            raise ValueError(f"suite {name} has no task {task!r}" + (f"; did you mean {near[0]}?" if near else ""))
    return name + (CHANGED_MARK if digest != committed else "") + (SUBSET_MARK if only is not None else "")
