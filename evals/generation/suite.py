"""A suite of lm-eval tasks on a live model, with a key that no cached score can escape.

lm-eval's own caches are never used: one is keyed without the model, the other without the prompt.
"""

import contextlib
import io
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import torch

from evals.averages import Mean, compute_and_store_means
from evals.data_mirror import cache_datasets_by_content
from evals.generation.tasks import LmTask, config_digest
from evals.random_state import preserve_random_state
from evals.score import (
    PROTOCOL_VERSIONS,
    IncompleteSuiteError,
    Progress,
    Score,
    Subject,
    UnreadableTaskError,
    subset_name,
    unreadable_on_error,
)
from evals.score_store import ScoreStore

if TYPE_CHECKING:
    from evals.generation.lm_eval_adapter import LiveLM

LIBRARIES = ("lm_eval", "datasets")
"""The packages that compute a score out of likelihoods and answers."""

METRIC_UNITS: Mapping[str, str] = {
    "perplexity": "perplexity",
    "token_perplexity": "perplexity",
    "word_perplexity": "perplexity",
    "byte_perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
    "mcc": "correlation",
}
"""Units of the metrics that are no fractions."""


@dataclass(frozen=True, kw_only=True)
class LmEvalSuite:
    """`entries` are the tasks with their pins; generative ones also report how many answers were truncated or empty.

    `means` are averages over the tasks, given only where all their members are. A task that finds other than its
    published number of rows is scored under the name of a subset. `pins_digest` names the pins of a suite that
    has them.
    """

    name: str
    entries: Sequence[LmTask]
    means: Sequence[Mean] = ()
    pins_digest: str = ""

    def __post_init__(self) -> None:
        twice = {task for task in self.tasks if self.tasks.count(task) > 1}
        if twice or not self.entries:
            raise ValueError(f"suite {self.name!r}: " + (f"{sorted(twice)} listed twice" if twice else "no tasks"))

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    def split_into_parts(self) -> "Sequence[LmEvalSuite]":
        """One task each."""
        return [replace(self, entries=[entry], means=()) for entry in self.entries]

    def check(self) -> None:
        """Raises ValueError for a task that cannot be scored as it is pinned. Reads no data."""
        for entry in self.entries:
            entry.check()

    def score(self, subject: Subject, *, folder: Path, progress: Progress | None = None) -> list[Score]:
        """Scores of every task. What `folder` holds for the same identity is not run again.

        A subject that cannot generate gets none; `ScoreStore(...).skipped_tasks()` gives the reason. Raises
        `IncompleteSuiteError` for tasks that cannot be read.
        """
        store = ScoreStore(folder=folder, suite=self.name)
        scores: list[Score] = []
        problems: dict[str, str] = {}
        for i, entry in enumerate(self.entries, start=1):
            if progress is not None:
                progress(entry.name, i, len(self.entries))
            try:
                scores += self._score_task(entry, subject, store)
            except UnreadableTaskError as error:
                problems[entry.name] = str(error)
        if self.means:
            scores += compute_and_store_means(self.means, scores, subject, store, problems)
        if problems:
            raise IncompleteSuiteError(self.name, problems, scores)
        return scores

    def _score_task(self, entry: LmTask, subject: Subject, store: ScoreStore) -> list[Score]:
        with unreadable_on_error():
            config = entry.config()
            revision = f"{entry.source.revision} task:{config_digest(config)}"
        identity = self.task_identity(entry, revision, subject)
        if subject.generator is None:
            store.save_skipped(entry.name, identity, f"{subject.name} generates no text")
            return []
        if subject.generator.slots and entry.template == "none":
            store.save_skipped(
                entry.name, identity, "slots stand in front of an answer's turn, which a bare prompt has not"
            )
            return []
        stored = store.load(entry.name, identity)
        if stored is None:
            with preserve_random_state(), silence_lm_eval(), cache_datasets_by_content(revision):
                stored = self._run_task(entry, config, revision, subject)
            store.save(entry.name, identity, stored)
        return stored

    def task_identity(self, entry: LmTask, revision: str, subject: Subject) -> dict[str, Any]:
        """Everything that decides the task's scores, as JSON values."""
        return {
            "model": dict(subject.generator.identity) if subject.generator else {},
            "step": subject.step,
            "suite": self.name,
            "protocol": PROTOCOL_VERSIONS["lm_eval"],
            "task": entry.name,
            "revision": revision,
            "template": entry.template,
            "multiturn": entry.multiturn,
            "metrics": list(entry.metrics),
            "rows": entry.rows,
            "libraries": {library: version(library) for library in LIBRARIES},
        }

    def _run_task(self, entry: LmTask, config: dict[str, Any], revision: str, subject: Subject) -> list[Score]:
        from lm_eval.api.task import ConfigurableTask
        from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
        from lm_eval.evaluator import evaluate

        from evals.generation.lm_eval_adapter import LiveLM

        random.seed(DEFAULT_RANDOM_SEED)
        np.random.seed(DEFAULT_OTHER_SEED)
        torch.manual_seed(DEFAULT_OTHER_SEED)
        with unreadable_on_error(str(config.get("dataset_path", ""))):
            task = ConfigurableTask(config=config)
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
        model = LiveLM(subject.generator, style=entry.template)
        results = evaluate(
            model,
            {"tasks": {entry.name: task}, "groups": {}},
            bootstrap_iters=0,
            log_samples=False,
            apply_chat_template=entry.template != "none",
            fewshot_as_multiturn=entry.multiturn,
        )
        split = config.get("test_split") or config.get("validation_split")
        values = select_metrics(entry, results["results"][entry.name], split) + compute_rates(model, split)
        documents = results["n-samples"][entry.name]["effective"]
        suite = self.name if entry.rows in (None, documents) else subset_name(self.name)
        return [
            self._make_score(suite, entry, revision, subject, metric, value, subset, n or documents)
            for metric, subset, value, n in values
        ]

    def _make_score(
        self, suite: str, entry: LmTask, revision: str, subject: Subject, metric: str, value: float, subset: str, n: int
    ) -> Score:
        generator = subject.generator
        slots = f", {generator.slots} slots before the answer" if generator.slots else ""
        return Score(
            suite=suite,
            task=entry.name,
            metric=metric,
            value=value,
            unit=METRIC_UNITS.get(metric, "fraction"),
            subset=subset,
            step=subject.step,
            readout="none",
            attention=generator.attention,
            revision=revision,
            library=f"lm_eval {version('lm_eval')}",
            prompt=entry.pin_summary + slots,
            n=n,
        )


