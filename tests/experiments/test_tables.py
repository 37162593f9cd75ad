"""A table is a pure function of its definition and of records; what is missing is named, never hidden."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.errors import UsageError
from experiments.tables.cells import Measure, half_interval
from experiments.tables.claims import FAILS, FEW, HOLDS, UNTOLD, judged
from experiments.tables.definition import Claim, Column, Definition, Reported, Row, Second, published
from experiments.tables.fill import Made, Table, fill
from experiments.tables.makers import Maker
from experiments.tables.render import FORMATS, footnotes, plain

COLUMNS = (
    Column(key="found", label="retrieval", suite="s", task="find", metric="ndcg_at_10", better="higher", factor=100),
    Column(key="ppl", label="perplexity", suite="s", task="guess", metric="perplexity", better="lower"),
)
ROWS = (
    Row(key="base", label="base", experiment="base", readout="mean", deterministic=True),
    Row(key="ours", label="ours", experiment="ours", readout="slot_0"),
    Row(key="words", label="BM25", experiment="words", deterministic=True, undefined=("ppl",)),
)
DEFINITION = Definition(
    number=7,
    title="a title",
    source="nobody",
    scale="mini",
    about="a test",
    comparable=False,
    columns=COLUMNS,
    rows=ROWS,
)


def score(task: str, metric: str, value: float, **more: Any) -> dict[str, Any]:
    unit = "perplexity" if metric == "perplexity" else "fraction"
    known = {"suite": "s", "task": task, "metric": metric, "value": value, "unit": unit, "subset": "test", "step": 3}
    return (
        known
        | {"readout": "none", "attention": "causal", "revision": "r", "library": "l", "prompt": "", "n": 100}
        | more
    )


def made(name: str, seed: int, found: float | None, ppl: float | None, **more: Any) -> Made:
    scores = (
        [] if found is None else [score("find", "ndcg_at_10", found, readout="slot_0" if name == "ours" else "mean")]
    )
    scores += [] if ppl is None else [score("guess", "perplexity", ppl)]
    machine = {"gpus": [], "cores": 2, "cpu": "a processor"}
    entry = {"status": "finished", "step": 3, "scores": scores, "device_hours": 0.5, "hardware": machine}
    run_id = f"{name}-s{seed}-0123456789"
    return Made(seed=seed, run_id=run_id, command=f"make {run_id}", record=entry | more)


def runs(seeds: Sequence[int] = (0,), found: Mapping[int, float] | None = None) -> dict[str, list[Made]]:
    return {
        "base": [made("base", 0, 0.10, 40.0)],
        "ours": [made("ours", seed, (found or {}).get(seed, 0.5), 38.0) for seed in seeds],
        "words": [made("words", 0, 0.60, None)],
    }


def table(**more: Any) -> Table:
    return fill(replace(DEFINITION, **more), runs(), (0,))


def lacking() -> Table:
    absent = runs()
    absent["ours"] = [replace(absent["ours"][0], record=None)]
    return fill(DEFINITION, absent, (0,))


def test_the_same_records_give_the_same_table_and_a_complete_one_lacks_nothing() -> None:
    assert table() == table()
    assert table().missing == ()
    assert plain(table())["complete"]


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
    ((what, _),) = fill(DEFINITION, partial, (0,)).missing
    assert what.endswith(": perplexity")


REASONS = {
    "no run": None,
    "run failed: RuntimeError: no memory": {"status": "failed", "error": "RuntimeError: no memory", "scores": []},
    "guess has no score: ours generates no text": {"skipped": {"s": {"guess": "ours generates no text"}}},
    "s gave no perplexity of guess": {},
    "the run was not scored on s": {"scores": []},
    "the run was not scored on s, only on s (subset)": {
        "scores": [score("guess", "perplexity", 9, suite="s (subset)")]
    },
    "guess was scored elsewhere only (test, read-out last, step 3)": {
        "scores": [score("guess", "perplexity", 9.0, readout="last")]
    },
}


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_says_why_a_cell_is_blank(reason: str, ending: str) -> None:
    some = runs()
    entry = made("ours", 0, 0.5, None)
    change = REASONS[reason]
    some["ours"] = [replace(entry, record=None if change is None else entry.record | change)]
    filled = fill(DEFINITION, some, (0,))
    text = FORMATS[ending](filled)
    if ending == "json":
        assert json.loads(text)["rows"][1]["cells"]["ppl"]["lacking"] == [{"seed": 0, "reason": reason}]
    elif ending == "csv":
        assert text.splitlines()[4].rstrip('"').endswith(reason)
    else:
        mark = footnotes(filled).index(reason) + 1
        assert f"-- [{mark}]" in text
        assert f"[{mark}] {reason}" in text


def test_a_seed_that_lacks_for_a_reason_of_its_own_is_named() -> None:
    some = runs((0, 1))
    some["ours"][1] = replace(some["ours"][1], record=some["ours"][1].record | {"status": "stopped", "scores": []})
    text = FORMATS["md"](fill(DEFINITION, some, (0, 1)))
    assert "50.0 -- [1] | 38.0 -- [1]" in text
    assert "- [1] seed 1: run stopped" in text


def test_a_cell_that_cannot_be_is_not_missing() -> None:
    words = next(line for line in table().lines if line.label == "BM25")
    assert not words.cells[1].defined
    assert "n/a" in FORMATS["md"](table())


def test_cells_are_mean_and_student_interval_over_seeds() -> None:
    filled = fill(DEFINITION, runs((0, 1, 2), {0: 0.4, 1: 0.5, 2: 0.6}), (0, 1, 2))
    cell = filled.lines[1].cells[0]
    assert cell.mean == pytest.approx(50)
    assert cell.interval == pytest.approx(4.302653 * 10 / 3**0.5, rel=1e-5)
    assert len(cell.ours) == 3
    assert "50.0 ± 24.8 (n=3)" in FORMATS["md"](filled)
    assert half_interval([1.0]) is None


def test_a_seed_that_lacks_its_run_shows_in_its_cell() -> None:
    some = runs((0, 1))
    some["ours"][1] = replace(some["ours"][1], record=None)
    filled = fill(DEFINITION, some, (0, 1))
    assert "50.0 --" in FORMATS["md"](filled)
    assert len(filled.missing) == 1


def reported(value: float = 48.5, origin: str = "printed") -> dict[str, dict[str, Reported]]:
    return {"ours": {"found": Reported(value=value, origin=origin, source="a paper, table 1")}}


PAPER = {"scale": "paper", "comparable": True}


def test_reported_ours_and_difference_stand_together_at_a_comparable_scale() -> None:
    filled = table(**PAPER, reported=reported())
    assert "48.5 / 50.0 / +1.5" in FORMATS["md"](filled)
    cell = plain(filled)["rows"][1]["cells"]["found"]
    assert (cell["reported"], cell["ours"], cell["difference"]) == pytest.approx((48.5, 50.0, 1.5))


def test_a_small_scale_never_stands_beside_a_papers_number() -> None:
    with pytest.raises(UsageError, match="cannot be compared"):
        table(reported=reported())


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize(
    ("origin", "mark", "meaning"),
    [
        ("printed", "", "printed in a paper, table 1"),
        ("derived", "†", "derived by arithmetic from a paper, table 1"),
        ("third-party", "‡", "told by a third party, a paper, table 1"),
    ],
)
def test_every_format_tells_how_a_reported_number_is_known(ending: str, origin: str, mark: str, meaning: str) -> None:
    text = FORMATS[ending](table(**PAPER, reported=reported(origin=origin)))
    if ending == "csv":
        assert f',48.5,{origin},"a paper, table 1",' in text
    elif ending == "json":
        values = json.loads(text)
        assert values["legend"] == [{"mark": mark, "meaning": meaning}]
        cell = values["rows"][1]["cells"]["found"]
        assert (cell["reported"], cell["origin"], cell["reported_by"]) == (48.5, origin, "a paper, table 1")
    else:
        shown = {"†": r"\dag{}", "‡": r"\ddag{}"}.get(mark, mark) if ending == "tex" else mark
        assert f"48.5{shown} / " in text
        assert f"{shown or 'No mark'}: {meaning}." in text


def group(**more: Any) -> dict[str, Any]:
    return {"origin": "printed", "source": "a paper", "cells": {"ours": {"found": 48.5}}} | more


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([group(origin="third_party")], "did you mean third-party"),
        ([group(cells={"ours": {"found": "48.5"}})], "no number"),
        ([group(), group(origin="derived")], "reported twice"),
        ([{"origin": "printed", "cells": {}}], "groups of origin, source and cells"),
    ],
)
def test_a_reported_number_without_a_known_origin_is_refused(groups: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        published(groups, Path("7.yaml"))


def test_a_published_system_that_is_not_run_stands_beside_with_its_numbers_alone() -> None:
    row = Row(key="big", label="a bigger model", experiment=None)
    number = Reported(value=67.07, origin="third-party", source="a page")
    filled = table(**PAPER, rows=(*ROWS, row), reported={"big": {"found": number}})
    assert "| a bigger model | – | 67.1‡ | n/a | – |" in FORMATS["md"](filled)
    assert "a bigger model: published, not run here." in FORMATS["md"](filled)
    assert filled.missing == ()
    with pytest.raises(UsageError, match="big is no experiment"):
        replace(DEFINITION, rows=(*ROWS, row))


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_says_the_scale_and_that_nothing_compares(ending: str) -> None:
    text = FORMATS[ending](table())
    assert "mini" in text
    assert ending == "csv" or "Not comparable" in text


def test_rows_that_are_one_run_are_printed_once_and_it_is_said() -> None:
    twins = (*ROWS, Row(key="bigger", label="a bigger backbone", experiment="ours", readout="slot_0"))
    same = runs()
    same["bigger"] = same["ours"]
    filled = fill(replace(DEFINITION, rows=twins), same, (0,))
    assert [line.label for line in filled.lines] == ["base", "ours = a bigger backbone", "BM25"]
    assert "one and the same run at this scale" in FORMATS["md"](filled)


def test_rows_that_read_one_run_differently_stay_apart() -> None:
    other = (*ROWS, Row(key="last", label="ours", experiment="ours", readout="slot_3"))
    same = runs()
    same["last"] = same["ours"]
    assert len(fill(replace(DEFINITION, rows=other), same, (0,)).lines) == 4


def test_a_read_out_is_never_taken_for_another() -> None:
    wrong = runs()
    wrong["ours"][0].record["scores"][0]["readout"] = "mean"
    assert fill(DEFINITION, wrong, (0,)).missing[0][0].endswith(": retrieval")


def test_two_scores_for_one_cell_are_refused() -> None:
    double = runs()
    double["ours"][0].record["scores"].append(score("guess", "perplexity", 1.5, subset="other"))
    with pytest.raises(UsageError, match="several scores"):
        fill(DEFINITION, double, (0,))


def test_hours_and_hardware_stand_in_the_table() -> None:
    text = FORMATS["md"](fill(DEFINITION, runs((0, 1)), (0, 1)))
    assert "| 1 |" in text
    assert "2 cores a processor" in text


def test_a_definition_that_names_no_cell_is_refused() -> None:
    claim = Claim(text="c", left="ours/speed", relation=">", right="base/found")
    with pytest.raises(UsageError, match="ours/speed is no cell"):
        table(claims=(claim,))


TWO = Row(
    key="two",
    label="two models",
    experiment="ours",
    readout="slot_0",
    also=Second(experiment="base", columns=("ppl",), deterministic=True),
)


def two_models(seeds: Sequence[int] = (0,), **more: Any) -> Table:
    """A row that embeds with one run and generates with another."""
    made_of = runs(seeds)
    made_of |= {"two": made_of["ours"], "two/also": made_of["base"]} | more
    return fill(replace(DEFINITION, rows=(*ROWS, TWO)), made_of, seeds)


def test_a_row_of_two_models_takes_each_column_from_its_own_and_the_hours_of_both() -> None:
    filled = two_models((0, 1))
    line = filled.lines[-1]
    assert [cell.mean for cell in line.cells] == [50.0, 40.0]
    assert [len(cell.ours) for cell in line.cells] == [2, 1]
    assert line.hours == pytest.approx(3 * 0.5)
    assert [made.run_id[:4] for made in line.runs] == ["ours", "ours", "base"]
    assert filled.missing == ()


@pytest.mark.parametrize("ending", ["md", "html"])
def test_a_row_of_two_models_says_so(ending: str) -> None:
    said = "two models: two separate models; base gives perplexity, ours the rest; hours are those of both."
    assert said in FORMATS[ending](two_models())
    assert plain(two_models())["rows"][-1]["models"] == {"two": "ours", "two/also": "base"}


def test_the_second_of_two_models_lacks_its_own_columns_only() -> None:
    absent = replace(runs()["base"][0], record=None)
    ((what, command),) = two_models(**{"two/also": [absent]}).missing
    assert what == "two models, seed 0 (no run): perplexity"
    assert command == "make base-s0-0123456789"


@pytest.mark.parametrize("columns", [(), ("found", "ppl"), ("speed",)])
def test_two_models_of_which_one_gives_nothing_are_refused(columns: tuple[str, ...]) -> None:
    row = replace(TWO, also=replace(TWO.also, columns=columns))
    with pytest.raises(UsageError, match=r"one of its two models|no cell"):
        replace(DEFINITION, rows=(*ROWS, row))


OLD = {"commit": "1111111aaa", "dirty": False, "code": "old", "versions": {"torch": "2.12", "wandb": "1", "mteb": "2"}}
NEW = {"commit": "2222222bbb", "dirty": True, "code": "new", "versions": {"torch": "2.13", "wandb": "1", "mteb": "2"}}
DIFFER = (
    "runs of different versions: seed 0 by commit 1111111 (torch 2.12); seed 1 by commit 2222222 with changes "
    "(torch 2.13)"
)


def made_by(*makers: Sequence[dict[str, Any]]) -> Table:
    """Our row at one seed for each list of makers, and a claim that compares it with base, made by the first."""
    of = [tuple(map(Maker.of, each)) for each in makers]
    some = runs(range(len(of)))
    some["ours"] = [replace(one, makers=own) for one, own in zip(some["ours"], of, strict=True)]
    some["base"] = [replace(some["base"][0], makers=of[0])]
    claim = Claim(text="ours is more", left="ours/found", relation=">", right="base/found")
    return fill(replace(DEFINITION, claims=(claim,)), some, range(len(of)))


@pytest.mark.parametrize("ending", FORMATS)
def test_a_mean_over_runs_of_different_versions_says_so(ending: str) -> None:
    text = FORMATS[ending](made_by([OLD], [NEW]))
    if ending == "json":
        values = json.loads(text)
        assert values["rows"][1]["cells"]["found"]["versions"] == DIFFER
        assert values["rows"][0]["cells"]["found"]["versions"] is None
        assert values["claims"][0]["versions"] == DIFFER
    elif ending == "csv":
        assert text.splitlines()[3].endswith(DIFFER)
    else:
        assert " [1]" in text.replace(f"[1] {DIFFER}", "")
        assert f"[1] {DIFFER}" in text


@pytest.mark.parametrize("ending", ["md", "html"])
def test_a_verdict_over_runs_of_different_versions_says_so(ending: str) -> None:
    assert f"2 seeds; {DIFFER})" in FORMATS[ending](made_by([OLD], [NEW]))


def test_versions_are_the_same_where_they_compute_the_same() -> None:
    doc_only = OLD | {"commit": "3333333ccc", "versions": OLD["versions"] | {"wandb": "2"}}
    assert "different versions" not in FORMATS["md"](made_by([OLD], [doc_only]))
    unknown = OLD | {"code": None}
    assert "different versions" in FORMATS["md"](made_by([OLD], [unknown]))


def test_a_library_alone_makes_another_version_and_one_run_may_have_two() -> None:
    other = OLD | {"versions": OLD["versions"] | {"mteb": "3"}}
    apart = FORMATS["md"](made_by([OLD], [other]))
    assert "seed 0 by commit 1111111 (mteb 2); seed 1 by commit 1111111 (mteb 3)" in apart
    twice = FORMATS["md"](made_by([OLD, other]))
    assert "seed 0 by commit 1111111 (mteb 2); seed 0 by commit 1111111 (mteb 3)" in twice


def measures(*values: float, unit: str = "fraction", factor: float = 100.0, n: int = 100) -> tuple[Measure, ...]:
    return tuple(Measure(seed=seed, value=value, factor=factor, n=n, unit=unit) for seed, value in enumerate(values))


def verdict(left: tuple[Measure, ...], right: tuple[Measure, ...], **more: Any) -> str:
    from experiments.tables.cells import Cell

    claim = Claim(text="left is more", left="a", right="b", **({"relation": ">"} | more))
    cells = {name: Cell(reported=None, ours=ours, defined=True) for name, ours in (("a", left), ("b", right))}
    return judged(claim, cells).verdict


def test_one_seed_is_judged_by_the_sampling_of_its_examples() -> None:
    assert verdict(measures(0.5), measures(0.1)) == HOLDS
    assert verdict(measures(0.1), measures(0.5)) == FAILS
    assert verdict(measures(0.50), measures(0.45)) == UNTOLD
    assert verdict(measures(0.50, n=10_000), measures(0.45, n=10_000)) == HOLDS


def test_several_seeds_are_judged_by_their_paired_differences() -> None:
    assert verdict(measures(0.50, 0.60, 0.70), measures(0.45, 0.55, 0.651)) == HOLDS
    assert verdict(measures(0.50, 0.60, 0.70), measures(0.60, 0.40, 0.71)) == UNTOLD
    assert verdict(measures(0.45, 0.55, 0.651), measures(0.50, 0.60, 0.70)) == FAILS


def test_a_run_without_a_seed_stands_against_every_seed_of_the_other() -> None:
    assert verdict(measures(0.50, 0.52, 0.51), measures(0.1)) == HOLDS
    assert verdict(measures(0.1), measures(0.50, 0.52, 0.51), relation="<") == HOLDS


def test_too_few_seeds_give_no_verdict() -> None:
    assert verdict((), measures(0.1)) == FEW
    assert verdict(measures(0.5), measures(0.1), seeds=2) == FEW


def test_a_metric_without_an_error_of_its_own_has_the_claims_noise_and_margin() -> None:
    low, high = measures(38, unit="perplexity", factor=1), measures(84, unit="perplexity", factor=1)
    assert verdict(low, high, relation="<", noise=3) == HOLDS
    assert verdict(low, measures(40, unit="perplexity", factor=1), relation="<", noise=3) == UNTOLD
    assert verdict(low, high, relation="<", noise=3, margin=100) == FAILS
