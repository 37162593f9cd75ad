"""Tasks of mteb's own at their pins, read from the hub or from a local mirror."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import mteb
from mteb.abstasks import AbsTask

from evals.data_mirror import mirror_folder, mirror_revision
from evals.embedding.longembed import load_by_files


@runtime_checkable
class TaskSource(Protocol):
    """Builds a fresh mteb task. `metadata.dataset["revision"]` of the task names the content that it scores."""

    @property
    def name(self) -> str: ...

    def build(self) -> AbsTask: ...


@dataclass(frozen=True, kw_only=True)
class HubTask:
    """A task of mteb's, at pins that the installed mteb must agree with: the `dataset` and its `revision`, the
    `metric` that is the task's main one and its `category`; and restricted to `splits` and `subsets`.

    `by_files`: read as LongEmbed's data set must be (evals.embedding.longembed). `mirror`: a folder of data sets to
    read instead of the hub (evals.data_mirror).
    """

    name: str
    revision: str
    dataset: str | None = None
    splits: Sequence[str] | None = None
    subsets: Sequence[str] | None = None
    metric: str | None = None
    category: str | None = None
    by_files: bool = False
    mirror: str | None = None

    def check(self) -> None:
        """Raises ValueError for a task that mteb does not know, or a pin that it does not agree with."""
        self._find_task()

    def build(self) -> AbsTask:
        """Raises ValueError for what `check` refuses, and for a missing mirror folder."""
        task = self._find_task()
        task = read_from_mirror(task, Path(self.mirror)) if self.mirror else task
        return load_by_files(task) if self.by_files else task

    def _find_task(self) -> AbsTask:
        try:
            task = mteb.get_task(
                self.name,
                eval_splits=list(self.splits) if self.splits else None,
                hf_subsets=list(self.subsets) if self.subsets else None,
            )
        except KeyError as error:
            raise ValueError(f"mteb {mteb.__version__} knows no task {self.name!r}: {error}") from error
        metadata = task.metadata
        agreed = {
            "revision": (self.revision, metadata.dataset["revision"]),
            "dataset": (self.dataset, metadata.dataset["path"]),
            "metric": (self.metric, metadata.main_score),
            "category": (self.category, metadata.type),
        }
        for what, (pinned, read) in agreed.items():
            if pinned is not None and pinned != read:
                raise ValueError(
                    f"{self.name} is pinned at {what} {pinned}, but mteb {mteb.__version__} reads {read}: "
                    "install the mteb of the constraints or change the pin"
                )
        return task


def read_from_mirror(task: AbsTask, mirror: Path) -> AbsTask:
    """The same task, reading its data set from `mirror`. A subclass, because mteb drops metadata set on an instance."""
    dataset = task.metadata.dataset
    folder = mirror_folder(mirror, dataset["path"], dataset["revision"])
    local = {**dataset, "path": str(folder), "revision": mirror_revision(folder)}
    kind = type(task)
    metadata = kind.metadata.model_copy(update={"dataset": local})
    copy = type(kind.__name__, (kind,), {"metadata": metadata, "__module__": kind.__module__})()
    copy.hf_subsets, copy._eval_splits = task.hf_subsets, task._eval_splits
    return copy
