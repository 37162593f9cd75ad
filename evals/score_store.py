"""Scores on disk, one file a task. An interrupted scoring resumes, and no file is read for another identity."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.score import Score, canonical_json, identity_key
from unified_lm.files import write_atomically


@dataclass(frozen=True, kw_only=True)
class ScoreStore:
    """The results that one suite keeps in `folder`. An identity is the mapping that decides a task's scores."""

    folder: Path
    suite: str

    def path(self, task: str, identity: Mapping[str, Any]) -> Path:
        return self.folder / _file_name(self.suite) / f"{_file_name(task)}-{identity_key(**identity)[:16]}.json"

    def load(self, task: str, identity: Mapping[str, Any]) -> list[Score] | None:
        """The stored scores of exactly this identity; None where there are none or the task was skipped.

        Raises ValueError for a file that cannot be read or that belongs to another identity.
        """
        path = self.path(task, identity)
        if not path.exists():
            return None
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            same = canonical_json(record["identity"]) == canonical_json(identity)
            scores = None if record["skipped"] else [Score.from_dict(score) for score in record["scores"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} holds no scores ({error}): delete it and score again") from error
        if not same:
            raise ValueError(f"{path} belongs to another identity and is neither reused nor overwritten: move it away")
        return scores

    def save(self, task: str, identity: Mapping[str, Any], scores: Sequence[Score]) -> None:
        self._write(task, identity, [score.to_dict() for score in scores], "")

    def save_skipped(self, task: str, identity: Mapping[str, Any], reason: str) -> None:
        """Record why a task has no score. A later `load` ignores it, so the task is tried again."""
        self._write(task, identity, [], reason)

    def skipped_tasks(self) -> dict[str, str]:
        """Task -> reason, for every task of the suite that was skipped in this folder."""
        records = [
            json.loads(path.read_text(encoding="utf-8"))
            for path in sorted((self.folder / _file_name(self.suite)).glob("*.json"))
        ]
        return {record["task"]: record["skipped"] for record in records if record["skipped"]}

    def load_or_compute(
        self, task: str, identity: Mapping[str, Any], compute: Callable[[], list[Score]]
    ) -> list[Score]:
        """The stored scores of this identity, else those that `compute` gives, on disk before they are returned."""
        scores = self.load(task, identity)
        if scores is None:
            scores = compute()
            self.save(task, identity, scores)
        return scores

    def _write(self, task: str, identity: Mapping[str, Any], scores: list[dict[str, Any]], skipped: str) -> None:
        self.load(task, identity)  # raises before a file of another identity would be overwritten
        record = {
            "task": task,
            "key": identity_key(**identity),
            "identity": dict(identity),
            "skipped": skipped,
            "scores": scores,
        }
        with write_atomically(self.path(task, identity)) as partial:
            partial.write_text(json.dumps(record, indent=1, allow_nan=False), encoding="utf-8")


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)
