"""Shared prefix: first tokens of all sequences (template, instruction), whose keys and values are computed once.

The prefix is found by comparing tokens, so it is exact whatever the tokenizer merges at its end.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from unified_lm.packing import Sequence
from unified_lm.readout import Readout

MIN_PREFIX_TOKENS = 8
"""Shortest prefix that is worth sharing, in tokens."""

MIN_SAVED_SHARE = 0.25
"""Smallest share of all tokens that must be saved. On a CPU, attention behind a shared prefix also computes the masked
half of its scores, which costs long texts with a short instruction more than they gain."""


def common_prefix_length(sequences: Many[Sequence], readout: Readout) -> int:
    """Count the first tokens that all sequences share and no read-out pools; 0 for one sequence or non-causal ones."""
    if len(sequences) < 2 or any(sequence.mode != "causal" for sequence in sequences):
        return 0
    rows = [sequence.tokens for sequence in sequences]
    first, last = min(rows), max(rows)  # what these two have in common, all between them have
    same = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return min(same, *(readout.token_range(sequence)[0] for sequence in sequences))


def shared_prefix_length(sequences: Many[Sequence], readout: Readout) -> int:
    """Return the length of the prefix to compute once for all sequences; 0 where that saves too little."""
    count = common_prefix_length(sequences, readout)
    saved = count * (len(sequences) - 1)
    return count if count >= MIN_PREFIX_TOKENS and saved >= MIN_SAVED_SHARE * sum(map(len, sequences)) else 0
