"""The text of a filled table for every output format: cells, footnotes, remarks and claims."""

from experiments.tables.cells import Cell
from experiments.tables.claims import Verdict
from experiments.tables.definition import ORIGINS, Column, Row
from experiments.tables.fill import Table

MISSING, UNDEFINED = "--", "n/a"
MARKS = {"printed": "", "derived": "†", "third-party": "‡"}
ORIGIN_MEANINGS = {
    "printed": "printed in",
    "derived": "derived by arithmetic from",
    "third-party": "reported by a third party,",
}
INCOMPARABLE = "Not comparable with any paper's number: "


def table_title(table: Table) -> str:
    definition = table.definition
    return f"Table {definition.number} at scale={definition.scale}: {definition.title}"


def describe_table(table: Table) -> str:
    definition = table.definition
    caution = "" if definition.comparable else INCOMPARABLE
    seeds = "seed" if len(table.seeds) == 1 else "seeds"
    return f"{caution}{definition.about} ({seeds} {', '.join(map(str, table.seeds))}; source: {definition.source})"


def format_number(value: float | None, column: Column, *, signed: bool = False) -> str:
    return MISSING if value is None else f"{value:{'+' if signed else ''}.{column.digits}f}"


def format_our_score(cell: Cell, column: Column, plus_minus: str = "±") -> str:
    """Mean, 95 % interval and number of seeds; a cell that lacks some of its seeds says so."""
    if not cell.is_defined:
        return UNDEFINED
    if cell.mean is None:
        return MISSING
    text = format_number(cell.mean, column)
    if cell.interval is not None:
        text += f" {plus_minus} {format_number(cell.interval, column)} (n={len(cell.ours)})"
    return text if cell.is_complete else f"{text} {MISSING}"


def format_cell(cell: Cell, column: Column, plus_minus: str = "±") -> str:
    """reported / ours / difference where a number is published, else ours; reported alone where ours cannot be."""
    if cell.reported is None:
        return format_our_score(cell, column, plus_minus)
    reported = f"{format_number(cell.reported.value, column)}{MARKS[cell.reported.origin]}"
    if not cell.is_defined:
        return reported
    return " / ".join(
        (reported, format_our_score(cell, column, plus_minus), format_number(cell.difference, column, signed=True))
    )


def has_published_numbers(table: Table) -> bool:
    return any(cell.reported is not None for line in table.lines for cell in line.cells)


def table_header(table: Table) -> list[str]:
    arrows = {"higher": "↑", "lower": "↓"}
    columns = [f"{column.label} {arrows[column.better]}" for column in table.definition.columns]
    return ["row", "read-out", *columns, "hours"]


def table_body(table: Table, plus_minus: str = "±") -> list[list[str]]:
    columns, notes = table.definition.columns, list_footnotes(table)
    return [
        [
            line.label,
            line.readout or "–",
            *(
                format_cell(cell, column, plus_minus)
                + "".join(f" [{notes.index(note) + 1}]" for note in cell_notes(cell))
                for cell, column in zip(line.cells, columns, strict=True)
            ),
            "–" if line.hours is None else f"{line.hours:.2g}",
        ]
        for line in table.lines
    ]


def list_footnotes(table: Table) -> list[str]:
    """The footnotes of all cells, each text once; a footnote's mark is its position in this list, from 1."""
    return list(dict.fromkeys(note for line in table.lines for cell in line.cells for note in cell_notes(cell)))


def cell_notes(cell: Cell) -> list[str]:
    return [*cell.missing_reasons, *filter(None, [cell.version_differences])]


def number_footnotes(table: Table) -> list[str]:
    return [f"[{number}] {note}" for number, note in enumerate(list_footnotes(table), start=1)]


def list_remarks(table: Table) -> list[str]:
    """How to read the cells, which rows are special, and the hardware."""
    cells = "reported / ours / difference" if has_published_numbers(table) else "ours; no paper reports this setting"
    said = [f"Cells: {cells}; ± is the 95 % interval over seeds; {MISSING}: not run; {UNDEFINED}: not applicable."]
    said += explain_origin(table)
    said += [f"{line.label}: published, not run here." for line in table.lines if not line.runs]
    said += [f"{line.label}: one and the same run at this scale." for line in table.lines if len(line.rows) > 1]
    said += [describe_second_model(row, table) for line in table.lines for row in line.rows if row.also is not None]
    said += [f"Hardware of {machine}: {', '.join(who)}." for machine, who in describe_machines(table).items()]
    return [*table.definition.notes, *said]


def legend_of_origins(table: Table) -> list[tuple[str, str]]:
    """(mark, meaning and source) of each kind of published number in the table."""
    found = [cell.reported for line in table.lines for cell in line.cells if cell.reported is not None]
    sources = sorted({(ORIGINS.index(one.origin), one.source) for one in found})
    return [(MARKS[ORIGINS[kind]], f"{ORIGIN_MEANINGS[ORIGINS[kind]]} {source}") for kind, source in sources]


def explain_origin(table: Table) -> list[str]:
    return [f"{mark or 'No mark'}: {meant}." for mark, meant in legend_of_origins(table)]


def describe_second_model(row: Row, table: Table) -> str:
    """Which columns come from which of a row's two models."""
    theirs = [column.label for column in table.definition.columns if column.key in row.also.columns]
    return (
        f"{row.label}: two separate models; {row.also.experiment} gives {', '.join(theirs)}, "
        f"{row.experiment} the rest; hours are those of both."
    )


def describe_machines(table: Table) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in table.lines:
        if line.hardware:
            found.setdefault(line.hardware, []).append(line.label)
    return found


def format_verdict(one: Verdict, table_number: int) -> str:
    """A claim, its verdict, and the difference with what its ± means."""
    if one.difference is None:
        return f"{one.claim.text}: {one.verdict} ({one.seeds} of {one.claim.seeds})"
    basis = f"{one.seeds} seeds"
    if one.seeds == 1:
        basis = "1 seed; ± is the sampling error of the scored examples only"
        if one.error == one.claim.noise:
            basis = f"1 seed; ± {one.error:.2f} is a tolerance set in conf/table/{table_number}.yaml, not measured"
    versions = f"; {one.versions}" if one.versions else ""
    return f"{one.claim.text}: {one.verdict} (difference {one.difference:+.2f} ± {one.error:.2f}, {basis}{versions})"
