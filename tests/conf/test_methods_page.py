"""docs/methods.md names only what there is."""

import re

import pytest

from experiments.compose import options
from experiments.places import ROOT

PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


def test_every_experiment_that_is_named_exists() -> None:
    named = set(re.findall(r"(?:experiment=|teacher=|`)(t\d+_\w+)", PAGE))
    assert named and named <= set(options("experiment"))


@pytest.mark.parametrize("group", ["template", "attention", "trainable"])
def test_every_choice_that_is_named_exists(group: str) -> None:
    named = set(re.findall(rf"\b{group}=(\w+)", PAGE))
    assert named <= set(options(group))
