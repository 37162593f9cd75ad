"""Runs of these tests go to a folder of their own, offline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments.runs import execute


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "outputs"
    monkeypatch.setenv("UNIFIED_LM_OUTPUTS", str(folder))
    return folder


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real worker, called in this process: no test pays for importing torch again."""
    from experiments.runs import worker

    def work(folder: Path, config: Mapping[str, Any]) -> int:
        return worker.main(folder)

    monkeypatch.setattr(execute, "run_worker", work)
