"""The rows of a source: checked once, written once as an Arrow file, then read by memory map.

All processes of a machine share one copy, a restart costs nothing, and a data set may be larger than memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, overload
from weakref import WeakValueDictionary

import numpy as np
from tqdm import tqdm

from unified_lm.data.rows import TrainingRow
from unified_lm.files import cache_dir, create_once, strings_digest, write_atomically

ROWS_A_BLOCK = 10_000
FORMAT = "3"  # of the files written here; part of their names


class Rows(Sequence[TrainingRow]):
    """A sequence of rows in a stable order; `notes` counts what was left out when they were read."""

    def __init__(self, table: Any, notes: dict[str, int], corpus_fingerprint: str) -> None:
        """`table`: a pyarrow.Table with a column for each field of `TrainingRow`, and the column "key"."""
        self._table = table
        self.notes = notes
        self.corpus_fingerprint = corpus_fingerprint  # digest of the rows themselves, whatever made them

    def __len__(self) -> int:
        return self._table.num_rows

    @overload
    def __getitem__(self, index: int) -> TrainingRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[TrainingRow]: ...
    def __getitem__(self, index: int | slice) -> TrainingRow | list[TrainingRow]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        (values,) = self._table.slice(index % len(self), 1).to_pylist()
        return _row_from_record(values)

    def __iter__(self) -> Iterator[TrainingRow]:
        for block in self._table.to_batches(max_chunksize=1000):
            yield from map(_row_from_record, block.to_pylist())

    @property
    def source_names(self) -> list[str]:
        """The data set's name of each row."""
        return self._table.column("source").to_pylist()

    @property
    def row_keys(self) -> np.ndarray:
        """`row_key` of each row, as uint64."""
        return self._table.column("key").to_numpy()


def _row_from_record(values: dict[str, Any]) -> TrainingRow:
    del values["key"]
    history = tuple((turn["role"], turn["content"]) for turn in values.pop("history"))
    dialogues = tuple((pair["query"], pair["answer"]) for pair in values.pop("negative_dialogues"))
    return TrainingRow(
        **{**values, "negatives": tuple(values["negatives"])}, history=history, negative_dialogues=dialogues
    )


def row_key(row: TrainingRow) -> int:
    """64-bit hash of a row's texts, without case and spaces; instruction, negatives and source do not count."""
    texts = [*(content for _, content in row.history), row.query, row.positive, row.answer, row.text]
    normal = json.dumps([text and " ".join(text.casefold().split()) for text in texts])
    return int.from_bytes(hashlib.blake2b(normal.encode(), digest_size=8).digest(), "big")


def corpus_fingerprint(rows: Iterable[TrainingRow]) -> str:
    """Digest of the rows in their order; unlike a source's `fingerprint`, it reads all of them."""
    seen = hashlib.sha256()
    for row in rows:
        seen.update(_json_line(row))
    return seen.hexdigest()[:16]


def _json_line(row: TrainingRow) -> bytes:
    return json.dumps(astuple(row)).encode() + b"\n"


def _arrow_schema() -> Any:
    import pyarrow as pa  # here, so that composing a configuration that names a source stays fast

    text = pa.large_string()
    turn, dialogue = (pa.struct([(name, text) for name in pair]) for pair in (("role", "content"), ("query", "answer")))
    types = {"negatives": pa.list_(text), "history": pa.list_(turn), "negative_dialogues": pa.list_(dialogue)}
    return pa.schema(
        [*((field.name, types.get(field.name, text)) for field in fields(TrainingRow)), ("key", pa.uint64())]
    )


def _record_batches(rows: Iterable[TrainingRow], seen: Any) -> Iterator[Any]:
    """Arrow record batches of rows; the hash `seen` is updated with every row."""
    import pyarrow as pa

    schema = _arrow_schema()
    block: list[dict[str, Any]] = []
    for row in rows:
        seen.update(_json_line(row))
        values = {field.name: getattr(row, field.name) for field in fields(TrainingRow)}
        history = [{"role": role, "content": content} for role, content in row.history]
        dialogues = [{"query": query, "answer": answer} for query, answer in row.negative_dialogues]
        block.append({**values, "history": history, "negative_dialogues": dialogues, "key": row_key(row)})
        if len(block) == ROWS_A_BLOCK:
            yield pa.RecordBatch.from_pylist(block, schema=schema)
            block = []
    if block:
        yield pa.RecordBatch.from_pylist(block, schema=schema)


def rows_in_memory(rows: Iterable[TrainingRow], notes: dict[str, int] | None = None) -> Rows:
    """Rows without a file, for a few rows or rows that are quickly made."""
    import pyarrow as pa

    seen = hashlib.sha256()
    table = pa.Table.from_batches(list(_record_batches(rows, seen)), schema=_arrow_schema())
    return Rows(table, notes or {}, seen.hexdigest()[:16])


def stored_rows(fingerprint: str, make: Callable[[dict[str, int]], Iterable[TrainingRow]]) -> Rows:
    """The rows with this fingerprint, made and written by the first process that asks for them.

    `make` receives an empty dictionary, in which it may count the rows that it leaves out.
    """
    path = cache_dir() / "rows" / f"{strings_digest(FORMAT, fingerprint)}.arrow"
    about = path.with_suffix(".json")

    def write(partial: Path) -> None:
        import pyarrow as pa

        notes: dict[str, int] = {}
        seen = hashlib.sha256()
        with pa.ipc.new_file(partial, _arrow_schema()) as file:
            progress = tqdm(make(notes), desc=f"reading {fingerprint.partition('#')[0]}", unit=" rows", delay=2)
            for block in _record_batches(iter(progress), seen):
                file.write_batch(block)
        known = {"fingerprint": fingerprint, "notes": notes, "corpus": seen.hexdigest()[:16]}
        with write_atomically(about) as partial_about:  # first, so that rows are never there without it
            partial_about.write_text(json.dumps(known))

    create_once(path, write)
    key = str(path)
    if (found := _OPEN.get(key)) is None:
        import pyarrow as pa

        known = json.loads(about.read_text())
        table = pa.ipc.open_file(pa.memory_map(key)).read_all()
        found = _OPEN[key] = Rows(table, known["notes"], known["corpus"])
    return found


_OPEN: WeakValueDictionary[str, Rows] = WeakValueDictionary()
