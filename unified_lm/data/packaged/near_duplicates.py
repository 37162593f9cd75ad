"""Near-duplicates of two text collections, by the share of word n-grams in common (Broder, 1997)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WORDS_A_SHINGLE = 4
NEAR = 0.5  # Jaccard similarity from which two texts count as near-duplicates


@dataclass(frozen=True, kw_only=True, slots=True)
class NearDuplicate:
    """Texts of two collections, by position, and the Jaccard similarity of their shingles."""

    scored: int
    training: int
    similarity: float


def word_shingles(text: str) -> frozenset[tuple[str, ...]]:
    """All runs of four words, case and punctuation left out; a shorter text is one shingle, an empty one has none."""
    words = re.findall(r"\w+", text.lower())
    if len(words) <= WORDS_A_SHINGLE:
        return frozenset({tuple(words)} if words else ())
    return frozenset(zip(*(words[start:] for start in range(WORDS_A_SHINGLE)), strict=False))


def find_near_duplicates(scored: Sequence[str], training: Iterable[str]) -> list[NearDuplicate]:
    """Every pair of a scored and a training text whose Jaccard similarity is 0.5 or more.

    Exact: an inverted index of the scored texts' shingles counts what each training text shares with them, so the time
    grows with the number of shared shingles, not with the number of pairs.
    """
    sizes: list[int] = []
    holders: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, text in enumerate(scored):
        found = word_shingles(text)
        sizes.append(len(found))
        for shingle in found:
            holders[shingle].append(number)
    pairs = []
    for number, text in enumerate(training):
        found = word_shingles(text)
        shared = Counter(holder for shingle in found if shingle in holders for holder in holders[shingle])
        for holder, count in shared.items():
            similarity = count / (sizes[holder] + len(found) - count)
            if similarity >= NEAR:
                pairs.append(NearDuplicate(scored=holder, training=number, similarity=similarity))
    return sorted(pairs, key=lambda pair: (pair.scored, pair.training))
