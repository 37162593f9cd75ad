"""Train and score what a table lacks, then render it: `python -m experiments.reproduce 15 scale=mini seeds=0,1,2`."""

import sys
import time
from collections.abc import Iterable, Sequence

from experiments.errors import told
from experiments.execute import ensure, require_device
from experiments.identity import Run
from experiments.places import shown
from experiments.report import write_report
from experiments.table import request, scored_as, table_of, tell


def main(arguments: Sequence[str]) -> int:
    asked = request(arguments, "reproduce", "Trains and scores what table N lacks, parents first, then renders it.")
    if asked is None:
        return 0
    runs = asked.runs()
    every = unique(run for each in runs.values() for run in each)
    for run in every:
        require_device(run)
    failed = [run for number, run in enumerate(every, start=1) if made(run, number, len(every))]
    code = tell(table_of(asked, runs))
    print(f"page: {shown(write_report())}")
    for run in failed:
        print(f"failed: {run.run_id}, see {shown(run.folder / 'worker.log')}", file=sys.stderr)
    return 1 if failed else code


def made(run: Run, number: int, count: int) -> int:
    """Make one run of several; a failure leaves a hole in the table and does not stop the others."""
    began = time.monotonic()
    print(f"[{number}/{count}] {run.run_id}", flush=True)
    code = ensure(run)
    print(f"[{number}/{count}] {'failed' if code else 'done'} after {time.monotonic() - began:.0f} s", flush=True)
    return code


def unique(runs: Iterable[Run]) -> list[Run]:
    """Runs in their order, each once; one that two rows score with other suites is asked for each."""
    return list({(run.run_id, scored_as(run)): run for run in runs}.values())


if __name__ == "__main__":
    sys.exit(told(main)())
