"""HumanEval and HumanEval+ in lm-eval's own task class, with a metric of ours: lm-eval's needs the hub."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evals.generation.sandbox.trial import Program, failure, jail
from evals.generation.tasks import RegisteredTask

FILTER = "create_test"
"""lm-eval's name of the filter that puts prompt and completion together; part of the metric's name."""


@dataclass(frozen=True, kw_only=True)
class GeneratedCode:
    """A code task of lm-eval's: `allowed` says that code which the model writes may be run on this machine.

    `unsafe`: also where the system cannot keep it apart. `seconds` and `memory` (GiB) are the limits of one program.
    """

    registered: RegisteredTask
    allowed: bool
    unsafe: bool
    seconds: float
    memory: float

    @property
    def revision(self) -> str:
        return self.registered.revision

    def check(self) -> None:
        """Raises ValueError where running generated code is not allowed, or where the system cannot keep it apart."""
        if not self.allowed:
            raise ValueError(
                f"{self.registered.file} runs code that the model writes; allow it with run_generated_code=true of its "
                "suite, such as evals.lm_humaneval.run_generated_code=true"
            )
        jail(unsafe=self.unsafe)
        self.registered.check()

    def config(self) -> dict[str, Any]:
        """Raises ValueError for what `check` refuses."""
        self.check()
        config = self.registered.config(functions=False)
        config.pop("unsafe_code")
        limits = {"seconds": self.seconds, "memory": self.memory, "unsafe": self.unsafe}
        mean = {"aggregation": "mean", "higher_is_better": True}
        whole = {"function": "custom", "filter_fn": completed}
        return config | {
            "metric_list": [{"metric": pass_at_1, **mean, **limits}],
            "filter_list": [{"name": FILTER, "filter": [whole]}],
        }


def completed(answers: Sequence[Sequence[str]], documents: Sequence[Mapping[str, Any]]) -> list[list[Program]]:
    """Each document's prompt with each of its completions. Raises ValueError for documents of another kind of task."""
    if lacking := [name for name in ("prompt", "entry_point") if any(name not in document for document in documents)]:
        raise ValueError(
            f"code is run for tasks like HumanEval only: documents here have no {' and no '.join(lacking)}"
        )
    return [
        [Program(given=document["prompt"], completion=answer, entry=document["entry_point"]) for answer in own]
        for own, document in zip(answers, documents, strict=True)
    ]


def pass_at_1(
    references: Sequence[str], predictions: Sequence[Sequence[Program]], *, seconds: float, memory: float, unsafe: bool
) -> float:
    """The share of programs that pass their tests: one program for each test."""
    layers = jail(unsafe=unsafe)
    passed = [
        not failure(own[0], tests, seconds=seconds, memory=memory, layers=layers)
        for own, tests in zip(predictions, references, strict=True)
    ]
    return sum(passed) / len(passed)
