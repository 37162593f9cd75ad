"""Load and validate the data of an mteb task, and count its examples."""

from typing import Any

from datasets import Dataset
from mteb.abstasks import AbsTask, AbsTaskRetrieval


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
