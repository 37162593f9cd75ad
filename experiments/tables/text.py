"""What a filled table says, whatever its format: its cells as text, their notes, and what a reader must know."""

from experiments.tables.cells import Cell
from experiments.tables.claims import Verdict
from experiments.tables.definition import ORIGINS, Column, Row
from experiments.tables.fill import Table

MISSING, UNDEFINED = "--", "n/a"
MARKS = {"printed": "", "derived": "†", "third-party": "‡"}
MEANT = {"printed": "printed in", "derived": "derived by arithmetic from", "third-party": "told by a third party,"}
INCOMPARABLE = "Not comparable with any paper's number: "


def title(table: Table) -> str:
    definition = table.definition
    return f"Table {definition.number} at scale={definition.scale}: {definition.title}"


def about(table: Table) -> str:
    definition = table.definition
    caution = "" if definition.comparable else INCOMPARABLE
    seeds = "seed" if len(table.seeds) == 1 else "seeds"
    return f"{caution}{definition.about} ({seeds} {', '.join(map(str, table.seeds))}; source: {definition.source})"


def number(value: float | None, column: Column, *, signed: bool = False) -> str:
    return MISSING if value is None else f"{value:{'+' if signed else ''}.{column.digits}f}"


def ours(cell: Cell, column: Column, plus_minus: str = "±") -> str:
    """Mean, 95 % interval and number of seeds; a cell that lacks some of its seeds says so."""
    if not cell.defined:
        return UNDEFINED
    if cell.mean is None:
        return MISSING
    text = number(cell.mean, column)
    if cell.interval is not None:
        text += f" {plus_minus} {number(cell.interval, column)} (n={len(cell.ours)})"
    return text if cell.complete else f"{text} {MISSING}"


def shown(cell: Cell, column: Column, plus_minus: str = "±") -> str:
    """reported / ours / difference where a number is published, else ours; reported alone where ours cannot be."""
    if cell.reported is None:
        return ours(cell, column, plus_minus)
    reported = f"{number(cell.reported.value, column)}{MARKS[cell.reported.origin]}"
    if not cell.defined:
        return reported
    return " / ".join((reported, ours(cell, column, plus_minus), number(cell.difference, column, signed=True)))


def compares(table: Table) -> bool:
    return any(cell.reported is not None for line in table.lines for cell in line.cells)


def header(table: Table) -> list[str]:
    arrows = {"higher": "↑", "lower": "↓"}
    columns = [f"{column.label} {arrows[column.better]}" for column in table.definition.columns]
    return ["row", "read-out", *columns, "hours"]


def body(table: Table, plus_minus: str = "±") -> list[list[str]]:
    columns, notes = table.definition.columns, footnotes(table)
    return [
        [
            line.label,
            line.readout or "–",
            *(
                shown(cell, column, plus_minus) + "".join(f" [{notes.index(note) + 1}]" for note in said_of(cell))
                for cell, column in zip(line.cells, columns, strict=True)
            ),
            "–" if line.hours is None else f"{line.hours:.2g}",
        ]
        for line in table.lines
    ]


def footnotes(table: Table) -> list[str]:
    """What single cells say beside their number, each text once; its place in the list is its mark."""
    return list(dict.fromkeys(note for line in table.lines for cell in line.cells for note in said_of(cell)))


def said_of(cell: Cell) -> list[str]:
    return [*cell.reasons, *filter(None, [cell.versions])]


def numbered(table: Table) -> list[str]:
    return [f"[{number}] {note}" for number, note in enumerate(footnotes(table), start=1)]


def remarks(table: Table) -> list[str]:
    """What a reader must know beside the numbers."""
    cells = "reported / ours / difference" if compares(table) else "ours; no paper reports this setting"
    said = [f"Cells: {cells}; ± is the 95 % interval over seeds; {MISSING} is missing, {UNDEFINED} cannot be."]
    said += explained(table)
    said += [f"{line.label}: published, not run here." for line in table.lines if not line.runs]
    said += [f"{line.label}: one and the same run at this scale." for line in table.lines if len(line.rows) > 1]
    said += [two_models(row, table) for line in table.lines for row in line.rows if row.also is not None]
    said += [f"Hardware of {machine}: {', '.join(who)}." for machine, who in machines(table).items()]
    return [*table.definition.notes, *said]


def legend(table: Table) -> list[tuple[str, str]]:
    """The mark of each kind of reported number that the table has, and where such numbers come from."""
    found = [cell.reported for line in table.lines for cell in line.cells if cell.reported is not None]
    sources = sorted({(ORIGINS.index(one.origin), one.source) for one in found})
    return [(MARKS[ORIGINS[kind]], f"{MEANT[ORIGINS[kind]]} {source}") for kind, source in sources]


def explained(table: Table) -> list[str]:
    return [f"{mark or 'No mark'}: {meant}." for mark, meant in legend(table)]


def two_models(row: Row, table: Table) -> str:
    """What comes from which of a row's two models."""
    theirs = [column.label for column in table.definition.columns if column.key in row.also.columns]
    return (
        f"{row.label}: two separate models; {row.also.experiment} gives {', '.join(theirs)}, "
        f"{row.experiment} the rest; hours are those of both."
    )


def machines(table: Table) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in table.lines:
        if line.hardware:
            found.setdefault(line.hardware, []).append(line.label)
    return found


def verdict(one: Verdict) -> str:
    if one.difference is None:
        return f"{one.claim.text}: {one.verdict} ({one.seeds} of {one.claim.seeds})"
    known = "its declared noise only" if one.claim.noise else "sampling of examples only"
    basis = f"1 seed, {known}" if one.seeds == 1 else f"{one.seeds} seeds"
    versions = f"; {one.versions}" if one.versions else ""
    return f"{one.claim.text}: {one.verdict} (difference {one.difference:+.2f} ± {one.error:.2f}, {basis}{versions})"
