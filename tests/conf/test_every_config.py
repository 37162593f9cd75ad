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
        if "???" not in (CONF / group / f"{option}.yaml").read_text(encoding="utf-8"):
            assert compose([f"{group}={option}", "scale=tiny"]).choices[group] == option


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
    for group in ("experiment", "scale", "recipe/mini", "recipe/paper"):
        for option in list_options(group):
            content = yaml.safe_load((CONF / group / f"{option}.yaml").read_text(encoding="utf-8")) or {}
            assert "hydra" not in content
            assert "hydra/" not in str(content.get("defaults", ""))


TABLES = [
    (number, scale)
    for number in definition.list_tables()
    for scale in yaml.safe_load((CONF / "table" / f"{number}.yaml").read_text(encoding="utf-8"))["scales"]
]


@pytest.mark.parametrize(("number", "scale"), TABLES)
def test_a_row_is_its_experiment(number: int, scale: str) -> None:
    """Whoever runs a row's experiment by name, at the table's scale, makes the run that the table looks for."""
    table = definition.read_definition(number, scale)
    assert table.comparable == (scale == "paper")
    for name, line in table.command_lines(COMMITS).items():
        model = table.models[name]
        backbone = [] if model.backbone is None else [f"backbone={model.backbone}"]
        alone = identify(compose([f"experiment={model.experiment}", f"scale={scale}", *backbone, *COMMITS]))
        assert identify(compose(line)).run_id == alone.run_id


@pytest.mark.parametrize(("number", "scale"), TABLES)
def test_a_sweep_over_a_tables_experiments_completes_it(number: int, scale: str) -> None:
    """An experiment of the table's own number is scored by default on all suites that its columns read."""
    table = definition.read_definition(number, scale)
    for (experiment, _), suites in table.suites.items():
        if experiment.startswith(f"t{number}_"):
            assert set(suites) <= set(compose([f"experiment={experiment}", f"scale={scale}"]).config.evals)


@pytest.mark.parametrize(("number", "scale"), TABLES)
def test_a_column_is_defined_only_where_its_suite_has_a_place_for_slots(number: int, scale: str) -> None:
    table = definition.read_definition(number, scale)
    for name, line in table.command_lines().items():
        config = compose(line).resolved
        bare = {suite for suite, settings in config["evals"].items() if settings.get("template") == "none"}
        assert not (bare and config["scoring"]["slots"]), f"{name}: {bare} have no place for slots"


def test_an_unknown_table_or_scale_is_refused_with_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"there are: .*15"):
        definition.read_definition(99, "mini")
    with pytest.raises(UsageError, match=r"did you mean mini"):
        definition.read_definition(15, "min")
