"""Train and score what a table lacks, then render it: `python -m experiments.reproduce 15 scale=mini seeds=0,1,2`."""

import sys
from collections.abc import Iterable, Sequence

from experiments.config.command_line import cli_entry_point
from experiments.config.errors import UsageError
from experiments.config.identity import Run
from experiments.config.paths import display_path
from experiments.report import write_report
from experiments.runs.execute import execute_runs
from experiments.runs.preflight import require_device
from experiments.table import fill_requested_table, parse_request, print_and_write_table
from unified_lm.training.watchdog import REQUEUE

WHAT = """\
Trains and scores what table N lacks, parents first, then renders it. jobs=2 makes two runs at once, each with half of
the machine's cores, or with GPUs of its own."""


def main(arguments: Sequence[str]) -> int:
    jobs = parse_jobs([argument for argument in arguments if argument.startswith("jobs=")])
    asked = parse_request([a for a in arguments if not a.startswith("jobs=")], "reproduce", WHAT)
    if asked is None:
        return 0
    for job in asked.composed_models.values():
        require_device(job)
    runs = asked.identify_runs()
    every = unique_runs(run for each in runs.values() for run in each)
    codes = execute_runs(every, jobs)
    if any(codes.get(run.run_id, REQUEUE) == REQUEUE for run in every):
        print("stopped; the same command continues from the last checkpoints", file=sys.stderr)
        return REQUEUE
    code = print_and_write_table(fill_requested_table(asked, runs))
    print(f"page: {display_path(write_report())}")
    failed = [run for run in every if codes[run.run_id]]
    for run in failed:
        log = run.folder / "worker.log"
        print(f"failed: {run.run_id}{f', see {display_path(log)}' if log.exists() else ''}", file=sys.stderr)
    return 1 if failed else code


def parse_jobs(given: Sequence[str]) -> int:
    """How many runs are made at once.

    Raises `UsageError` for anything but a count.
    """
    number = given[-1].removeprefix("jobs=") if given else "1"
    if not number.isdecimal() or int(number) < 1:
        raise UsageError(f"jobs={number} is no count of runs to be made at once, such as jobs=2")
    return int(number)


def unique_runs(runs: Iterable[Run]) -> list[Run]:
    """Runs in their order, each once; one that two rows score with other suites is asked for each."""
    return list({(run.run_id, run.request_digest): run for run in runs}.values())


if __name__ == "__main__":
    sys.exit(cli_entry_point(main)())