def select_metrics(entry: LmTask, results: Mapping[str, Any], split: str) -> list[tuple[str, str, float, int | None]]:
    """(metric, subset, value, None) of the entry's metrics; a filter's name follows the split's in the subset.

    Raises ValueError for a metric that the task does not compute.
    """
    values: list[tuple[str, str, float, int | None]] = []
    for metric in entry.metrics:
        name, _, chosen = metric.partition(",")
        found = f"{name},{chosen or 'none'}"
        if found not in results:
            known = sorted(key.removesuffix(",none") for key in results if "," in key and "_stderr," not in key)
            raise ValueError(f"task {entry.name} has no metric {metric}; it has: {', '.join(known)}")
        values.append((name, f"{split}/{chosen}" if chosen else split, float(results[found]), None))
    return values


def compute_rates(model: "LiveLM", split: str) -> list[tuple[str, str, float, int | None]]:
    """(metric, subset, value, n): how many answers ran out of budget or were empty, how many prompts did not fit."""
    answers = [answer for repeats in model.answers.values() for answer in repeats]
    values: list[tuple[str, str, float, int | None]] = []
    if answers:
        values.append(("truncation_rate", split, sum(a.truncated for a in answers) / len(answers), len(answers)))
        values.append(("empty_rate", split, sum(a.empty for a in answers) / len(answers), len(answers)))
    if model.prompts:
        values.append(("prompt_cut_rate", split, model.prompts_cut / model.prompts, model.prompts))
    return values


@contextlib.contextmanager
def silence_lm_eval() -> Iterator[None]:
    """Turn off the progress bars and log lines of lm-eval and datasets: the suite reports its progress itself."""
    bars, level = datasets.are_progress_bars_disabled(), logging.getLogger("lm_eval").level
    datasets.disable_progress_bars()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.getLogger("lm_eval").setLevel(level)
        if not bars:
            datasets.enable_progress_bars()
