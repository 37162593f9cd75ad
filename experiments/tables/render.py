"""A filled table as Markdown, CSV, LaTeX, HTML and JSON. Each says the scale, and `--` where a run is missing."""

import csv
import html
import io
import json
from collections.abc import Callable
from typing import Any

from experiments.tables.definition import Column
from experiments.tables.fill import Line, Table
from experiments.tables.text import (
    MISSING,
    about,
    body,
    explained,
    footnotes,
    header,
    legend,
    numbered,
    remarks,
    title,
    verdict,
)


def markdown(table: Table) -> str:
    rows = [header(table), *body(table)]
    rule = "|".join(["---", "---", *("---:" for _ in rows[0][2:])])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, f"|{rule}|")
    parts = [f"# {title(table)}", about(table), "\n".join(lines)]
    if footnotes(table):
        parts.append("\n".join(f"- {note}" for note in numbered(table)))
    if table.verdicts:
        parts.append("Claims\n\n" + "\n".join(f"- {verdict(one)}" for one in table.verdicts))
    parts.append("\n".join(f"- {remark}" for remark in remarks(table)))
    if table.missing:
        parts.append("Missing\n\n" + "\n".join(f"- {what}: `{command}`" for what, command in table.missing))
    return "\n\n".join(parts) + "\n"


def comma_separated(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = (
        "table",
        "scale",
        "row",
        "readout",
        "column",
        "reported",
        "origin",
        "reported_by",
        "ours",
        "interval_95",
        "difference",
        "n",
        "defined",
        "lacking",
        "versions",
    )
    writer.writerow(names)
    for line in table.lines:
        for cell, column in zip(line.cells, table.definition.columns, strict=True):
            place = (table.definition.number, table.definition.scale, line.label, line.readout, column.key)
            mean = MISSING if cell.mean is None and cell.defined else cell.mean
            known = cell.reported
            told = ("", "", "") if known is None else (known.value, known.origin, known.source)
            reasons = "; ".join(cell.reasons)
            measured = (mean, cell.interval, cell.difference, len(cell.ours), cell.defined, reasons, cell.versions)
            writer.writerow((*place, *told, *measured))
    return out.getvalue()


def latex(table: Table) -> str:
    rows = [" & ".join(map(escaped, row)) + r" \\" for row in [header(table), *body(table, "+-")]]
    columns = "ll" + "r" * (len(header(table)) - 2)
    lines = [
        f"% {about(table)}",
        r"\begin{table}",
        rf"\caption{{{escaped(title(table))}. {escaped(about(table))}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\hline",
        rows[0],
        r"\hline",
        *rows[1:],
        r"\hline",
        r"\end{tabular}",
        *(rf"\par {escaped(said)}" for said in (*explained(table), *numbered(table))),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
    "†": r"\dag{}", "‡": r"\ddag{}", "→": r"$\rightarrow$", "±": r"$\pm$", "–": "--", ">": r"$>$", "<": r"$<$",
}  # fmt: skip


def escaped(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text).replace("+-", r"$\pm$")


STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{padding:.3rem .7rem;text-align:right;"
    "border-bottom:1px solid #ddd}th{border-bottom:2px solid #444;vertical-align:bottom}td:first-child,th:first-child,"
    "td:nth-child(2),th:nth-child(2){text-align:left}.scale{background:#fff3cd;padding:.4rem .7rem;border-radius:4px}"
    ".holds{color:#176117}.fails{color:#a11}code{background:#f3f3f3;padding:0 .2rem}.wide{overflow-x:auto}"
)


def fragment(table: Table) -> str:
    """The table as a piece of a page."""
    e = html.escape
    head = "".join(f"<th>{e(name)}</th>" for name in header(table))
    rows = "".join("<tr>" + "".join(f"<td>{e(value)}</td>" for value in row) + "</tr>" for row in body(table))
    claims = "".join(f'<li class="{e(one.verdict.split()[0])}">{e(verdict(one))}</li>' for one in table.verdicts)
    cells = "".join(f"<li>{e(note)}</li>" for note in numbered(table))
    notes = "".join(f"<li>{e(remark)}</li>" for remark in remarks(table))
    lacking = "".join(f"<li>{e(what)}: <code>{e(command)}</code></li>" for what, command in table.missing)
    return (
        f"<h2>{e(title(table))}</h2><p class=scale>{e(about(table))}</p>"
        f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        + (f"<ul>{cells}</ul>" if cells else "")
        + (f"<h3>Claims</h3><ul>{claims}</ul>" if claims else "")
        + f"<ul>{notes}</ul>"
        + (f"<h3>Missing</h3><ul>{lacking}</ul>" if lacking else "")
    )


def page(table: Table) -> str:
    name = html.escape(title(table))
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{name}</title><style>{STYLE}</style>"
    return f"{head}<body>{fragment(table)}</body></html>\n"


def plain(table: Table) -> dict[str, Any]:
    """The table as JSON values: shown units, one list of cells a row."""
    definition = table.definition
    return {
        "table": definition.number,
        "title": definition.title,
        "scale": definition.scale,
        "comparable": definition.comparable,
        "about": about(table),
        "source": definition.source,
        "legend": [{"mark": mark, "meaning": meant} for mark, meant in legend(table)],
        "seeds": list(table.seeds),
        "complete": not table.missing,
        "columns": [
            {name: getattr(column, name) for name in ("key", "label", "suite", "task", "metric", "better", "factor")}
            for column in definition.columns
        ],
        "rows": [row_values(line, definition.columns) for line in table.lines],
        "claims": [
            {
                "text": one.claim.text,
                "verdict": one.verdict,
                "difference": one.difference,
                "error": one.error,
                "n": one.seeds,
                "versions": one.versions or None,
            }
            for one in table.verdicts
        ],
        "missing": [{"what": what, "command": command} for what, command in table.missing],
    }


def row_values(line: Line, columns: tuple[Column, ...]) -> dict[str, Any]:
    return {
        "rows": [row.key for row in line.rows],
        "label": line.label,
        "readout": line.readout,
        "models": {name: model.experiment for name, model in line.rows[0].models.items()},
        "runs": [made.run_id for made in line.runs],
        "hours": line.hours,
        "hardware": line.hardware,
        "cells": {
            column.key: {
                "reported": None if cell.reported is None else cell.reported.value,
                "origin": None if cell.reported is None else cell.reported.origin,
                "reported_by": None if cell.reported is None else cell.reported.source,
                "ours": cell.mean,
                "interval": cell.interval,
                "difference": cell.difference,
                "n": len(cell.ours),
                "defined": cell.defined,
                "versions": cell.versions or None,
                "lacking": [{"seed": seed, "reason": reason} for seed, reason in cell.lacking],
                "values": [one.shown for one in cell.ours],
            }
            for cell, column in zip(line.cells, columns, strict=True)
        },
    }


FORMATS: dict[str, Callable[[Table], str]] = {
    "md": markdown,
    "csv": comma_separated,
    "tex": latex,
    "html": page,
    "json": lambda table: json.dumps(plain(table), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
}
