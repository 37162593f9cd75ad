"""What a score may be, and what decides one."""

import subprocess
import sys

import numpy as np
import pytest

from evals.external_models import Bm25
from evals.score import Embedder, Score, Searcher, Subject, identity_key
from tests.evals.lexical import Lexical

FIELDS = {
    "suite": "s", "task": "t", "metric": "ndcg_at_10", "value": 0.5, "unit": "fraction", "subset": "test", "step": None,
    "readout": "mean", "attention": "causal", "revision": "r", "library": "mteb 2", "prompt": "", "n": 10,
}  # fmt: skip


def test_a_score_survives_the_record_unchanged() -> None:
    score = Score(**FIELDS)
    assert Score.from_dict(score.to_dict()) == score


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"unit": "points"}, "unknown unit 'points'"),
        ({"value": float("nan")}, "not finite"),
        ({"value": float("inf"), "unit": "perplexity"}, "not finite"),
        ({"value": 1.2}, "outside"),
        ({"value": -0.1}, "outside"),
        ({"value": 0.5, "unit": "perplexity"}, "outside"),
        ({"n": 0}, "at least 1"),
    ],
)
def test_a_number_that_its_unit_does_not_allow_is_no_score(changed: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Score(**{**FIELDS, **changed})


def test_rounding_in_float32_does_not_push_a_correlation_over_its_bound() -> None:
    assert Score(**{**FIELDS, "value": float(np.float32(1.0000001)), "unit": "correlation"}).value == 1.0


def test_a_record_with_other_fields_is_named() -> None:
    with pytest.raises(ValueError, match=r"missing \['n'\], unknown \['count'\]"):
        Score.from_dict({**{name: value for name, value in FIELDS.items() if name != "n"}, "count": 3})


def test_a_subject_that_can_do_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="can do nothing"):
        Subject(name="nobody")


def test_a_subject_has_one_ranking() -> None:
    with pytest.raises(ValueError, match="two subjects"):
        Subject(name="both", embedder=Lexical(), search=Bm25())


def test_models_are_recognised_by_what_they_can_do() -> None:
    assert isinstance(Lexical(), Embedder) and not isinstance(Lexical(), Searcher)
    assert isinstance(Bm25(), Searcher) and not isinstance(Bm25(), Embedder)


def test_a_key_depends_on_content_and_not_on_order_or_process() -> None:
    assert identity_key(a=1, b={"x": [1, 2], "y": None}) == identity_key(b={"y": None, "x": (1, 2)}, a=1)
    assert identity_key(a="1") != identity_key(a=1) and identity_key(a=[1, 2]) != identity_key(a=[2, 1])
    other = subprocess.run(
        [sys.executable, "-c", "from evals.score import identity_key; print(identity_key(b=[1.5, None], a='ä'))"],
        capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7", "PATH": ""},
    )  # fmt: skip
    assert other.stdout.strip() == identity_key(a="ä", b=[1.5, None])


def test_what_may_differ_between_processes_cannot_enter_a_key() -> None:
    with pytest.raises(ValueError, match="only JSON values"):
        identity_key(model=object())
    with pytest.raises(ValueError, match="only JSON values"):
        identity_key(rate=float("nan"))


def test_scores_are_read_without_loading_a_tensor_library() -> None:
    heavy = "import sys, evals.score, evals.score_store; "
    heavy += "print([m for m in ('torch', 'mteb', 'lm_eval') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
