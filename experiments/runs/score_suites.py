"""The suites of a run, scored by one process or dealt to the ranks of several.

Ranks take tasks, not texts: each takes the next task that no other rank works on and leaves its scores in the run
directory; rank 0 waits for the others and reads there what they found. A task is computed by one rank as it would be
by a lone process, so its scores are the same, and no rank waits for another within a task.
"""

import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from evals.score import IncompleteSuiteError, Progress, Score, Subject, Suite, identity_key
from evals.score_store import ScoreStore
from experiments.config.build import Experiment
from experiments.config.errors import first_line
from experiments.runs import progress, record
from experiments.runs.open_run import BuiltModel, build_subjects, load_trained_weights
from experiments.runs.wandb_mirror import Tracker
from unified_lm.training import checkpoint
from unified_lm.training.distributed import Ranks

log = logging.getLogger("experiments")


def score_suites(
    experiment: Experiment, made: BuiltModel | None, entry: dict[str, Any], folder: Path, mirror: Tracker
) -> dict[str, Any]:
    """Rank 0: score the suites that are asked for and not there yet, writing after each.

    Raises `ValueError` naming the tasks that could not be read, when all others are scored and written down.
    """
    wanted = record.suite_keys(entry["config"], entry["digest"])
    problems: list[str] = []
    for name, suite in list_unscored_suites(experiment, entry):
        began = time.monotonic()
        scores: list[Score] = []
        unread: dict[str, str] = {}
        for subject in iterate_subjects(experiment, made, entry, folder):
            try:
                scores += score_suite_with_ranks(suite, subject, folder / "scores", progress.scoring_progress(name))
            except IncompleteSuiteError as error:
                scores += error.scores
                unread |= error.problems
                problems.append(str(error))
        rows = [one.to_dict() for one in scores]
        done = "" if unread else wanted[name]  # "": asked again
        skipped = ScoreStore(folder=folder / "scores", suite=suite.name).skipped_tasks() | unread
        entry = record.change_record(folder, **record.replace_suite_scores(entry, name, done, rows, skipped))
        mirror.log_scores(rows)
        print(f"score {name}: {len(rows)} scores in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if problems:
        raise ValueError("; ".join(dict.fromkeys(problems)))
    return entry


def help_score_suites(experiment: Experiment, made: BuiltModel | None, entry: dict[str, Any], folder: Path) -> None:
    """Any other rank: score what no other rank is at work on."""
    for name, suite in list_unscored_suites(experiment, entry):
        for subject in iterate_subjects(experiment, made, entry, folder):
            score_free_tasks(
                suite, subject, folder / "scores", progress.scoring_progress(f"{name} (rank {Ranks.current().rank})")
            )


def list_unscored_suites(experiment: Experiment, entry: dict[str, Any]) -> list[tuple[str, Suite]]:
    wanted = record.suite_keys(entry["config"], entry["digest"])
    return [(name, suite) for name, suite in experiment.evals.items() if entry["suites"].get(name) != wanted[name]]


def iterate_subjects(
    experiment: Experiment, made: BuiltModel | None, entry: dict[str, Any], folder: Path
) -> Iterator[Subject]:
    """Every subject of a run: by each checkpoint along the way that is asked for, then by the last."""
    for digest, step in iterate_weights(experiment, made, entry, folder):
        yield from build_subjects(experiment, made, digest, step)


def score_suite_with_ranks(suite: Suite, subject: Subject, folder: Path, told: Progress) -> list[Score]:
    """The scores of a suite, its tasks shared with the other ranks where there are any."""
    if Ranks.current().size == 1:
        return suite.score(subject, folder=folder, progress=told)
    score_free_tasks(suite, subject, folder, told)
    for lock, _ in iterate_task_locks(suite, subject, folder):
        with lock:
            pass
    return suite.score(subject, folder=folder)


def score_free_tasks(suite: Suite, subject: Subject, folder: Path, told: Progress) -> None:
    """Score the parts of a suite that no other rank is at work on. What goes wrong, rank 0 meets again in the end."""
    parts = list(iterate_task_locks(suite, subject, folder))
    for number, (lock, part) in enumerate(parts, start=1):
        try:
            with lock.acquire(timeout=0):
                part.score(subject, folder=folder, progress=lambda task, *_, at=number: told(task, at, len(parts)))
        except Timeout:
            continue
        except Exception as error:
            log.warning("%s: %s", part.tasks, first_line(str(error)))


def iterate_task_locks(suite: Suite, subject: Subject, folder: Path) -> Iterator[tuple[FileLock, Suite]]:
    """The parts of a suite, each with the lock that a rank holds while it works on it; a dead rank holds none."""
    model = subject.embedder or subject.generator or subject.search
    for part in suite.split_into_parts():
        key = identity_key(suite=suite.name, tasks=list(part.tasks), model=dict(model.identity), step=subject.step)
        (folder / ".claims").mkdir(parents=True, exist_ok=True)
        yield FileLock(folder / ".claims" / key[:16]), part


def iterate_weights(
    experiment: Experiment, made: BuiltModel | None, entry: dict[str, Any], folder: Path
) -> Iterator[tuple[str, int | None]]:
    """Digest and step of the weights in the model: each checkpoint along the way that is asked for, then the last."""
    along = [step for step in experiment.scoring.steps if step != entry["step"]] if experiment.trains else []
    for step in along:
        saved = checkpoint.checkpoint_at_step(folder / "checkpoint", step, entry["run_id"])
        checkpoint.load_weights(saved, made.model)
        yield saved.digest, step
    if along:
        load_trained_weights(made.model, folder, entry)
    yield entry["digest"], entry["step"]
