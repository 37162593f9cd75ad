"""metrics.jsonl: one JSON object a logged step, continuous over a stop and a resume."""

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.config.errors import UsageError
from experiments.config.paths import display_path
from experiments.runs.typed_json import parse_json
from unified_lm.files import write_text

METRICS = "metrics.jsonl"


class MetricsLog:
    """Appends rows to the metrics.jsonl of a run; each is flushed at once."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS
        self.started = time.monotonic()
        self.earlier_s: float | None = None  # seconds that earlier attempts took for the steps that are kept

    def log(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Append a row with its `step`; the first one drops what a killed attempt logged beyond its checkpoint.

        A value that is no finite number becomes null. Returns the row as written, with `wall_s` over all attempts.
        """
        if self.earlier_s is None:
            kept = list(iterate_rows(self.path, before=row["step"]))
            self.earlier_s = kept[-1]["wall_s"] if kept else 0.0
            write_text(self.path, "".join(json.dumps(one) + "\n" for one in kept))
        row = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
        }
        row["wall_s"] = round(self.earlier_s + time.monotonic() - self.started, 2)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        return row


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All logged rows of a run; none where nothing is logged yet."""
    return list(iterate_rows(folder / METRICS))


def iterate_rows(path: Path, before: float = math.inf) -> Iterator[dict[str, Any]]:
    """The rows of the steps below `before`. A line that a kill cut in two ends them.

    Raises `UsageError` that names file, line and field for a row of another shape.
    """
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return
        try:
            parse_json(dict[str, float | None], row, "the row")
            step = parse_json(int, row.get("step"), "step")
            parse_json(float, row.get("wall_s"), "wall_s")
        except (ValueError, OverflowError) as error:
            raise UsageError(f"{display_path(path)}:{number}: {error}; move the file away") from error
        if step < before:
            yield row


def read_lines(path: Path) -> Iterable[str]:
    """The lines of a text file; bytes that are no UTF-8 are replaced, so that the line holding them is damaged."""
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ()
