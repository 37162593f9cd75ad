"""What a table needs before it is made: `python -m experiments.plan 1 scale=paper gpus=8 memory=80`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from experiments.config.command_line import cli_entry_point
from experiments.config.compose import Composition, compose_parent, compose_teacher
from experiments.config.errors import UsageError
from experiments.table import TableRequest, parse_request

if TYPE_CHECKING:
    from experiments.tables.costs import RunCost

USAGE = """\
usage: python -m experiments.plan N [scale=paper] [gpus=8] [memory=80] [gpu=H100] [utilisation=0.4] [price=2.5]
                                    [seeds=0] [name=value ...]

Tells for each run of table N, parents and teachers included: parameters, peak memory of a training step on one GPU,
whether it fits and what makes it fit, GPU hours of training and scoring, and disk. Trains nothing and reads no weights.

  gpus         GPUs of the machine (1)
  memory       GiB of each (80)
  gpu          its kind, for FLOP/s (H100)
  utilisation  share of its peak that training reaches (0.4)
  price        of one GPU hour, in your currency (none)"""

DEFAULTS = {"gpus": "1", "memory": "80", "gpu": "H100", "utilisation": "0.4", "price": "0"}
HEAD = ("run", "parameters", "learn", "weights", "grads", "Adam", "kept", "head", "total", "fits", "train h", "score h")


def main(arguments: Sequence[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0 if arguments else 2
    own = dict(a.split("=", 1) for a in arguments if a.partition("=")[0] in DEFAULTS)
    rest = [a for a in arguments if a.partition("=")[0] not in DEFAULTS]
    if not any(a.startswith("scale=") for a in rest):
        rest.append("scale=paper")
    asked = parse_request(rest, "plan", "")
    settings = {name: as_number(name, own.get(name, value)) for name, value in DEFAULTS.items() if name != "gpu"}
    from experiments.tables import costs

    try:
        flops = costs.peak_flops(own.get("gpu", DEFAULTS["gpu"]))
    except ValueError as error:
        raise UsageError(str(error)) from error
    machine = costs.Machine(
        gpus=int(settings["gpus"]),
        memory_gib=settings["memory"],
        flops=flops,
        utilisation=settings["utilisation"],
    )
    lines, hours, disk, ways = [HEAD], 0.0, 0.0, []
    for name, config in list_configurations(asked).items():
        try:
            cost = costs.estimate(config, machine)
        except ValueError as error:
            lines.append((name, str(error), *[""] * (len(HEAD) - 2)))
            continue
        lines.append(format_row(name, cost))
        hours += cost.training_hours + cost.scoring_hours
        disk += cost.disk_gib
        if not cost.fits:
            remedy = " or ".join(cost.ways[:2]) or NO_WAY
            ways.append(f"{name} does not fit {machine.memory_gib:g} GiB: {remedy}")
    print(align_columns(lines))
    total = hours * len(asked.seeds)
    price = f", {total * settings['price']:.0f} at {settings['price']:g} an hour" if settings["price"] else ""
    print(f"\n{len(asked.seeds)} seed(s): {total:.0f} GPU hours, {disk:.0f} GiB of checkpoints{price}")
    print(ASSUMED.format(utilisation=settings["utilisation"], gpu=own.get("gpu", DEFAULTS["gpu"])))
    for way in ways:
        print(way)
    return 1 if ways else 0


NO_WAY = "no launch of this machine makes it fit; use more or larger GPUs"
ASSUMED = (
    "Memory is GiB of one GPU at the peak of a training step, from real shapes. Hours are FLOPs at {utilisation:g} of "
    "an {gpu}'s peak, with assumed tokens a row (experiments/tables/costs.py): an estimate, not a measurement."
)


def as_number(name: str, value: str) -> float:
    """The number of a setting.

    Raises `UsageError` for anything else.
    """
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"{name}={value} is no number") from None


def list_configurations(asked: TableRequest) -> dict[str, dict[str, Any]]:
    """Each distinct run of a table with its stages -> its resolved configuration; data need not be there."""
    found: dict[str, dict] = {}
    for name, job in asked.composed_models.items():
        for stage_name, stage in iterate_named_stages(name, job):
            found.setdefault(stage_name, stage.resolved)
    return found


def iterate_named_stages(name: str, job: Composition) -> Iterator[tuple[str, Composition]]:
    """Yield the parents and teachers of a run, the oldest first, and the run itself."""
    for kind, compose in (("parent", compose_parent), ("teacher", compose_teacher)):
        older = compose(job)
        if older is not None:
            yield from iterate_named_stages(f"{older.config.name} ({kind} of {name})", older)
    yield name, job


def format_row(name: str, cost: RunCost) -> tuple[str, ...]:
    memory = cost.memory
    parts = (memory.weights, memory.gradients, memory.optimizer, memory.activations + memory.weight_copies, memory.head)
    sizes = [f"{part / 2**30:.1f}" for part in (*parts, memory.total)] if cost.learning else ["", "", "", "", "", ""]
    return (
        name,
        f"{cost.parameters / 1e9:.2f} B",
        f"{cost.learning / 1e6:.1f} M",
        *sizes,
        "yes" if cost.fits else "NO",
        f"{cost.training_hours:.1f}",
        f"{cost.scoring_hours:.1f}",
    )


def align_columns(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[n]) for line in lines if len(line) > n) for n in range(len(HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)) for line in lines)


if __name__ == "__main__":
    sys.exit(cli_entry_point(main)())
