"""A filled table as Markdown, CSV, LaTeX, HTML and JSON. Each says the scale, and `--` where a run is missing."""

import csv
import html
import io
import json
from collections.abc import Callable
from typing import Any

from experiments.tables.definition import Column
from experiments.tables.fill import Table, TableLine
from experiments.tables.text import (
    MISSING,
    describe_table,
    explain_origin,
    format_verdict,
    legend_of_origins,
    list_footnotes,
    list_remarks,
    number_footnotes,
    table_body,
    table_header,
    table_title,
)


def render_markdown(table: Table) -> str:
    rows = [table_header(table), *table_body(table)]
    rule = "|".join(["---", "---", *("---:" for _ in rows[0][2:])])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, f"|{rule}|")
    parts = [f"# {table_title(table)}", describe_table(table), "\n".join(lines)]
    if list_footnotes(table):
        parts.append("\n".join(f"- {note}" for note in number_footnotes(table)))
    if table.verdicts:
        parts.append(
            "Claims\n\n" + "\n".join(f"- {format_verdict(one, table.definition.number)}" for one in table.verdicts)
        )
    parts.append("\n".join(f"- {remark}" for remark in list_remarks(table)))
    if table.missing:
        parts.append("Missing\n\n" + "\n".join(f"- {what}: `{command}`" for what, command in table.missing))
    return "\n\n".join(parts) + "\n"


def render_csv(table: Table) -> str:
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
            mean = MISSING if cell.mean is None and cell.is_defined else cell.mean
            known = cell.reported
            told = ("", "", "") if known is None else (known.value, known.origin, known.source)
            reasons = "; ".join(cell.missing_reasons)
            measured = (
                mean,
                cell.interval,
                cell.difference,
                len(cell.ours),
                cell.is_defined,
                reasons,
                cell.version_differences,
            )
            writer.writerow((*place, *told, *measured))
    return out.getvalue()


def render_latex(table: Table) -> str:
    rows = [" & ".join(map(escape_latex, row)) + r" \\" for row in [table_header(table), *table_body(table, "+-")]]
    columns = "ll" + "r" * (len(table_header(table)) - 2)
    lines = [
        f"% {describe_table(table)}",
        r"\begin{table}",
        rf"\caption{{{escape_latex(table_title(table))}. {escape_latex(describe_table(table))}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\hline",
        rows[0],
        r"\hline",
        *rows[1:],
        r"\hline",
        r"\end{tabular}",
        *(rf"\par {escape_latex(said)}" for said in (*explain_origin(table), *number_footnotes(table))),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


LATEX_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
    "†": r"\dag{}", "‡": r"\ddag{}", "→": r"$\rightarrow$", "±": r"$\pm$", "–": "--", ">": r"$>$", "<": r"$<$",
}  # fmt: skip


def escape_latex(text: str) -> str:
    return "".join(LATEX_ESCAPES.get(character, character) for character in text).replace("+-", r"$\pm$")


STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{padding:.3rem .7rem;text-align:right;"
    "border-bottom:1px solid #ddd}th{border-bottom:2px solid #444;vertical-align:bottom}td:first-child,th:first-child,"
    "td:nth-child(2),th:nth-child(2){text-align:left}.scale{background:#fff3cd;padding:.4rem .7rem;border-radius:4px}"
    ".holds{color:#176117}.fails{color:#a11}code{background:#f3f3f3;padding:0 .2rem}.wide{overflow-x:auto}"
)


def render_html_fragment(table: Table) -> str:
    """The table as an HTML fragment, for a page of its own or the report."""
    e = html.escape
    head = "".join(f"<th>{e(name)}</th>" for name in table_header(table))
    rows = "".join("<tr>" + "".join(f"<td>{e(value)}</td>" for value in row) + "</tr>" for row in table_body(table))
    claims = "".join(
        f'<li class="{e(one.verdict.split()[0])}">{e(format_verdict(one, table.definition.number))}</li>'
        for one in table.verdicts
    )
    cells = "".join(f"<li>{e(note)}</li>" for note in number_footnotes(table))
    notes = "".join(f"<li>{e(remark)}</li>" for remark in list_remarks(table))
    lacking = "".join(f"<li>{e(what)}: <code>{e(command)}</code></li>" for what, command in table.missing)
    return (
        f"<h2>{e(table_title(table))}</h2><p class=scale>{e(describe_table(table))}</p>"
        f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        + (f"<ul>{cells}</ul>" if cells else "")
        + (f"<h3>Claims</h3><ul>{claims}</ul>" if claims else "")
        + f"<ul>{notes}</ul>"
        + (f"<h3>Missing</h3><ul>{lacking}</ul>" if lacking else "")
    )


def render_html_page(table: Table) -> str:
    name = html.escape(table_title(table))
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{name}</title><style>{STYLE}</style>"
    return f"{head}<body>{render_html_fragment(table)}</body></html>\n"


def table_to_dict(table: Table) -> dict[str, Any]:
    """The table as JSON values: the columns' printed units, one list of cells per row."""
    definition = table.definition
    return {
        "table": definition.number,
        "title": definition.title,
        "scale": definition.scale,
        "comparable": definition.comparable,
        "about": describe_table(table),
        "source": definition.source,
        "legend": [{"mark": mark, "meaning": meant} for mark, meant in legend_of_origins(table)],
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


def row_values(line: TableLine, columns: tuple[Column, ...]) -> dict[str, Any]:
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
                "defined": cell.is_defined,
                "versions": cell.version_differences or None,
                "lacking": [{"seed": seed, "reason": reason} for seed, reason in cell.missing_seeds],
                "values": [one.shown_value for one in cell.ours],
            }
            for cell, column in zip(line.cells, columns, strict=True)
        },
    }


FORMATS: dict[str, Callable[[Table], str]] = {
    "md": render_markdown,
    "csv": render_csv,
    "tex": render_latex,
    "html": render_html_page,
    "json": lambda table: json.dumps(table_to_dict(table), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
}
