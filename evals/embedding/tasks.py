"""Where mteb tasks come from: mteb itself (pinned, from the hub or a local mirror), or data of our own."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import mteb
from datasets import Dataset
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata

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


def make_task(
    kind: type[AbsTask],
    *,
    name: str,
    type_: str,
    description: str,
    main_score: str,
    path: str,
    revision: str,
    data: Callable[[], Any],
    **attributes: Any,
) -> AbsTask:
    """A real mteb task of class `kind` over data of ours: `data()` gives what the class keeps as its dataset."""

    def load_data(self: AbsTask, num_proc: int | None = None, **ignored: Any) -> None:
        if not self.data_loaded:
            self.dataset = data()
            self.data_loaded = True

    metadata = TaskMetadata(
        name=name,
        type=type_,
        description=description,
        main_score=main_score,
        category="t2t",
        eval_langs=["eng-Latn"],
        eval_splits=["test"],
        dataset={"path": path, "revision": revision},
    )
    return type(name, (kind,), {"metadata": metadata, "load_data": load_data, "__module__": __name__, **attributes})()


def opaque_id(name: str) -> str:
    """An id that says nothing about what it names; equal names stay equal."""
    return hashlib.sha256(name.encode()).hexdigest()[:20]


def load_task_data(task: AbsTask) -> None:
    """Reads the task's data. Some tasks keep it in mteb's older form until they are scored, which hides their sizes.

    Raises ValueError for documents and queries without a text, at which mteb would stumble while it encodes.
    """
    task.load_data()
    if not isinstance(task, AbsTaskRetrieval):
        return
    task.convert_v1_dataset_format_to_v2(num_proc=None)
    for split in task.eval_splits:
        for subset in task.hf_subsets:
            part: Any = task.dataset.get(subset, task.dataset)[split]
            for table in ("corpus", "queries"):
                check_texts(part[table], f"{split} {table}")


def check_texts(rows: Dataset, what: str) -> None:
    for column in ("id", "text"):
        if column not in rows.column_names:
            raise ValueError(f"the rows of {what} have no {column}; they have: {', '.join(rows.column_names)}")
    for column in {"id", "title", "text"} & set(rows.column_names):
        if nulls := rows.data.column(column).null_count:
            raise ValueError(f'{nulls} rows of {what} have null as their {column}: write ""')


def count_examples(task: AbsTask) -> dict[tuple[str, str], int]:
    """(split, subset) -> number of scored examples (queries, pairs or texts) of a task whose data is loaded."""
    return {
        (split, subset): _count_split(task, split, subset) for split in task.eval_splits for subset in task.hf_subsets
    }


def _count_split(task: AbsTask, split: str, subset: str) -> int:
    part: Any = task.dataset.get(subset, task.dataset)[split]
    if isinstance(task, AbsTaskRetrieval):
        return sum(1 for relevant in part["relevant_docs"].values() if relevant)
    only = next(iter(part[0].values())) if len(part) == 1 else None  # older data sets keep one row of lists
    return len(only) if isinstance(only, list) else len(part)


def size_differences(task: AbsTask) -> str:
    """How the sizes of a task whose data is loaded differ from those that mteb publishes, or "" where they do not."""
    found, wanted = count_rows(task), published_counts(task)
    return "; ".join(
        f"{place}: {found[place]} instead of {count}"
        for place, count in wanted.items()
        if place in found and found[place] != count
    )


def count_rows(task: AbsTask) -> dict[str, int]:
    """What was read: rows of each split, and documents and queries where they are apart."""
    found: dict[str, int] = {}
    for split in task.eval_splits:
        for subset in task.hf_subsets:
            part: Any = task.dataset.get(subset, task.dataset)[split]
            place = split if subset == "default" else f"{split}/{subset}"
            if isinstance(task, AbsTaskRetrieval):
                found |= {f"{place} documents": len(part["corpus"]), f"{place} queries": len(part["queries"])}
            else:
                found[f"{place} rows"] = len(part)
    return found


def published_counts(task: AbsTask) -> dict[str, int]:
    """The same of mteb's descriptive statistics, where it has them."""
    wanted: dict[str, int] = {}
    for split, whole in (task.metadata.descriptive_stats or {}).items():
        subsets: Mapping[str, Any] = whole.get("hf_subset_descriptive_stats") or {"default": whole}
        for subset, stats in subsets.items():
            place = split if subset == "default" else f"{split}/{subset}"
            if "num_queries" in stats:
                wanted |= {f"{place} documents": stats["num_documents"], f"{place} queries": stats["num_queries"]}
            elif isinstance(task, AbsTaskRetrieval) and stats.get("queries_text_statistics"):
                queries, rows = stats["relevant_docs_statistics"], stats["num_samples"]
                asked = round(queries["num_relevant_docs"] / queries["average_relevant_docs_per_query"])
                wanted |= {f"{place} documents": rows - asked, f"{place} queries": asked}
            else:
                wanted[f"{place} rows"] = stats["num_samples"]
    return wanted


def retrieval_data(
    *,
    corpus: Sequence[tuple[str, str, str]],
    queries: Sequence[tuple[str, str]],
    relevant: Mapping[str, Mapping[str, int]],
    candidates: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """(id, title, text) and (id, text) in the form that AbsTaskRetrieval keeps.

    With `candidates`, only these documents are ranked for a query: reranking, and retrieval with excluded documents.
    """
    part = {
        "corpus": Dataset.from_list([{"id": name, "title": title, "text": text} for name, title, text in corpus]),
        "queries": Dataset.from_list([{"id": name, "text": text} for name, text in queries]),
        "relevant_docs": {query: dict(grades) for query, grades in relevant.items()},
        "top_ranked": None if candidates is None else {query: list(listed) for query, listed in candidates.items()},
    }
    return {"default": {"test": part}}
