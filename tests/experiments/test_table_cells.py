"""What a cell says beside its number: where a published one is from, why ours is blank, and which versions made it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.config.errors import UsageError
from experiments.runs.provenance import CodeVersion
from experiments.tables.code_versions import CodeFingerprint
from experiments.tables.definition import Claim, Reported, Row, Second, parse_reported
from experiments.tables.fill import Table, fill_table
from experiments.tables.render import FORMATS, table_to_dict
from experiments.tables.text import list_footnotes
from tests.a_table import DEFINITION, ROWS, made, runs, score, table


def reported(value: float = 48.5, origin: str = "printed") -> dict[str, dict[str, Reported]]:
    return {"ours": {"found": Reported(value=value, origin=origin, source="a paper, table 1")}}


PAPER = {"scale": "paper", "comparable": True}


def test_reported_ours_and_difference_stand_together_at_a_comparable_scale() -> None:
    filled = table(**PAPER, reported=reported())
    assert "48.5 / 50.0 / +1.5" in FORMATS["md"](filled)
    cell = table_to_dict(filled)["rows"][1]["cells"]["found"]
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
        ("third-party", "‡", "reported by a third party, a paper, table 1"),
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
        parse_reported(groups, Path("7.yaml"))


def test_a_published_system_that_is_not_run_stands_beside_with_its_numbers_alone() -> None:
    row = Row(key="big", label="a bigger model", experiment=None)
    number = Reported(value=67.07, origin="third-party", source="a page")
    filled = table(**PAPER, rows=(*ROWS, row), reported={"big": {"found": number}})
    assert "| a bigger model | – | 67.1‡ | n/a | – |" in FORMATS["md"](filled)
    assert "a bigger model: published, not run here." in FORMATS["md"](filled)
    assert filled.missing == ()
    with pytest.raises(UsageError, match="big is no experiment"):
        replace(DEFINITION, rows=(*ROWS, row))


REASONS = {
    "no run": None,
    "run failed: RuntimeError: no memory": {"status": "failed", "error": "RuntimeError: no memory", "scores": ()},
    "the run is not scored to its end": {"status": "trained"},
    "guess has no score: ours generates no text": {"skipped": {"s": {"guess": "ours generates no text"}}},
    "s gave no perplexity of guess": {},
    "the run was not scored on s": {"scores": ()},
    "the run was not scored on s, only on s (subset)": {
        "scores": (score("guess", "perplexity", 9.0, suite="s (subset)"),)
    },
    "guess was scored elsewhere only (test, read-out last, step 3)": {
        "scores": (score("guess", "perplexity", 9.0, readout="last"),)
    },
}


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_says_why_a_cell_is_blank(reason: str, ending: str) -> None:
    some = runs()
    entry = made("ours", 0, 0.5, None)
    change = REASONS[reason]
    some["ours"] = [replace(entry, record=None if change is None else replace(entry.record, **change))]
    filled = fill_table(DEFINITION, some, (0,))
    text = FORMATS[ending](filled)
    if ending == "json":
        assert json.loads(text)["rows"][1]["cells"]["ppl"]["lacking"] == [{"seed": 0, "reason": reason}]
    elif ending == "csv":
        assert text.splitlines()[4].rstrip('",').endswith(reason)
    else:
        mark = list_footnotes(filled).index(reason) + 1
        assert f"-- [{mark}]" in text
        assert f"[{mark}] {reason}" in text


def test_a_seed_that_lacks_for_a_reason_of_its_own_is_named() -> None:
    some = runs((0, 1, 2, 3))
    some["ours"][1] = replace(some["ours"][1], record=replace(some["ours"][1].record, status="stopped", scores=()))
    some["ours"][2:] = [replace(one, record=None) for one in some["ours"][2:]]
    text = FORMATS["md"](fill_table(DEFINITION, some, range(4)))
    assert "50.0 -- [1] [2] | 38.0 -- [1] [2]" in text
    assert "- [1] seed 1: run stopped\n- [2] seeds 2, 3: no run\n" in text


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
    return fill_table(replace(DEFINITION, rows=(*ROWS, TWO)), made_of, seeds)


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
    assert table_to_dict(two_models())["rows"][-1]["models"] == {"two": "ours", "two/also": "base"}


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


OLD = CodeVersion(commit="1111111aaa", dirty=False, code="old", versions={"torch": "2.12", "wandb": "1", "mteb": "2"})
NEW = CodeVersion(commit="2222222bbb", dirty=True, code="new", versions={"torch": "2.13", "wandb": "1", "mteb": "2"})
DIFFER = (
    "seeds ran with different code versions: seed 0 at commit 1111111 (torch 2.12); "
    "seed 1 at commit 2222222 with changes (torch 2.13)"
)


def made_by(*makers: Sequence[CodeVersion]) -> Table:
    """Our row at one seed for each list of makers, and a claim that compares it with base, made by the first."""
    of = [tuple(map(CodeFingerprint.from_version, each)) for each in makers]
    some = runs(range(len(of)))
    some["ours"] = [replace(one, fingerprints=own) for one, own in zip(some["ours"], of, strict=True)]
    some["base"] = [replace(some["base"][0], fingerprints=of[0])]
    claim = Claim(text="ours is more", left="ours/found", relation=">", right="base/found")
    return fill_table(replace(DEFINITION, claims=(claim,)), some, range(len(of)))


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
    doc_only = replace(OLD, commit="3333333ccc", versions=OLD.versions | {"wandb": "2"})
    assert "different code versions" not in FORMATS["md"](made_by([OLD], [doc_only]))
    unknown = replace(OLD, code=None)
    assert "different code versions" in FORMATS["md"](made_by([OLD], [unknown]))


def test_a_library_alone_makes_another_version_and_one_run_may_have_two() -> None:
    other = replace(OLD, versions=OLD.versions | {"mteb": "3"})
    apart = FORMATS["md"](made_by([OLD], [other]))
    assert "seed 0 at commit 1111111 (mteb 2); seed 1 at commit 1111111 (mteb 3)" in apart
    twice = FORMATS["md"](made_by([OLD, other]))
    assert "seed 0 at commit 1111111 (mteb 2); seed 0 at commit 1111111 (mteb 3)" in twice
