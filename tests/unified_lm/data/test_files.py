"""Rows from files the tests write, in each shape that public data sets use."""

from __future__ import annotations

import gzip
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unified_lm.data.files import Files
from unified_lm.data.rows import TrainingRow

pytestmark = pytest.mark.usefixtures("own_cache")

SHAPES = {
    "pos_neg": (
        {"query": "q", "pos": ["p", "p2"], "neg": ["n1", "n2"], "prompt": "find"},
        TrainingRow(query="q", instruction="find", positive="p", negatives=("n1", "n2")),
    ),
    "instruction pairs": (
        {"query": ["find", "q"], "pos": [["", "p"]], "neg": [["", "n"]]},
        TrainingRow(query="q", instruction="find", positive="p", negatives=("n",)),
    ),
    "positive_negative": (
        {"query": "q", "positive": "p", "negative": "n"},
        TrainingRow(query="q", positive="p", negatives=("n",)),
    ),
    "no negative": ({"query": "q", "positive": "p"}, TrainingRow(query="q", positive="p")),
    "anchor": (
        {"anchor": "q", "positive": "p", "negative": "n"},
        TrainingRow(query="q", positive="p", negatives=("n",)),
    ),
    "passages": (
        {"query": "q", "positive_passages": [{"title": "t", "text": "p"}], "negative_passages": [{"text": "n"}]},
        TrainingRow(query="q", positive="t p", negatives=("n",)),
    ),
    "messages": (
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "u1"},
                {"role": "assistant", "content": "a1"},
                {"role": "user", "content": "u2"},
                {"role": "assistant", "content": "a2"},
            ]
        },
        TrainingRow(query="u2", answer="a2", history=(("system", "s"), ("user", "u1"), ("assistant", "a1"))),
    ),
    "conversations": (
        {"conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]},
        TrainingRow(query="u", answer="a"),
    ),
    "prompt_response": ({"prompt": "u", "response": "a"}, TrainingRow(query="u", answer="a")),
    "prompt_completion": ({"prompt": "u", "completion": "a"}, TrainingRow(query="u", answer="a")),
    "question_answer": ({"question": "u", "answer": "a"}, TrainingRow(query="u", answer="a")),
    "instruction_output": (
        {"instruction": "do", "input": "this", "output": "a"},
        TrainingRow(query="do\n\nthis", answer="a"),
    ),
    "no input": ({"instruction": "do", "input": "", "output": "a"}, TrainingRow(query="do", answer="a")),
    "instances": (
        {"instruction": "do", "instances": [{"input": "this", "output": "a"}]},
        TrainingRow(query="do\n\nthis", answer="a"),
    ),
    "alternating": ({"text": ["u", "a"]}, TrainingRow(query="u", answer="a")),
    "text": ({"text": "plain"}, TrainingRow(text="plain")),
}


def written(name: str, record: dict[str, Any], folder: Path) -> Path:
    path = folder / name
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist([record]), path)
    else:
        path.write_text(json.dumps([record] if name.endswith(".json") else record))
    return path


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["data.jsonl", "data.parquet", "data.json"])
def test_a_row_is_read_alike_from_every_kind_of_file(shape: str, name: str, tmp_path: Path) -> None:
    record, row = SHAPES[shape]
    if name.endswith("parquet") and shape == "instruction pairs":
        record = {**record, "pos": [["", "p"]]}
    (found,) = Files(path=str(written(name, record, tmp_path))).rows()
    assert found == TrainingRow(
        **{field: getattr(row, field) for field in TrainingRow.__dataclass_fields__ if field != "source"}, source="data"
    )


def test_a_compressed_file_holds_the_same_rows(json_lines: Callable[..., Path]) -> None:
    records = [{"query": f"q{n}", "pos": ["p"]} for n in range(5)]
    plain = Files(path=str(json_lines("data.jsonl", *records)))
    packed = Files(path=str(json_lines("data.jsonl.gz", *records)))
    assert list(plain.rows()) == list(packed.rows())


