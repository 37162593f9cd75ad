"""Cache folder, atomic writes, digests of files and texts, and did-you-mean suggestions. Imports no torch."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock

SETTLED_SECONDS = 2.0  # a file written later than this may change again without another size or time stamp


def cache_dir() -> Path:
    """Return `$UNIFIED_LM_CACHE`, or `~/.cache/unified_lm`. It is not created here: writers create what they need."""
    return Path(os.environ.get("UNIFIED_LM_CACHE") or Path.home() / ".cache" / "unified_lm").expanduser()


def strings_digest(*parts: str) -> str:
    """Digest of a list of strings, 16 hexadecimal digits; ("ab", "c") and ("a", "bc") differ."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def json_digest(content: Any) -> str:
    """Sixteen hex digits that stand for JSON-like content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` only if the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def create_once(path: Path, make: Callable[[Path], None]) -> Path:
    """Create `path` by `make(partial path)` unless it exists; one process creates it, the others wait."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            if not path.exists():
                with write_atomically(path) as partial:
                    make(partial)
    return path


def create_folder_once(path: Path, make: Callable[[Path], None]) -> Path:
    """The folder `path`, filled by `make(partial folder)` unless it is there; of several processes one makes it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            if not path.exists():
                with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as beside:
                    partial = Path(beside) / path.name
                    partial.mkdir()
                    make(partial)
                    partial.rename(path)
    return path


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, cached by (path, size, modification time), so that a large file is read once.

    The digest of a file modified within the last two seconds is not cached: the file could change again unnoticed.
    """
    path = path.resolve()
    stat = path.stat()
    state = [str(path), stat.st_size, stat.st_mtime_ns]
    memory = cache_dir() / "digests" / f"{strings_digest(str(path))}.json"
    if memory.exists():
        remembered = json.loads(memory.read_text())
        if remembered["state"] == state:
            return remembered["sha256"]
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time() - stat.st_mtime > SETTLED_SECONDS:
        with write_atomically(memory) as partial:
            partial.write_text(json.dumps({"state": state, "sha256": found}))
    return found


def folder_digest(folder: Path) -> str:
    """Digest of the names and bytes of all files below a folder, without hidden ones."""
    files = list_files(folder)
    visible = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    return strings_digest(
        *(part for path in visible for part in (path.relative_to(folder).as_posix(), file_digest(path)))
    )


def list_files(folder: Path, above: frozenset[Path] = frozenset()) -> list[Path]:
    """List all files below a folder, sorted. Links to folders are followed (unlike by rglob), but not in circles."""
    here = folder.resolve()
    if here in above:
        return []
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            found += list_files(path, above | {here})
        elif path.is_file():
            found.append(path)
    return found


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with write_atomically(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically. Raises `ValueError` for NaN, which strict JSON readers refuse."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def text_hash(text: str) -> int:
    """64-bit hash of a text's content, equal on every rank and in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def closest_names(word: str, options: Iterable[str], *, count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the options most similar to `word`, best first, ignoring case, with a similarity of `cutoff` or more."""
    cased = {option.lower(): option for option in options}
    return [cased[found] for found in difflib.get_close_matches(word.lower(), list(cased), n=count, cutoff=cutoff)]
