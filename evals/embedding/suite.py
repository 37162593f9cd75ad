"""A suite of mteb tasks, scored on one subject, with a key that no cached score can escape."""

import contextlib
import logging
import math
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import mteb
from mteb.abstasks import AbsTask, AbsTaskRetrieval

from evals.averages import Mean, compute_and_store_means
from evals.data_mirror import cache_datasets_by_content
from evals.embedding.mteb_adapter import SCORING_FUNCTIONS, MtebEncoder, MtebSearch, model_meta
from evals.embedding.published_sizes import size_differences
from evals.embedding.resumable import cache_embeddings
from evals.embedding.task_data import count_examples, load_task_data
from evals.embedding.tasks import HubTask, TaskSource
from evals.instructions import Instructions, describe_instructions
from evals.random_state import preserve_random_state
from evals.score import (
    PROTOCOL_VERSIONS,
    Checkable,
    IncompleteSuiteError,
    Progress,
    Score,
    Subject,
    UnreadableTaskError,
    identity_key,
    subset_name,
    unreadable_on_error,
)
from evals.score_store import ScoreStore
from unified_lm.inference.embedder import Embedder, Side, Similarity, describe_prompt, with_similarity

LIBRARIES = ("mteb", "scikit-learn", "pytrec-eval-terrier", "datasets")
"""The packages that compute a score out of vectors or rankings."""

VECTORS_SUFFIX = ".vectors"
"""Ends the name of a folder of vectors whose tasks are not scored yet."""

CORRELATIONS = ("pearson", "spearman", "mcc")


