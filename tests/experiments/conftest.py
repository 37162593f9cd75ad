"""Runs of these tests go to a folder of their own, offline."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "outputs"
    monkeypatch.setenv("UNIFIED_LM_OUTPUTS", str(folder))
    return folder
