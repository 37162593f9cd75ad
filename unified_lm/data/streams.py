"""The rows of each step: a pure function of (data seed, step), for any number of processes and after any restart."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from unified_lm.data.arrow_store import Rows
from unified_lm.data.order import INCOMPLETE, BatchCut, keyed_permutation
from unified_lm.data.rows import TrainingRow
from unified_lm.data.sources import Source
from unified_lm.files import strings_digest


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Data sets that together fill `rows_per_step` rows of every step."""

    sources: Mapping[str, Source]  # the keys only address the sources; rows carry their data set's own name
    rows_per_step: int
    homogeneous: float = 0.0  # share of batches whose rows are all of one data set
    shares: Mapping[str, float] = field(default_factory=dict)  # data set: share of its rows in use, 1 if not named
    incomplete: str = "drop"  # batches with too few rows at an epoch's end; "short" keeps them
    unique: bool = False  # drop rows whose texts repeat an earlier row's, case and spaces aside

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("a stream needs at least one source")
        if self.rows_per_step < 1:
            raise ValueError(f"rows_per_step={self.rows_per_step} is less than 1; leave the stream out instead")
        if not 0 <= self.homogeneous <= 1:
            raise ValueError(f"homogeneous={self.homogeneous} is no share of batches: choose from 0 to 1")
        if self.incomplete not in INCOMPLETE:
            raise ValueError(f"incomplete={self.incomplete} is not one of {', '.join(INCOMPLETE)}")
        if wrong := {name: share for name, share in self.shares.items() if not 0 < share <= 1}:
            raise ValueError(f"shares={wrong} are no shares of a data set: choose above 0 and up to 1")


@dataclass(frozen=True, kw_only=True)
class Streams:
    """Several streams, each with its own rows a step: embedding and generative batch sizes are separate.

    `data_seed` decides subsets and order; the run's seed does not.
    """

    streams: Mapping[str, Stream]
    data_seed: int

    def __post_init__(self) -> None:
        if not self.streams:
            raise ValueError("there is no stream: training needs at least one")

    def fingerprint(self) -> str:
        """Digest of the sources' fingerprints; reads no data (a file's digest is taken once)."""
        named = sorted(
            (name, key, source) for name, stream in self.streams.items() for key, source in stream.sources.items()
        )
        return strings_digest(*(part for name, key, source in named for part in (name, key, source.fingerprint())))

    def load(self) -> Batches:
        """Read the sources, or their cached rows. Raises `ValueError` for a stream that fills no batch."""
        return Batches({name: LoadedStream(name, stream, self.data_seed) for name, stream in self.streams.items()})


