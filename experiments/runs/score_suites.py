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

from filelock import FileLock, Timeout

from evals.score import IncompleteSuiteError, Progress, Score, Subject, Suite, identity_key
from evals.score_store import ScoreStore
from experiments.config.errors import first_line
from experiments.runs.freshness import replace_suite_scores, suite_keys
from experiments.runs.open_run import OpenRun
from experiments.runs.progress import scoring_progress
from experiments.runs.wandb_mirror import Tracker
from unified_lm.training import checkpoint
from unified_lm.training.distributed import Ranks

log = logging.getLogger("experiments")


def score_suites(run: OpenRun, tracker: Tracker) -> None:
    """Rank 0: score the suites that are asked for and not there yet, writing after each.

    Raises `ValueError` naming the tasks that could not be read, when all others are scored and written down.
    """
    keys = suite_keys(run.record.config, run.record.digest)
    folder = run.folder / "scores"
    problems: list[str] = []
    for name, suite in list_unscored_suites(run):
        began = time.monotonic()
        scores: list[Score] = []
        unread: dict[str, str] = {}
        for subject in iterate_subjects(run):
            try:
                scores += score_suite_with_ranks(suite, subject, folder, scoring_progress(name))
            except IncompleteSuiteError as error:
                scores += error.scores
                unread |= error.problems
                problems.append(str(error))
        key = "" if unread else keys[name]  # "": to be scored again
        skipped = ScoreStore(folder=folder, suite=suite.name).skipped_tasks() | unread
        run = run.change_record(**replace_suite_scores(run.record, name, key, scores, skipped))
        tracker.log_scores(scores)
        print(f"score {name}: {len(scores)} scores in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if problems:
        raise ValueError("; ".join(dict.fromkeys(problems)))


def help_score_suites(run: OpenRun) -> None:
    """Any other rank: score what no other rank is at work on."""
    for name, suite in list_unscored_suites(run):
        progress = scoring_progress(f"{name} (rank {Ranks.current().rank})")
        for subject in iterate_subjects(run):
            score_free_tasks(suite, subject, run.folder / "scores", progress)


def list_unscored_suites(run: OpenRun) -> list[tuple[str, Suite]]:
    """The suites whose scores are not there, or are not those of today's settings, weights and libraries."""
    keys = suite_keys(run.record.config, run.record.digest)
    return [(name, suite) for name, suite in run.experiment.evals.items() if run.record.suites.get(name) != keys[name]]


def iterate_subjects(run: OpenRun) -> Iterator[Subject]:
    """Every subject of a run: by each checkpoint along the way that is asked for, then by the last."""
    for digest, step in iterate_weights(run):
        yield from run.list_subjects(digest, step)


def score_suite_with_ranks(suite: Suite, subject: Subject, folder: Path, progress: Progress) -> list[Score]:
    """The scores of a suite, its tasks shared with the other ranks where there are any."""
    if Ranks.current().size == 1:
        return suite.score(subject, folder=folder, progress=progress)
    score_free_tasks(suite, subject, folder, progress)
    for lock, _ in iterate_task_locks(suite, subject, folder):
        with lock:
            pass
    return suite.score(subject, folder=folder)


def score_free_tasks(suite: Suite, subject: Subject, folder: Path, progress: Progress) -> None:
    """Score the parts of a suite that no other rank is at work on. What goes wrong, rank 0 meets again in the end."""
    parts = list(iterate_task_locks(suite, subject, folder))
    for number, (lock, part) in enumerate(parts, start=1):
        try:
            with lock.acquire(timeout=0):
                part.score(subject, folder=folder, progress=lambda task, *_, at=number: progress(task, at, len(parts)))
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


def iterate_weights(run: OpenRun) -> Iterator[tuple[str, int | None]]:
    """Digest and step of the weights in the model: each checkpoint along the way that is asked for, then the last."""
    record = run.record
    earlier = [step for step in run.experiment.scoring.steps if step != record.step] if run.trains else []
    for step in earlier:
        saved = checkpoint.checkpoint_at_step(run.folder / "checkpoint", step, record.run_id)
        checkpoint.load_weights(saved, run.built.model)
        yield saved.digest, step
    if earlier:
        run.load_trained_weights()
    yield record.digest, record.step
