"""What a table is: rows, columns, published numbers with their source, and the paper's claims in checkable form."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from experiments.config.compose import override_name
from experiments.config.errors import UsageError
from experiments.config.paths import CONF
from experiments.config.suggestions import suggest
from experiments.rehearsal.cut import SCALE as REHEARSAL

REHEARSED = "paper"
"""The scale whose path scale=rehearsal walks."""

RELATIONS = (">", "<")
ORIGINS = ("printed", "derived", "third-party")


@dataclass(frozen=True, kw_only=True)
class Column:
    """One score of every row. `readout` and `subset`: None takes the row's own and the only one there is.

    `factor`: papers print nDCG x 100; shown and reported numbers are in that unit. `better`: higher or lower.
    """

    key: str
    label: str
    suite: str
    task: str
    metric: str
    better: str
    readout: str | None = None
    subset: str | None = None
    factor: float = 1.0
    digits: int = 1

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower"):
            raise UsageError(f"column {self.key}: better={self.better} is neither higher nor lower")


@dataclass(frozen=True, kw_only=True)
class Model:
    """An experiment as a table reads it; None is a published system that is not run here.

    `deterministic`: nothing in it depends on the seed, so one run stands for all seeds. `step`: a checkpoint along the
    way instead of the last (its experiment must ask for it in `scoring.steps`). `backbone`: in place of the
    experiment's own, where a scale has several.
    """

    experiment: str | None
    readout: str = ""
    backbone: str | None = None
    deterministic: bool = False
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Second(Model):
    """The second of two separate models that make up a row: these columns come from it, all others from the first."""

    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Row(Model):
    """One experiment, or with `also` two of them. `undefined`: columns that it cannot have by its nature (BM25 has no
    perplexity)."""

    key: str
    label: str
    undefined: tuple[str, ...] = ()
    also: Second | None = None

    @property
    def models(self) -> dict[str, Model]:
        """The row's models under the names that their runs go by."""
        first = {} if self.experiment is None else {self.key: self}
        return first if self.also is None else first | {f"{self.key}/also": self.also}

    def source(self, column: str) -> str:
        """The name of the model that a column comes from."""
        return f"{self.key}/also" if self.also is not None and column in self.also.columns else self.key


