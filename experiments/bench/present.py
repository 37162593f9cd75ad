"""The bench's lines as a table of Markdown and as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.bench.measure import Comparison

HEADER = "| what | ours, CPU s | peer, CPU s | peer over ours | goal | peak MiB: ours, peer | ours over peer's | goal |"


def render_comparisons(lines: Sequence[Comparison], facts: Mapping[str, Any]) -> str:
    """Medians, ratios, goals, and what was asserted equal first."""
    machine = facts["hardware"]
    head = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; one thread; load "
        f"{facts['load_before']} before and {facts['load_after']} after; torch {facts['versions']['torch']}, "
        f"transformers {facts['versions']['transformers']}, sentence-transformers "
        f"{facts['versions']['sentence-transformers']}; {facts['minutes']} minutes. Medians of processor time.\n\n"
    )
    rows = [HEADER, "|---|---:|---:|---:|---:|---:|---:|---:|"]
    notes = []
    for line in lines:
        goal = "" if line.goal is None else f"≥ {line.goal:.2f}"
        memory = "" if line.memory_goal is None else f"≤ {line.memory_goal:.2f}"
        rows.append(
            f"| {line.what} | {line.ours.cpu_s:.3f} | {line.theirs.cpu_s:.3f} | {line.ratio:.2f} | {goal} | "
            f"{line.ours.peak_mib:.0f}, {line.theirs.peak_mib:.0f} | {line.memory_ratio:.2f} | {memory} |"
        )
        notes.append(
            f"- {line.what}: peer {line.peer}; {line.ours.repeats} repeats; {line.parity}"
            + (f"; {line.note}" if line.note else "")
        )
    return head + "\n".join(rows) + "\n\n" + "\n".join(notes) + "\n"


def plot_comparisons(lines: Sequence[Comparison], path: Path) -> None:
    """A bar a line: how many times the peer's processor time is ours, and the goal as a tick."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 0.5 * len(lines) + 1), layout="constrained")
    places = range(len(lines))
    colors = ["#4477aa" if line.goals_reached else "#cc6677" for line in lines]
    axes.barh(places, [line.ratio for line in lines], color=colors)
    axes.scatter([line.goal for line in lines], places, marker="|", s=200, color="black", label="goal")
    axes.set_yticks(places, [line.what for line in lines])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("peer's processor time over ours")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
