"""Whether the data of a suite's tasks can be read, and is as large as it should be. Needs no model and no GPU."""

from collections.abc import Callable, Iterator
from typing import Any

import datasets

from evals.data_mirror import cache_datasets_by_content
from evals.embedding.published_sizes import size_differences
from evals.embedding.suite import MtebSuite, silence_mteb
from evals.embedding.task_data import load_task_data
from evals.embedding.tasks import HubTask, TaskSource
from evals.generation.generated_code import GeneratedCode
from evals.generation.suite import LmEvalSuite
from evals.generation.suite import silence_lm_eval as lm_quiet
from evals.generation.tasks import LmTask
from evals.score import UnreadableTaskError, unreadable_on_error

LATE = {"InstructionReranking": "qrel_diff"}
"""Category -> the part of its data sets that mteb reads only after everything has been encoded."""


def find_data_problems(suite: Any) -> Iterator[tuple[str, str]]:
    """(task, what is wrong with its data or "") of each task of the suite."""
    if isinstance(suite, MtebSuite):
        for source in suite.sources:
            with silence_mteb():
                yield source.name, run_check(lambda source=source: check_mteb_task(source))
    elif isinstance(suite, LmEvalSuite):
        for entry in suite.entries:
            with lm_quiet():
                yield entry.name, run_check(lambda entry=entry: check_lm_task(entry))


def run_check(check: Callable[[], str]) -> str:
    """Run the check of one task; an error becomes its result, so that the next task is checked as well."""
    try:
        with unreadable_on_error():
            return check()
    except UnreadableTaskError as error:
        return str(error)


def check_mteb_task(source: TaskSource) -> str:
    task = source.build()
    dataset = task.metadata.dataset
    with cache_datasets_by_content(dataset["revision"]), unreadable_on_error(dataset["path"]):
        load_task_data(task)
        if late := LATE.get(task.metadata.type):
            datasets.load_dataset(dataset["path"], late, split=late, revision=dataset["revision"])
        wrong = size_differences(task) if isinstance(source, HubTask) else ""
    task.unload_data()
    return wrong


def check_lm_task(entry: LmTask) -> str:
    """Raises whatever stops lm-eval from reading the task's data; its examples are drawn as well."""
    from lm_eval.api.task import ConfigurableTask

    source = entry.source
    code = isinstance(source, GeneratedCode)
    config = source.registered.config(functions=False) if code else entry.config()
    with cache_datasets_by_content(source.revision):
        if code:
            pinned = config.get("dataset_kwargs") or {}
            documents = datasets.load_dataset(config["dataset_path"], split=config["test_split"], **pinned)
            missing = {"prompt", "test", "entry_point", "canonical_solution"} - set(documents.column_names)
            if missing:
                return f"the columns {sorted(missing)} are missing"
        else:
            task = ConfigurableTask(config=config)
            task.set_fewshot_seed(seed=0)
            documents = list(task.eval_docs)
            if documents:
                task.fewshot_context(documents[0], num_fewshot=entry.shots)
    if not len(documents):
        return "no rows to score"
    return "" if entry.rows in (None, len(documents)) else f"rows: {len(documents)} instead of {entry.rows}"
