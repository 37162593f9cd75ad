"""`make bench`: measure, print a line as each is known, and write outputs/bench/<device>.json, .md and .svg."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from experiments.bench.measure import Comparison
from experiments.bench.present import plot_comparisons, render_comparisons
from experiments.config.command_line import cli_entry_point
from experiments.config.errors import UsageError
from experiments.config.paths import display_path, outputs_folder
from experiments.runs.provenance import describe_hardware, package_versions, read_commit
from unified_lm.files import write_json, write_text

USAGE = (
    "usage: python -m experiments.bench [device=cpu|cuda] [only=losses,encoding,training,harnesses] [size=1] "
    "[repeats=3]"
)
GROUPS = ("losses", "encoding", "training", "harnesses")


def main(arguments: Sequence[str]) -> int:
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if set(given) - {"device", "only", "size", "repeats"}:
        raise UsageError(USAGE)
    only = given.get("only", ",".join(GROUPS)).split(",")
    if set(only) - set(GROUPS):
        raise UsageError(USAGE)
    size, repeats = int(given.get("size", 1)), int(given.get("repeats", 3))
    device = given.get("device", "cpu")
    if device == "cuda":
        from experiments.bench.cuda.plan import main as on_cuda

        return on_cuda(repeats)
    began, load = time.monotonic(), os.getloadavg()[0]
    found = []
    for line in measure_groups(only, size, repeats):
        found.append(line)
        mark = {True: "ok  ", False: "MISS", None: "    "}[line.goals_reached]
        print(f"{mark} {line.what}: {line.ratio:.2f}x, memory {line.memory_ratio:.2f}x of {line.peer}", flush=True)
    facts = {
        "hardware": asdict(describe_hardware()),
        "versions": package_versions(),
        "git": None if (commit := read_commit()) is None else asdict(commit),
        "threads": 1,
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "size": size,
    }
    name = device if size == 1 and set(only) == set(GROUPS) else f"{device}-{'-'.join(only)}-{size}"
    place = outputs_folder() / "bench" / name
    write_json(place.with_suffix(".json"), facts | {"lines": [line.to_dict() for line in found]})
    write_text(place.with_suffix(".md"), render_comparisons(found, facts))
    plot_comparisons(found, place.with_suffix(".svg"))
    print(render_comparisons(found, facts))
    print(f"written: {display_path(place)}.json, .md, .svg")
    return 0


def measure_groups(only: Sequence[str], size: int, repeats: int) -> Iterator[Comparison]:
    import importlib

    import torch

    from experiments.bench.material import Material

    torch.set_num_threads(1)
    material = Material(size=size)
    for group in only:
        compare: Callable[[Material, int], Iterator[Comparison]] = getattr(
            importlib.import_module(f"experiments.bench.{group}"), f"compare_{group}"
        )
        yield from compare(material, repeats)


if __name__ == "__main__":
    sys.exit(cli_entry_point(main)())
