"""lm-eval tasks with everything pinned that decides their scores, and where their configurations come from."""

import hashlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from evals.data_mirror import mirror_folder, mirror_revision
from evals.score import Checkable

Style = Literal["none", "tokenizer", "rows"]
"""How a prompt is written: as it is, by the tokenizer's chat template, or like the model's training rows."""

BUDGETS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""The names under which lm-eval accepts a budget of new tokens."""


@runtime_checkable
class LmTaskSource(Protocol):
    """Where a task's configuration and data come from. `revision` names the content of the data."""

    @property
    def revision(self) -> str: ...

    def config(self) -> dict[str, Any]:
        """The configuration of an lm_eval ConfigurableTask, before the pins."""
        ...


@dataclass(frozen=True, kw_only=True)
class RegisteredTask:
    """A task of lm-eval's own at a data revision (a commit of the hub), or read from a local mirror.

    `file` is its yaml below lm_eval/tasks, which must read `dataset` and score `split`, where these are
    pinned. `mirror`: a folder of data sets to read instead of the hub (evals.data_mirror).
    """

    file: str
    commit: str
    dataset: str | None = None
    split: str | None = None
    mirror: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{40}", self.commit):
            raise ValueError(f"commit={self.commit} of {self.file} pins nothing: give the 40 digits of a commit")

    @property
    def revision(self) -> str:
        return mirror_revision(self._mirror_folder()) if self.mirror else self.commit

    def check(self) -> None:
        """Raises ValueError for what `config` refuses, but for a missing mirror. Imports none of the task's code."""
        self._read_file(functions=False)

    def config(self, *, functions: bool = True) -> dict[str, Any]:
        """Without `functions` the task's own functions stay names, and nothing of its code is imported.

        Raises ValueError for a file that lm-eval does not have or that is no single task, for another data set or split
        than is pinned, and for a missing mirror.
        """
        config = self._read_file(functions=functions)
        if self.mirror:
            return config | {"dataset_path": str(self._mirror_folder())}
        return config | {"dataset_kwargs": {**(config.get("dataset_kwargs") or {}), "revision": self.commit}}

    def _read_file(self, *, functions: bool) -> dict[str, Any]:
        config = dict(_load_registered(self.file, functions))
        for what, pinned, read in (
            ("dataset", self.dataset, config["dataset_path"]),
            ("split", self.split, config.get("test_split") or config.get("validation_split")),
        ):
            if pinned is not None and pinned != read:
                raise ValueError(f"{self.file} is pinned at {what} {pinned}, but the installed lm_eval reads {read}")
        return config

    def _mirror_folder(self) -> Path:
        return mirror_folder(str(self.mirror), _load_registered(self.file, False)["dataset_path"], self.commit)


@cache
def _load_registered(file: str, functions: bool) -> Mapping[str, Any]:
    from lm_eval import tasks
    from lm_eval.tasks._yaml_loader import load_yaml

    path = Path(tasks.__file__).parent / file
    if not path.is_file():
        raise ValueError(f"lm_eval has no task file {file}; it is a path below {path.parent}, like gsm8k/gsm8k.yaml")
    config = load_yaml(path, resolve_func=functions)
    if not isinstance(config.get("task"), str) or "dataset_path" not in config:
        raise ValueError(f"{file} is a group or a template, not one task: list the files of its tasks with their pins")
    return {name: value for name, value in config.items() if name != "tag"}


@dataclass(frozen=True, kw_only=True)
class LmTask:
    """One task and its pins: every one of them can change a score, so none has a default.

    `shots`: examples in the prompt, each a turn of its own where `multiturn` is true. `budget`: most new tokens of an
    answer, for generative tasks only. `metrics`: what is reported, "exact_match" or, after a filter of the task's,
    "exact_match,strict-match". `rows`: how many examples the data set is published with, where that is known; `note`:
    what else a reader must know.
    """

    name: str
    source: LmTaskSource
    shots: int
    template: Style
    multiturn: bool
    budget: int | None
    metrics: Sequence[str]
    rows: int | None = None
    note: str = ""

    def __post_init__(self) -> None:
        empty = [field.name for field in fields(self) if getattr(self, field.name) is None]
        missing = [name for name in empty if name not in ("budget", "rows")]
        if missing or not self.metrics:
            raise ValueError(f"task {self.name} is not pinned: it needs {', '.join(missing or ['metrics'])}")
        if self.template not in get_args(Style):
            raise ValueError(f"template={self.template} of task {self.name} is unknown; use one of {get_args(Style)}")
        if self.shots < 0 or (self.budget is not None and self.budget < 1):
            raise ValueError(
                f"task {self.name} has shots={self.shots} and budget={self.budget}: "
                "shots are at least 0 and a budget at least 1"
            )

    def check(self) -> None:
        """Raises ValueError for a source that cannot be scored as it is pinned. Reads no data."""
        if isinstance(self.source, Checkable):
            self.source.check()

    def config(self) -> dict[str, Any]:
        """The configuration of the ConfigurableTask that is run.

        Raises ValueError for a generative task without a budget, and for any other with one.
        """
        config = dict(self.source.config()) | {"task": self.name, "num_fewshot": self.shots}
        generative = config.get("output_type", "generate_until") == "generate_until"
        if generative and self.budget is None:
            raise ValueError(f"task {self.name} generates and is not pinned: it needs a budget of new tokens")
        if not generative and self.budget is not None:
            raise ValueError(f"task {self.name} generates nothing, so budget={self.budget} says nothing; use null")
        if generative:
            until = [config.get("fewshot_delimiter", "\n\n")]
            settings = {"until": until, "do_sample": False, **(config.get("generation_kwargs") or {})}
            unpinned = {name: value for name, value in settings.items() if name not in BUDGETS}
            config["generation_kwargs"] = unpinned | {"max_gen_toks": self.budget}
        return config

    @property
    def pin_summary(self) -> str:
        """The pins that a reader of a score must know."""
        turns = ", each a turn" if self.multiturn and self.shots and self.template != "none" else ""
        budget = f", at most {self.budget} new tokens" if self.budget is not None else ""
        note = f", {self.note}" if self.note else ""
        return f"{self.shots}-shot{turns}, template {self.template}{budget}{note}"


def config_digest(config: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that name a configuration; its functions count by their source.

    Where the data lies does not count: the source's revision says what it is.
    """
    what = {name: value for name, value in config.items() if name not in ("dataset_path", "dataset_kwargs")}
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=_function_source).encode()).hexdigest()[:16]


def _function_source(value: Any) -> Any:
    if isinstance(value, partial):
        return [_function_source(value.func), value.args, value.keywords]
    if callable(value):
        return inspect.getsource(value)
    raise ValueError(f"a task's configuration holds JSON values and functions, not {type(value).__name__}")
