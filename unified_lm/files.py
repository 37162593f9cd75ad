"""Where derived files live, and how they are written: once, whole, and named by what they were made from."""

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
    """`$UNIFIED_LM_CACHE`, or `~/.cache/unified_lm`; nothing is created here, writers create what they need."""
    return Path(os.environ.get("UNIFIED_LM_CACHE") or Path.home() / ".cache" / "unified_lm").expanduser()


def strings_digest(*parts: str) -> str:
    """Sixteen hexadecimal digits that name a list of strings; ("ab", "c") and ("a", "bc") differ."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; it takes the place of `path` only if the block ends without an error."""
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
    """`path`, made by `make(partial path)` unless it is there; one of several processes makes it, the others wait."""
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
    """SHA-256 of a file's bytes, remembered by (path, size, modification time) so that a large file is read once.

    A file that was modified within the last two seconds is never remembered: it could change again unnoticed.
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
    """Digest of the names and bytes of all files below a folder, hidden ones left out."""
    files = list_files(folder)
    visible = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    return strings_digest(
        *(part for path in visible for part in (path.relative_to(folder).as_posix(), file_digest(path)))
    )


def list_files(folder: Path, above: frozenset[Path] = frozenset()) -> list[Path]:
    """All files below a folder, in order. Links to folders are followed (rglob passes them by), but not in circles."""
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
    with write_atomically(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Refuses NaN: a reader of strict JSON must be able to open what we wrote."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def text_hash(text: str) -> int:
    """64 bits of the text's content: equal texts are equal documents, on every rank and in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def closest_names(word: str, options: Iterable[str], *, count: int = 1, cutoff: float = 0.6) -> list[str]:
    """The options most like `word`, best first, in whatever case either is written; those below `cutoff` are none."""
    cased = {option.lower(): option for option in options}
    return [cased[found] for found in difflib.get_close_matches(word.lower(), list(cased), n=count, cutoff=cutoff)]
