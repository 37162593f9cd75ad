"""A cell: what was reported, and what we measured over how many seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.tables.code_versions import Maker, named, several
from experiments.tables.definition import Reported


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run's score over `n` examples: `value` in its own `unit`, `shown` times the column's `factor`.

    `makers`: the versions that had a part in the run.
    """

    seed: int
    value: float
    factor: float
    n: int
    unit: str
    makers: tuple[Maker, ...] = ()

    @property
    def shown(self) -> float:
        return self.value * self.factor


@dataclass(frozen=True, kw_only=True)
class Cell:
    """`ours`: one measure a seed. `defined`: whether the row can have this column at all. `lacking`: the seeds without
    a measure, each with the reason."""

    reported: Reported | None
    ours: tuple[Measure, ...]
    defined: bool
    lacking: tuple[tuple[int, str], ...] = ()

    @property
    def complete(self) -> bool:
        return not self.lacking

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the cell, or a part of it, is blank; the seeds are named where not all of them lack for one reason."""
        told: dict[str, list[int]] = {}
        for seed, reason in self.lacking:
            told.setdefault(reason, []).append(seed)
        if len(told) == 1 and not self.ours:
            return tuple(told)
        return tuple(f"{named(seeds)}: {reason}" for reason, seeds in told.items())

    @property
    def mean(self) -> float | None:
        return statistics.fmean(measure.shown for measure in self.ours) if self.ours else None

    @property
    def interval(self) -> float | None:
        """Half the 95 % confidence interval of the mean over seeds; None for fewer than two."""
        return half_interval([measure.shown for measure in self.ours])

    @property
    def difference(self) -> float | None:
        return None if self.reported is None or self.mean is None else self.mean - self.reported.value

    @property
    def versions(self) -> str:
        """The versions that made the cell's runs, where they are not the same."""
        return several((one.seed, maker) for one in self.ours for maker in one.makers)


def half_interval(values: Sequence[float]) -> float | None:
    """Half the 95 % confidence interval of a mean by Student's t; None for fewer than two values."""
    if len(values) < 2:
        return None
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
