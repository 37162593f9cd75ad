"""Any model, any task: `experiments.score` on a mirror, and `experiments.check_data` before it."""

import json
from collections.abc import Iterator
from pathlib import Path

import mteb
import pytest

from experiments import check_data, score
from experiments.config.errors import UsageError
from experiments.runs import freshness
from experiments.runs.freshness import suite_keys
from experiments.score import config_for_rescoring, suite_overrides
from unified_lm.backbones import Tiny

PAIRS = [("a cat", "a cat", 5.0), ("a cat", "cats and a cat", 4.0), ("a dog", "a red ball", 1.0), ("x", "y", 0.0)]


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("UNIFIED_LM_OUTPUTS", str(tmp_path / "outputs"))
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mirror" / mteb.get_task("STSBenchmark").metadata.dataset["path"]
    folder.mkdir(parents=True)
    rows = [{"sentence1": first, "sentence2": second, "score": score} for first, second, score in PAIRS]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    yield tmp_path / "mirror"


def test_any_task_of_a_library_is_scored_on_any_model_and_written_down(
    mirror: Path, tmp_path: Path, here: None, capsys: pytest.CaptureFixture
) -> None:
    model, loaded = tmp_path / "model", Tiny().load()
    loaded.model.save_pretrained(model)
    loaded.tokenizer.save_pretrained(model)
    arguments = [f"model={model}", "evals=mteb", "tasks=[STSBenchmark]", f"data_mirror={mirror}", "runtime.device=cpu"]
    assert score.main(arguments) == 0
    printed = capsys.readouterr().out
    (written,) = (tmp_path / "outputs" / "scores").glob("*/scores.json")
    (found,) = json.loads(written.read_text())
    assert (found["suite"], found["task"], found["n"]) == ("mteb (subset)", "STSBenchmark", 4)
    assert found["revision"].startswith("mirror:") and found["prompt"] == "Retrieve semantically similar text."
    assert f"{found['value']:.4f}" in printed and str(written.parent.name) in printed


def test_a_changed_mirror_is_asked_again_and_an_unchanged_or_moved_one_is_not(mirror: Path) -> None:
    def asked(folder: Path) -> dict[str, str]:
        return suite_keys({"evals": {"s": {"mirror": str(folder)}}, "scoring": {}}, "d")

    before = asked(mirror)
    assert asked(mirror) == before
    moved = mirror.rename(mirror.parent / "moved")
    assert asked(moved) == before
    next(moved.rglob("test.jsonl")).write_text("{}\n")
    assert asked(moved) != before


SUITE = {"instructions": "none", "shots": 5, "template": "none", "budget": None, "mirror": None, "only": None}


@pytest.mark.parametrize(
    "change",
    [{"instructions": "llm2vec"}, {"shots": 0}, {"template": "rows"}, {"budget": 8}, {"only": ["t"]}],
    ids=lambda change: next(iter(change)),
)
def test_another_setting_of_a_suite_is_asked_again(change: dict) -> None:
    asked = [suite_keys({"evals": {"s": SUITE | one}, "scoring": {}}, "d") for one in ({}, change, {})]
    assert asked[0] == asked[2] != asked[1]


def test_a_table_of_instructions_that_was_edited_is_asked_again(tmp_path: Path) -> None:
    table, asked = tmp_path / "mine.yaml", []
    for text in ("find the animal", "which animal", "find the animal"):
        table.write_text(f"T: {{query: {text}}}\n")
        asked.append(suite_keys({"evals": {"s": SUITE | {"instructions": str(table)}}, "scoring": {}}, "d"))
    assert asked[0] == asked[2] != asked[1]


def test_other_weights_libraries_protocols_or_ways_to_score_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(digest: str = "d", **scoring: object) -> dict[str, str]:
        return suite_keys({"evals": {"s": SUITE}, "scoring": {"slots": False, "readouts": [], **scoring}}, digest)

    found = [asked(), asked("e"), asked(slots=True), asked(readouts=["last"]), asked(steps=[2])]
    monkeypatch.setitem(freshness.PROTOCOL_VERSIONS, "mteb", -1)
    found.append(asked())
    monkeypatch.setattr(freshness, "package_versions", lambda names: {"mteb": "0"})
    found.append(asked())
    assert len({one["s"] for one in found}) == len(found)


def test_a_run_takes_another_way_to_be_scored_and_no_other_training() -> None:
    config = {"evals": {}, "scoring": {"slots": False}, "runtime": {"threads": 4, "device": "auto"}, "launch": {}}
    given = ["evals=[lm_gsm8k]", "scoring.slots=true", "runtime.threads=1", "launch=local_2"]
    changed = config_for_rescoring(config, given, Path("r"))
    assert changed["scoring"] == {"slots": True} and changed["launch"]["processes"] == 2
    assert changed["runtime"] == {"threads": 1, "device": "auto"} and list(changed["evals"]) == ["lm_gsm8k"]
    assert config["evals"] == {} and config["scoring"] == {"slots": False}
    for given in ("lengths.query=9", "launch.param_dtype=bfloat16"):
        with pytest.raises(UsageError, match=f"r has its settings; {given} cannot change them"):
            config_for_rescoring(config, ["evals=[lm_gsm8k]", given], Path("r"))


def test_tasks_choose_of_the_suite_that_takes_any_and_cut_any_other() -> None:
    assert suite_overrides({"evals": "mteb", "tasks": "[A]"}) == ["evals=[mteb]", "evals.mteb.tasks=[A]"]
    assert suite_overrides({"evals": "[bright]", "tasks": "[A]"}) == ["evals=[bright]", "evals.bright.only=[A]"]
    with pytest.raises(UsageError, match="belong to one suite"):
        suite_overrides({"evals": "[bright,followir]", "tasks": "[A]"})


def test_data_is_checked_task_by_task_and_every_failure_is_listed(mirror: Path, capsys: pytest.CaptureFixture) -> None:
    code = check_data.main(["suites=sts_10,advbench_ir", f"data_mirror={mirror}"])
    captured = capsys.readouterr()
    assert code == 1
    assert "sts_10/STSBenchmark: test rows: 4 instead of 1379" in captured.err
    assert "sts_10/BIOSSES: ValueError: the data mirror has no" in captured.err
    assert "advbench_ir_dot/AdvBenchIR: ValueError: the data mirror has no" in captured.err
    assert "error: 14 of the data sets cannot be used" in captured.err


def test_a_data_set_without_a_pin_is_refused(mirror: Path, capsys: pytest.CaptureFixture) -> None:
    assert check_data.main(["suites=advbench_ir"]) == 1
    assert "is not pinned" in capsys.readouterr().err
