"""Rows from the user's files: JSON lines, JSON, Parquet and plain text."""

from __future__ import annotations

import glob
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unified_lm.data.records import Records
from unified_lm.data.validity import BadRow
from unified_lm.files import file_digest, strings_digest

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet", ".txt", ".txt.gz")


@dataclass(frozen=True, kw_only=True)
class Files(Records):
    """A file, a folder of files or a pattern such as "data/*.jsonl"; each file is a data set named by its stem.

    Shapes of records: see `record_formats.SHAPES`. In plain text each line that is not blank is a row, or with
    `sample_by=paragraph` each run of such lines. `limit`, `every` and the shape apply to each file.
    """

    path: str
    sample_by: str = "line"  # of .txt files; or "paragraph"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("sample_by", ("line", "paragraph"))
        if not self.name:
            object.__setattr__(self, "name", _file_stem(Path(self.path)))

    def list_files(self) -> list[Path]:
        """The files, in order of name. Raises `ValueError` where there is none, or where two have the same name."""
        path = Path(self.path).expanduser()
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
        else:
            found = [path] if path.is_file() else sorted(Path(match) for match in glob.glob(str(path)))
        if not found:
            raise ValueError(
                f"no data at path={self.path}: a file, a folder or a pattern of {', '.join(SUFFIXES)} files"
            )
        if odd := [file for file in found if not file.name.endswith(SUFFIXES)]:
            raise ValueError(f"{odd[0]} is none of {', '.join(SUFFIXES)}")
        stems = [_file_stem(file) for file in found]
        if twice := [stem for stem in stems if stems.count(stem) > 1]:
            raise ValueError(
                f"path={self.path} holds two files named {twice[0]!r}: a file names its data set, so rename one"
            )
        return found

    def records_fingerprint(self) -> str:
        """Digest of the files' names and bytes; their folder does not matter."""
        files = self.list_files()
        content = (part for file in files for part in (file.name, file_digest(file)))
        return f"files-{strings_digest(self.name, self.sample_by, *content)}"

    def data_sets(self) -> Iterator[tuple[str, Iterable[tuple[str, Any]]]]:
        files = self.list_files()
        for file in files:
            yield (self.name if len(files) == 1 else _file_stem(file)), self._read_records(file)

    def _read_records(self, file: Path) -> Iterator[tuple[str, Any]]:
        try:
            yield from self._read_by_suffix(file)
        except (EOFError, OSError, zlib.error) as error:  # cut short, or not compressed at all
            raise ValueError(f"{file} cannot be read to its end: {error}") from error

    def _read_by_suffix(self, file: Path) -> Iterator[tuple[str, Any]]:
        kind = file.name.removesuffix(".gz").rpartition(".")[2]
        if kind == "parquet":
            return _read_parquet(file)
        if kind == "txt":
            return _read_text(file, self.sample_by)
        return _read_json_lines(file) if kind == "jsonl" else _read_json(file)


def _file_stem(path: Path) -> str:
    name = path.name
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        name = name.removesuffix(suffix)
    return name


def _read_lines(file: Path) -> Iterator[tuple[str, str | BadRow]]:
    """Yield (location, line without its end), decoded line by line so that an error names the line."""
    with gzip.open(file, "rb") if file.name.endswith(".gz") else file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            location = f"{file}, line {number}"
            try:
                yield location, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                yield location, BadRow("(the line)", f"is not UTF-8 (byte {error.start})")


def _read_json_lines(file: Path) -> Iterator[tuple[str, Any]]:
    blank: list[tuple[str, Any]] = []  # reported only if a row follows: files may end in blank lines
    for location, line in _read_lines(file):
        if isinstance(line, str) and not line.strip():
            blank.append((location, BadRow("(the line)", "is empty")))
            continue
        yield from blank
        blank.clear()
        if isinstance(line, BadRow):
            yield location, line
            continue
        try:
            yield location, json.loads(line)
        except json.JSONDecodeError as error:
            yield location, BadRow("(the line)", f"is not JSON: {error.msg} at character {error.pos + 1}")
        except RecursionError:
            yield location, BadRow("(the line)", "is nested too deeply")


def _read_json(file: Path) -> Iterator[tuple[str, Any]]:
    """Read one JSON array of records, or JSON lines in a file that is named .json."""
    with gzip.open(file, "rb") if file.name.endswith(".gz") else file.open("rb") as content:
        first = content.read(64).decode("utf-8-sig", errors="replace").lstrip()[:1]
        if first == "[":
            content.seek(0)
            try:
                records = json.loads(content.read())
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise ValueError(f"{file} is not JSON: {error}") from error
            yield from ((f"{file}, record {number}", record) for number, record in enumerate(records, start=1))
            return
    yield from _read_json_lines(file)


def _read_text(file: Path, sample_by: str) -> Iterator[tuple[str, Any]]:
    paragraph: list[str] = []
    start = ""
    for location, line in _read_lines(file):
        if isinstance(line, BadRow):
            yield location, line
        elif sample_by == "line":
            if line.strip():
                yield location, {"text": line.strip()}
        elif line.strip():
            start = start if paragraph else location
            paragraph.append(line.strip())
        elif paragraph:
            yield start, {"text": "\n".join(paragraph)}
            paragraph = []
    if paragraph:
        yield start, {"text": "\n".join(paragraph)}


def _read_parquet(file: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow.parquet  # here, so that composing a configuration that names a file stays fast

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=1000):
                for record in batch.to_pylist():
                    number += 1
                    yield f"{file}, row {number}", record
    except pyarrow.ArrowException as error:
        raise ValueError(
            f"{file} is not a whole Parquet file: it cannot be read after row {number}: {error}"
        ) from error
