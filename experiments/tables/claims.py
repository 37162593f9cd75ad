"""Test a paper's claim on our numbers: holds, fails, not distinguishable, or not enough runs."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from experiments.tables.cells import Cell, RunScore, half_interval
from experiments.tables.code_versions import describe_version_differences
from experiments.tables.definition import Claim

HOLDS, FAILS, UNTOLD, FEW = "holds", "fails", "not distinguishable", "not enough runs"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`difference`: left minus right, in the shown unit, mean over shared seeds; `error`: its half 95 % interval.

    `versions`: how the code versions of the compared runs differ, "" if they are equal.
    """

    claim: Claim
    verdict: str
    difference: float | None
    error: float | None
    seeds: int
    versions: str = ""


def judge_claim(claim: Claim, cells: Mapping[str, Cell]) -> Verdict:
    """The verdict over the seeds that both sides have; one run that needs no seed stands against all of the other's.

    With several seeds the error is that of the paired differences. With one, it is the sampling error of the scored
    examples, sqrt(p (1 - p) / n) on each side, which is an upper bound for a mean of values in [0, 1]; a metric without
    such a bound has the claim's `noise`.
    """
    pairs = pair_by_seed(cells[claim.left].ours, cells[claim.right].ours)
    if len(pairs) < max(1, claim.seeds):
        return Verdict(claim=claim, verdict=FEW, difference=None, error=None, seeds=len(pairs))
    differences = [left.shown_value - right.shown_value for left, right in pairs]
    mean = statistics.fmean(differences)
    error = (half_interval(differences) or 0.0) if len(pairs) > 1 else max(claim.noise, sampling_error(*pairs[0]))
    excess = (mean if claim.relation == ">" else -mean) - claim.margin
    verdict = UNTOLD if abs(excess) <= error else HOLDS if excess > 0 else FAILS
    versions = describe_version_differences(
        (one.seed, maker) for pair in pairs for one in pair for maker in one.fingerprints
    )
    return Verdict(claim=claim, verdict=verdict, difference=mean, error=error, seeds=len(pairs), versions=versions)


def pair_by_seed(left: tuple[RunScore, ...], right: tuple[RunScore, ...]) -> list[tuple[RunScore, RunScore]]:
    if len(left) == 1 and len(right) > 1:
        return [(left[0], other) for other in right]
    if len(right) == 1 and len(left) > 1:
        return [(other, right[0]) for other in left]
    theirs = {measure.seed: measure for measure in right}
    return [(measure, theirs[measure.seed]) for measure in left if measure.seed in theirs]


def sampling_error(left: RunScore, right: RunScore) -> float:
    """Half the 95 % interval of a difference of two fractions, each a mean over its examples; 0 for other units."""
    if left.unit != "fraction" or right.unit != "fraction":
        return 0.0
    return 1.96 * math.sqrt(sum(one.factor**2 * one.value * (1 - one.value) / one.n for one in (left, right)))
