"""Scores on disk answer for one identity and for nothing else."""

import json
from pathlib import Path

import pytest

from evals.score import Score
from evals.score_store import ScoreStore
from tests.evals.test_score import FIELDS

IDENTITY = {"model": {"weights": "a"}, "task": "t", "revision": "r"}
SCORES = [Score(**FIELDS)]


@pytest.fixture
def store(tmp_path: Path) -> ScoreStore:
    return ScoreStore(folder=tmp_path, suite="s")


def test_stored_scores_come_back_for_the_same_identity_only(store: ScoreStore) -> None:
    store.save("t", IDENTITY, SCORES)
    assert store.load("t", dict(reversed(IDENTITY.items()))) == SCORES
    assert store.load("t", {**IDENTITY, "model": {"weights": "b"}}) is None


def test_scores_are_computed_once(store: ScoreStore) -> None:
    calls = []
    for _ in range(2):
        assert store.load_or_compute("t", IDENTITY, lambda: calls.append(1) or SCORES) == SCORES
    assert calls == [1]


def test_a_file_of_another_identity_is_neither_reused_nor_overwritten(store: ScoreStore) -> None:
    store.save("t", IDENTITY, SCORES)
    path = store.path("t", IDENTITY)
    foreign = path.read_text().replace('"weights": "a"', '"weights": "z"')
    path.write_text(foreign)
    for use in (lambda: store.load("t", IDENTITY), lambda: store.save("t", IDENTITY, SCORES)):
        with pytest.raises(ValueError, match="another identity"):
            use()
    assert path.read_text() == foreign


DAMAGED = ("", '{"identity": {}', '{"identity": {}}', '{"identity": {}, "skipped": "", "scores": [{}]}')


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_file_is_named_with_the_way_out(store: ScoreStore, content: str) -> None:
    store.save("t", IDENTITY, SCORES)
    path = store.path("t", IDENTITY)
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"{path.name} holds no scores.*delete it"):
        store.load("t", IDENTITY)


def test_a_skipped_task_has_a_reason_and_is_tried_again(store: ScoreStore) -> None:
    store.save_skipped("t", IDENTITY, "needs vectors")
    assert store.skipped_tasks() == {"t": "needs vectors"} and store.load("t", IDENTITY) is None
    store.save("t", IDENTITY, SCORES)
    assert store.skipped_tasks() == {} and store.load("t", IDENTITY) == SCORES


def test_a_result_file_says_what_it_is_about(store: ScoreStore) -> None:
    store.save("a/b: c", IDENTITY, SCORES)
    record = json.loads(store.path("a/b: c", IDENTITY).read_text())
    assert record["identity"] == IDENTITY and record["task"] == "a/b: c" and len(record["key"]) == 64
    assert list(store.folder.rglob(".*")) == []
