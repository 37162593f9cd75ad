"""The worked examples of the docs run, and what their tables list is what there is."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unified_lm.data.record_formats import SHAPES
from unified_lm.methods.base import Method

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING, OWN_DATA = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("contributing.md", "own_data.md")
)
PAGE = CONTRIBUTING + OWN_DATA
FILES = re.findall(r"^`([\w./+-]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.S | re.M)
BLOCKS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines() if line]
PYTEST = "python -m pytest -q "  # its files are tested together, since each start takes longer than the tests
COMMANDS = [command for command in BLOCKS if not command.startswith(PYTEST)]
TESTED = " ".join(command.removeprefix(PYTEST) for command in BLOCKS if command.startswith(PYTEST))
COPIED = ("unified_lm", "evals", "experiments", "conf", "tests", "pyproject.toml")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the files of the page in it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in COPIED:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    for name, content in FILES:
        path = folder / name
        assert not path.exists(), f"{name} exists: an example adds files and changes none"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder


def run_python(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    place = {"PYTHONPATH": str(checkout), "UNIFIED_LM_OUTPUTS": str(checkout / "outputs"), "WANDB_MODE": "disabled"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=checkout,
        env=os.environ | place | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_pages_have_files_and_commands() -> None:
    assert FILES and COMMANDS
    assert {name for name, _ in FILES if name.startswith("tests/")} == set(TESTED.split())


def test_the_examples_are_as_ruff_wants_them(checkout: Path) -> None:
    python = [name for name, _ in FILES if name.endswith(".py")]
    for tool in (["check"], ["format", "--diff"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *tool, *python], cwd=checkout, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_contract_names_every_member_of_a_method() -> None:
    members = {name for name in [*vars(Method), *Method.__annotations__] if not name.startswith("_")}
    table = CONTRIBUTING.partition("### The Method contract")[2].partition("\n## ")[0]
    assert members == set(re.findall(r"`(\w+)(?:\([^`|]*\))?`(?=[^|]*\|[^|]*\|[^|]*\|$)", table, re.M))


def test_every_shape_of_records_is_listed() -> None:
    table = OWN_DATA.partition("### Which fields")[2].partition("\n## ")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    assert set(re.findall(r"`(\w+)`", "".join(first_cells))) == set(SHAPES)


def test_the_rows_of_the_table_have_the_data_and_the_suite_of_their_recipe(checkout: Path) -> None:
    rows = [Path(name).stem for name, _ in FILES if name.startswith("conf/experiment/")]
    for row in rows:
        printed = run_python(checkout, "-m", "experiments.run", "--cfg", f"experiment={row}", "scale=mini").stdout
        assert "unified_lm.data.sums.Sums" in printed and "evals.embedding.sums.SumRetrieval" in printed


@pytest.mark.slow
@pytest.mark.parametrize("command", [PYTEST + TESTED, *COMMANDS])
def test_a_command_of_the_page_ends_well(command: str, checkout: Path) -> None:
    python, *arguments = shlex.split(command)
    assert python == "python"
    done = run_python(checkout, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
