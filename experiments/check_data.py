"""Open all data before any GPU time is spent: `python -m experiments.check_data data_mirror=DIR`.

Each data set is opened at its commit, or in the mirror. Of a task, also the parts that are read only as it is scored,
and its sizes are compared with those that mteb publishes; of training data, columns and numbers of rows with those that
conf/data expects. All failures are listed at once.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import yaml

from experiments.config.command_line import cli_entry_point
from experiments.config.compose import Composition, compose, compose_parent, compose_teacher, list_options
from experiments.config.errors import UsageError, first_line
from experiments.config.identity import make_paths_absolute
from experiments.config.paths import CONF
from experiments.runs.resolve_model import split_arguments
from experiments.tables import definition

USAGE = (
    "usage: python -m experiments.check_data [suites=a,b | data=a,b | tables=1,15 scale=paper] [data_mirror=DIR] "
    "[name=value ...]"
)
OWN = ("suites", "data", "tables", "scale")
HUB = "unified_lm.data.hub.HubDataset"


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 where something failed."""
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    own, overrides = split_arguments(arguments, OWN, USAGE)
    if len({"suites", "data", "tables"} & set(own)) > 1:
        raise UsageError(f"give one of suites=, data= and tables=; {USAGE}")
    jobs = compose_table_rows(own, overrides) if "tables" in own else []
    failures = []
    for place, problem in chain(check_training_data(own, jobs, overrides), check_suites(own, jobs, overrides)):
        print(f"{'FAIL' if problem else 'ok  '} {place}{': ' if problem else ''}{problem}", flush=True)
        failures += [f"{place}: {problem}"] if problem else []
    if failures:
        print(f"error: {len(failures)} of the data sets cannot be used:", file=sys.stderr)
        for failure in failures:
            print(f"  {failure}", file=sys.stderr)
    return 1 if failures else 0


def compose_table_rows(own: Mapping[str, str], overrides: Sequence[str]) -> list[Composition]:
    """The rows of the tables that are asked for, composed."""
    found = []
    for number in own["tables"].split(","):
        if not number.isdecimal():
            raise UsageError(f"tables={own['tables']} is no list of numbers such as tables=1,2")
        scale = own.get("scale", "paper")
        table = definition.read_definition(int(number), scale)
        found += [compose(line) for line in table.command_lines(overrides).values()]
    return found


def check_training_data(
    own: Mapping[str, str], jobs: Sequence[Composition], overrides: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """(place, what is wrong or "") of each hub data set that is trained on, each once."""
    if "suites" in own:
        return
    if "tables" in own:
        data = [(stage.choices["data"], stage) for job in jobs for stage in iterate_stages(job)]
    else:
        names = option_names(own, "data")
        data = [(name, compose([f"data={name}", "scale=none", *overrides])) for name in names]
    seen = []
    for name, job in data:
        for stream, settings in make_paths_absolute(job.resolved["data"])["streams"].items():
            for source, node in settings["sources"].items():
                if node.get("_target_") == HUB and node not in seen:
                    seen.append(node)
                    yield f"{name}/{stream}/{source}", check_hub_dataset(node)


def option_names(own: Mapping[str, str], kind: str) -> list[str]:
    """The suites or the data that are asked for, or all that need nothing of the user's."""
    group = {"suites": "evals", "data": "data"}[kind]
    return (
        own[kind].split(",") if kind in own else [name for name in list_options(group) if has_all_values(group, name)]
    )


def has_all_values(group: str, name: str) -> bool:
    """Whether a file of conf/ holds data and leaves no value to the user (`???`)."""
    content = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8")
    return "???" not in content and bool(yaml.safe_load(content))


def iterate_stages(job: Composition) -> Iterator[Composition]:
    """A job and all runs that it starts from or learns from."""
    yield job
    for other in (compose_parent(job), compose_teacher(job)):
        if other is not None:
            yield from iterate_stages(other)


def check_hub_dataset(node: Mapping[str, Any]) -> str:
    """What is wrong with a data set of the hub, or ""; the check goes on whatever it is."""
    from experiments.config.build import instantiate_node

    try:
        instantiate_node(node, "data").open_tables()
    except Exception as error:
        return first_line(str(error)) or type(error).__name__
    return ""


def check_suites(
    own: Mapping[str, str], jobs: Sequence[Composition], overrides: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """(suite/task, what is wrong or "") of named suites, those of tables, or all that need no file."""
    if "data" in own:
        return
    if "suites" in own or not jobs:
        names = option_names(own, "suites")
        jobs = [compose([f"evals=[{name}]", "scale=none", *overrides]) for name in names]
    suites: dict[str, Any] = {}
    for job in jobs:
        suites |= make_paths_absolute(job.resolved["evals"])
    for name, suite in suites.items():
        for task, problem in check_suite_tasks(name, suite):
            yield f"{name}/{task}", problem


def check_suite_tasks(name: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(task, what is wrong or "") of each task of a suite."""
    from evals.check_data import find_data_problems
    from experiments.config.build import instantiate_node

    try:
        suite = instantiate_node(settings, f"evals.{name}")
    except (ValueError, OSError) as error:
        yield "*", first_line(str(error))
        return
    digest = getattr(suite, "pins_digest", "")
    if digest and settings.get("committed") != digest:
        print(f'pins {name}: {digest}; a file of conf/evals commits to them with the line  committed: "{digest}"')
    yield from find_data_problems(suite)


if __name__ == "__main__":
    sys.exit(cli_entry_point(main)())
