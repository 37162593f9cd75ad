"""A table cell: the published number, and our scores with mean and interval over seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.tables.code_versions import CodeFingerprint, describe_version_differences, name_seeds
from experiments.tables.definition import Reported


@dataclass(frozen=True, kw_only=True)
class RunScore:
    """One run's score over `n` examples: `value` in its own `unit`, `shown_value` times the column's `factor`.

    `fingerprints`: the code versions that trained or scored the run.
    """

    seed: int
    value: float
    factor: float
    n: int
    unit: str
    fingerprints: tuple[CodeFingerprint, ...] = ()

    @property
    def shown_value(self) -> float:
        return self.value * self.factor


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The published number and ours.

    `ours`: one score per seed. `is_defined`: False where the row cannot have this column.
    `missing_seeds`: the seeds without a score, each with the reason.
    """

    reported: Reported | None
    ours: tuple[RunScore, ...]
    is_defined: bool
    missing_seeds: tuple[tuple[int, str], ...] = ()

    @property
    def is_complete(self) -> bool:
        return not self.missing_seeds

    @property
    def missing_reasons(self) -> tuple[str, ...]:
        """Why seeds are missing; names the seeds unless all are missing for one reason."""
        told: dict[str, list[int]] = {}
        for seed, reason in self.missing_seeds:
            told.setdefault(reason, []).append(seed)
        if len(told) == 1 and not self.ours:
            return tuple(told)
        return tuple(f"{name_seeds(seeds)}: {reason}" for reason, seeds in told.items())

    @property
    def mean(self) -> float | None:
        return statistics.fmean(measure.shown_value for measure in self.ours) if self.ours else None

    @property
    def interval(self) -> float | None:
        """Half the 95 % confidence interval of the mean over seeds; None for fewer than two."""
        return half_interval([measure.shown_value for measure in self.ours])

    @property
    def difference(self) -> float | None:
        return None if self.reported is None or self.mean is None else self.mean - self.reported.value

    @property
    def version_differences(self) -> str:
        """How the code versions of the cell's runs differ; "" if they are equal."""
        return describe_version_differences((one.seed, maker) for one in self.ours for maker in one.fingerprints)


def half_interval(values: Sequence[float]) -> float | None:
    """Half the 95 % confidence interval of a mean by Student's t; None for fewer than two values."""
    if len(values) < 2:
        return None
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
