"""One static page of tables, curves and runs, readable without a server: `python -m experiments.report`."""

import html
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.config.command_line import cli_entry_point
from experiments.config.errors import UsageError
from experiments.config.paths import display_path, outputs_folder, runs_folder
from experiments.runs.metrics import read_metrics
from experiments.runs.record import RunRecord, read_record
from experiments.tables.render import STYLE
from unified_lm.files import write_text

FIGURES = ".curves{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0}figcaption{font-size:13px}"


def write_report() -> Path:
    """outputs/report/index.html, from what outputs/ holds."""
    path = outputs_folder() / "report" / "index.html"
    write_text(path, render_report())
    return path


def render_report() -> str:
    entries = list(read_all_records())
    head = "<!doctype html><html lang=en><meta charset=utf-8><title>unified-lm report</title>"
    parts = [
        f"{head}<style>{STYLE}{FIGURES}</style><body><h1>Tables, curves and runs</h1>",
        *read_table_pages(),
        "<h2>Training curves</h2><div class=curves>",
        *(
            f"<figure>{svg}<figcaption>{html.escape(name)}</figcaption></figure>"
            for name, svg in draw_loss_curves(entries)
        ),
        "</div><h2>Runs</h2>",
        render_run_list(entries),
        "</body></html>\n",
    ]
    return "".join(parts)


def read_table_pages() -> Iterator[str]:
    """The bodies of the rendered tables, in the order of their numbers."""
    pages = {path.stem.removeprefix("table-"): path for path in (outputs_folder() / "tables").glob("table-*.html")}
    found = [pages[number] for number in sorted(filter(str.isdecimal, pages), key=int)]
    for path in found:
        yield from re.findall(r"<body>(.*)</body>", path.read_text(encoding="utf-8"), re.S)
    if not found:
        yield "<p>No table is rendered yet: <code>make table-15</code>.</p>"


def read_all_records() -> Iterator[RunRecord]:
    for folder in sorted(runs_folder().glob("*")):
        entry = read_record(folder)
        if entry is not None:
            yield entry


def draw_loss_curves(entries: Sequence[RunRecord]) -> Iterator[tuple[str, str]]:
    """(run id, SVG) of every run that logged at least two steps."""
    for entry in entries:
        rows = read_metrics(runs_folder() / entry.run_id)
        if len(rows) > 1:
            yield entry.run_id, draw_loss_curve(rows, list(entry.losses) or ["loss"])


def draw_loss_curve(rows: Sequence[Mapping[str, Any]], terms: Sequence[str]) -> str:
    """The loss and its terms over the steps, as an SVG element."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "unified-lm", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(3.4, 2.2), layout="constrained")
        axes = figure.subplots()
        for name in terms:
            values = [row.get(name) for row in rows]
            axes.plot([row["step"] for row in rows], values, label=name, linewidth=1.8 if name == "loss" else 1.0)
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()[out.getvalue().index("<svg") :]


def render_run_list(entries: Sequence[RunRecord]) -> str:
    """The runs, the failed ones with their reason."""
    names = ("run", "scale", "status", "step", "wall s", "device hours", "scores", "W&amp;B", "problem")
    rows = [
        (
            entry.run_id,
            entry.choices.get("scale"),
            entry.status,
            entry.step,
            entry.wall_s,
            entry.device_hours,
            len(entry.scores),
            entry.wandb_id,
            entry.error,
        )
        for entry in entries
    ]
    cells = "".join(
        "<tr>" + "".join(f"<td>{'' if value is None else html.escape(str(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table></div>"


def main(arguments: Sequence[str]) -> int:
    if arguments:
        raise UsageError(
            "usage: python -m experiments.report (it takes nothing; UNIFIED_LM_OUTPUTS says where outputs/ is)"
        )
    print(f"page: {display_path(write_report())}")
    return 0


if __name__ == "__main__":
    sys.exit(cli_entry_point(main)())
