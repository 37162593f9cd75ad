"""The order of rows: keyed permutations, and epochs split into batches. Pure functions of their arguments."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np

INCOMPLETE = ("drop", "short")


def keyed_permutation(length: int, *key: str | int) -> np.ndarray:
    """A permutation of range(length) that depends on the key alone, not on library versions, process or earlier draws.

    The rows are sorted by raw words of the Philox generator, whose stream numpy guarantees.
    """
    words = hashlib.sha256(json.dumps(key).encode()).digest()
    generator = np.random.Philox(key=int.from_bytes(words[:16], "big"))
    return np.argsort(generator.random_raw(length), kind="stable")


@dataclass(frozen=True, kw_only=True)
class BatchCut:
    """Splits an epoch into batches of `rows` rows, of which a share is homogeneous: all rows of one data set."""

    rows: int
    homogeneous: float  # share of batches, from 0 to 1
    incomplete: str  # "drop" leaves batches with too few rows out of the epoch, "short" keeps them

    def batches_per_epoch(self, sizes: list[int]) -> int:
        """Number of batches of an epoch over data sets of these sizes; the same for every epoch."""
        alone = self.homogeneous_counts(sizes)
        rest = sum(sizes) - self.rows * sum(alone)
        if self.homogeneous == 1:
            short = sum(size > self.rows * full for size, full in zip(sizes, alone, strict=True))
            return sum(alone) + (short if self.incomplete == "short" else 0)
        return sum(alone) + (-(-rest // self.rows) if self.incomplete == "short" else rest // self.rows)

    def homogeneous_counts(self, sizes: list[int]) -> list[int]:
        """Number of full homogeneous batches of each data set, in proportion to its size (largest remainder)."""
        full = [size // self.rows for size in sizes]
        wanted = [self.homogeneous * size / self.rows for size in sizes]
        alone = [min(int(share), most) for share, most in zip(wanted, full, strict=True)]
        missing = round(self.homogeneous * (sum(sizes) // self.rows)) - sum(alone)
        room = [number for number in range(len(sizes)) if alone[number] < full[number]]
        for number in sorted(room, key=lambda number: (alone[number] - wanted[number], number))[: max(missing, 0)]:
            alone[number] += 1
        return alone

    def epoch_batches(self, groups: list[np.ndarray], *key: str | int) -> list[np.ndarray]:
        """The batches of one epoch, shuffled; `groups` holds the row numbers of each data set.

        With homogeneous=1 every batch holds rows of one data set. Below 1, the rows that are left over are mixed.
        """
        shuffled = [group[keyed_permutation(len(group), *key, "rows", number)] for number, group in enumerate(groups)]
        batches: list[np.ndarray] = []
        rest: list[np.ndarray] = []
        for group, count in zip(shuffled, self.homogeneous_counts([len(group) for group in groups]), strict=True):
            end = count * self.rows
            batches += np.split(group[:end], count) if count else []
            rest.append(group[end:])
        if self.homogeneous < 1:
            mixed = np.concatenate(rest)
            mixed = mixed[keyed_permutation(len(mixed), *key, "mixed")]
            rest = [mixed[start : start + self.rows] for start in range(0, len(mixed), self.rows)]
        batches += [batch for batch in rest if len(batch) == self.rows or (len(batch) and self.incomplete == "short")]
        return [batches[number] for number in keyed_permutation(len(batches), *key, "batches")]
