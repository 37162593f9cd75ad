"""Everything in conf/ composes, and every experiment becomes objects."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from experiments.config.build import from_config
from experiments.config.compose import compose, list_groups, list_options
from experiments.config.errors import UsageError
from experiments.config.identity import identify
from experiments.config.paths import CONF
from experiments.tables import definition

SCALES = ("mini", "tiny", "paper")
EXPERIMENTS = list_options("experiment")
NEEDS_A_VALUE = {"hub", "answers"}  # options that are nothing without a value of the user's
COMMITS = [f"revisions.{name}={'a' * 40}" for name in compose([]).config.revisions]  # that a user gives


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_at_every_scale_knows_its_name_and_builds(experiment: str, scale: str) -> None:
    run = identify(compose([f"experiment={experiment}", f"scale={scale}", "runtime.device=cpu", *COMMITS]))
    assert run.run_id.startswith(f"{experiment}-s0-")
    built = from_config(run.config)
    assert set(built.evals) == set(run.config["evals"])


@pytest.mark.parametrize("group", [group for group in list_groups() if group not in ("experiment", "scale", "evals")])
def test_every_option_of_every_axis_composes(group: str) -> None:
    for option in list_options(group):
        if option not in NEEDS_A_VALUE:
            assert group in compose([f"{group}={option}", "scale=tiny"]).resolved


@pytest.mark.parametrize("scale", SCALES)
def test_a_scale_replaces_what_an_experiment_chose_and_the_command_line_replaces_both(scale: str) -> None:
    assert compose(["experiment=t15_ulme", "scale=tiny"]).choices["backbone"] == "tiny"
    chosen = compose(["experiment=t15_ulme", f"scale={scale}", "backbone=tiny", "optim.steps=7"])
    assert chosen.choices["backbone"] == "tiny"
    assert chosen.config.optim.steps == 7


def test_what_an_experiment_keeps_no_scale_replaces() -> None:
    for scale in SCALES:
        assert compose(["experiment=t15_bm25", f"scale={scale}"]).choices["backbone"] == "bm25"
    assert compose(["experiment=t15_bm25", "backbone=tiny"]).choices["backbone"] == "tiny"


def texts(node: Any) -> Iterator[str]:
    if isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from texts(value)
    elif isinstance(node, str):
        yield node


def test_an_exponent_without_a_point_is_a_number_everywhere() -> None:
    assert compose(["optim.learning_rate=1e-5"]).resolved["optim"]["learning_rate"] == 1e-5
    assert compose([]).resolved["optim"]["eps"] == 1e-8
    for experiment in EXPERIMENTS:
        for text in texts(compose([f"experiment={experiment}"]).resolved):
            assert not re.fullmatch(r"[+-]?[\d.]+[eE][+-]?\d+", text), f"{experiment}: {text} is a text"


def test_no_experiment_sets_what_hydra_would_ignore() -> None:
    for group in ("experiment", "scale", "recipe"):
        for option in list_options(group):
            content = yaml.safe_load((CONF / group / f"{option}.yaml").read_text(encoding="utf-8")) or {}
            assert "hydra" not in content
            assert "hydra/" not in str(content.get("defaults", ""))


@pytest.mark.parametrize("number", definition.list_tables())
def test_every_table_is_well_formed_and_its_rows_are_experiments(number: int) -> None:
    scales = yaml.safe_load((CONF / "table" / f"{number}.yaml").read_text(encoding="utf-8"))["scales"]
    for scale in scales:
        table = definition.read_definition(number, scale)
        assert table.comparable == (scale == "paper")
        for row in table.rows:
            for name, model in row.models.items():
                settings = [f"experiment={model.experiment}", f"scale={scale}", *model.overrides]
                config = compose(settings).resolved
                evals = config["evals"]
                own = [c for c in table.columns if c.key not in row.undefined and row.source(c.key) == name]
                wanted = {column.suite for column in own}
                assert wanted <= set(evals), f"{name} at {scale} is not scored on {wanted - set(evals)}"
                bare = {suite for suite in wanted if evals[suite].get("template") == "none"}
                assert not (bare and config["scoring"]["slots"]), f"{name}: {bare} have no place for slots"


def test_an_unknown_table_or_scale_is_refused_with_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"there are: .*15"):
        definition.read_definition(99, "mini")
    with pytest.raises(UsageError, match=r"did you mean mini"):
        definition.read_definition(15, "min")
