from __future__ import annotations

import random

import pytest

from unified_lm.data.packaged.near_duplicates import find_near_duplicates, word_shingles


def test_similarity_counts_shared_runs_of_four_words() -> None:
    (pair,) = find_near_duplicates(["a b c d e f"], ["A, b c d e -- x"])  # abcd, bcde | cdef against abcd, bcde | cdex
    assert pair.similarity == pytest.approx(2 / 4)
    assert find_near_duplicates(["a b c d e f"], ["a b c d x y"]) == []


def test_short_texts_are_near_only_when_their_words_are_the_same() -> None:
    assert [pair.training for pair in find_near_duplicates(["one two"], ["One two!", "one two three", "two one"])] == [
        0
    ]


def test_empty_texts_are_near_to_nothing() -> None:
    assert find_near_duplicates(["", "..."], ["", "..."]) == []


def test_the_index_finds_what_comparing_all_pairs_finds() -> None:
    words = random.Random(0).choices("abc", k=2000)
    texts = [" ".join(words[start : start + 5 + start % 7]) for start in range(0, 1900, 13)]
    scored, training = texts[:70], texts[70:]
    slow = []
    for number, text in enumerate(scored):
        for other, candidate in enumerate(training):
            one, two = word_shingles(text), word_shingles(candidate)
            if len(one & two) / len(one | two) >= 0.5:
                slow.append((number, other))
    assert slow and [(pair.scored, pair.training) for pair in find_near_duplicates(scored, training)] == slow
