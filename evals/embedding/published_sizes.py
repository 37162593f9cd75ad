"""Compare the size of a task's data with the statistics that mteb publishes: another size is another benchmark."""

from collections.abc import Mapping
from typing import Any

from mteb.abstasks import AbsTask, AbsTaskRetrieval


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
