"""Before GPU hours are spent: what each run of a paper's table needs, and that its recipe fits eight GPUs of 80 GB."""

import pytest

from experiments.config.errors import UsageError
from experiments.plan import list_configurations, main
from experiments.table import TableRequest
from experiments.tables.costs import Machine, estimate
from experiments.tables.definition import list_tables, read_definition

EIGHT = Machine(gpus=8, memory_gib=80, flops=989e12, utilisation=0.4)


def has_paper_scale(number: int) -> bool:
    try:
        read_definition(number, "paper")
    except UsageError:
        return False
    return True


PAPER_TABLES = [number for number in list_tables() if has_paper_scale(number)]


@pytest.mark.parametrize("number", PAPER_TABLES)
def test_every_run_of_a_paper_table_fits_eight_gpus_by_its_recipe(number):
    asked = TableRequest(number=number, scale="paper", seeds=(0,), overrides=())
    configs = {
        name: config
        for name, config in list_configurations(asked).items()
        if config["backbone"]["_target_"].endswith("Hub")
    }
    assert configs
    light = {name: config | {"evals": {}} for name, config in configs.items()}
    too_large = {name: cost.ways for name, config in light.items() if not (cost := estimate(config, EIGHT)).fits}
    assert not too_large


def test_a_run_that_does_not_fit_names_settings_with_which_it_does():
    asked = TableRequest(number=1, scale="paper", seeds=(0,), overrides=("runtime.chunk_tokens=8192",))
    config = list_configurations(asked)["ulme_8b"] | {"evals": {}}
    cost = estimate(config, EIGHT)
    assert not cost.fits and cost.ways
    for way in cost.ways:
        changed = TableRequest(number=1, scale="paper", seeds=(0,), overrides=tuple(way.split()))
        assert estimate(list_configurations(changed)["ulme_8b"] | {"evals": {}}, EIGHT).fits, way


def test_the_command_tells_each_run_and_refuses_what_it_cannot_read(capsys):
    assert main(["5", "scale=paper", "gpus=8", "price=2"]) == 0
    said = capsys.readouterr().out
    assert "GPU hours" in said and "first" in said and "an hour" in said
    with pytest.raises(UsageError, match="gpu=Z80"):
        main(["5", "gpu=Z80"])
    with pytest.raises(UsageError, match="memory=much"):
        main(["5", "memory=much"])
