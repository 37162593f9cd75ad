"""Answers and vectors that a model makes of data: resumable, and never mixed with those of other texts."""

import numpy as np
import pytest

from unified_lm.data.files import Files
from unified_lm.data.model_made import write_own_answers, write_teacher_vectors
from unified_lm.data.rows import TrainingRow
from unified_lm.files import text_hash

TEXTS = [f"text number {i}" for i in range(25)]


def lengths(texts: list[str]) -> np.ndarray:
    return np.array([[len(text), int(text.split()[-1]), 0.5] for text in texts], dtype=np.float32)


class Stopped(RuntimeError):
    """A step that was killed."""


def failing(function, after: int):
    calls = []

    def run(given):
        calls.append(given)
        if len(calls) > after:
            raise Stopped
        return function(given)

    return run, calls


def test_each_text_has_its_vector_whatever_the_size_of_a_part(tmp_path):
    for size in (3, 1000):
        store = write_teacher_vectors(tmp_path / str(size), [*TEXTS, TEXTS[0]], lengths, size=size)
        found = store.lookup([text_hash(text) for text in TEXTS[::-1]])
        np.testing.assert_array_equal(found, lengths(TEXTS[::-1]))


def test_vectors_of_a_stopped_step_are_not_made_again(tmp_path):
    stopping, before = failing(lengths, 3)
    with pytest.raises(Stopped):
        write_teacher_vectors(tmp_path, TEXTS, stopping, size=5)
    going, after = failing(lengths, 99)
    store = write_teacher_vectors(tmp_path, TEXTS, going, size=5)
    assert len(before) == 4 and after == [TEXTS[15:20], TEXTS[20:]]
    assert store.lookup([text_hash(TEXTS[24])])[0, 1] == 24


def test_vectors_of_other_texts_and_missing_ones_are_refused(tmp_path):
    store = write_teacher_vectors(tmp_path / "a", TEXTS, lengths)
    with pytest.raises(ValueError, match="made from other texts"):
        write_teacher_vectors(tmp_path / "a", TEXTS[:3], lengths)
    with pytest.raises(ValueError, match="lacks the vectors of 1 of 2 texts"):
        store.lookup([text_hash(TEXTS[0]), 7])
    assert store.fingerprint() == write_teacher_vectors(tmp_path / "b", TEXTS, lengths).fingerprint()
    assert store.fingerprint() != write_teacher_vectors(tmp_path / "c", TEXTS[:3], lengths).fingerprint()


def test_answers_of_a_stopped_step_are_kept_and_the_file_is_read_as_dialogues(tmp_path):
    rows = [
        TrainingRow(query=f"question {i}", answer="old", history=(("system", "be brief"),) * (i % 2)) for i in range(7)
    ]

    def answer(given):
        return ["" if row.query.endswith("3") else f"new {row.query}" for row in given]

    stopping, _ = failing(answer, 1)
    with pytest.raises(Stopped):
        write_own_answers(tmp_path, rows, stopping, size=3)
    assert not (tmp_path / "rows.jsonl").exists()
    going, after = failing(answer, 99)
    path = write_own_answers(tmp_path, rows, going, size=3)
    assert [len(given) for given in after] == [3, 1]
    read = list(Files(path=str(path)).rows())
    assert [row.answer for row in read] == [f"new question {i}" for i in (0, 1, 2, 4, 5, 6)]
    assert read[1].history == (("system", "be brief"),)
