"""Checks that a row can be trained on, and refuses or skips the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from unified_lm.data.rows import TrainingRow

ON_BAD = ("refuse", "skip")
EXAMPLES_SHOWN = 3  # of skipped rows, in the log

log = logging.getLogger(__name__)


class BadRow(ValueError):
    """A row that cannot be used, and the field at fault; the caller adds file and line."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"field {field!r} {reason}")


def checked_text(field: str, value: object) -> str:
    """Return `value` if it is a text that is not empty. Raises `BadRow` otherwise."""
    if value is None:
        raise BadRow(field, "is missing")
    if not isinstance(value, str):
        raise BadRow(field, f"is of type {type(value).__name__}, not text")
    if not value.strip():
        raise BadRow(field, "is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRow(field, "holds half a surrogate pair, which no tokenizer reads") from error
    return value


def check_row(row: TrainingRow) -> TrainingRow:
    """Return the row if it has the fields that one of the losses needs. Raises `BadRow` otherwise."""
    if row.text is not None:
        checked_text("text", row.text)
        return row
    checked_text("query", row.query)
    if row.positive is None and row.answer is None:
        raise BadRow("positive", "is missing, and so is 'answer': a query alone trains nothing")
    if row.positive is None and row.negatives:
        raise BadRow("negatives", "is given without a positive")
    if row.answer is None and row.negative_dialogues:
        raise BadRow("negative_dialogues", "is given without an answer")
    parts = [("instruction", row.instruction or None), ("positive", row.positive), ("answer", row.answer)]
    parts += [(f"negatives[{number}]", negative) for number, negative in enumerate(row.negatives)]
    parts += [(f"history[{number}]", content) for number, (_, content) in enumerate(row.history)]
    parts += [
        (f"negative_dialogues[{number}]", text) for number, pair in enumerate(row.negative_dialogues) for text in pair
    ]
    for field, value in parts:
        if value is not None:
            checked_text(field, value)
    return row


def accept_rows(
    records: Iterable[tuple[str, Any]],
    read: Callable[[Any], Iterable[TrainingRow]],
    on_bad: str,
    notes: dict[str, int],
) -> Iterator[TrainingRow]:
    """Yield the rows of (location, record) pairs. A bad record raises `ValueError`; with on_bad="skip" it is left out.

    A record may itself be the `BadRow` of the code that read it. `notes["skipped"]` counts the records left out.
    """
    skipped = []
    for location, record in records:
        try:
            if isinstance(record, BadRow):
                raise record
            rows = [check_row(row) for row in read(record)]
        except BadRow as error:
            if on_bad == "refuse":
                raise ValueError(
                    f"{location}: {error}; correct the data, or skip and count such rows with on_bad=skip"
                ) from error
            notes["skipped"] = notes.get("skipped", 0) + 1
            if len(skipped) < EXAMPLES_SHOWN:
                skipped.append(f"{location}: {error}")
            continue
        yield from rows
    if skipped:
        log.warning("left out %d bad rows, such as %s", notes["skipped"], "; ".join(skipped))
