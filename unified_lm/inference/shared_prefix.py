"""First tokens that many sequences have in common (a template, an instruction): their keys and values are made once.

What is common is found among the tokens themselves, so it is exact whatever the tokenizer merges at the edge.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from unified_lm.packing import Sequence
from unified_lm.readout import Readout

MIN_PREFIX_TOKENS = 8
"""Common tokens that are worth a layout of their own at least."""

MIN_SAVED_SHARE = 0.25
"""Share of all tokens that must be saved. On a CPU, attention behind a common beginning computes the masked half of its
scores too, which long texts with a short instruction would pay for without a gain."""


def common_prefix_length(sequences: Many[Sequence], readout: Readout) -> int:
    """How many first tokens are the same in all sequences and are not read; 0 where one looks ahead, or is alone."""
    if len(sequences) < 2 or any(sequence.mode != "causal" for sequence in sequences):
        return 0
    rows = [sequence.tokens for sequence in sequences]
    first, last = min(rows), max(rows)  # what these two have in common, all between them have
    same = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return min(same, *(readout.token_range(sequence)[0] for sequence in sequences))


def shared_prefix_length(sequences: Many[Sequence], readout: Readout) -> int:
    """How many first tokens to compute once for all these sequences; 0 where that saves too little."""
    count = common_prefix_length(sequences, readout)
    saved = count * (len(sequences) - 1)
    return count if count >= MIN_PREFIX_TOKENS and saved >= MIN_SAVED_SHARE * sum(map(len, sequences)) else 0
