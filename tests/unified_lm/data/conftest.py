"""Derived files of these tests go to a folder of their own; installed documentation stays in the common cache."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(folder))
    return folder


@pytest.fixture
def json_lines(tmp_path: Path) -> Callable[..., Path]:
    """Writes records, one a line, and returns the file."""

    def write(name: str, *records: Any) -> Path:
        path = tmp_path / name
        text = "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write
