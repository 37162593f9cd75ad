"""LongEmbed's own data set, read file by file: its three splits have different columns, and datasets 5 gives all splits
of a configuration the columns of the first."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import datasets
from mteb.abstasks import AbsTask

FILES = ("corpus", "queries", "qrels")


def load_by_files(task: AbsTask) -> AbsTask:
    """The same task over `<configuration>/{corpus,queries,qrels}.jsonl` of its data set, local or at its revision."""
    kind = type(task)

    def load_data(self: AbsTask, num_proc: int | None = None, **ignored: Any) -> None:
        if self.data_loaded:
            return
        tables = {name: list(read_table_rows(self.metadata.dataset, name)) for name in FILES}
        self.corpus, self.queries, self.relevant_docs = {}, {}, {}
        for split in self.metadata.eval_splits:
            part = {name: select_length(split, listed) for name, listed in tables.items()}
            self.corpus[split] = {row["doc_id"]: {"text": row["text"]} for row in part["corpus"]}
            self.queries[split] = {row["qid"]: row["text"] for row in part["queries"]}
            self.relevant_docs[split] = {row["qid"]: {row["doc_id"]: 1} for row in part["qrels"]}
        self.data_loaded = True

    copy = type(kind.__name__, (kind,), {"load_data": load_data, "__module__": kind.__module__})()
    copy.hf_subsets, copy._eval_splits = task.hf_subsets, task._eval_splits
    return copy


def read_table_rows(dataset: Mapping[str, Any], name: str) -> Iterable[Mapping[str, Any]]:
    root = (
        dataset["path"] if Path(dataset["path"]).is_dir() else f"hf://datasets/{dataset['path']}@{dataset['revision']}"
    )
    return datasets.load_dataset("json", data_files=f"{root}/{dataset['name']}/{name}.jsonl", split="train")


def select_length(split: str, listed: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of a split: those of context length N for `test_N`, else all."""
    length = split.removeprefix("test_")
    return [row for row in listed if not length.isdigit() or row["context_length"] == int(length)]
