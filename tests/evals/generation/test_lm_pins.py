"""Nothing about an lm-eval task is left to chance: what is not pinned is refused."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from evals.generation.suite import LmEvalSuite
from evals.generation.tasks import LmTask, RegisteredTask, config_digest
from tests.evals.lm import CHOICES_TASK, SUMS_TASK, generator_of, subject_of

COMMIT = "0" * 40


@pytest.mark.usefixtures("as_in_production")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shots": None}, "sums is not pinned: it needs shots"),
        ({"template": None, "multiturn": None}, "needs template, multiturn"),
        ({"metrics": ()}, "needs metrics"),
        ({"template": "alpaca"}, "template=alpaca of task sums is unknown"),
        ({"shots": -1}, "shots=-1"),
    ],
)
def test_an_unpinned_or_impossible_entry_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SUMS_TASK, **change)


def test_no_pin_has_a_default() -> None:
    for pin in ("source", "shots", "template", "multiturn", "budget", "metrics"):
        pins = {field.name: getattr(SUMS_TASK, field.name) for field in fields(SUMS_TASK) if field.name != pin}
        with pytest.raises(TypeError, match=pin):
            LmTask(**pins)


def test_a_budget_belongs_to_generative_tasks_only_and_they_need_one() -> None:
    with pytest.raises(ValueError, match="needs a budget"):
        replace(SUMS_TASK, budget=None).config()
    with pytest.raises(ValueError, match="generates nothing"):
        replace(CHOICES_TASK, budget=8).config()


def test_a_metric_that_the_task_does_not_compute_names_those_it_does(tmp_path: Path) -> None:
    suite = LmEvalSuite(name="toy", entries=(replace(SUMS_TASK, metrics=("exact_match",)),))
    with pytest.raises(ValueError, match="has no metric exact_match; it has: exact_match,first, exact_match,number"):
        suite.score(subject_of(generator_of()), folder=tmp_path)


def test_a_suite_lists_each_task_once() -> None:
    with pytest.raises(ValueError, match="listed twice"):
        LmEvalSuite(name="toy", entries=(SUMS_TASK, SUMS_TASK))
    with pytest.raises(ValueError, match="no tasks"):
        LmEvalSuite(name="toy", entries=())


def test_the_digest_of_a_task_changes_with_its_functions() -> None:
    def one(doc):
        return 1

    def other(doc):
        return 2

    assert config_digest({"process_results": one}) == config_digest({"process_results": one})
    assert config_digest({"process_results": one}) != config_digest({"process_results": other})


def test_a_task_of_the_hub_is_read_at_its_commit() -> None:
    source = RegisteredTask(file="gsm8k/gsm8k.yaml", commit=COMMIT)
    assert source.revision == COMMIT
    assert source.config()["dataset_kwargs"] == {"revision": COMMIT}


def test_registered_tasks_that_pin_nothing_or_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pins nothing"):
        RegisteredTask(file="gsm8k/gsm8k.yaml", commit="main")
    with pytest.raises(ValueError, match="no task file"):
        RegisteredTask(file="gsm9k.yaml", commit=COMMIT).config()
    with pytest.raises(ValueError, match="a group or a template"):
        RegisteredTask(file="mmlu/default/_mmlu.yaml", commit=COMMIT).config()
    with pytest.raises(ValueError, match="hf download --repo-type dataset openai/gsm8k"):
        RegisteredTask(file="gsm8k/gsm8k.yaml", commit=COMMIT, mirror=str(tmp_path)).config()
