"""Models that generate, two small tasks and the committed suites of lm-eval's, for several test files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from evals.averages import Mean
from evals.benchmarks import lm_suite
from evals.generation.packaged_docs import in_memory_dataset
from evals.generation.suite import LmEvalSuite
from evals.generation.tasks import LmTask
from evals.score import Score, Subject
from unified_lm.backbones import Tiny
from unified_lm.inference.generate import BatchedGenerator, Generated
from unified_lm.model import UnifiedLM

SUMS = [
    {"question": f"What is {a} plus {b}?", "answer": str(a + b)} for a, b in ((1, 2), (3, 4), (5, 6), (20, 30), (7, 1))
]
CHOICES = [
    {"text": "A query asks a", "choices": [" question", " document", " layer", " head"], "gold": 0},
    {"text": "Sort the", "choices": [" water", " list", " numbers one and twenty", " bread"], "gold": 1},
    {"text": "The weather was", "choices": [" sum", " batch size", " light", " cold"], "gold": 3},
    {"text": "Learning", "choices": [" system", " until", " rate", " example"], "gold": 2},
    {"text": "What is the capital of", "choices": [" France", " it", " ten", " an error when"], "gold": 0},
]
CONF = Path(__file__).parents[2] / "conf" / "evals"


class Counting(BatchedGenerator):
    """A generator that counts its requests, and remembers the prompts it last continued."""

    asked = 0

    def logprobs(self, pairs: Sequence, **options: Any) -> list:
        self.asked += len(pairs)
        return super().logprobs(pairs, **options)

    def generate(self, prompts: Sequence, *args: Any, **options: Any) -> list[Generated]:
        self.asked += len(prompts)
        self.prompts = [list(prompt) for prompt in prompts]
        return super().generate(prompts, *args, **options)


class Writes(BatchedGenerator):
    """Writes what it is told to, whatever the prompt."""

    bodies: Sequence[str] = ()

    def generate(self, prompts: Sequence, *args: Any, **options: Any) -> list[Generated]:
        return [Generated(text=body, tokens=5, truncated=False, dropped=0) for body in self.bodies]


def generator_of(backbone: Tiny | None = None, kind: type[BatchedGenerator] = Counting, **options: Any) -> Any:
    backbone = backbone or Tiny()
    loaded = backbone.load()
    return kind(UnifiedLM(loaded.model, loaded.tokenizer), weights=backbone.fingerprint(), **options)


def writing(bodies: Sequence[str]) -> Writes:
    found = generator_of(kind=Writes)
    found.bodies, found.weights = bodies, str(bodies)
    return found


def subject_of(generator: BatchedGenerator, step: int | None = None) -> Subject:
    return Subject(name="tiny", generator=generator, step=step)


def committed(name: str, mirror: Path, **changes: Any) -> LmEvalSuite:
    """A suite as it is in conf/, on a mirror."""
    suite = yaml.safe_load((CONF / f"{name}.yaml").read_text())[name] | {"mirror": str(mirror)} | changes
    means = [Mean(**settings(mean)) for mean in suite.pop("means", ())]
    return lm_suite(**settings(suite), means=means)


def settings(node: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key != "_target_"}


def scored(suite: LmEvalSuite, folder: Path, by: BatchedGenerator | None = None) -> dict[tuple[str, str], Score]:
    """(task, metric) -> score."""
    scores = suite.score(subject_of(by or generator_of(max_length=4096)), folder=folder)
    return {(score.task, score.metric): score for score in scores}


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Generate and match, with two filters."""

    revision: str = "sums:1"
    rows: Sequence[dict] = tuple(SUMS)

    def config(self) -> dict[str, Any]:
        return {
            "custom_dataset": in_memory_dataset(test=self.rows),
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "question",
            "doc_to_target": "answer",
            "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_new_tokens": 999},
            "filter_list": [
                {"name": "first", "filter": [{"function": "take_first"}]},
                {
                    "name": "number",
                    "filter": [{"function": "regex", "regex_pattern": "([0-9]+)"}, {"function": "take_first"}],
                },
            ],
            "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        }


@dataclass(frozen=True, kw_only=True)
class Choices:
    revision: str = "choices:1"

    def config(self) -> dict[str, Any]:
        return {
            "custom_dataset": in_memory_dataset(test=CHOICES),
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "text",
            "doc_to_choice": "choices",
            "doc_to_target": "gold",
            "target_delimiter": "",
            "metric_list": [
                {"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in ("acc", "acc_norm")
            ],
        }


SUMS_TASK = LmTask(
    name="sums",
    source=Sums(),
    shots=0,
    template="none",
    multiturn=False,
    budget=3,
    metrics=("exact_match,first", "exact_match,number"),
)
CHOICES_TASK = LmTask(
    name="choices",
    source=Choices(),
    shots=0,
    template="none",
    multiturn=False,
    budget=None,
    metrics=("acc", "acc_norm"),
)
SUITE = LmEvalSuite(name="toy", entries=(SUMS_TASK, CHOICES_TASK))
