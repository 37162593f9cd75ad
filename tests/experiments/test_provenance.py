"""Where a number comes from: code counts by what it computes, whatever its commit."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.runs import provenance

SOURCE = """def double(x):
    return 2 * x
"""
SAME = '''"""A module."""


def double(x):  # twice
    """Twice as much."""
    return (2 * x)
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a file at each place where numbers are made, and one beside them."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    for name in (
        "unified_lm/a.py",
        "evals/b.py",
        "evals/table.yaml",
        "experiments/config/build.py",
        "experiments/runs/open_run.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(SOURCE)
    (tmp_path / "README.md").write_text("words")
    git(tmp_path, "init", "-q")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *author, *arguments], check=True, capture_output=True)


def committed(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a change", "--allow-empty")
    return provenance.read_commit().commit


def test_a_commit_has_the_digest_of_the_code_that_it_holds(project: Path) -> None:
    commit = committed(project)
    assert provenance.code_digest_of_commit(commit) == provenance.code_digest()
    assert replace(provenance.current_code_version(), versions={}) == provenance.CodeVersion(
        commit=commit, dirty=False, code=provenance.code_digest(), versions={}
    )
    assert provenance.code_digest_of_commit("0" * 40) is None


def test_words_about_the_code_leave_its_digest(project: Path) -> None:
    before = committed(project)
    (project / "README.md").write_text("other words")
    (project / "experiments" / "report.py").write_text("pages = 2")
    (project / "unified_lm" / "a.py").write_text(SAME)
    after = committed(project)
    assert before != after
    assert (
        provenance.code_digest_of_commit(before) == provenance.code_digest_of_commit(after) == provenance.code_digest()
    )


@pytest.mark.parametrize("name", ["unified_lm/a.py", "evals/table.yaml", "experiments/config/build.py", "evals/new.py"])
def test_what_a_number_passes_through_changes_the_digest(project: Path, name: str) -> None:
    before = provenance.code_digest()
    (project / name).write_text(SOURCE.replace("2", "3"))
    assert provenance.code_digest() != before


def test_outside_a_checkout_the_code_is_still_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.read_commit() is None
    assert provenance.current_code_version().commit is None
    assert provenance.current_code_version().code
