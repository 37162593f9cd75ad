"""Benchmarks of papers as suites: every task with its pins, and no other tasks than the committed ones."""

from collections.abc import Sequence

from evals.averages import Mean
from evals.embedding.suite import MtebSuite
from evals.embedding.tasks import HubTask, TaskSource
from evals.generation.generated_code import GeneratedCode
from evals.generation.sandbox.trial import described
from evals.generation.suite import LmEvalSuite
from evals.generation.tasks import LmTask, LmTaskSource, RegisteredTask, Style
from evals.instructions import read_instructions
from evals.pins import Pins, check_installed_version, check_pins, mark_name, pins_digest

SECONDS, MEMORY = 10.0, 4.0
"""Limits of one generated program: seconds of processor time, and GiB."""


def mteb_suite(
    *,
    name: str,
    library: str,
    instructions: str,
    tasks: Pins,
    committed: str | None = None,
    metrics: Sequence[str] = (),
    means: Sequence[Mean] = (),
    only: Sequence[str] | None = None,
    mirror: str | None = None,
) -> MtebSuite:
    """Tasks of mteb `library`, each pinned by data set, revision, splits, subsets and metric.

    `instructions` names a table of evals/instructions or is the path of one. `metrics` are reported beside each task's
    own. `only`: names of tasks, for a try; `mirror`: the folder of data sets to read instead of the hub.
    `committed`: the digest of the pins, which `evals.pins` names the command for; a suite of other pins has "(changed)"
    in its name, and without a digest every list of tasks bears the plain name.
    """
    check_installed_version("mteb", library, name)
    digest = pins_digest(library, tasks, metrics)
    named = mark_name(name, tasks, only, digest, committed)
    check_pins(name, tasks, ("dataset", "revision", "splits", "metric", "category"))
    sources: list[TaskSource] = [HubTask(name=task, mirror=mirror, **pins) for task, pins in tasks.items()
                                 if only is None or task in only]  # fmt: skip
    return MtebSuite(
        name=named,
        sources=sources,
        instructions=read_instructions(instructions),
        metrics=metrics,
        means=means,
        pins_digest=digest,
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
    committed: str | None = None,
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
    digest = pins_digest(library, all_pins, metrics)
    named = mark_name(name, tasks, only, digest, committed)
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
    return LmEvalSuite(name=named, entries=entries, means=means, pins_digest=digest)
