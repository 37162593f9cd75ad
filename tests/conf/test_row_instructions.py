"""The instructions that the rows of the papers' tables are asked with."""

from typing import Any

import pytest

from experiments.config.build import from_config
from experiments.config.compose import compose
from experiments.tables import definition
from experiments.tables.definition import Model

COMMITS = [f"revisions.{name}={'a' * 40}" for name in compose([]).config.revisions]
ROWS = {row.key: row for row in definition.read_definition(2, "paper").rows if row.key.endswith("_1b")}


def config(model: Model) -> dict[str, Any]:
    settings = [f"experiment={model.experiment}", "scale=paper", *model.overrides, "runtime.device=cpu", *COMMITS]
    return compose(settings).resolved


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_table_2_has_a_place_for_its_instructions(row: str) -> None:
    assert {"bright", "advbench_ir"} <= set(from_config(config(ROWS[row])).evals)


@pytest.mark.parametrize(("number", "suite"), [(1, "mteb_eng_v2"), (2, "bright")])
def test_a_row_with_published_instructions_is_asked_with_them(number: int, suite: str) -> None:
    for row in definition.read_definition(number, "paper").rows:
        if row.experiment in ("t1_llm2vec_gen", "t1_gritlm"):
            assert f"evals.{suite}.instructions={row.experiment.removeprefix('t1_')}" in row.overrides


def test_instructions_without_a_place_in_the_template_are_refused_before_anything_runs() -> None:
    settings = compose(["experiment=t1_ulme", "scale=tiny", "evals=[advbench_ir]"]).resolved
    with pytest.raises(ValueError, match="each document of AdvBenchIR an instruction, but template plain has no"):
        from_config(settings)
