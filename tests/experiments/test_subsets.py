"""A part of a benchmark can never stand for the whole of it."""

import pytest

from evals.pins import CHANGED_MARK
from evals.score import SUBSET_MARK
from experiments.tables import definition
from experiments.tables.definition import Column
from experiments.tables.fill import RowRun, read_run_score
from tests.a_table import record, score

PAPER = [number for number in definition.list_tables() if number != 15]


def cell(column: Column, suite: str) -> float | None:
    """What a column of a paper's table reads in a record whose one score bears that suite's name."""
    row = definition.read_definition(PAPER[0], "paper").rows[0]
    place = {"subset": column.subset or "test", "readout": column.readout or row.readout or "none"}
    one = score(column.task, column.metric, 0.5, suite=suite, unit="fraction", **place)
    made = RowRun(seed=0, run_id="r", command="", record=record(scores=(one,)))
    found = read_run_score(made, row, column)
    return found and found.value


@pytest.mark.parametrize("number", PAPER)
def test_a_cut_or_changed_suite_fills_no_column_of_a_paper(number: int) -> None:
    for column in definition.read_definition(number, "paper").columns:
        assert cell(column, column.suite) == 0.5
        for mark in (SUBSET_MARK, CHANGED_MARK, CHANGED_MARK + SUBSET_MARK):
            assert cell(column, column.suite + mark) is None


@pytest.mark.parametrize("number", PAPER)
def test_no_column_of_a_paper_reads_a_suite_of_any_tasks(number: int) -> None:
    suites = {column.suite for column in definition.read_definition(number, "paper").columns}
    assert not suites & {"mteb", "lm_eval"} and not any("(" in suite for suite in suites)
