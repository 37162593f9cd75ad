"""Text files that are whole or absent, also after a kill or on a full disk."""

import json
from pathlib import Path
from typing import Any

from unified_lm.files import write_atomically


def write_text(path: Path, text: str) -> None:
    with write_atomically(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Refuses NaN: a reader of strict JSON must be able to open what we wrote."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
