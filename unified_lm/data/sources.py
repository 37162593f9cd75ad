"""The protocol of a source of rows, and rows that a configuration or program lists itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from unified_lm.data.arrow_store import Rows, corpus_fingerprint, rows_in_memory
from unified_lm.data.rows import TrainingRow
from unified_lm.data.validity import BadRow, check_row


@runtime_checkable
class Source(Protocol):
    """One data set, or several of one origin: `TrainingRow.source` tells them apart."""

    @property
    def name(self) -> str: ...

    def fingerprint(self) -> str:
        """Identifies the rows without reading them: equal fingerprints mean equal rows."""
        ...

    def rows(self) -> Rows:
        """All rows in a stable order; cached."""
        ...


@dataclass(frozen=True, kw_only=True)
class Given:
    """Rows listed where they are used: in a configuration as mappings of `TrainingRow`'s fields, or in a program."""

    examples: Sequence[TrainingRow | Mapping[str, Any]]
    name: str

    def fingerprint(self) -> str:
        return f"given-{corpus_fingerprint(self._checked_rows)}"

    def rows(self) -> Rows:
        return self._rows

    @cached_property
    def _checked_rows(self) -> list[TrainingRow]:
        found = []
        for number, example in enumerate(self.examples):
            try:
                found.append(replace(check_row(_row_from_mapping(example)), source=self.name))
            except BadRow as error:
                raise ValueError(f"{self.name}, row {number}: {error}") from error
        return found

    @cached_property
    def _rows(self) -> Rows:
        return rows_in_memory(self._checked_rows)


def _row_from_mapping(example: TrainingRow | Mapping[str, Any]) -> TrainingRow:
    if isinstance(example, TrainingRow):
        return example
    unknown = sorted(set(example) - set(TrainingRow.__dataclass_fields__))
    if unknown:
        raise BadRow(unknown[0], f"is no field of a row; the fields are {', '.join(TrainingRow.__dataclass_fields__)}")
    tuples = {
        "negatives": tuple(example.get("negatives", ())),
        "history": tuple((role, content) for role, content in example.get("history", ())),
        "negative_dialogues": tuple((query, answer) for query, answer in example.get("negative_dialogues", ())),
    }
    return TrainingRow(**{**example, **tuples})
