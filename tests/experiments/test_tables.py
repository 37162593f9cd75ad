"""A table is a pure function of its definition and of records; what is missing is named, never hidden."""

import json
import re
from dataclasses import replace

import pytest

from experiments.config.errors import UsageError
from experiments.tables.cells import half_interval
from experiments.tables.definition import Claim, Row
from experiments.tables.fill import fill_table
from experiments.tables.render import FORMATS, table_to_dict
from tests.a_table import DEFINITION, ROWS, lacking, made, runs, score, table


def test_the_same_records_give_the_same_table_and_a_complete_one_lacks_nothing() -> None:
    assert table() == table()
    assert table().missing == ()
    assert table_to_dict(table())["complete"]


@pytest.mark.parametrize("ending", FORMATS)
def test_a_missing_run_is_two_dashes_in_every_format(ending: str) -> None:
    whole, text = FORMATS[ending](table()), FORMATS[ending](lacking())
    if ending == "json":
        cells = json.loads(text)["rows"][1]["cells"]
        assert cells["found"]["ours"] is None
        assert cells["found"]["n"] == 0
    else:
        assert re.search(r"(?<!-)--(?![-\s]*>)", text.replace("---", ""))
        assert text != whole


def test_what_is_missing_is_named_with_the_command_that_makes_it() -> None:
    ((what, command),) = lacking().missing
    assert "ours" in what
    assert "every column" in what
    assert command == "make ours-s0-0123456789"


def test_a_run_that_lacks_one_score_is_missing_that_one() -> None:
    partial = runs()
    partial["ours"] = [made("ours", 0, 0.5, None)]
    ((what, _),) = fill_table(DEFINITION, partial, (0,)).missing
    assert what.endswith(": perplexity")


def test_a_cell_that_cannot_be_is_not_missing() -> None:
    words = next(line for line in table().lines if line.label == "BM25")
    assert not words.cells[1].is_defined
    assert "n/a" in FORMATS["md"](table())


def test_cells_are_mean_and_student_interval_over_seeds() -> None:
    filled = fill_table(DEFINITION, runs((0, 1, 2), {0: 0.4, 1: 0.5, 2: 0.6}), (0, 1, 2))
    cell = filled.lines[1].cells[0]
    assert cell.mean == pytest.approx(50)
    assert cell.interval == pytest.approx(4.302653 * 10 / 3**0.5, rel=1e-5)
    assert len(cell.ours) == 3
    assert "50.0 ± 24.8 (n=3)" in FORMATS["md"](filled)
    assert half_interval([1.0]) is None


def test_a_seed_that_lacks_its_run_shows_in_its_cell() -> None:
    some = runs((0, 1))
    some["ours"][1] = replace(some["ours"][1], record=None)
    filled = fill_table(DEFINITION, some, (0, 1))
    assert "50.0 --" in FORMATS["md"](filled)
    assert len(filled.missing) == 1


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_says_the_scale_and_that_nothing_compares(ending: str) -> None:
    text = FORMATS[ending](table())
    assert "mini" in text
    assert ending == "csv" or "Not comparable" in text


def test_rows_that_are_one_run_are_printed_once_and_it_is_said() -> None:
    twins = (*ROWS, Row(key="bigger", label="a bigger backbone", experiment="ours", readout="slot_0"))
    same = runs()
    same["bigger"] = same["ours"]
    filled = fill_table(replace(DEFINITION, rows=twins), same, (0,))
    assert [line.label for line in filled.lines] == ["base", "ours = a bigger backbone", "BM25"]
    assert "one and the same run at this scale" in FORMATS["md"](filled)


def test_rows_that_read_one_run_differently_stay_apart() -> None:
    other = (*ROWS, Row(key="last", label="ours", experiment="ours", readout="slot_3"))
    same = runs()
    same["last"] = same["ours"]
    assert len(fill_table(replace(DEFINITION, rows=other), same, (0,)).lines) == 4


def test_a_read_out_is_never_taken_for_another() -> None:
    wrong = runs()
    (ours,) = wrong["ours"]
    found, *others = ours.record.scores
    wrong["ours"] = [replace(ours, record=replace(ours.record, scores=(replace(found, readout="mean"), *others)))]
    assert fill_table(DEFINITION, wrong, (0,)).missing[0][0].endswith(": retrieval")


def test_two_scores_for_one_cell_are_refused() -> None:
    double = runs()
    (ours,) = double["ours"]
    more = (*ours.record.scores, score("guess", "perplexity", 1.5, subset="other"))
    double["ours"] = [replace(ours, record=replace(ours.record, scores=more))]
    with pytest.raises(UsageError, match="several scores"):
        fill_table(DEFINITION, double, (0,))


def test_hours_and_hardware_stand_in_the_table() -> None:
    text = FORMATS["md"](fill_table(DEFINITION, runs((0, 1)), (0, 1)))
    assert "| 1 |" in text
    assert "2 cores a processor" in text


def test_a_definition_that_names_no_cell_is_refused() -> None:
    claim = Claim(text="c", left="ours/speed", relation=">", right="base/found")
    with pytest.raises(UsageError, match="ours/speed is no cell"):
        table(claims=(claim,))
