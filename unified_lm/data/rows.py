"""One training example of any kind: each loss uses the rows that have the fields it needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRow:
    """A pair has `query` and `positive`, a dialogue `query` and `answer`, a triple all three, plain text `text`."""

    query: str = ""  # the last user turn, or the retrieval query
    instruction: str = ""  # what the query is for; on the query side only
    positive: str | None = None  # a relevant document
    negatives: tuple[str, ...] = ()  # documents that are not relevant
    answer: str | None = None  # the answer to generate
    text: str | None = None  # plain text, for next-token and masked-token losses
    history: tuple[tuple[str, str], ...] = ()  # earlier turns, a system turn included: (role, content)
    source: str = ""  # name of the data set; batches may be homogeneous by it
    negative_dialogues: tuple[
        tuple[str, str], ...
    ] = ()  # other (question, answer) pairs: hard negatives of the dialogue
