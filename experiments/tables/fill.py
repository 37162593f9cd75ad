"""Records into cells: what was reported, what we measured over how many seeds, and what is missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.config.errors import UsageError, first_line
from experiments.runs.record import RunRecord
from experiments.tables.cells import Cell, RunScore
from experiments.tables.claims import Verdict, judge_claim
from experiments.tables.code_versions import CodeFingerprint
from experiments.tables.definition import Column, Definition, Model, Row

NO_READOUT = ("", "none", "n/a")
UNFINISHED_REASONS = {"started": "the run is not trained to its end", "trained": "the run is not scored to its end"}


@dataclass(frozen=True, kw_only=True)
class RowRun:
    """A run that a row needs: its record, or the command that makes it, with the `reason` where that cannot be."""

    seed: int
    run_id: str
    command: str
    record: RunRecord | None
    reason: str = "no run"
    stale_suites: tuple[str, ...] = ()  # scored with other settings than the row asks for
    fingerprints: tuple[CodeFingerprint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TableLine:
    """A printed row: the rows whose runs are one and the same stand in one line."""

    rows: tuple[Row, ...]
    runs: tuple[RowRun, ...]  # of both models, where the row is two
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        return " = ".join(dict.fromkeys(row.label for row in self.rows))

    @property
    def readout(self) -> str:
        return self.rows[0].readout

    @property
    def hours(self) -> float | None:
        """Device hours of training, all seeds together."""
        records = [made.record for made in self.runs if made.record is not None]
        found = [record.device_hours for record in records if record.device_hours is not None]
        return sum(found) if found else None

    @property
    def hardware(self) -> str:
        machines = [made.record.hardware for made in self.runs if made.record and made.record.hardware]
        named = [" + ".join(machine.gpus) or f"{machine.cores} cores {machine.cpu}" for machine in machines]
        return "; ".join(dict.fromkeys(named))


@dataclass(frozen=True, kw_only=True)
class Table:
    """A definition filled with what the records hold. `missing`: what lacks, and the command that makes it."""

    definition: Definition
    seeds: tuple[int, ...]
    lines: tuple[TableLine, ...]
    verdicts: tuple[Verdict, ...]
    missing: tuple[tuple[str, str], ...]


def fill_table(definition: Definition, runs: Mapping[str, Sequence[RowRun]], seeds: Sequence[int]) -> Table:
    """Pure: the table of a definition and, for each model of each row, the runs that it needs."""
    cells = {
        row.key: tuple(
            fill_cell(definition, row, column, runs.get(row.source(column.key), ())) for column in definition.columns
        )
        for row in definition.rows
    }
    by_place = {
        f"{row}/{column.key}": found[i] for row, found in cells.items() for i, column in enumerate(definition.columns)
    }
    return Table(
        definition=definition,
        seeds=tuple(seeds),
        lines=merge_identical_rows(definition, runs, cells),
        verdicts=tuple(judge_claim(claim, by_place) for claim in definition.claims),
        missing=list_missing_runs(definition, runs, cells),
    )


def fill_cell(definition: Definition, row: Row, column: Column, runs: Sequence[RowRun]) -> Cell:
    reported = definition.reported.get(row.key, {}).get(column.key)
    if row.experiment is None or column.key in row.undefined:
        return Cell(reported=reported, ours=(), is_defined=False)
    model = row.models[row.source(column.key)]
    found = [(made, read_run_score(made, model, column)) for made in runs]
    return Cell(
        reported=reported,
        ours=tuple(one for _, one in found if one is not None),
        is_defined=True,
        missing_seeds=tuple((made.seed, explain_missing_score(made, column)) for made, one in found if one is None),
    )


def explain_missing_score(made: RowRun, column: Column) -> str:
    """The reason for which a run has no score for a column: what the suite said, else how far the run came."""
    record = made.record
    if record is None:
        return made.reason
    if column.suite in made.stale_suites:
        return (
            f"{column.suite} was scored with other settings than this row asks for (suite options, instructions or "
            "slots)"
        )
    said = record.skipped.get(column.suite, {}).get(column.task)
    if said:
        return f"{column.task} has no score: {said}"
    if record.status in UNFINISHED_REASONS:
        return UNFINISHED_REASONS[record.status]
    if record.status != "finished":
        return f"run {record.status}{': ' + first_line(record.error) if record.error else ''}"
    suite = [score for score in record.scores if score.suite == column.suite]
    if not suite:
        other = sorted({score.suite for score in record.scores if score.suite.startswith(f"{column.suite} (")})
        return f"the run was not scored on {column.suite}{', only on ' + ', '.join(other) if other else ''}"
    found = [score for score in suite if score.task == column.task and score.metric == column.metric]
    if not found:
        return f"{column.suite} gave no {column.metric} of {column.task}"
    places = sorted({f"{score.subset}, read-out {score.readout}, step {score.step}" for score in found})
    return f"{column.task} was scored elsewhere only ({'; '.join(places)})"


def read_run_score(made: RowRun, model: Model, column: Column) -> RunScore | None:
    """The score of a run that a column asks for.

    Raises `UsageError` where more than one fits: the definition must then name subset or read-out.
    """
    if made.record is None:
        return None
    readout = column.readout or model.readout
    fitting = [
        score
        for score in made.record.scores
        if (score.suite, score.task, score.metric) == (column.suite, column.task, column.metric)
        and (column.subset is None or score.subset == column.subset)
        and (not readout or score.readout in NO_READOUT or score.readout == readout)
        and score.step == (made.record.step if model.step is None else model.step)
    ]
    if not fitting:
        return None
    if len(fitting) > 1:
        found = sorted({f"subset={score.subset} readout={score.readout}" for score in fitting})
        raise UsageError(
            f"{made.run_id}: several scores of {column.task}/{column.metric} ({'; '.join(found)}); name one"
        )
    score = fitting[0]
    return RunScore(
        seed=made.seed,
        value=score.value,
        factor=column.factor,
        n=score.n,
        unit=score.unit,
        fingerprints=made.fingerprints,
    )


def merge_identical_rows(
    definition: Definition, runs: Mapping[str, Sequence[RowRun]], cells: Mapping[str, tuple[Cell, ...]]
) -> tuple[TableLine, ...]:
    """Rows in their order, those with identical runs, read-outs and reported numbers at the place of the first."""
    groups: dict[Any, list[Row]] = {}
    for row in definition.rows:
        published = tuple(sorted((column, one.value) for column, one in definition.reported.get(row.key, {}).items()))
        read = tuple(
            (tuple(made.run_id for made in runs[name]), model.readout, model.step) for name, model in row.models.items()
        )
        split = row.also and row.also.columns
        groups.setdefault((read, split, row.undefined, published), []).append(row)
    return tuple(
        TableLine(
            rows=tuple(group),
            runs=tuple(made for name in group[0].models for made in runs[name]),
            cells=cells[group[0].key],
        )
        for group in groups.values()
    )


def list_missing_runs(
    definition: Definition, runs: Mapping[str, Sequence[RowRun]], cells: Mapping[str, tuple[Cell, ...]]
) -> tuple[tuple[str, str], ...]:
    lacking = []
    for row in definition.rows:
        for name in row.models:
            wanted = [
                (column.label, {one.seed for one in found.ours})
                for column, found in zip(definition.columns, cells[row.key], strict=True)
                if found.is_defined and row.source(column.key) == name
            ]
            for made in runs[name]:
                columns = [label for label, seeds in wanted if made.seed not in seeds]
                if columns:
                    state = made.reason if made.record is None else f"run {made.record.status}"
                    everything = row.also is None and len(columns) == len(wanted)
                    what = "every column" if everything else "; ".join(columns)
                    lacking.append((f"{row.label}, seed {made.seed} ({state}): {what}", made.command))
    return tuple(lacking)
