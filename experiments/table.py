"""Render a table from the records there are: `python -m experiments.table 15 scale=mini seeds=0,1,2`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from experiments.config.command_line import cli_entry_point
from experiments.config.compose import Composition, compose
from experiments.config.errors import UsageError
from experiments.config.identity import Run, UnknownData, identify
from experiments.config.paths import display_path, outputs_folder
from experiments.rehearsal.cut import SCALE as REHEARSAL
from experiments.runs.freshness import list_stale_suites
from experiments.runs.record import read_own_record
from experiments.tables.code_versions import CodeFingerprint
from experiments.tables.definition import Definition, list_tables, read_definition
from experiments.tables.fill import RowRun, Table, fill_table
from experiments.tables.render import FORMATS, render_markdown
from unified_lm.files import write_text

USAGE = """\
usage: python -m experiments.{command} N [scale=mini|paper|rehearsal] [seeds=0,1,2]{own} [name=value ...]

{what}
Further settings go to every run of the table, as they would to experiments.run.

Tables: {tables}. Written to outputs/tables/table-N.md, csv, tex, html and json. Exit code 1: a cell is missing."""


@dataclass(frozen=True, kw_only=True)
class TableRequest:
    """A table, a scale, seeds, and settings for every run of it."""

    number: int
    scale: str
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]

    @property
    def definition(self) -> Definition:
        return read_definition(self.number, self.scale)

    @cached_property
    def composed_models(self) -> dict[str, Composition]:
        """Each model of each row -> its command line, composed; the seeds are still to be given."""
        return {name: compose(line) for name, line in self.definition.command_lines(self.overrides).items()}

    @cached_property
    def unidentified_models(self) -> dict[str, str]:
        """Each model whose run cannot be named, as its data cannot be identified -> the reason."""
        found = {}
        for name, job in self.composed_models.items():
            try:
                identify(job)
            except UnknownData as error:
                found[name] = str(error)
        return found

    def identify_runs(self) -> dict[str, list[Run]]:
        """Each model of each row -> its run at each seed, by composing and hashing only; outputs/ is not read.

        Models with the same science and suites at this scale share one run. `unidentified_models` have none.
        """
        found: dict[str, list[Run]] = {}
        first: dict[str, Run] = {}
        for name, model in self.definition.models.items():
            seeds = self.seeds[:1] if model.deterministic else self.seeds
            made = (
                []
                if name in self.unidentified_models
                else [identify(self.composed_models[name].with_seed(seed)) for seed in seeds]
            )
            found[name] = [first.setdefault(run.request_digest, run) for run in made]
        return found


def parse_request(arguments: Sequence[str], command: str, what: str) -> TableRequest | None:
    """The request of a command line; None where help was asked for and printed.

    Raises `UsageError` for anything else than N and settings.
    """
    if {"-h", "--help"} & set(arguments):
        own = " [jobs=1]" if command == "reproduce" else ""
        print(USAGE.format(command=command, own=own, what=what, tables=", ".join(map(str, list_tables()))))
        return None
    if not arguments or not arguments[0].isdecimal():
        raise UsageError(
            f"say which table: python -m experiments.{command} N; there are: {', '.join(map(str, list_tables()))}"
        )
    given = dict(argument.split("=", 1) for argument in arguments[1:] if "=" in argument)
    odd = [argument for argument in arguments[1:] if "=" not in argument]
    if odd:
        raise UsageError(f"cannot read {odd[0]!r}: settings are written name=value")
    if "seed" in given:
        raise UsageError("a table takes seeds=0,1,2, not seed=")
    scale, seeds = given.pop("scale", "mini"), given.pop("seeds", "0")
    if not all(part.strip().isdecimal() for part in seeds.split(",")):
        raise UsageError(f"seeds={seeds} is no list of whole numbers such as seeds=0,1,2")
    overrides = tuple(f"{name}={value}" for name, value in given.items())
    wanted = tuple(dict.fromkeys(int(part) for part in seeds.split(",")))
    return TableRequest(number=int(arguments[0]), scale=scale, seeds=wanted, overrides=overrides)


def fill_requested_table(asked: TableRequest, runs: Mapping[str, Sequence[Run]]) -> Table:
    """The table of a request from the records that exist now."""
    made = {name: [find_run(run) for run in each] for name, each in runs.items()}
    for name, reason in asked.unidentified_models.items():
        command = asked.composed_models[name].command
        made[name] = [RowRun(seed=asked.seeds[0], run_id=name, command=command, record=None, reason=reason)]
    return fill_table(asked.definition, made, asked.seeds)


def find_run(run: Run) -> RowRun:
    record, stale, makers = read_own_record(run), (), ()
    if record is not None:
        stale = list_stale_suites(record, run.config)
        record = record.without_suites(stale)
        makers = tuple(CodeFingerprint.from_version(version) for version in record.list_code_versions())
        if run.job.choices.get("scale") == REHEARSAL:
            record = replace(record, scores=tuple(replace(s, suite=unmark(s.suite)) for s in record.scores))
    return RowRun(
        seed=run.config["seed"],
        run_id=run.run_id,
        command=run.command,
        record=record,
        stale_suites=stale,
        fingerprints=makers,
    )


def unmark(suite: str) -> str:
    """A suite's name without what says that it, or its data, was cut: only a rehearsal's table takes such scores."""
    return suite.partition(" (")[0]


def write_table(table: Table) -> list[Path]:
    """Write every format; returns the paths."""
    paths = []
    for ending, render in FORMATS.items():
        rehearsal = f"-{REHEARSAL}" if table.definition.scale == REHEARSAL else ""
        path = outputs_folder() / "tables" / f"table-{table.definition.number}{rehearsal}.{ending}"
        write_text(path, render(table))
        paths.append(path)
    return paths


def print_and_write_table(table: Table) -> int:
    """Print and write a table; exit code 1 where a cell is missing."""
    paths = write_table(table)
    print(render_markdown(table))
    print("written:", ", ".join(display_path(path) for path in paths))
    if table.missing:
        print(f"error: {len(table.missing)} of the table's runs are missing or incomplete:", file=sys.stderr)
        for what, command in table.missing:
            print(f"  {what}\n    {command}", file=sys.stderr)
        return 1
    return 0


def main(arguments: Sequence[str]) -> int:
    asked = parse_request(arguments, "table", "Renders table N from the records there are, and names what is missing.")
    return 0 if asked is None else print_and_write_table(fill_requested_table(asked, asked.identify_runs()))


if __name__ == "__main__":
    sys.exit(cli_entry_point(main)())
