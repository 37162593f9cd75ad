"""The table and report commands, on runs of the tiny scale."""

import json
from pathlib import Path

import pytest
import yaml

from experiments import reproduce, score, table
from experiments.config.errors import UsageError
from experiments.config.paths import ROOT
from experiments.report import write_report
from experiments.tables import definition
from tests.experiments.test_compose import own_conf

__all__ = ["own_conf"]


@pytest.fixture
def small(own_conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of two trained rows and one column, of a suite that scores words shared by query and document."""
    content = yaml.safe_load((ROOT / "conf" / "table" / "15.yaml").read_text(encoding="utf-8"))
    mini = content["scales"]["mini"]
    column = {"key": "found", "label": "found", "suite": "given", "task": "LocalBeir", "metric": "ndcg_at_10"}
    rows = [row for row in mini["rows"] if row["key"] in ("base", "contrastive")]
    tiny = mini | {"rows": rows, "columns": [column | {"better": "higher"}], "claims": [], "notes": []}
    content["scales"] = {"tiny": tiny}
    (own_conf / "table" / "15.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    monkeypatch.setattr(definition, "CONF", own_conf)


REQUEST = ["15", "scale=tiny", "seeds=0,1", "evals=[]", "logging.wandb=disabled"]


def test_a_table_without_its_runs_exits_with_one_shows_dashes_and_names_the_commands(
    small: None, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table.main(REQUEST) == 1
    said = capsys.readouterr()
    assert "| -- [1] |" in said.out
    assert "- [1] no run" in said.out
    command = "python -m experiments.run experiment=t15_contrastive scale=tiny 'evals=[]'"
    assert f"{command} logging.wandb=disabled seed=1" in said.err
    assert {path.name for path in (outputs / "tables").iterdir()} == {
        f"table-15.{ending}" for ending in ("md", "csv", "tex", "html", "json")
    }


def test_reproducing_trains_what_lacks_and_a_failed_run_leaves_a_hole(
    small: None, here: None, outputs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert reproduce.main(REQUEST) == 1  # nothing scores `given` here: the runs are made, their cells are not
    said = capfd.readouterr()
    assert "[3/3]" in said.out
    assert said.out.count("done after") == 3
    rows = json.loads((outputs / "tables" / "table-15.json").read_text(encoding="utf-8"))["rows"]
    assert [len(row["runs"]) for row in rows] == [1, 2]
    cells = [cell for row in rows for cell in row["cells"].values()]
    assert all(cell["ours"] is None for cell in cells)
    assert {one["reason"] for cell in cells for one in cell["lacking"]} == {"the run was not scored on given"}
    page = (outputs / "report" / "index.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "Table 15 at scale=tiny" in page
    assert "t15_contrastive-s1-" in page


def test_what_was_scored_in_another_way_stands_in_no_cell_until_it_is_scored_as_the_row_asks(
    small: None, here: None, own_conf: Path, outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\na cat\ta dog\t3\na cat\ta tomcat\t4\na car\tthe moon\t0\n")
    suite = ["evals=[local_sts]", f"evals.local_sts.file={pairs}"]
    content = yaml.safe_load((own_conf / "table" / "15.yaml").read_text(encoding="utf-8"))
    tiny = content["scales"]["tiny"]
    tiny["rows"] = [row for row in tiny["rows"] if row["key"] == "contrastive"]
    tiny["columns"] = [
        column | {"suite": "local_sts", "task": "LocalSts", "metric": "cosine_spearman"} for column in tiny["columns"]
    ]
    (own_conf / "table" / "15.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    request = [*REQUEST, "seeds=0", *suite]
    assert reproduce.main(request) == 0
    (folder,) = (outputs / "runs").iterdir()
    before = (outputs / "tables" / "table-15.csv").read_text(encoding="utf-8")
    assert table.main(request) == 0
    assert score.main([f"model={folder.name}", *suite, "evals.local_sts.instruction=Say it again."]) == 0
    capsys.readouterr()
    assert table.main(request) == 1
    assert "local_sts was scored with other settings than this row asks for" in capsys.readouterr().out
    assert reproduce.main(request) == 0
    assert (outputs / "tables" / "table-15.csv").read_text(encoding="utf-8") == before


def test_a_row_of_two_models_reuses_the_runs_of_their_own_rows_and_needs_no_other() -> None:
    for number in (3, 15):
        asked = table.parse_request([str(number), "scale=mini", "seeds=0,1"], "table", "")
        runs = asked.identify_runs()
        alone = {run.run_id for name, each in runs.items() if not name.startswith("two_models") for run in each}
        for name in ("two_models", "two_models/also"):
            assert {run.run_id for run in runs[name]} < alone


def test_rows_that_are_put_to_their_suites_otherwise_are_runs_of_their_own() -> None:
    runs = table.parse_request(["3", "scale=mini"], "table", "").identify_runs()
    assert runs["ulme"][0].identity == runs["ulme_slots"][0].identity
    assert runs["ulme"][0].run_id != runs["ulme_slots"][0].run_id


def test_a_row_whose_data_nobody_can_identify_is_a_hole_with_its_reason_and_the_others_have_their_runs() -> None:
    asked = table.parse_request(["1", "scale=paper"], "table", "")
    runs = asked.identify_runs()
    assert asked.unidentified_models and all(name.startswith("llm2vec_gen") for name in asked.unidentified_models)
    assert {name for name, each in runs.items() if not each} == set(asked.unidentified_models)
    filled = table.fill_requested_table(asked, runs)
    (reason, *_) = {
        cell.missing_seeds[0][1]
        for line in filled.lines
        for cell in line.cells
        if line.rows[0].key in asked.unidentified_models
    }
    assert "the commit of McGill-NLP/llm2vec-gen-tulu is not known to us" in reason
    assert any(
        cell.reported for line in filled.lines for cell in line.cells if line.rows[0].key in asked.unidentified_models
    )


def test_a_report_without_any_run_is_a_page_that_says_so(outputs: Path) -> None:
    (outputs / "tables").mkdir(parents=True)
    (outputs / "tables" / "table-15 (copy).html").write_text("<body>a user's own</body>", encoding="utf-8")
    assert "No table is rendered yet" in write_report().read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say which table"),
        (["fifteen"], "say which table"),
        (["99"], "table 99 is not defined"),
        (["15", "scale=min"], "did you mean mini"),
        (["15", "seed=0"], "seeds=0,1,2"),
        (["15", "seeds=a"], "no list of whole numbers"),
        (["²"], "say which table"),
        (["15", "seeds=²"], "no list of whole numbers"),
        (["15", "quick"], "name=value"),
        (["15", "optim.stepz=3"], "did you mean optim.steps"),
    ],
)
def test_a_mistake_in_a_request_is_one_line(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        table.main(arguments)
    assert "\n" not in str(refused.value)
