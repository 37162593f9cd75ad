"""Any task that mteb or lm-eval knows, by its name, for a try: pinned by what the installed library reads today.

Such scores have suites of their own, `mteb` and `lm_eval`, which no table of a paper reads.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mteb
from mteb.abstasks import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.types import PromptType

from evals.benchmarks import MEMORY, SECONDS
from evals.embedding.suite import MtebSuite
from evals.embedding.tasks import HubTask
from evals.generation.generated_code import GeneratedCode
from evals.generation.sandbox.trial import described
from evals.generation.suite import LmEvalSuite
from evals.generation.tasks import LmTask, LmTaskSource, RegisteredTask, Style
from evals.instructions import Instructions, read_instructions
from unified_lm.files import closest_names

LONGEMBED = "dwzhu/LongEmbed"
"""The data set of mteb's whose splits have different columns."""


def mteb_tasks(
    *, tasks: Sequence[str], instructions: str | None = None, metrics: Sequence[str] = (), mirror: str | None = None
) -> MtebSuite:
    """`instructions`: a table of evals/instructions or the path of one; None for mteb's own prompts."""
    sources, prompts = [], {}
    for name in tasks:
        try:
            metadata = mteb.get_task(name).metadata
        except KeyError as error:
            raise ValueError(f"mteb {mteb.__version__} knows no task {name!r}: {error}") from error
        by_files = metadata.dataset["path"] == LONGEMBED
        sources.append(HubTask(name=name, revision=metadata.dataset["revision"], by_files=by_files, mirror=mirror))
        prompts[name] = default_prompts(metadata)
    table = Instructions(name="mteb", tasks=prompts) if instructions is None else read_instructions(instructions)
    return MtebSuite(name="mteb", sources=sources, instructions=table, metrics=metrics)


def default_prompts(metadata: TaskMetadata) -> dict[str, str]:
    """What mteb itself gives each side: the task's prompt, else that of its class.

    One without sides goes to documents too; one for queries only leaves documents without.
    """
    prompt = metadata.prompt or mteb.get_task(metadata.name).abstask_prompt
    if isinstance(prompt, dict):
        return {side: prompt.get(kind.value, "") for side, kind in SIDES.items()}
    sided = isinstance(mteb.get_task(metadata.name), AbsTaskRetrieval)
    return {"query": prompt, **({"document": prompt} if sided else {})}


SIDES = {"query": PromptType.query, "document": PromptType.document}


def lm_eval_tasks(
    *,
    tasks: Sequence[str],
    shots: int | None = None,
    template: Style = "none",
    multiturn: bool = False,
    budget: int | None = None,
    commit: str | None = None,
    run_generated_code: bool = False,
    unsafe: bool = False,
    mirror: str | None = None,
) -> LmEvalSuite:
    """`shots`, and `budget` of tasks that generate: None for the task's own. `commit`: of the data set; None for the
    newest, which is looked up once and recorded, and not needed with a mirror."""
    entries = []
    for name in tasks:
        file, config = find_task_file(name)
        pinned = commit or ("0" * 40 if mirror else latest_commit(config["dataset_path"]))
        source: LmTaskSource = RegisteredTask(file=file, commit=pinned, mirror=mirror)
        note, own = "", default_budget(config)
        if config.get("unsafe_code"):
            note = f"code run with {described()}"
            source = GeneratedCode(registered=source, allowed=run_generated_code, unsafe=unsafe,
                                   seconds=SECONDS, memory=MEMORY)  # fmt: skip
        entries.append(
            LmTask(
                name=name,
                source=source,
                shots=config.get("num_fewshot") or 0 if shots is None else shots,
                template=template,
                multiturn=multiturn,
                budget=own and (budget or own),
                metrics=list_metrics(config),
                note=note,
            )
        )
    return LmEvalSuite(name="lm_eval", entries=entries)


def find_task_file(name: str) -> tuple[str, dict[str, Any]]:
    """The file of a task below lm_eval/tasks, and its configuration with functions as names.

    Raises ValueError for a name that lm-eval does not know or that is a group.
    """
    from lm_eval import tasks
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._yaml_loader import load_yaml

    known = TaskManager().task_index
    path = getattr(known.get(name), "yaml_path", None)
    if path is None:
        near = closest_names(name, known, count=3)
        raise ValueError(f"lm_eval has no task file for {name!r}" + (f"; near: {', '.join(near)}" if near else ""))
    config = load_yaml(path, resolve_func=False)
    if not isinstance(config.get("task"), str) or "dataset_path" not in config:
        raise ValueError(f"{name} is a group of tasks: name its tasks, or use a suite such as evals=[lm_mmlu]")
    return str(Path(path).relative_to(Path(tasks.__file__).parent)), config


def default_budget(config: dict[str, Any]) -> int | None:
    """The task's budget of new tokens, or lm-eval's 256 where it has none; None for tasks that generate nothing."""
    if config.get("output_type", "generate_until") != "generate_until":
        return None
    return int((config.get("generation_kwargs") or {}).get("max_gen_toks", 256))


def list_metrics(config: dict[str, Any]) -> list[str]:
    """Every metric under every filter of the task; a metric of its own code counts by its function's name."""
    if config.get("unsafe_code"):
        return ["pass_at_1,create_test"]
    metrics = [str(one["metric"]).rpartition("/")[2].rpartition(".")[2] for one in config["metric_list"]]
    filters = [one["name"] for one in config.get("filter_list") or []]
    return [f"{metric},{chosen}" for chosen in filters for metric in metrics] or metrics


def latest_commit(path: str) -> str:
    from huggingface_hub import HfApi

    return HfApi().dataset_info(path).sha
