"""Open the data of suites or tables before any GPU time is spent: `python -m experiments.check_data data_mirror=DIR`.

Each task's data is read at its pinned revision, or from the mirror, down to the parts that are read only while a task
is scored, and its sizes are compared with those that mteb publishes. All failures are listed at once.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.compose import compose, options
from experiments.errors import UsageError, first_line, told
from experiments.identity import settled
from experiments.named import split
from experiments.tables import definition

USAGE = (
    "usage: python -m experiments.check_data [suites=a,b | tables=1,15 scale=paper] [data_mirror=DIR] [name=value ...]"
)
OWN = ("suites", "tables", "scale")

NEEDS_A_VALUE = frozenset({"none", "local_beir", "local_sts", "mteb", "lm_eval"})
"""Suites over what the user names: they are checked where they are asked for."""


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 where something failed."""
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    own, overrides = split(arguments, OWN, USAGE)
    if "suites" in own and "tables" in own:
        raise UsageError(f"give suites= or tables=, not both; {USAGE}")
    failures = []
    for name, suite in suites(own, overrides).items():
        for task, problem in checked(name, suite):
            print(f"{'FAIL' if problem else 'ok  '} {name}/{task}{': ' if problem else ''}{problem}", flush=True)
            failures += [f"{name}/{task}: {problem}"] if problem else []
    if failures:
        print(f"error: {len(failures)} of the data sets cannot be scored:", file=sys.stderr)
        for failure in failures:
            print(f"  {failure}", file=sys.stderr)
    return 1 if failures else 0


def suites(own: Mapping[str, str], overrides: Sequence[str]) -> dict[str, Any]:
    """Name -> settings of the suites that are asked for: named ones, those of tables, or all that need no file."""
    if "tables" in own:
        found: dict[str, Any] = {}
        for number in own["tables"].split(","):
            if not number.isdigit():
                raise UsageError(f"tables={own['tables']} is no list of numbers such as tables=1,2")
            scale = own.get("scale", "paper")
            for row in definition.read(int(number), scale).rows:
                job = compose([f"experiment={row.experiment}", f"scale={scale}", *row.overrides, *overrides])
                found |= settled(job.resolved["evals"])
        return found
    names = own["suites"].split(",") if "suites" in own else [n for n in options("evals") if n not in NEEDS_A_VALUE]
    found = {}
    for name in names:
        found |= settled(compose([f"evals=[{name}]", "scale=none", *overrides]).resolved["evals"])
    return found


def checked(name: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(task, what is wrong or "") of each task of a suite."""
    from evals.check import problems
    from experiments.build import build

    try:
        suite = build(settings, f"evals.{name}")
    except (ValueError, OSError) as error:
        yield "*", first_line(str(error))
        return
    yield from problems(suite)


if __name__ == "__main__":
    sys.exit(told(main)())
