"""A rehearsal is a paper's run in all but sizes, weights and rows, and its numbers stand in its own tables only."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from experiments import check_data, reproduce, table
from experiments.config.compose import compose
from experiments.config.errors import UsageError
from experiments.config.identity import identify
from experiments.rehearsal.cut import AT_MOST
from experiments.rehearsal.mirror import make_mirror
from experiments.rehearsal.twin import make_twin
from experiments.runs.record import read_own_record
from experiments.tables import definition
from experiments.tables.fill import RowRun, fill_table, read_run_score
from unified_lm.backbones import Hub
from unified_lm.backbones.shapes import KNOWN, known_config

PLACES = ("name", "data_mirror", "*.mirror", "backbone.id", "backbone.revision", "*.data_mirror", "*.split")
HOW = ("runtime.device", "runtime.chunk_tokens", "logging.project", "optim.stop_after", "*.expected_rows")
ROWS = [row for row in definition.read_definition(1, "paper").rows if row.experiment and row.key.endswith("_1b")]


def leaves(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(value, f"{name}.{key}".lstrip("."))
    else:
        yield name, node


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_a_rehearsal_differs_from_the_papers_run_in_what_is_listed_and_in_nothing_else(row: definition.Row) -> None:
    paper, rehearsal = (
        dict(leaves(compose([f"experiment={row.experiment}", f"scale={scale}", f"backbone={row.backbone}"]).resolved))
        for scale in ("paper", "rehearsal")
    )
    assert paper.keys() == rehearsal.keys()
    changed = [name for name in paper if paper[name] != rehearsal[name]]
    assert not [name for name in changed if not any(fnmatch(name, one) for one in (*PLACES, *HOW, *AT_MOST))]
    assert "backbone.id" in changed and rehearsal["optim.stop_after"] == 2


def test_what_a_user_sets_is_not_cut() -> None:
    given = ["method.max_new_tokens=100", "optim.stop_after=7"]
    config = compose(["experiment=t1_hyde", "scale=rehearsal", *given]).config
    assert (config.method.max_new_tokens, config.optim.stop_after) == (100, 7)


def test_a_rehearsals_run_id_does_not_depend_on_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for place in ("a", "b"):
        monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / place))
        found.add(identify(compose(["experiment=t1_ulme", "scale=rehearsal"])).run_id)
    assert len(found) == 1 and found.pop().startswith("rehearsal_t1_ulme-s0-")


@pytest.mark.parametrize(
    "id", [id for id in KNOWN if id.startswith(("Qwen/Qwen3-4B", "Qwen/Qwen2.5-7B", "meta", "mist"))]
)
def test_a_twin_is_read_as_its_decoder_is_and_has_its_class_and_its_kind_of_tokenizer(id: str) -> None:
    loaded = Hub(id=str(make_twin(id)), dtype="bfloat16").load()
    assert type(loaded.model) is MODEL_FOR_CAUSAL_LM_MAPPING[type(known_config(id))]
    assert loaded.model.config.tie_word_embeddings == known_config(id).tie_word_embeddings
    said = "A harbour, 12 ships; über–Fluß\n"
    ids = loaded.tokenizer(said)["input_ids"]
    assert loaded.tokenizer.decode(ids, skip_special_tokens=True) == said
    assert (ids[0] == loaded.tokenizer.bos_token_id) == (not id.startswith("Qwen"))


def test_a_decoder_without_a_twin_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="no rehearsal for Dream-org"):
        compose(["experiment=t1_base", "scale=rehearsal", "backbone=dream_7b"])


def test_every_training_data_set_of_conf_opens_in_the_mirror(capsys: pytest.CaptureFixture[str]) -> None:
    check_data.main([f"data_mirror={make_mirror()}", f"data={','.join(check_data.option_names({}, 'data'))}"])
    assert failures(capsys) == []


@pytest.mark.long
def test_every_task_of_conf_opens_in_the_mirror(capsys: pytest.CaptureFixture[str]) -> None:
    check_data.main([f"data_mirror={make_mirror()}", f"suites={','.join(check_data.option_names({}, 'suites'))}"])
    assert failures(capsys) == []


def failures(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What cannot be opened; that there are fewer rows than are published is as it should be."""
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(("ok", "FAIL")) for line in lines) > 5
    fewer = (" instead of ", "expected 113957 rows", "expected 1801350 rows")
    return [line for line in lines if line.startswith("FAIL") and not any(what in line for what in fewer)]


def test_a_rehearsal_goes_from_the_recipe_to_filled_cells_that_no_other_table_takes(
    here: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = definition.read_definition(4, "rehearsal")
    columns = tuple(column for column in whole.columns if column.suite == "lm_gsm8k")
    part = replace(whole, rows=whole.rows[:1], columns=columns)
    monkeypatch.setattr(table, "read_definition", lambda number, scale: part)
    assert reproduce.main(["4", "scale=rehearsal", "evals.lm_gsm8k.shots=1"]) == 0
    assert "REHEARSAL of scale=paper" in capsys.readouterr().out
    ((run,),) = (
        table.parse_request(["4", "scale=rehearsal", "evals.lm_gsm8k.shots=1"], "table", "").identify_runs().values()
    )
    record = read_own_record(run)
    assert record.step == 2 and all(score.suite.startswith("lm_gsm8k (") for score in record.scores)
    made = RowRun(seed=0, run_id=run.run_id, command="", record=record)
    paper = definition.read_definition(4, "paper").columns
    assert [read_run_score(made, part.rows[0], column) for column in paper] == [None] * len(paper)
    assert len(fill_table(part, {part.rows[0].key: [made]}, [0]).missing) == 1


def test_settings_of_a_suite_go_to_the_rows_that_it_scores() -> None:
    given = ["evals.lm_humaneval.run_generated_code=true"]
    lines = definition.read_definition(3, "paper").command_lines(given)
    having = {name for name, line in lines.items() if given[0] in line}
    assert having == {name for name, line in lines.items() if any("lm_humaneval" in one for one in line)}
    assert {"base_1b"} <= having < set(lines)


def test_a_table_without_a_papers_scale_has_no_rehearsal() -> None:
    with pytest.raises(UsageError, match="table 15 has no scale=paper to rehearse"):
        definition.read_definition(15, "rehearsal")
