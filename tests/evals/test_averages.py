"""Averages are over the committed list or not at all."""

import pytest

from evals.averages import MIXED_UNIT, Mean, compute_means
from evals.score import Score


def score(task: str, value: float, metric: str = "ndcg_at_10", subset: str = "test", n: int = 10, **more: str) -> Score:
    return Score(
        suite="s", task=task, metric=metric, value=value, unit=more.get("unit", "fraction"), subset=subset, step=7,
        readout="mean", attention="causal", revision="r", library="l", prompt="", n=n,
    )  # fmt: skip


SCORES = [
    score("A", 0.2, n=30), score("A", 0.9, metric="recall"), score("B", 0.4, n=10),
    score("C", 0.5, subset="test_256"), score("C", 0.7, subset="test_512"), score("C", 0.6, subset="all"),
]  # fmt: skip


def value(mean: Mean, *earlier: Mean) -> float:
    found, lacking = compute_means([*earlier, mean], SCORES, {})
    assert not lacking
    (one,) = [score for score in found if score.task == mean.name]
    return one.value


def test_members_are_tasks_metrics_subsets_and_earlier_averages() -> None:
    assert value(Mean(name="m", of=["A", "B"])) == pytest.approx(0.3)
    assert value(Mean(name="m", of=["A:recall", "B"])) == pytest.approx(0.65)
    assert value(Mean(name="m", of=["C", "B"])) == pytest.approx(0.5)
    assert value(Mean(name="m", of=["C@test_256", "C@test_512"])) == pytest.approx(0.6)
    halves = Mean(name="one", of=["A", "B"]), Mean(name="other", of=["C@test_512"])
    assert value(Mean(name="m", of=["one", "other"]), *halves) == pytest.approx(0.5)


def test_a_weighted_average_counts_every_example_once() -> None:
    assert value(Mean(name="m", of=["A", "B"], weighted=True)) == pytest.approx((30 * 0.2 + 10 * 0.4) / 40)


def test_a_missing_member_leaves_no_average_and_says_why_and_so_on_above_it() -> None:
    means = [Mean(name="low", of=["A", "D"]), Mean(name="high", of=["low", "B"]), Mean(name="fine", of=["A", "B"])]
    found, lacking = compute_means(means, SCORES, {"D": "STS needs vectors"})
    assert [score.task for score in found] == ["fine"]
    assert lacking["low"] == "1 of 2 missing: D (STS needs vectors)"
    assert lacking["high"].startswith("1 of 2 missing: low (1 of 2 missing")


def test_several_scores_of_a_task_are_no_member_unless_one_is_over_all() -> None:
    found, lacking = compute_means(
        [Mean(name="m", of=["C", "A"])], [score for score in SCORES if score.subset != "all"], {}
    )
    assert not found and "C (no score)" in lacking["m"]


def test_values_in_different_units_have_a_mean_in_none_of_them() -> None:
    scores = [score("A", 0.5), score("B", -0.5, unit="correlation")]
    found, _ = compute_means([Mean(name="m", of=["A", "B"])], scores, {})
    assert (found[0].unit, found[0].metric, found[0].value, found[0].n) == (MIXED_UNIT, "mean", 0.0, 2)


@pytest.mark.parametrize(("of", "message"), [([], "is empty"), (["A", "A"], r"counts \['A'\] twice")])
def test_an_average_of_nothing_or_of_something_twice_is_refused(of: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mean(name="m", of=of)
