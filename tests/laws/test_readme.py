"""Every command of the README exists and is understood, and what it says of tables, results and pages is so."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from experiments import run
from experiments.config.compose import compose
from experiments.config.identity import identify
from experiments.runs.sweep import list_combinations

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [line for block in re.findall(r"```sh\n(.*?)```", README, re.S) for line in block.splitlines() if line]
INLINE = re.findall(r"`((?:make|python -m) [^`]+)`", README)
COMMANDS = list(dict.fromkeys(BLOCKS + INLINE))
SETTINGS = [word for word in re.findall(r"`([a-z_.]+=[a-z_0-9]+)`", README)]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LATER = {
    "score": ("model",),
    "encode": ("model", "input", "output", "side"),
    "export": ("run", "to"),
    "answers": ("output", "max_new_tokens", "part"),
}


def test_the_first_two_commands_are_the_demo_and_the_tests() -> None:
    assert BLOCKS[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make")])
def test_every_make_target_exists_and_its_module_too(command: str) -> None:
    done = subprocess.run(
        ["make", "-n", *shlex.split(command)[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for module in re.findall(r"-m (experiments\.\w+)", done.stdout):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("python")])
def test_every_module_takes_the_arguments_that_the_readme_gives_it(command: str) -> None:
    _, _, module, *arguments = shlex.split(command)
    name = module.removeprefix("experiments.")
    assert (ROOT / "experiments" / f"{name}.py").exists()
    if name == "run" and "--help" in arguments:
        assert run.main(arguments) == 0
    elif name == "run":
        if "-m" in arguments:
            assert list_combinations([argument for argument in arguments if argument != "-m"])
        else:
            assert identify(compose(arguments)).run_id
    elif name in LATER:
        own = {argument.partition("=")[0] for argument in arguments}
        overrides = [a for a in arguments if a.partition("=")[0] not in LATER[name]]
        assert set(LATER[name]) & own
        assert compose(overrides)
        helped = subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, check=False)
        assert helped.returncode == 0


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_that_the_readme_names_exists(setting: str) -> None:
    assert compose([setting])


def cells_of_tables(page: str) -> list[list[str]]:
    """The cells of each line of a page's Markdown tables."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]


def test_the_readme_says_at_which_scales_each_table_is_defined() -> None:
    said = {int(cells[0]): cells[-1] for cells in cells_of_tables(README) if cells[0].isdecimal()}
    defined = {
        int(path.stem): ", ".join(yaml.safe_load(path.read_text(encoding="utf-8"))["scales"])
        for path in (ROOT / "conf" / "table").glob("*.yaml")
    }
    assert {number: scales for number, scales in said.items() if scales != "planned"} == defined


def test_the_results_that_the_readme_shows_stand_in_a_kept_table() -> None:
    section = README.partition("## What a result looks like")[2].partition("\n## ")[0]
    _, _, *shown = cells_of_tables(section)
    kept = [
        cells for path in (ROOT / "docs" / "results").rglob("table-*.md") for cells in cells_of_tables(path.read_text())
    ]
    for label, *values in shown:
        rows = [[cell.removesuffix(" (n=3)") for cell in cells] for cells in kept if cells[0] == label]
        assert any(set(values) <= set(row) for row in rows), f"{label}: {values}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    lost = [target for target in targets if not (page.parent / target).exists()]
    assert not lost


def test_the_readme_links_every_page() -> None:
    linked = {(ROOT / target).resolve() for target in re.findall(r"\]\(([^)]+\.md)\)", README)}
    named = {page for page in PAGES if not page.name.startswith("table-")} - {ROOT / "README.md"}
    assert named <= linked