@dataclass(frozen=True, kw_only=True)
class MtebSuite:
    """`sources` build the tasks; `metrics` are reported beside each task's main one, where the task has them.

    `means` are averages over the tasks, given only where all their members are. `remember` keeps the vectors of all
    texts on disk until the suite is scored, not only those of the task at hand: for small suites whose tasks share
    texts. `similarity` ranks in place of the one that the subject declares. A task that finds in a mirror other than
    the numbers of rows that mteb publishes is scored under the name of a subset. `pins_digest` names the pins of a
    suite that has them.
    """

    name: str
    sources: Sequence[TaskSource]
    instructions: Instructions
    metrics: Sequence[str] = ()
    means: Sequence[Mean] = ()
    remember: bool = False
    similarity: Similarity | None = None
    pins_digest: str = ""

    def __post_init__(self) -> None:
        twice = {task for task in self.tasks if self.tasks.count(task) > 1}
        if twice or not self.sources:
            raise ValueError(f"suite {self.name!r}: " + (f"{sorted(twice)} listed twice" if twice else "no tasks"))
        for task in self.tasks:
            self.instructions.instruction_for(task, "query")

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(source.name for source in self.sources)

    def split_into_parts(self) -> "Sequence[MtebSuite]":
        """One task each; a suite that remembers is one part."""
        return [self] if self.remember else [replace(self, sources=[source], means=()) for source in self.sources]

    def check(self) -> None:
        """Raises ValueError for a task that cannot be scored as it is pinned. Reads no data."""
        for source in self.sources:
            if isinstance(source, Checkable):
                source.check()

    def score(self, subject: Subject, *, folder: Path, progress: Progress | None = None) -> list[Score]:
        """Scores of every task that the subject can do. What `folder` holds for the same identity is not run again.

        `ScoreStore(folder=folder, suite=self.name).skipped_tasks()` gives the tasks without a score, with the reason.
        Raises `IncompleteSuiteError` for tasks that cannot be read.
        """
        if self.similarity is not None and subject.embedder is not None:
            subject = replace(subject, embedder=with_similarity(subject.embedder, self.similarity))
        store = ScoreStore(folder=folder, suite=self.name)
        scores: list[Score] = []
        problems: dict[str, str] = {}
        model = subject.embedder.identity if subject.embedder else {}
        shared = store.path("tasks", {"model": dict(model)}).with_suffix(VECTORS_SUFFIX)
        with cache_embeddings(subject, shared) if self.remember else contextlib.nullcontext(subject) as subject:
            for i, source in enumerate(self.sources, start=1):
                if progress is not None:
                    progress(source.name, i, len(self.sources))
                try:
                    with preserve_random_state(), silence_mteb():
                        scores += self._score_task(source, subject, store)
                except UnreadableTaskError as error:
                    problems[source.name] = str(error)
        if self.means:
            scores += compute_and_store_means(self.means, scores, subject, store, problems)
        if problems:
            raise IncompleteSuiteError(self.name, problems, scores)
        return scores

    def task_identity(self, task: AbsTask, subject: Subject) -> dict[str, Any]:
        """Everything that decides the task's scores, as JSON values."""
        name = task.metadata.name
        sides = {side: self.instructions.instruction_for(name, side) for side in ("query", "document")}
        model = subject.embedder or subject.search
        return {
            "model": dict(model.identity) if model else {},
            "similarity": subject.embedder.similarity if subject.embedder else "",
            "step": subject.step,
            "suite": self.name,
            "protocol": PROTOCOL_VERSIONS["mteb"],
            "task": name,
            "revision": task.metadata.dataset["revision"],
            "splits": list(task.eval_splits),
            "subsets": list(task.hf_subsets),
            "instruction": sides if subject.embedder else {},
            "metrics": list(self.metrics),
            "libraries": {library: version(library) for library in LIBRARIES},
        }

    def _score_task(self, source: TaskSource, subject: Subject, store: ScoreStore) -> list[Score]:
        with unreadable_on_error():
            task = source.build()
        identity = self.task_identity(task, subject)
        if reason := reason_not_applicable(task, subject):
            store.save_skipped(task.metadata.name, identity, reason)
            return []
        stored = store.load(task.metadata.name, identity)
        if stored is not None:
            return stored
        folder = store.path(task.metadata.name, identity).with_suffix(VECTORS_SUFFIX)
        with cache_datasets_by_content(identity["revision"]), cache_embeddings(subject, folder) as resumed:
            with unreadable_on_error(task.metadata.dataset["path"]):
                load_task_data(task)
                counts = count_examples(task)
            part = isinstance(source, HubTask) and source.mirror and size_differences(task)
            model = self._mteb_model(resumed, identity_key(**identity))
            result = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False).task_results[0]
            task.unload_data()
            if not _all_finite(result.scores):
                why = f"{task.metadata.main_score} is no number: are all vectors equal?"
                store.save_skipped(task.metadata.name, identity, why)
                return []
            scores = self._collect_scores(task, subject, result.scores, counts)
            if part:
                scores = [replace(score, suite=subset_name(self.name)) for score in scores]
            store.save(task.metadata.name, identity, scores)
        return scores

    def _mteb_model(self, subject: Subject, digest: str) -> MtebEncoder | MtebSearch:
        if subject.embedder is None:
            return MtebSearch(searcher=subject.search, mteb_model_meta=model_meta(subject.name, digest, None))
        return MtebEncoder(
            embedder=subject.embedder,
            instructions=self.instructions,
            mteb_model_meta=model_meta(subject.name, digest, SCORING_FUNCTIONS[subject.embedder.similarity]),
        )

    def _collect_scores(
        self,
        task: AbsTask,
        subject: Subject,
        results: Mapping[str, Sequence[Mapping[str, Any]]],
        counts: Mapping[tuple[str, str], int],
    ) -> list[Score]:
        """One score for each split, subset and metric; beyond one split or subset also their plain mean, as "all"."""
        parts = [(split, part["hf_subset"], part) for split, subsets in results.items() for part in subsets]
        scores = []
        for metric in dict.fromkeys((task.metadata.main_score, *self.metrics)):
            values = [(split, subset, _metric_value(part, metric)) for split, subset, part in parts]
            found = [(split, subset, value) for split, subset, value in values if value is not None]
            for split, subset, value in found:
                place = split if subset == "default" else f"{split}/{subset}"
                scores.append(self._make_score(task, subject, metric, value, place, counts[split, subset]))
            if len(found) > 1:
                mean = statistics.fmean(value for _, _, value in found)
                scores.append(self._make_score(task, subject, metric, mean, "all", sum(counts.values())))
        return scores

    def _make_score(self, task: AbsTask, subject: Subject, metric: str, value: float, subset: str, n: int) -> Score:
        embedder = subject.embedder
        return Score(
            suite=self.name,
            task=task.metadata.name,
            metric=metric,
            value=value,
            unit=metric_unit(metric),
            subset=subset,
            step=subject.step,
            readout=embedder.readout if embedder else "none",
            attention=embedder.attention if embedder else "none",
            revision=task.metadata.dataset["revision"],
            library=f"mteb {mteb.__version__}",
            prompt=self._describe_prompt(task.metadata.name, embedder) if embedder else "",
            n=n,
        )

    def _describe_prompt(self, task: str, embedder: Embedder) -> str:
        """What stands before queries and documents, in one line."""
        sides: tuple[Side, Side] = ("query", "document")
        asked = [describe_prompt(embedder, side, self.instructions.instruction_for(task, side)) for side in sides]
        return describe_instructions(*asked)


def reason_not_applicable(task: AbsTask, subject: Subject) -> str:
    """Why the subject cannot do the task, or "" where it can."""
    if subject.embedder is None and subject.search is None:
        return f"{subject.name} gives no vectors and no ranking"
    if subject.embedder is None and not isinstance(task, AbsTaskRetrieval):
        return f"{task.metadata.type} needs vectors, and {subject.name} only ranks documents"
    return ""


def metric_unit(metric: str) -> str:
    if metric.lower().replace("_", "-") == "p-mrr":
        return "p-MRR"
    return "correlation" if any(word in metric for word in CORRELATIONS) else "fraction"


@contextlib.contextmanager
def silence_mteb() -> Iterator[None]:
    """Turn off the progress bars and warnings of mteb and datasets: the suite reports its progress itself."""
    bars, level = datasets.are_progress_bars_disabled(), logging.getLogger("mteb").level
    datasets.disable_progress_bars()
    logging.getLogger("mteb").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger("mteb").setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


def _metric_value(part: Mapping[str, Any], metric: str) -> float | None:
    """A metric of a result; "og.ndcg_at_5" reads a metric inside a group of metrics."""
    group, _, name = metric.rpartition(".")
    value = (part.get(group) or {}).get(name) if group and metric not in part else part.get(metric)
    return None if value is None else float(value)


def _all_finite(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> bool:
    return all(math.isfinite(part["main_score"]) for subsets in results.values() for part in subsets)
