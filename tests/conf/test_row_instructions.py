"""The instructions that the rows of the papers' tables are asked with."""

from typing import Any

import pytest

from experiments.config.build import from_config
from experiments.config.compose import compose
from experiments.tables import definition

COMMITS = [f"revisions.{name}={'a' * 40}" for name in compose([]).config.revisions]


def configs(number: int) -> dict[str, dict[str, Any]]:
    lines = definition.read_definition(number, "paper").command_lines(["runtime.device=cpu", *COMMITS])
    return {name: compose(line).resolved for name, line in lines.items() if name.endswith("_1b")}


ROWS = configs(2)


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_table_2_has_a_place_for_its_instructions(row: str) -> None:
    assert {"bright", "advbench_ir"} <= set(from_config(ROWS[row]).evals)


@pytest.mark.parametrize(("number", "suite"), [(1, "mteb_eng_v2"), (2, "bright")])
def test_a_row_with_published_instructions_is_asked_with_them_and_every_other_with_llm2vecs(
    number: int, suite: str
) -> None:
    published = {"llm2vec_gen_1b": "llm2vec_gen", "gritlm_1b": "gritlm"}
    for row, config in configs(number).items():
        assert config["evals"][suite]["instructions"] == published.get(row, "llm2vec")


def test_instructions_without_a_place_in_the_template_are_refused_before_anything_runs() -> None:
    settings = compose(["experiment=t1_ulme", "scale=tiny", "evals=[advbench_ir]"]).resolved
    with pytest.raises(ValueError, match="each document of AdvBenchIR an instruction, but template plain has no"):
        from_config(settings)
