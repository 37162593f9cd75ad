"""Base of files and hub data sets: turns records of some shape into rows."""

from __future__ import annotations

import itertools
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unified_lm.data.arrow_store import Rows, stored_rows
from unified_lm.data.record_formats import SHAPES, Record, columns_reader, detect_shape, turns_to_rows
from unified_lm.data.rows import TrainingRow
from unified_lm.data.validity import ON_BAD, BadRow, accept_rows
from unified_lm.files import strings_digest

READER = "2"  # part of every fingerprint: raise it whenever other rows come out of the same records

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Records(ABC):
    """A source that reads records of one shape. Subclasses say where the records are and what identifies them."""

    shape: str = "auto"  # or a name in record_formats.SHAPES; auto: the shape of the first record, for all records
    columns: Mapping[str, str] | None = None  # field of the row -> column to read it from; replaces `shape`
    # Replaces the record's own; several take turns by row (LLM2Vec's E5 data); a mapping has them by data set.
    instruction: str | Sequence[str] | Mapping[str, str | Sequence[str]] = ""
    positives: str = "first"  # of several positives; "each" makes a row of each
    negatives: int | None = None  # at most so many a row, the first ones; None keeps all
    all_negatives: bool = False  # a row with fewer than `negatives` is a bad one
    document_instructions: str = "drop"  # what [instruction, text] documents bring; "prepend" puts it before the text
    turns: str = "last"  # of a conversation's answers; "each" makes a row of each
    join: int | None = None  # texts are joined by line breaks until they have so many characters
    longest_answer: int | None = None  # characters; rows with a longer one are left out and counted
    every: int = 1  # keep every n-th record of a data set,
    limit: int | None = None  # then the first n rows of it
    on_bad: str = "refuse"  # or "skip", and count
    name: str = ""

    def __post_init__(self) -> None:
        self._check_choice("positives", ("first", "each"))
        self._check_choice("turns", ("last", "each"))
        self._check_choice("document_instructions", ("drop", "prepend"))
        self._check_choice("on_bad", ON_BAD)
        self._check_choice("shape", ("auto", *SHAPES))
        if self.columns is not None:
            if self.shape != "auto":
                raise ValueError(
                    f"shape={self.shape} and columns={dict(self.columns)} both say how to read: leave one out"
                )
            columns_reader(self.columns)
        counts = {name: getattr(self, name) for name in ("every", "limit", "join", "longest_answer")}
        if any(count is not None and count < 1 for count in counts.values()) or (self.negatives or 0) < 0:
            given = ", ".join(f"{name}={count}" for name, count in counts.items())
            raise ValueError(
                "every, limit, join and longest_answer are at least 1 (or none) and negatives at least 0 (or none); "
                f"got {given}, negatives={self.negatives}"
            )
        if self.all_negatives and not self.negatives:
            raise ValueError(f"all_negatives=true with negatives={self.negatives} asks for none; say how many")

    def _check_choice(self, field: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, field) not in allowed:
            raise ValueError(f"{field}={getattr(self, field)} is not one of {', '.join(allowed)}")

    @abstractmethod
    def records_fingerprint(self) -> str:
        """Identity of the records: the digest of their bytes, or a pinned revision."""

    @abstractmethod
    def data_sets(self) -> Iterable[tuple[str, Iterable[tuple[str, Any]]]]:
        """(name of a data set, its (location, record) pairs); a record that cannot be read is a `BadRow`."""

    def fingerprint(self) -> str:
        return f"{self.records_fingerprint()}#{strings_digest(READER, *self._changed_settings())}"

    def _changed_settings(self) -> list[str]:
        """Settings that differ from the defaults, so that a setting added later changes no fingerprint."""
        values = {name: getattr(self, name) for name, about in Records.__dataclass_fields__.items()
                  if getattr(self, name) != about.default}  # fmt: skip
        return [f"{name}={json.dumps(value, sort_keys=True, default=list)}" for name, value in values.items()]

    def rows(self) -> Rows:
        """The rows, read and checked once a fingerprint. Raises `ValueError` with location and field of a bad one."""
        found = stored_rows(self.fingerprint(), self._read_rows)
        if not found:
            raise ValueError(
                f"{self.name} ({self.records_fingerprint()}) has no usable row: {found.notes or 'there are no records'}"
            )
        return found

    def _read_rows(self, notes: dict[str, int]) -> Iterator[TrainingRow]:
        for name, records in self.data_sets():
            instructions = self._instructions_of(name)
            reader = self._record_reader(name, notes)
            rows = accept_rows(itertools.islice(records, 0, None, self.every), reader, self.on_bad, notes)
            rows = rows if self.join is None else join_texts(rows, self.join)
            rows = rows if self.longest_answer is None else self._drop_long_answers(rows, notes)
            for number, row in enumerate(itertools.islice(rows, self.limit)):
                instruction = instructions[number % len(instructions)] if any(instructions) else row.instruction
                yield replace(row, source=name, instruction=instruction)
        for note, count in notes.items():
            log.info("%s: %s in %d records", self.name or self.records_fingerprint(), note, count)

    def _instructions_of(self, name: str) -> list[str]:
        """The instructions of a data set, which its rows take in turn."""
        chosen = self.instruction
        if isinstance(chosen, Mapping):
            if name not in chosen:
                raise ValueError(f"instruction says nothing for data set {name!r}; it names {', '.join(chosen)}")
            chosen = chosen[name]
        return [chosen] if isinstance(chosen, str) else list(chosen)

    def _drop_long_answers(self, rows: Iterable[TrainingRow], notes: dict[str, int]) -> Iterator[TrainingRow]:
        for row in rows:
            if row.answer is None or len(row.answer) <= self.longest_answer:
                yield row
            else:
                notes["longer answers"] = notes.get("longer answers", 0) + 1

    def _record_reader(self, name: str, notes: dict[str, int]) -> Callable[[Any], list[TrainingRow]]:
        """Reader of the records of one data set; with shape=auto the first record decides its shape."""
        chosen: list[Callable[[Mapping[str, Any]], Record]] = []
        if self.columns is not None:
            chosen.append(columns_reader(self.columns))

        def read(record: Any) -> list[TrainingRow]:
            if not isinstance(record, Mapping):
                raise BadRow("(the record)", f"is of type {type(record).__name__}, not a mapping of fields")
            if not chosen:
                shape = detect_shape(record) if self.shape == "auto" else self.shape
                log.info(
                    "%s: read as shape=%s%s", name, shape, " (by its first record)" if self.shape == "auto" else ""
                )
                chosen.append(SHAPES[shape].read)
            return self._rows_of_record(chosen[0](record), notes)

        return read

    def _rows_of_record(self, record: Record, notes: dict[str, int]) -> list[TrainingRow]:
        """Rows of one record, by the settings `positives`, `negatives`, `turns` and `document_instructions`."""

        def note(what: str) -> None:
            notes[what] = notes.get(what, 0) + 1

        if record.turns is not None:
            return [
                replace(row, negative_dialogues=record.negative_dialogues)
                for row in turns_to_rows(record.field, record.turns, self.turns)
            ]
        if any(instruction for instruction, _ in (*record.positives, *record.negatives)):
            note(f"document instructions: {self.document_instructions}")
        if self.all_negatives and len(record.negatives) < self.negatives:
            raise BadRow("negatives", f"number {len(record.negatives)}, not the {self.negatives} that are asked for")
        row = TrainingRow(
            query=record.query,
            instruction=record.instruction,
            negatives=tuple(self._document_text(negative) for negative in record.negatives[: self.negatives]),
            answer=record.answer,
            text=record.text,
        )
        if not record.positives:
            return [row]
        if len(record.positives) > 1 and self.positives == "first":
            note("further positives dropped")
        positives = record.positives if self.positives == "each" else record.positives[:1]
        return [replace(row, positive=self._document_text(positive)) for positive in positives]

    def _document_text(self, passage: tuple[str, str]) -> str:
        instruction, text = passage
        return f"{instruction} {text}" if instruction and self.document_instructions == "prepend" else text


def join_texts(rows: Iterable[TrainingRow], characters: int) -> Iterator[TrainingRow]:
    """Join neighbouring plain texts by line breaks until each has `characters` characters; the last may be shorter.

    Raises `ValueError` for a row that is no plain text.
    """
    parts: list[str] = []
    for row in rows:
        if row.text is None:
            raise ValueError("join puts plain texts together, and a row has none; leave join out")
        parts.append(row.text)
        if sum(map(len, parts)) + len(parts) - 1 >= characters:
            yield TrainingRow(text="\n".join(parts))
            parts = []
    if parts:
        yield TrainingRow(text="\n".join(parts))
