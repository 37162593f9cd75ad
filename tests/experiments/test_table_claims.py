"""A claim holds, fails, cannot be told, or lacks runs."""

from typing import Any

from experiments.tables.cells import Cell, RunScore
from experiments.tables.claims import FAILS, FEW, HOLDS, UNTOLD, judge_claim
from experiments.tables.definition import Claim


def measures(*values: float, unit: str = "fraction", factor: float = 100.0, n: int = 100) -> tuple[RunScore, ...]:
    return tuple(RunScore(seed=seed, value=value, factor=factor, n=n, unit=unit) for seed, value in enumerate(values))


def verdict(left: tuple[RunScore, ...], right: tuple[RunScore, ...], **more: Any) -> str:
    claim = Claim(text="left is more", left="a", right="b", **({"relation": ">"} | more))
    cells = {name: Cell(reported=None, ours=ours, is_defined=True) for name, ours in (("a", left), ("b", right))}
    return judge_claim(claim, cells).verdict


def test_one_seed_is_judged_by_the_sampling_of_its_examples() -> None:
    assert verdict(measures(0.5), measures(0.1)) == HOLDS
    assert verdict(measures(0.1), measures(0.5)) == FAILS
    assert verdict(measures(0.50), measures(0.45)) == UNTOLD
    assert verdict(measures(0.50, n=10_000), measures(0.45, n=10_000)) == HOLDS


def test_several_seeds_are_judged_by_their_paired_differences() -> None:
    assert verdict(measures(0.50, 0.60, 0.70), measures(0.45, 0.55, 0.651)) == HOLDS
    assert verdict(measures(0.50, 0.60, 0.70), measures(0.60, 0.40, 0.71)) == UNTOLD
    assert verdict(measures(0.45, 0.55, 0.651), measures(0.50, 0.60, 0.70)) == FAILS


def test_a_run_without_a_seed_stands_against_every_seed_of_the_other() -> None:
    assert verdict(measures(0.50, 0.52, 0.51), measures(0.1)) == HOLDS
    assert verdict(measures(0.1), measures(0.50, 0.52, 0.51), relation="<") == HOLDS


def test_too_few_seeds_give_no_verdict() -> None:
    assert verdict((), measures(0.1)) == FEW
    assert verdict(measures(0.5), measures(0.1), seeds=2) == FEW


def test_a_metric_without_an_error_of_its_own_has_the_claims_noise_and_margin() -> None:
    low, high = measures(38, unit="perplexity", factor=1), measures(84, unit="perplexity", factor=1)
    assert verdict(low, high, relation="<", noise=3) == HOLDS
    assert verdict(low, measures(40, unit="perplexity", factor=1), relation="<", noise=3) == UNTOLD
    assert verdict(low, high, relation="<", noise=3, margin=100) == FAILS
