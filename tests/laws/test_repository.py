"""What is in the repository is the project's own and nothing of a machine's."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone of the repository")
def test_no_link_is_tracked_since_it_leads_nowhere_on_another_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    links = [line.partition("\t")[2] for line in listed.splitlines() if line.startswith("120000")]
    assert not links, f"links are tracked: {', '.join(links)}"
