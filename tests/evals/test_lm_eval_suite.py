"""The lm-eval suite: real task classes on the live model, nothing unpinned, and no result of another model."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM

from evals.external import Bm25
from evals.lm_eval_suite import LmEvalSuite
from evals.lm_offline import in_memory
from evals.lm_tasks import LmTask, Registered, config_digest
from evals.score import Score, Subject
from evals.store import Store
from unified_lm.backbones import Tiny
from unified_lm.generate import Generated, Generator
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
COMMIT = "0" * 40


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Generate and match, with two filters."""

    revision: str = "sums:1"
    rows: Sequence[dict] = tuple(SUMS)

    def config(self) -> dict[str, Any]:
        return {
            "custom_dataset": in_memory(test=self.rows),
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
            "custom_dataset": in_memory(test=CHOICES),
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


class Counting(Generator):
    """A generator that counts how often it is asked, and remembers the prompts it last continued."""

    asked = 0

    def logprobs(self, pairs: Sequence, **options) -> list:
        self.asked += 1
        return super().logprobs(pairs, **options)

    def generate(self, prompts: Sequence, *args, **options) -> list[Generated]:
        self.asked += 1
        self.prompts = [list(prompt) for prompt in prompts]
        return super().generate(prompts, *args, **options)


def generator_of(backbone: Tiny | None = None, **options) -> Counting:
    backbone = backbone or Tiny()
    loaded = backbone.load()
    return Counting(UnifiedLM(loaded.model, loaded.tokenizer), weights=backbone.fingerprint(), **options)


def subject_of(generator: Generator, step: int | None = None) -> Subject:
    return Subject(name="tiny", generator=generator, step=step)


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


def test_what_was_scored_is_reused_and_nothing_else_is(tmp_path: Path) -> None:
    first = generator_of()
    scores = SUITE.score(subject_of(first), folder=tmp_path)
    again = generator_of()
    assert SUITE.score(subject_of(again), folder=tmp_path) == scores
    assert again.asked == 0
    others = [
        (SUITE, subject_of(generator_of(Tiny(seed=1)))),
        (SUITE, subject_of(generator_of(Tiny(dtype="bfloat16")))),
        (SUITE, subject_of(generator_of(max_length=100))),
        (SUITE, subject_of(generator_of(), step=3)),
        (replace(SUITE, name="other"), subject_of(generator_of())),
    ]
    for changes in (
        {"shots": 1},
        {"template": "tokenizer"},
        {"budget": 4},
        {"metrics": ("exact_match,first",)},
        {"multiturn": True},
        {"source": Sums(revision="sums:2")},
    ):
        others.append((replace(SUITE, entries=(replace(SUMS_TASK, **changes),)), subject_of(generator_of())))
    for suite, subject in others:
        suite.score(subject, folder=tmp_path)
        assert subject.generator.asked == len(suite.entries)


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
    assert Store(folder=tmp_path, suite="toy").skipped() == {
        "sums": "bm25 generates no text",
        "choices": "bm25 generates no text",
    }


@pytest.fixture
def as_in_production() -> Iterator[None]:
    """Without the type checks that tests run under, which would refuse before we do."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


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


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror with a few rows in the schema of the hub's data sets."""
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))
    sums = [{"question": row["question"], "answer": f"Add them.\n#### {row['answer']}"} for row in SUMS]
    written = {"openai/gsm8k/main/train": sums[:3], "openai/gsm8k/main/test": sums[3:]}
    for place, rows in written.items():
        file = tmp_path / "mirror" / f"{place}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mirror/openai/gsm8k/README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n"
        "  - split: train\n    path: main/train.jsonl\n  - split: test\n    path: main/test.jsonl\n---\n"
    )
    return tmp_path / "mirror"


def gsm8k(mirror: Path | None) -> LmTask:
    return LmTask(
        name="gsm8k",
        source=Registered(file="gsm8k/gsm8k.yaml", commit=COMMIT, mirror=str(mirror) if mirror else None),
        shots=2,
        template="tokenizer",
        multiturn=True,
        budget=5,
        metrics=("exact_match,strict-match", "exact_match,flexible-extract"),
    )


def test_a_task_of_lm_evals_own_runs_from_a_mirror_whose_content_is_its_revision(tmp_path: Path, mirror: Path) -> None:
    suite = LmEvalSuite(name="lm", entries=(gsm8k(mirror),))
    scores = suite.score(subject_of(generator_of()), folder=tmp_path / "scores")
    assert [(score.metric, score.subset, score.n) for score in scores[:3]] == [
        ("exact_match", "test/strict-match", 2),
        ("exact_match", "test/flexible-extract", 2),
        ("truncation_rate", "test", 2),
    ]
    assert scores[0].prompt == "2-shot, each a turn, template tokenizer, at most 5 new tokens"
    assert scores[0].revision.startswith("mirror:")
    (mirror / "openai/gsm8k/main/test.jsonl").write_text(json.dumps({"question": "?", "answer": "#### 1"}) + "\n")
    changed = suite.score(subject_of(generator_of()), folder=tmp_path / "scores")
    assert changed[0].n == 1 and changed[0].revision != scores[0].revision
    moved = mirror.rename(tmp_path / "moved")
    silent = generator_of()
    suite = LmEvalSuite(name="lm", entries=(gsm8k(moved),))
    assert suite.score(subject_of(silent), folder=tmp_path / "scores") == changed
    assert silent.asked == 0


def test_the_examples_shown_are_the_same_in_every_run(tmp_path: Path, mirror: Path) -> None:
    file = mirror / "openai/gsm8k/main/train.jsonl"
    rows = [{"question": f"What is {a} plus {a}?", "answer": f"#### {2 * a}"} for a in range(30)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    suite = LmEvalSuite(name="lm", entries=(gsm8k(mirror),))
    heard = []
    for run in range(3):
        generator = generator_of()
        suite.score(subject_of(generator), folder=tmp_path / str(run))
        heard.append(generator.prompts)
    assert heard[0] == heard[1] == heard[2]
    assert generator.tokenizer.decode(heard[0][0]).count("<|im_start|>assistant") == 3


def test_a_task_of_the_hub_is_read_at_its_commit() -> None:
    task = gsm8k(None)
    assert task.source.revision == COMMIT
    assert task.config()["dataset_kwargs"] == {"revision": COMMIT}


def test_registered_tasks_that_pin_nothing_or_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pins nothing"):
        Registered(file="gsm8k/gsm8k.yaml", commit="main")
    with pytest.raises(ValueError, match="no task file"):
        Registered(file="gsm9k.yaml", commit=COMMIT).config()
    with pytest.raises(ValueError, match="a group or a template"):
        Registered(file="mmlu/default/_mmlu.yaml", commit=COMMIT).config()
    with pytest.raises(ValueError, match="hf download --repo-type dataset openai/gsm8k"):
        Registered(file="gsm8k/gsm8k.yaml", commit=COMMIT, mirror=str(tmp_path)).config()


def test_the_suite_can_be_imported_and_built_without_lm_eval() -> None:
    code = "import sys, evals.lm_eval_suite, evals.lm_offline; sys.exit('lm_eval' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