@dataclass(frozen=True, kw_only=True)
class BackboneVariant:
    """One of several backbones that every experiment of a table runs with: row `ulme` becomes `ulme_<key>`, labelled
    "ULME, <label>"."""

    key: str
    label: str
    backbone: str

    def apply(self, row: Row) -> Row:
        also = row.also and replace(row.also, backbone=self.backbone)
        key, label = f"{row.key}_{self.key}", f"{row.label}, {self.label}"
        return replace(row, key=key, label=label, backbone=self.backbone, also=also)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`left` `relation` `right`, by more than `margin`; both are row/column.

    `seeds`: runs needed for a verdict. `noise`: with a single run, the difference below which the two cannot be told
    apart where the metric gives no error of its own (perplexity).
    """

    text: str
    left: str
    relation: str
    right: str
    margin: float = 0.0
    noise: float = 0.0
    seeds: int = 1

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise UsageError(f"claim {self.text!r}: relation {self.relation} is none of {', '.join(RELATIONS)}")


@dataclass(frozen=True, kw_only=True)
class Reported:
    """A published number in the shown unit of its column, and how it is known.

    `origin`: printed in `source`; derived by arithmetic from what `source` states; or third-party, told by `source` of
    a number that was not read where it was first printed.
    """

    value: float
    origin: str
    source: str

    def __post_init__(self) -> None:
        if self.origin not in ORIGINS:
            found = suggest(self.origin, ORIGINS)
            raise UsageError(f"reported: origin={self.origin} is none of {', '.join(ORIGINS)}{found}")
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise UsageError(f"reported: {self.value!r} is no number")


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A table at one scale. `reported`: row -> column -> the published number.

    Only a `comparable` scale may hold reported numbers: those of another scale never stand beside a paper's.
    """

    number: int
    title: str
    source: str
    scale: str
    about: str
    comparable: bool
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...] = ()
    reported: Mapping[str, Mapping[str, Reported]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"table {self.number} at scale={self.scale}"
        if self.reported and not self.comparable:
            raise UsageError(f"{where}: its numbers cannot be compared with a paper's, so `reported` must be empty")
        rows, columns = {row.key for row in self.rows}, {column.key for column in self.columns}
        named = [(place, *place.split("/")) for claim in self.claims for place in (claim.left, claim.right)]
        named += [(f"{row}/{column}", row, column) for row, cells in self.reported.items() for column in cells]
        named += [(f"{row.key}/{column}", row.key, column) for row in self.rows for column in row.undefined]
        pairs = [(row, row.also) for row in self.rows if row.also is not None]
        named += [(f"{row.key}/{column}", row.key, column) for row, second in pairs for column in second.columns]
        for place, row, column in named:
            if row not in rows or column not in columns:
                raise UsageError(f"{where}: {place} is no cell of it")
        for row in self.rows:
            if row.experiment is None and (row.also is not None or row.key not in self.reported):
                raise UsageError(f"{where}: {row.key} is no experiment, so it must have reported numbers and no more")
        for row, second in pairs:
            if not columns - set(second.columns) - set(row.undefined) or not set(second.columns) - set(row.undefined):
                raise UsageError(f"{where}: all columns of {row.key} come from one of its two models")

    @property
    def models(self) -> dict[str, Model]:
        """All models of all rows, under the names that their runs go by."""
        return {name: model for row in self.rows for name, model in row.models.items()}

    @property
    def suites(self) -> dict[tuple[str | None, str | None], list[str]]:
        """(experiment, backbone) -> the suites that columns read of it, in all rows, so that these share a run."""
        found: dict[tuple[str | None, str | None], dict[str, None]] = {}
        for row in self.rows:
            for name, model in row.models.items():
                own = [c for c in self.columns if c.key not in row.undefined and row.source(c.key) == name]
                found.setdefault((model.experiment, model.backbone), {}).update(dict.fromkeys(c.suite for c in own))
        return {model: list(suites) for model, suites in found.items()}

    def command_lines(self, given: Sequence[str] = ()) -> dict[str, list[str]]:
        """Each model of each row -> its overrides: experiment, scale, backbone, and the suites of its columns.

        `given`: a user's overrides for every run; they replace these. Those of a suite go to the runs that it scores.
        """
        every = {column.suite for column in self.columns}
        names = {override_name(override) for override in given}
        lines = {}
        for name, model in self.models.items():
            own = {"experiment": model.experiment, "scale": self.scale}
            if model.backbone is not None:
                own["backbone"] = model.backbone
            if "evals" not in names:
                files = dict.fromkeys(map(suite_file, self.suites[model.experiment, model.backbone]))
                own["evals"] = f"[{','.join(files)}]"
            others = () if "evals" in names else every.difference(self.suites[model.experiment, model.backbone])
            kept = [override for override in given if override_suite(override) not in others]
            lines[name] = [*(f"{key}={value}" for key, value in own.items() if key not in names), *kept]
        return lines


def override_suite(override: str) -> str | None:
    """The suite whose setting an override changes ("evals.lm_gsm8k.budget=8" -> "lm_gsm8k"), or None."""
    section, *rest = override_name(override).split(".")
    return rest[0] if section == "evals" and len(rest) > 1 else None


def list_tables() -> list[int]:
    return sorted(int(path.stem) for path in (CONF / "table").glob("*.yaml"))


def suite_file(suite: str) -> str:
    """The option of conf/evals that defines a suite; one may define several.

    Raises `UsageError` for a suite that stands in none of them.
    """
    files = suite_files(CONF)
    if suite not in files:
        raise UsageError(f"suite {suite} is not defined in conf/evals{suggest(suite, files)}")
    return files[suite]


@cache
def suite_files(conf: Path) -> dict[str, str]:
    """Suite -> the name of its file in conf/evals: the keys of each at its outermost level."""
    files = sorted((conf / "evals").glob("*.yaml"))
    return {
        key: path.stem
        for path in files
        for key in re.findall(r"^(\w+):", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


def read_definition(number: int, scale: str) -> Definition:
    """The definition of table N at a scale.

    Raises `UsageError` for a table, a scale or a field that does not exist.
    """
    path = CONF / "table" / f"{number}.yaml"
    if not path.exists():
        raise UsageError(f"table {number} is not defined; there are: {', '.join(map(str, list_tables()))}")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    scales = content.pop("scales")
    if scale == REHEARSAL:
        if REHEARSED not in scales:
            raise UsageError(f"table {number} has no scale={REHEARSED} to rehearse; use {', '.join(scales)}")
        return parse_definition(content | {"number": number, "scale": scale} | rehearsed(scales[REHEARSED]), path)
    if scale not in scales:
        raise UsageError(
            f"table {number} is not defined at scale={scale}{suggest(scale, scales)}; use {', '.join(scales)}"
        )
    return parse_definition(content | {"number": number, "scale": scale} | scales[scale], path)


def rehearsed(scale: Mapping[str, Any]) -> dict[str, Any]:
    """A scale's rows and columns without what is published or claimed: the numbers of a rehearsal mean nothing."""
    return {
        "about": f"REHEARSAL of scale={REHEARSED}: tiny decoders with random weights over made-up data, so the numbers "
        "mean nothing; what counts is which cells are filled",
        "comparable": False,
        "backbones": scale.get("backbones"),
        "rows": [row for row in scale["rows"] if row["experiment"] is not None],
        "columns": scale["columns"],
    }


def parse_definition(content: Mapping[str, Any], path: Path) -> Definition:
    parts: dict[str, Any] = dict(content)
    for name, cls in (("columns", Column), ("rows", Row), ("claims", Claim)):
        parts[name] = tuple(parse_item(cls, entry, path) for entry in parts.get(name) or ())
    variants = [parse_item(BackboneVariant, entry, path) for entry in parts.pop("backbones", None) or ()]
    if variants:
        ours = [row for row in parts["rows"] if row.experiment is not None]
        quoted = [row for row in parts["rows"] if row.experiment is None]
        parts["rows"] = (*(variant.apply(row) for variant in variants for row in ours), *quoted)
    parts["notes"] = tuple(parts.get("notes") or ())
    parts["reported"] = parse_reported(parts.get("reported") or (), path)
    return parse_item(Definition, parts, path)


def parse_reported(groups: Sequence[Mapping[str, Any]], path: Path) -> dict[str, dict[str, Reported]]:
    """Numbers that stand together under their origin and source, by row and column.

    Raises `UsageError` for a group without one of them, and for two numbers of one cell.
    """
    found: dict[str, dict[str, Reported]] = {}
    for group in groups:
        if set(group) != {"origin", "source", "cells"}:
            raise UsageError(f"{path.name}: reported numbers stand in groups of origin, source and cells")
        for row, cells in group["cells"].items():
            for column, value in cells.items():
                if column in found.setdefault(row, {}):
                    raise UsageError(f"{path.name}: {row}/{column} is reported twice")
                found[row][column] = Reported(value=value, origin=group["origin"], source=group["source"])
    return found


def parse_item(cls: type, entry: Mapping[str, Any], path: Path) -> Any:
    known = {field.name for field in fields(cls)}
    for key in entry:
        if key not in known:
            raise UsageError(f"{path.name}: {cls.__name__.lower()} has no {key}{suggest(key, known)}")
    made = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    if isinstance(made.get("also"), Mapping):
        made["also"] = parse_item(Second, made["also"], path)
    try:
        return cls(**made)
    except TypeError as error:
        raise UsageError(f"{path.name}: {error}") from error
