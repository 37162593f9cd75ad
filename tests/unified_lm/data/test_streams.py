"""Laws of the order of rows: the same step gives the same rows, whoever asks, when and how often."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from unified_lm.data.files import Files
from unified_lm.data.order import BatchCut, keyed_permutation
from unified_lm.data.rows import TrainingRow
from unified_lm.data.sources import Given
from unified_lm.data.streams import Batches, Stream, Streams


def data_set(name: str, size: int) -> Given:
    return Given(examples=[TrainingRow(query=f"{name} {number}", positive="p") for number in range(size)], name=name)


def streams(data_seed: int = 0, sizes: tuple[int, ...] = (40, 24, 8), **options: Any) -> Streams:
    sources = {f"set{number}": data_set(f"set{number}", size) for number, size in enumerate(sizes)}
    stream = Stream(sources=sources, **{"rows_per_step": 8, **options})
    return Streams(streams={"embedding": stream}, data_seed=data_seed)


def queries(batches: Batches, step: int) -> list[str]:
    return [row.query for row in batches.batch(step)]


@pytest.mark.parametrize("homogeneous", [0.0, 0.5, 1.0])
def test_each_row_is_seen_exactly_once_an_epoch(homogeneous: float) -> None:
    batches = streams(homogeneous=homogeneous).load()
    for epoch in range(3):
        seen = Counter(query for step in range(9 * epoch, 9 * epoch + 9) for query in queries(batches, step))
        assert len(seen) == 72 and set(seen.values()) == {1}


def test_every_epoch_has_an_order_of_its_own() -> None:
    batches = streams().load()
    assert queries(batches, 0) != queries(batches, 9)


@pytest.mark.parametrize("homogeneous", [0.0, 0.3, 1.0])
def test_short_batches_keep_every_row_and_dropped_ones_lose_only_an_incomplete_rest(homogeneous: float) -> None:
    options: dict[str, Any] = {"sizes": (41, 23, 7), "homogeneous": homogeneous}
    short = streams(incomplete="short", **options).load()
    steps = short.streams["embedding"].batches_per_epoch
    seen = [query for step in range(steps) for query in queries(short, step)]
    assert len(seen) == len(set(seen)) == 71
    dropped = streams(incomplete="drop", **options).load()
    steps = dropped.streams["embedding"].batches_per_epoch
    assert {len(queries(dropped, step)) for step in range(steps)} == {8}
    assert steps == (7 if homogeneous == 1 else 8)  # 5 + 2 + 0 batches of one data set, or 71 // 8


@pytest.mark.parametrize(
    ("homogeneous", "alone"), [(0.0, [0, 0, 0]), (0.25, [1, 1, 0]), (0.5, [3, 1, 0]), (1.0, [5, 3, 1])]
)
def test_the_asked_share_of_batches_is_of_one_data_set_in_proportion_to_its_size(
    homogeneous: float, alone: list[int]
) -> None:
    assert BatchCut(rows=8, homogeneous=homogeneous, incomplete="drop").homogeneous_counts([40, 24, 8]) == alone
    batches = streams(homogeneous=homogeneous).load()
    found = [{row.source for row in batches.batch(step)} for step in range(9)]
    assert sum(len(names) == 1 for names in found) >= sum(alone)
    assert any(len(names) > 1 for names in found) == (homogeneous < 1)


@pytest.mark.parametrize("incomplete", ["drop", "short"])
@pytest.mark.parametrize("homogeneous", [0.0, 0.2, 0.7, 1.0])
def test_the_length_of_an_epoch_is_known_without_laying_it_out(homogeneous: float, incomplete: str) -> None:
    for seed in range(20):
        sizes = (keyed_permutation(30, seed)[:4]).tolist()
        cut = BatchCut(rows=7, homogeneous=homogeneous, incomplete=incomplete)
        groups = [keyed_permutation(size, seed, number) for number, size in enumerate(sizes)]
        assert len(cut.epoch_batches(groups, seed)) == cut.batches_per_epoch(sizes)


def test_batches_do_not_depend_on_what_was_asked_before() -> None:
    asked = streams(homogeneous=0.5).load()
    backwards = [queries(asked, step) for step in reversed(range(40))][::-1]
    repeated = [queries(asked, step) for step in (3, 3, 31, 3)]
    fresh = [queries(streams(homogeneous=0.5).load(), step) for step in range(40)]
    assert backwards == fresh
    assert repeated == [fresh[3], fresh[3], fresh[31], fresh[3]]


def test_a_fresh_process_sees_the_same_rows_at_the_same_step() -> None:
    program = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from test_streams import queries, streams\n"
        "batches = streams(homogeneous=0.5).load(); print(json.dumps([queries(batches, step) for step in (57, 2)]))"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    batches = streams(homogeneous=0.5).load()
    assert found == [queries(batches, 57), queries(batches, 2)]


def test_the_order_is_pinned_so_that_no_library_changes_it() -> None:
    assert keyed_permutation(8, 0, "embedding", 0).tolist() == [2, 4, 7, 5, 0, 6, 1, 3]


def test_the_data_seed_decides_the_order() -> None:
    one, other = streams(data_seed=0).load(), streams(data_seed=1).load()
    assert queries(one, 0) != queries(other, 0)
    assert sorted(q for s in range(9) for q in queries(one, s)) == sorted(
        q for s in range(9) for q in queries(other, s)
    )


def test_streams_have_rows_epochs_and_orders_of_their_own() -> None:
    def stream(rows_per_step: int) -> Stream:
        return Stream(sources={"a": data_set("a", 30)}, rows_per_step=rows_per_step)

    together = Streams(streams={"x": stream(6), "y": stream(6), "z": stream(2)}, data_seed=0).load()
    rows = together.rows_by_stream(4)
    assert {name: len(found) for name, found in rows.items()} == {"x": 6, "y": 6, "z": 2}
    assert together.batch(4) == rows["x"] + rows["y"] + rows["z"]
    assert rows["x"] != rows["y"]
    assert {name: counters["epoch"] for name, counters in together.counters(5).items()} == {"x": 1, "y": 1, "z": 1 / 3}
    assert Streams(streams={"x": stream(6)}, data_seed=0).load().batch(4) == rows["x"]


def test_a_share_of_a_data_set_is_fixed_and_lies_within_a_larger_share() -> None:
    seen = {}
    for share in (0.1, 0.5):
        batches = streams(sizes=(40, 20), shares={"set0": share}, rows_per_step=4).load()
        epochs = [{query for step in range(6 * n, 6 * n + 6) for query in queries(batches, step)} for n in range(2)]
        layout = batches.streams["embedding"]
        seen[share] = {f"set0 {number}" for number in layout.groups["set0"]}
        assert len(layout.groups["set0"]) == round(40 * share) and len(layout.groups["set1"]) == 20
        if share == 0.1:
            assert epochs[0] == epochs[1] == seen[share] | {f"set1 {number}" for number in range(20)}
    assert seen[0.1] < seen[0.5]


def test_rows_that_say_the_same_are_used_once_where_asked() -> None:
    rows = [
        TrainingRow(query="What  is it?", positive="p"),
        TrainingRow(query="what is IT?", positive="p"),
        TrainingRow(query="q", positive="p"),
    ]
    sources = {"a": Given(examples=rows, name="a"), "b": Given(examples=rows[:1], name="b")}
    unique = Streams(streams={"s": Stream(sources=sources, rows_per_step=2, unique=True)}, data_seed=0).load()
    assert sorted(row.query for row in unique.batch(0)) == ["What  is it?", "q"]
    assert unique.counters(0)["s"]["duplicates_dropped"] == 2
    every = Streams(streams={"s": Stream(sources=sources, rows_per_step=4)}, data_seed=0).load()
    assert len(every.batch(0)) == 4


def test_counters_are_what_counting_gives() -> None:
    batches = streams(sizes=(41, 23, 7), homogeneous=1.0, incomplete="short", shares={"set1": 0.5}).load()
    for steps in (0, 1, 5, 10, 23):
        seen = sum(len(batches.batch(step)) for step in range(steps))
        counters = batches.counters(steps)["embedding"]
        assert counters["rows_seen"] == seen
        assert counters["rows"] == 41 + 12 + 7 and counters["outside_share"] == 11
        assert counters["epoch"] == pytest.approx(steps / batches.streams["embedding"].batches_per_epoch)
        assert counters["dropped_an_epoch"] == 0


def test_ids_name_the_rows_of_a_batch() -> None:
    batches = streams().load()
    for name, query in zip(batches.row_ids(11), queries(batches, 11), strict=True):
        assert name == "embedding/{}[{}]".format(*query.split())


def test_the_corpus_fingerprint_follows_rows_and_the_fingerprint_is_known_before() -> None:
    two, three = (streams(sizes=(size,), rows_per_step=1) for size in (2, 3))
    assert two.fingerprint() == streams(sizes=(2,), rows_per_step=1).fingerprint() != three.fingerprint()
    assert two.load().corpus_fingerprints()["embedding/set0"] != three.load().corpus_fingerprints()["embedding/set0"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows_per_step": 0}, "rows_per_step=0"),
        ({"homogeneous": 1.5}, "homogeneous=1.5"),
        ({"incomplete": "pad"}, "incomplete=pad is not one of drop, short"),
        ({"shares": {"set0": 0.0}}, "above 0"),
        ({"shares": {"other": 0.5}}, "shares names 'other', but stream 'embedding' holds set0, set1, set2"),
        ({"rows_per_step": 100}, "has 72 rows in 3 data sets, too few for one batch of rows_per_step=100"),
        ({"rows_per_step": 50, "homogeneous": 1.0}, "too few for one batch"),
    ],
)
def test_a_stream_that_cannot_work_is_refused_with_the_way_out(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        streams(**options).load()


def test_two_data_sets_of_one_name_are_refused() -> None:
    sources = {"a": data_set("same", 4), "b": data_set("same", 4)}
    with pytest.raises(ValueError, match="two data sets named 'same': set name in 'b'"):
        Streams(streams={"s": Stream(sources=sources, rows_per_step=1)}, data_seed=0).load()


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({"query": "q"}, "field 'positive' is missing, and so is 'answer'"),
        ({"query": "", "positive": "p"}, "field 'query' is empty"),
        ({"query": "q", "answer": "a", "negatives": ["n"]}, "field 'negatives' is given without a positive"),
        ({"query": "q", "pos": "p"}, "field 'pos' is no field of a row"),
    ],
)
def test_given_rows_are_checked_like_all_others(example: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"tiny, row 1: {message}"):
        Given(examples=[{"text": "fine"}, example], name="tiny").rows()


def test_given_rows_come_from_mappings_as_a_configuration_has_them() -> None:
    example = {"query": "q", "positive": "p", "negatives": ["n"], "history": [["system", "s"]]}
    (row,) = Given(examples=[example], name="tiny").rows()
    assert row == TrainingRow(query="q", positive="p", negatives=("n",), history=(("system", "s"),), source="tiny")


@pytest.mark.usefixtures("own_cache")
def test_counters_tell_what_a_source_left_out(tmp_path: Path) -> None:
    records = [{"query": "q", "pos": ["p1", "p2"]}, {"query": "", "pos": ["p"]}, {"query": "r", "pos": ["p"]}]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    source = Files(path=str(tmp_path / "data.jsonl"), on_bad="skip")
    counters = (
        Streams(streams={"s": Stream(sources={"a": source}, rows_per_step=1)}, data_seed=0).load().counters(1)["s"]
    )
    assert (counters["rows"], counters["skipped"], counters["further positives dropped"]) == (2, 1, 1)
