"""docs/methods.md names only what there is, and all pages write settings as they must be typed."""

import re
from pathlib import Path

import pytest
import yaml

from experiments.config.compose import list_options
from experiments.config.paths import CONF, ROOT
from experiments.config.schema import class_fields

PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_experiment_that_is_named_exists() -> None:
    named = set(re.findall(r"(?:experiment=|teacher=|`)(t\d+_\w+)", PAGE))
    assert named and named <= set(list_options("experiment"))


@pytest.mark.parametrize("group", ["template", "attention", "trainable"])
def test_every_choice_that_is_named_exists(group: str) -> None:
    named = set(re.findall(rf"\b{group}=(\w+)", PAGE))
    assert named <= set(list_options(group))


def settings(group: str) -> set[str]:
    """Names that a section has, in some file of conf or as a field of the class that a file names."""
    whole = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))
    options_of = [yaml.safe_load(path.read_text(encoding="utf-8")) or {} for path in (CONF / group).glob("*.yaml")]
    classes = [class_fields(option["_target_"]) for option in options_of if "_target_" in option]
    return set().union(whole.get(group) or {}, *options_of, *classes)


# two pages name settings of their own examples, which are run
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in ("contributing.md", "own_data.md")], ids=lambda path: path.name
)
def test_every_setting_that_a_page_names_exists_and_needs_no_plus(page: Path) -> None:
    groups = "method|optim|trainable|backbone|slots|scoring|runtime|lengths|logging"
    named = re.findall(rf"(?<![\w./])(\+?)({groups})\.(\w+)(?=[=`])", page.read_text(encoding="utf-8"))
    assert not {f"{plus}{group}.{name}" for plus, group, name in named if plus or name not in settings(group)}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_file_of_ours_that_a_page_names_exists(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    named = set(re.findall(r"`((?:unified_lm|evals|experiments|conf|tests|docs)/[\w./+-]+)`(?!:\n)", text))
    assert not {name for name in named if "N.yaml" not in name and not (ROOT / name).exists()}