class LoadedStream:
    """One stream, loaded: its rows by data set and the batches of each epoch."""

    def __init__(self, name: str, stream: Stream, data_seed: int) -> None:
        self.name = name
        self.sources: dict[str, Rows] = {key: source.rows() for key, source in stream.sources.items()}
        self._starts = np.cumsum([0, *(len(rows) for rows in self.sources.values())]).tolist()
        self._key = (data_seed, name)
        self._cut = BatchCut(rows=stream.rows_per_step, homogeneous=stream.homogeneous, incomplete=stream.incomplete)
        kept, self.duplicates = self._first_of_duplicates() if stream.unique else (np.arange(self._starts[-1]), 0)
        self.groups = self._group_by_data_set(kept, stream.shares)
        self.size = sum(len(group) for group in self.groups.values())
        self.outside_share = len(kept) - self.size
        self.batches_per_epoch = self._cut.batches_per_epoch([len(group) for group in self.groups.values()])
        if not self.batches_per_epoch:
            raise ValueError(
                f"stream {name!r} has {self.size} rows in {len(self.groups)} data sets, too few for one batch of "
                f"rows_per_step={stream.rows_per_step}; lower it, or set incomplete=short"
            )
        self.epoch = lru_cache(maxsize=2)(self._epoch_batches)

    def _first_of_duplicates(self) -> tuple[np.ndarray, int]:
        keys = np.concatenate([rows.row_keys for rows in self.sources.values()])
        first = np.sort(np.unique(keys, return_index=True)[1])
        return first, len(keys) - len(first)

    def _group_by_data_set(self, kept: np.ndarray, shares: Mapping[str, float]) -> dict[str, np.ndarray]:
        """Numbers of the kept rows of each data set. A share is a fixed random subset of every larger share."""
        labels: list[str] = []
        for key, rows in self.sources.items():
            found = rows.source_names
            if claimed := sorted(set(found) & set(labels)):
                raise ValueError(f"stream {self.name!r} has two data sets named {claimed[0]!r}: set name in {key!r}")
            labels += found
        names = list(dict.fromkeys(labels))
        if unknown := sorted(set(shares) - set(names)):
            raise ValueError(f"shares names {unknown[0]!r}, but stream {self.name!r} holds {', '.join(names)}")
        number = {name: index for index, name in enumerate(names)}
        codes = np.array([number[label] for label in labels])[kept]
        groups = {}
        for name, index in number.items():
            group = kept[codes == index]
            used = round(len(group) * shares.get(name, 1.0))
            groups[name] = group[np.sort(keyed_permutation(len(group), *self._key, "share", name)[:used])]
        return groups

    def _epoch_batches(self, epoch: int) -> list[np.ndarray]:
        return self._cut.epoch_batches(list(self.groups.values()), *self._key, epoch)

    def row_numbers(self, step: int) -> list[int]:
        """Numbers of the rows of a step, counted over all sources of the stream."""
        epoch, position = divmod(step, self.batches_per_epoch)
        return self.epoch(epoch)[position].tolist()

    def locate_row(self, number: int) -> tuple[str, int]:
        """The source of a row number, and the row's index in it."""
        position = bisect_right(self._starts, number) - 1
        return list(self.sources)[position], number - self._starts[position]

    @cached_property
    def rows_per_epoch(self) -> int:
        return sum(len(batch) for batch in self.epoch(0))

    def counters(self, steps: int) -> dict[str, int | float]:
        """Totals after `steps` steps."""
        whole, part = divmod(steps, self.batches_per_epoch)
        begun = sum(len(batch) for batch in self.epoch(whole)[:part]) if part else 0
        return {
            "rows_seen": whole * self.rows_per_epoch + begun,
            "epoch": steps / self.batches_per_epoch,
            "rows": self.size,
            "skipped": 0,
            **sum((Counter(rows.notes) for rows in self.sources.values()), Counter()),
            "duplicates_dropped": self.duplicates,
            "outside_share": self.outside_share,
            "dropped_an_epoch": self.size - self.rows_per_epoch,
        }


class Batches:
    """The rows of every step. There is no state to save: a resumed run asks for a later step."""

    def __init__(self, streams: Mapping[str, LoadedStream]) -> None:
        self.streams = streams

    def batch(self, step: int) -> list[TrainingRow]:
        """The global batch of a step (from 0): the rows of all streams, in the order of the streams."""
        return [row for rows in self.rows_by_stream(step).values() for row in rows]

    def rows_by_stream(self, step: int) -> dict[str, list[TrainingRow]]:
        """The rows of a step by stream."""
        found = {}
        for name, stream in self.streams.items():
            locations = map(stream.locate_row, stream.row_numbers(step))
            found[name] = [stream.sources[source][index] for source, index in locations]
        return found

    def row_ids(self, step: int) -> list[str]:
        """Ids "stream/source[index]" of the rows of a step, in the order of `batch`, for messages."""
        return [
            "{}/{}[{}]".format(name, *stream.locate_row(number))
            for name, stream in self.streams.items()
            for number in stream.row_numbers(step)
        ]

    def counters(self, steps: int) -> dict[str, dict[str, int | float]]:
        """Counters of each stream after `steps` steps: rows seen, epochs, rows in use, and rows left out by reason."""
        return {name: stream.counters(steps) for name, stream in self.streams.items()}

    def corpus_fingerprints(self) -> dict[str, str]:
        """Digest of the rows of each source, by "stream/source", for the run's record."""
        return {
            f"{name}/{source}": rows.corpus_fingerprint
            for name, stream in self.streams.items()
            for source, rows in stream.sources.items()
        }
