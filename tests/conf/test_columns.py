"""What the columns of the papers' tables ask for is what their suites give."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from evals.averages import METRIC
from evals.generation.suite import LmEvalSuite, select_metrics
from experiments.config.build import instantiate_node
from experiments.config.compose import compose
from experiments.tables import definition
from experiments.tables.fill import RowRun, read_run_score
from tests.a_table import record, score

PAPER = [number for number in definition.list_tables() if number != 15]


@cache
def settings(suite: str) -> Mapping[str, Any]:
    return compose([f"evals=[{suite.removesuffix('_dot')}]", "scale=none"]).resolved["evals"][suite]


@cache
def given(suite: str) -> tuple[tuple[str, str, str], ...]:
    """(task, metric, subset) of the scores of a suite; tasks of mteb's on their only split."""
    return tuple(places(suite))


def places(suite: str) -> Iterator[tuple[str, str, str]]:
    made = instantiate_node(settings(suite), f"evals.{suite}")
    yield from ((mean.name, METRIC, "") for mean in made.means)
    if isinstance(made, LmEvalSuite):
        split = settings(suite)["split"]
        for entry in made.entries:
            results = {f"{name},{chosen or 'none'}": 0.5 for name, _, chosen in
                       (metric.partition(",") for metric in entry.metrics)}  # fmt: skip
            yield from ((entry.name, metric, place) for metric, place, *_ in select_metrics(entry, results, split))
            yield entry.name, "truncation_rate", split
    else:
        pins = settings(suite).get("tasks", {})
        for task in made.tasks:
            yield from ((task, metric, "test") for metric in (*made.metrics, pins.get(task, {}).get("metric")))


@pytest.mark.parametrize("number", PAPER)
def test_a_finished_run_fills_every_column(number: int) -> None:
    table = definition.read_definition(number, "paper")
    row = table.rows[0]
    for column in table.columns:
        scores = [
            score(task, metric, 0.5, suite=column.suite, subset=subset, unit="fraction")
            for task, metric, subset in given(column.suite)
            if metric
        ]
        made = RowRun(seed=0, run_id="r", command="", record=record(scores=tuple(scores)))
        assert read_run_score(made, row, column) is not None, (
            f"{column.suite} gives no {column.metric} of {column.task}"
        )
