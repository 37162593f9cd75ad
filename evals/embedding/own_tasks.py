"""mteb tasks over data of our own."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from datasets import Dataset
from mteb.abstasks import AbsTask
from mteb.abstasks.task_metadata import TaskMetadata


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
