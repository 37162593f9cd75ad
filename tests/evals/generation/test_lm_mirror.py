"""The committed lm-eval suites on a tiny model: lm-eval's own tasks from a mirror in the hub's layout, no network."""

from pathlib import Path
from typing import Any

import pytest

from evals.averages import Mean
from evals.generation.suite import LmEvalSuite
from tests.evals.lm import committed, generator_of, scored, subject_of
from tests.evals.mirrors import cups, publish, sums

SUBJECTS = ["abstract_algebra", "anatomy"]


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "mirror"


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
    assert (found.n, found.subset, 0 < found.value < 1) == (2, "validation", True)
    publish(mirror, "allenai/winogrande", cups())
    found = scored(committed("lm_winogrande", mirror), tmp_path)["winogrande", "acc"]
    assert found.n == 6 and found.prompt == "5-shot, template none"


def test_gsm8k_reports_both_filters_and_how_many_answers_were_cut(mirror: Path, tmp_path: Path) -> None:
    publish(mirror, "openai/gsm8k", sums(train=6))
    suite = committed("lm_gsm8k", mirror, budget=4)
    scores = suite.score(subject_of(generator_of(max_length=4096)), folder=tmp_path / "scores")
    assert {score.suite for score in scores} == {"lm_gsm8k (changed) (subset)"}
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


def test_a_mirror_with_other_than_the_published_rows_is_scored_as_a_subset(mirror: Path, tmp_path: Path) -> None:
    publish(mirror, "allenai/winogrande", cups())
    pins = {"file": "winogrande/default.yaml", "rows": 6}
    found = {}
    for rows in (6, 7):
        suite = committed("lm_winogrande", mirror, tasks={"winogrande": pins | {"rows": rows}})
        suite = LmEvalSuite(name="w", entries=suite.entries, means=[Mean(name="mean", of=["winogrande"])])
        found[rows] = {score.suite for score in scored(suite, tmp_path / "scores").values()}
    assert found == {6: {"w"}, 7: {"w (subset)"}}


def test_the_examples_shown_are_the_same_in_every_run_and_each_is_a_turn(mirror: Path, tmp_path: Path) -> None:
    publish(mirror, "openai/gsm8k", sums(train=30))
    suite = committed("lm_gsm8k", mirror, budget=4, shots=2, template="tokenizer", multiturn=True)
    heard = []
    for run in range(3):
        generator = generator_of()
        found = suite.score(subject_of(generator), folder=tmp_path / str(run))
        heard.append(generator.prompts)
    assert heard[0] == heard[1] == heard[2]
    assert generator.tokenizer.decode(heard[0][0]).count("<|im_start|>assistant") == 3
    assert found[0].prompt == "2-shot, each a turn, template tokenizer, at most 4 new tokens"
    assert found[0].revision.startswith("mirror:")
