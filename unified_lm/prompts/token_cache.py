"""Cache of tokenized strings on disk, shared by all runs.

Each tokenizer has one SQLite file, named by a digest of its whole definition; the key of a row is a hash of the string.
Runs, seeds and methods with equal strings share entries; another tokenizer or template never finds them.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from unified_lm.files import cache_dir, strings_digest

log = logging.getLogger(__name__)
Tokenized = tuple[list[int], list[tuple[int, int]]]  # ids, and the character range of each
AT_ONCE = 500  # variables in one SQL statement


def tokenize_strings(tokenizer: PreTrainedTokenizerBase, strings: Sequence[str]) -> list[Tokenized]:
    """Return ids and character offsets of every string; special tokens inside a string are plain text."""
    out = tokenizer(list(strings), add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True)
    return list(zip(out["input_ids"], out["offset_mapping"], strict=True))


class TokenCache:
    """The tokenized strings of one tokenizer. Safe for several threads and processes; a lost file only costs time."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, folder: Path | None = None) -> None:
        name = strings_digest(tokenizer.backend_tokenizer.to_str())
        self.path = (folder or cache_dir() / "tokens") / f"{name}.sqlite"
        self.tokenizer = tokenizer
        self.lock = threading.Lock()
        self.connection: sqlite3.Connection | None = None
        self.hits = self.misses = 0
        self.broken = False

    def __call__(self, strings: Sequence[str]) -> list[Tokenized]:
        """Tokenize strings: read known ones from the cache, and add new ones to it."""
        keys = [hashlib.blake2b(string.encode(), digest_size=16).digest() for string in strings]
        with self.lock:
            known = self.use_file(lambda: self.read_rows(list(dict.fromkeys(keys)))) or {}
            new = {key: string for key, string in zip(keys, strings, strict=True) if key not in known}
            if new:
                made = dict(zip(new, tokenize_strings(self.tokenizer, list(new.values())), strict=True))
                self.use_file(lambda: self.write_rows(made))
                known |= made
        self.hits += len(keys) - len(new)
        self.misses += len(new)
        return [known[key] for key in keys]

    def use_file(self, use: Callable[[], Any]) -> Any:
        """Return the result of `use`; if the file cannot be used, warn once and return None."""
        if self.broken:
            return None
        try:
            return use()
        except (sqlite3.Error, OSError) as error:
            self.broken = True
            log.warning("%s cannot be used (%s): strings are tokenized again; delete it", self.path, error)
            return None

    def open_connection(self) -> sqlite3.Connection:
        if self.connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.connection = sqlite3.connect(self.path, timeout=60, check_same_thread=False, isolation_level=None)
            self.connection.execute("PRAGMA journal_mode=WAL")
            self.connection.execute("PRAGMA synchronous=OFF")
            self.connection.execute("CREATE TABLE IF NOT EXISTS tokens (key BLOB PRIMARY KEY, value BLOB)")
        return self.connection

    def read_rows(self, keys: list[bytes]) -> dict[bytes, Tokenized]:
        found = {}
        for at in range(0, len(keys), AT_ONCE):
            part = keys[at : at + AT_ONCE]
            marks = ",".join("?" * len(part))
            rows = self.open_connection().execute(f"SELECT key, value FROM tokens WHERE key IN ({marks})", part)
            found |= {bytes(key): decode_tokens(value) for key, value in rows}
        return found

    def write_rows(self, made: dict[bytes, Tokenized]) -> None:
        rows = [(key, encode_tokens(value)) for key, value in made.items()]
        connection = self.open_connection()
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT OR IGNORE INTO tokens VALUES (?, ?)", rows)
        connection.execute("COMMIT")


def encode_tokens(value: Tokenized) -> bytes:
    ids, offsets = value
    return np.concatenate([np.asarray(ids, np.int32), np.asarray(offsets, np.int32).reshape(-1)]).tobytes()


def decode_tokens(value: bytes) -> Tokenized:
    numbers = np.frombuffer(value, np.int32)
    count = len(numbers) // 3
    return numbers[:count].tolist(), [tuple(pair) for pair in numbers[count:].reshape(-1, 2).tolist()]
