"""The lm-eval suite: real task classes on the live model, what is reported, and no result of another model."""

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM

from evals.external_models import Bm25
from evals.generation.suite import LmEvalSuite
from evals.score import Score, Subject
from evals.score_store import ScoreStore
from tests.evals.lm import CHOICES_TASK, SUITE, SUMS_TASK, generator_of, subject_of
from unified_lm.backbones import Tiny


def value(scores: Sequence[Score], metric: str, subset: str = "test") -> float:
    (one,) = [score.value for score in scores if (score.metric, score.subset) == (metric, subset)]
    return one


def test_a_score_says_what_was_run(tmp_path: Path) -> None:
    begun: list[tuple[str, int, int]] = []
    scores = SUITE.score(subject_of(generator_of(), step=7), folder=tmp_path, progress=lambda *at: begun.append(at))
    assert begun == [("sums", 1, 2), ("choices", 2, 2)]
    keys = [(score.task, score.metric, score.subset, score.n) for score in scores]
    assert keys == [
        ("sums", "exact_match", "test/first", 5),
        ("sums", "exact_match", "test/number", 5),
        ("sums", "truncation_rate", "test", 5),
        ("sums", "empty_rate", "test", 5),
        ("sums", "prompt_cut_rate", "test", 5),
        ("choices", "acc", "test", 5),
        ("choices", "acc_norm", "test", 5),
        ("choices", "prompt_cut_rate", "test", 20),
    ]
    assert {score.prompt for score in scores[:5]} == {"0-shot, template none, at most 3 new tokens"}
    assert {(score.suite, score.step, score.attention, score.library) for score in scores} == {
        ("toy", 7, "causal", "lm_eval 0.4.13")
    }
    assert all(score.revision.startswith(("sums:1 task:", "choices:1 task:")) for score in scores)


def test_slots_have_no_place_in_a_bare_prompt_and_the_tasks_say_so(tmp_path: Path) -> None:
    generator = generator_of()
    vars(generator)["slots"] = 2
    assert SUITE.score(subject_of(generator), folder=tmp_path) == []
    skipped = ScoreStore(folder=tmp_path, suite="toy").skipped_tasks()
    assert set(skipped) == {"sums", "choices"} and all("a bare prompt has not" in why for why in skipped.values())


@pytest.mark.parametrize("seed", range(3))
def test_accuracy_is_that_of_lm_evals_own_model(seed: int, tmp_path: Path) -> None:
    backbone = Tiny(seed=seed)
    loaded = backbone.load()
    ours = LmEvalSuite(name="toy", entries=(CHOICES_TASK,)).score(subject_of(generator_of(backbone)), folder=tmp_path)
    tokenizer = loaded.tokenizer
    tokenizer.backend_tokenizer.post_processor = bos_first(tokenizer)
    peer = HFLM(pretrained=loaded.model, tokenizer=tokenizer, add_bos_token=True, batch_size=3, softmax_dtype="float32")
    task = ConfigurableTask(config=CHOICES_TASK.config())
    theirs = evaluate(peer, {"tasks": {"choices": task}, "groups": {}}, bootstrap_iters=0)["results"]["choices"]
    assert value(ours, "acc") == theirs["acc,none"]
    assert value(ours, "acc_norm") == theirs["acc_norm,none"]


def bos_first(tokenizer):
    from tokenizers.processors import TemplateProcessing

    return TemplateProcessing(
        single=f"{tokenizer.bos_token} $A", special_tokens=[(tokenizer.bos_token, tokenizer.bos_token_id)]
    )


def test_every_answer_of_a_budget_of_one_is_truncated_and_an_end_at_once_is_empty(tmp_path: Path) -> None:
    suite = LmEvalSuite(name="toy", entries=(replace(SUMS_TASK, budget=1),))
    cut = suite.score(subject_of(generator_of()), folder=tmp_path)
    assert value(cut, "truncation_rate") == 1.0
    silent = generator_of()
    silent.weights = "silent"
    silent.model.backbone.generation_config.eos_token_id = list(range(512))
    ended = suite.score(subject_of(silent), folder=tmp_path)
    assert (value(ended, "truncation_rate"), value(ended, "empty_rate")) == (0.0, 1.0)


def test_the_pinned_budget_replaces_the_tasks_own(tmp_path: Path) -> None:
    assert SUMS_TASK.config()["generation_kwargs"] == {"until": ["\n"], "do_sample": False, "max_gen_toks": 3}


def test_two_models_never_share_a_result(tmp_path: Path) -> None:
    one, other = (SUITE.score(subject_of(generator_of(Tiny(seed=seed))), folder=tmp_path) for seed in (0, 5))
    alone = SUITE.score(subject_of(generator_of(Tiny(seed=5))), folder=tmp_path / "alone")
    assert other == alone
    assert [score.value for score in one] != [score.value for score in other]


@pytest.mark.usefixtures("as_in_production")  # the type checks draw random numbers
def test_greedy_scores_repeat_and_leave_the_random_state_alone(tmp_path: Path) -> None:
    subjects = [subject_of(generator_of()) for _ in range(2)]
    before = random.getstate(), torch.get_rng_state()
    runs = [SUITE.score(subject, folder=tmp_path / str(i)) for i, subject in enumerate(subjects)]
    assert runs[0] == runs[1]
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])


def test_a_subject_that_does_not_generate_is_skipped_with_the_reason(tmp_path: Path) -> None:
    assert SUITE.score(Subject(name="bm25", search=Bm25()), folder=tmp_path) == []
    assert ScoreStore(folder=tmp_path, suite="toy").skipped_tasks() == {
        "sums": "bm25 generates no text",
        "choices": "bm25 generates no text",
    }


def test_the_suite_can_be_imported_and_built_without_lm_eval() -> None:
    code = "import sys, evals.generation.suite, evals.generation.packaged_docs; sys.exit('lm_eval' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