def test_plain_text_gives_a_row_a_line_or_a_row_a_paragraph(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("\ufeffone\ntwo\n\n\n  three \n")
    path = str(tmp_path / "book.txt")
    assert [row.text for row in Files(path=path).rows()] == ["one", "two", "three"]
    assert [row.text for row in Files(path=path, sample_by="paragraph").rows()] == ["one\ntwo", "three"]


def test_each_file_of_a_folder_is_a_data_set_with_its_own_shape_and_limit(json_lines: Callable[..., Path]) -> None:
    json_lines("b.jsonl", *({"query": f"b{n}", "pos": ["p"]} for n in range(9)))
    path = json_lines("a.jsonl", *({"prompt": f"a{n}", "response": "r"} for n in range(9)))
    (path.parent / "SOURCE").write_text("no data")
    rows = Files(path=str(path.parent), every=2, limit=3).rows()
    assert [(row.source, row.query) for row in rows] == [
        ("a", "a0"), ("a", "a2"), ("a", "a4"), ("b", "b0"), ("b", "b2"), ("b", "b4")
    ]  # fmt: skip


def test_several_positives_give_the_first_or_a_row_each(json_lines: Callable[..., Path]) -> None:
    path = str(json_lines("data.jsonl", {"query": "q", "pos": ["p1", "p2"], "neg": ["n1", "n2", "n3"]}))
    first = Files(path=path, negatives=2).rows()
    assert [(row.positive, row.negatives) for row in first] == [("p1", ("n1", "n2"))]
    assert first.notes == {"further positives dropped": 1}
    assert [row.positive for row in Files(path=path, positives="each").rows()] == ["p1", "p2"]


def test_a_conversation_gives_its_last_answer_or_a_row_an_answer(json_lines: Callable[..., Path]) -> None:
    path = str(json_lines("data.jsonl", {"text": ["u1", "a1", "u2", "a2", "u3"]}))
    last = TrainingRow(query="u2", answer="a2", history=(("user", "u1"), ("assistant", "a1")), source="data")
    assert list(Files(path=path).rows()) == [last]
    assert list(Files(path=path, turns="each").rows()) == [TrainingRow(query="u1", answer="a1", source="data"), last]


def test_what_documents_are_instructed_is_dropped_and_counted_or_put_before_them(
    json_lines: Callable[..., Path],
) -> None:
    path = str(json_lines("data.jsonl", {"query": ["find", "q"], "pos": [["show", "p"]]}))
    dropped = Files(path=path).rows()
    assert (dropped[0].positive, dropped.notes) == ("p", {"document instructions: drop": 1})
    assert Files(path=path, document_instructions="prepend").rows()[0].positive == "show p"


def test_given_instructions_replace_the_rows_own_and_take_turns(json_lines: Callable[..., Path]) -> None:
    path = str(json_lines("data.jsonl", *({"query": f"q{n}", "pos": ["p"], "prompt": "own"} for n in range(3))))
    assert {row.instruction for row in Files(path=path, instruction="given").rows()} == {"given"}
    assert [row.instruction for row in Files(path=path, instruction=["x", "y"]).rows()] == ["x", "y", "x"]


def test_columns_of_any_name_can_be_read(json_lines: Callable[..., Path]) -> None:
    record = {"task": "t", "user_query": "q", "good": "p", "bad": "n", "reply": "a"}
    columns = {"instruction": "task", "query": "user_query", "positive": "good", "negatives": "bad", "answer": "reply"}
    (row,) = Files(path=str(json_lines("data.jsonl", record)), columns=columns).rows()
    assert row == TrainingRow(instruction="t", query="q", positive="p", negatives=("n",), answer="a", source="data")


GOOD = {"query": "q", "pos": ["p"], "neg": ["n"]}
BAD = {
    "another shape": ({"prompt": "u", "response": "a"}, "field 'query' is missing"),
    "no query": ({"pos": ["p"]}, "field 'query' is missing"),
    "blank query": ({"query": " \n", "pos": ["p"]}, "field 'query' is empty"),
    "query of another type": ({"query": 7, "pos": ["p"]}, "field 'query' is of type int"),
    "no positive": ({"query": "q", "pos": []}, "field 'pos' is empty"),
    "blank positive": ({"query": "q", "pos": [""]}, r"field 'pos\[0\]' is empty"),
    "negative of another type": ({"query": "q", "pos": ["p"], "neg": ["n", None]}, r"field 'neg\[1\]' is missing"),
    "no pair": ({"query": ["a", "b", "c"], "pos": ["p"]}, "field 'query' is a list, but not"),
    "half a surrogate": ({"query": "\ud800", "pos": ["p"]}, "field 'query' holds half a surrogate"),
    "no mapping": ([1], "is of type list"),
    "no JSON": ('{"query": ', "is not JSON: Expecting value at character"),
    "blank line": ("", "the line.*is empty"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_row_is_refused_with_file_line_and_field_or_skipped_and_counted(
    kind: str, json_lines: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    record, message = BAD[kind]
    path = str(json_lines("data.jsonl", GOOD, record, GOOD))
    with pytest.raises(ValueError, match=rf"data\.jsonl, line 2: .*{message}.*on_bad=skip"):
        Files(path=path).rows()
    with caplog.at_level(logging.WARNING):
        rows = Files(path=path, on_bad="skip").rows()
    assert (len(rows), rows.notes["skipped"]) == (2, 1)
    assert "line 2" in caplog.text


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([], "no assistant turn"),
        ([{"role": "user", "content": "u"}], "no assistant turn"),
        ([{"role": "assistant", "content": "a"}], "follows no user turn"),
        (
            [{"role": "user", "content": "u"}, {"role": "narrator", "content": "a"}],
            r"messages\[1\]\.role' is 'narrator'",
        ),
        ([{"role": "user", "content": ""}, {"role": "assistant", "content": "a"}], r"messages\[0\]\.content' is empty"),
    ],
)
def test_a_conversation_without_question_or_answer_is_refused(
    turns: list[dict[str, str]], message: str, json_lines: Callable[..., Path]
) -> None:
    with pytest.raises(ValueError, match=f"line 1: .*{message}"):
        Files(path=str(json_lines("data.jsonl", {"messages": turns}))).rows()


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_bytes(b'{"text": "good"}\n{"text": "\xff"}\n')
    with pytest.raises(ValueError, match=r"line 2: .*not UTF-8"):
        Files(path=str(tmp_path / "data.jsonl")).rows()


def test_a_file_may_end_in_blank_lines(json_lines: Callable[..., Path]) -> None:
    assert len(Files(path=str(json_lines("data.jsonl", GOOD, "", " "))).rows()) == 1


def test_a_file_without_a_usable_row_is_an_error(json_lines: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="no usable row"):
        Files(path=str(json_lines("empty.jsonl"))).rows()
    with pytest.raises(ValueError, match=r"no usable row.*'skipped': 1"):
        Files(path=str(json_lines("data.jsonl", {"other": 1})), on_bad="skip").rows()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "pos"}, "shape=pos is not one of auto, messages"),
        ({"shape": "text", "columns": {"text": "t"}}, "both say how to read"),
        ({"columns": {"question": "q"}}, "columns maps 'question'"),
        ({"on_bad": "ignore"}, "on_bad=ignore is not one of refuse, skip"),
        ({"every": 0}, "every=0"),
        ({"limit": 0}, "limit=0"),
        ({"negatives": -1}, "negatives=-1"),
    ],
)
def test_impossible_options_fail_before_anything_is_read(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Files(path="nowhere.jsonl", **options)


def test_a_path_without_data_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no data at path=.*nowhere"):
        Files(path=str(tmp_path / "nowhere")).fingerprint()


def test_a_fingerprint_changes_with_content_and_options_but_not_with_place_or_time(
    json_lines: Callable[..., Path], tmp_path: Path
) -> None:
    path = json_lines("data.jsonl", GOOD)
    first = Files(path=str(path)).fingerprint()
    moved = tmp_path / "elsewhere" / "data.jsonl"
    moved.parent.mkdir()
    moved.write_bytes(path.read_bytes())
    os.utime(moved, (0, 0))
    assert Files(path=str(moved)).fingerprint() == first
    assert Files(path=str(path), limit=5).fingerprint() != first
    json_lines("data.jsonl", GOOD, GOOD)
    assert Files(path=str(path)).fingerprint() != first


def test_rows_are_read_from_the_file_once_and_then_from_the_store(json_lines: Callable[..., Path]) -> None:
    path = json_lines("data.jsonl", *({"query": f"q{n}", "pos": ["p"]} for n in range(20)))
    source = Files(path=str(path))
    rows = source.rows()
    assert source.rows() is rows
    kept = (list(rows), rows.corpus_fingerprint, rows[7], rows[-1], rows[3:5])
    del rows
    again = Files(path=str(path)).rows()
    assert (list(again), again.corpus_fingerprint, again[7], again[-1], again[3:5]) == kept
    with pytest.raises(IndexError):
        again[20]


def test_a_file_that_is_not_whole_is_named(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f'{{"text": "{os.urandom(16).hex()}"}}\n' for _ in range(500)).encode())
    for name, content in {
        "cut.jsonl.gz": whole[: len(whole) // 2],
        "plain.jsonl.gz": b"no gzip",
        "other.parquet": b"PAR1 no parquet PAR1",
        "deep.jsonl": b"[" * 100_000,
        "roles.jsonl": b'{"messages": [{"role": ["user"], "content": "x"}]}',
    }.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=name):
            Files(path=str(path)).rows()
