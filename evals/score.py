"""What a score is, what can be scored, and what decides a score.

This module imports neither torch nor a benchmark library, so that tables and records may use it at start-up.
"""

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from unified_lm.inference.embedder import Embedder

Progress = Callable[[str, int, int], None]
"""Called as (task, i, n) when task i of n (from 1) begins."""

UNIT_BOUNDS: Mapping[str, tuple[float, float]] = {
    "fraction": (0.0, 1.0),
    "correlation": (-1.0, 1.0),
    "p-MRR": (-1.0, 1.0),
    "mean score": (-1.0, 1.0),
    "perplexity": (1.0, math.inf),
    "bits per byte": (0.0, math.inf),
    "nats": (-math.inf, math.inf),
    "seconds": (0.0, math.inf),
    "GiB": (0.0, math.inf),
    "tokens/s": (0.0, math.inf),
    "count": (0.0, math.inf),
    "ratio": (0.0, math.inf),
}
"""The units a score may have, with the smallest and the largest possible value."""

PROTOCOL_VERSIONS: Mapping[str, int] = {"mteb": 2, "lm_eval": 2}
"""How our suites score; part of every key. Raise one where the same inputs would give other scores."""

SUBSET_MARK = " (subset)"
"""Ends the name of a suite in the scores of a part of it, or of a part of its data: no table reads these."""

TOLERANCE = 1e-6
"""How far float32 arithmetic may push a value beyond its unit's bounds (a correlation of 1.0000001)."""


def subset_name(suite: str) -> str:
    """The name under which a part of a suite's data is scored."""
    return suite if suite.endswith(SUBSET_MARK) else suite + SUBSET_MARK


@dataclass(frozen=True, kw_only=True)
class Score:
    """One number with its provenance. `value` is in the metric's own unit; tables decide about a factor of 100.

    Raises ValueError for an unknown unit, a value that is not finite or outside its unit's bounds, or n < 1.
    """

    suite: str
    task: str
    metric: str
    value: float
    unit: str
    subset: str
    step: int | None
    readout: str
    attention: str
    revision: str
    library: str
    prompt: str
    n: int

    def __post_init__(self) -> None:
        where = f"{self.suite}/{self.task} {self.metric}"
        if self.unit not in UNIT_BOUNDS:
            raise ValueError(f"{where}: unknown unit {self.unit!r}; use one of {sorted(UNIT_BOUNDS)}")
        low, high = UNIT_BOUNDS[self.unit]
        if not math.isfinite(self.value):
            raise ValueError(f"{where}: the value {self.value} is not finite, so it is no score")
        if not low - TOLERANCE <= self.value <= high + TOLERANCE:
            raise ValueError(f"{where}: the value {self.value} is outside [{low}, {high}], the bounds of {self.unit}")
        if self.n < 1:
            raise ValueError(f"{where}: n is the number of scored examples and must be at least 1, not {self.n}")
        object.__setattr__(self, "value", min(max(float(self.value), low), high))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Score":
        """Raises ValueError naming the fields that are missing or unknown."""
        names = {field.name for field in fields(cls)}
        if set(record) != names:
            missing, unknown = sorted(names - set(record)), sorted(set(record) - names)
            raise ValueError(f"not a score: missing {missing}, unknown {unknown}")
        return cls(**record)


@runtime_checkable
class TextGenerator(Protocol):
    """Token ids to likelihoods and continuations. `identity` is JSON-safe and holds everything that decides them."""

    @property
    def identity(self) -> Mapping[str, Any]: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def max_length(self) -> int: ...

    def logprobs(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, bool]]:
        """(context ids, continuation ids) -> (summed log-probability in nats, whether greedy decoding yields it)."""
        ...

    def generate(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop: Sequence[str], temperature: float = 0.0
    ) -> list[Any]:
        """Prompt ids -> objects with `text`, `tokens` (a count) and `truncated`."""
        ...


@runtime_checkable
class Searcher(Protocol):
    """mteb's SearchProtocol with an identity: ranks documents without vectors of ours (BM25)."""

    @property
    def identity(self) -> Mapping[str, Any]: ...

    def index(self, corpus: Any, **where: Any) -> None: ...

    def search(self, queries: Any, **where: Any) -> dict[str, dict[str, float]]: ...


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is scored: a model by what it can do. `step` is the training step of a checkpoint along the way.

    Raises ValueError for a subject that can do nothing, or that embeds and searches (whose score would it be?).
    """

    name: str
    embedder: Embedder | None = None
    generator: TextGenerator | None = None
    search: Searcher | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        if self.embedder is None and self.generator is None and self.search is None:
            raise ValueError(f"subject {self.name!r} can do nothing: give it an embedder, generator or search model")
        if self.embedder is not None and self.search is not None:
            raise ValueError(f"subject {self.name!r} has an embedder and a search model: score them as two subjects")


class UnreadableTaskError(ValueError):
    """A task whose data, or whose settings, cannot be read."""


class IncompleteSuiteError(ValueError):
    """Tasks of a suite without a score, task -> why, and the `scores` of all others."""

    def __init__(self, suite: str, problems: Mapping[str, str], scores: "Sequence[Score]") -> None:
        listed = "; ".join(f"{task}: {why}" for task, why in problems.items())
        super().__init__(f"{len(problems)} tasks of suite {suite} cannot be read: {listed}")
        self.problems, self.scores = problems, scores


@contextlib.contextmanager
def unreadable_on_error(place: str = "") -> Iterator[None]:
    """Turn any error of the block into `UnreadableTaskError`, with the place and all causes.

    The suite then goes on with its other tasks.
    """
    try:
        yield
    except UnreadableTaskError:
        raise
    except Exception as error:
        said = "; from ".join(describe_causes(error))
        raise UnreadableTaskError(f"{place}: {said}" if place else said) from error


def describe_causes(error: BaseException | None) -> Iterator[str]:
    """The error and what it came from, a line each."""
    while error is not None:
        yield f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        error = error.__cause__


@runtime_checkable
class Suite(Protocol):
    """A named, frozen set of tasks. `score` resumes from what `folder` holds for the same identity.

    It raises `IncompleteSuiteError` where tasks cannot be read, when all others are scored.

    `parts`: suites of the same name that can be scored apart, in any order and by several processes; what they leave in
    `folder` is what the whole one finds there.
    """

    @property
    def name(self) -> str: ...
    @property
    def tasks(self) -> Sequence[str]: ...

    def split_into_parts(self) -> "Sequence[Suite]": ...

    def score(self, subject: Subject, *, folder: Path, progress: Progress | None = None) -> list[Score]: ...


@runtime_checkable
class Checkable(Protocol):
    """A suite, or one of its tasks, that knows before any work whether it will be refused."""

    def check(self) -> None:
        """Raises ValueError for pins or settings that cannot be scored. Reads no weights and no data."""
        ...


def check_suite(suite: Any) -> None:
    """Refuse a suite that could not be scored, before anything is trained for it. Reads no weights and no data.

    Raises ValueError, in one line, for pins that the installed library does not agree with, a data set without a
    commit, a file of the user's that is missing, and generated code that may not be run.
    """
    if isinstance(suite, Checkable):
        suite.check()


def canonical_json(parts: Mapping[str, Any]) -> str:
    """JSON with sorted keys. Raises ValueError for anything JSON does not hold: a repr may change between processes."""
    try:
        return json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"an identity holds only JSON values (text, numbers, lists, dicts): {error}") from error


def identity_key(**parts: Any) -> str:
    """sha256, in hex, of everything that decides a score: equal parts give equal keys in any order and process."""
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()
