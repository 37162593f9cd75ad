"""The run directory: whole or absent, one identity, continuous over a resume."""

import json
import multiprocessing
from pathlib import Path

import pytest

from experiments.check_data import NEEDS_A_VALUE
from experiments.config.compose import compose, list_options
from experiments.config.errors import UsageError
from experiments.config.identity import Run, identify
from experiments.report import write_report
from experiments.runs import record
from experiments.runs.files import write_json, write_text

JOB = ["experiment=t15_ulme", "scale=tiny"]


def a_run(*more: str) -> Run:
    return identify(compose([*JOB, *more]))


def test_a_new_run_writes_down_what_is_about_to_be_run() -> None:
    run = a_run()
    entry = record.begin_record(run)
    assert entry["status"] == "started"
    assert (run.folder / "overrides.txt").read_text(encoding="utf-8").splitlines() == JOB
    assert record.read_record(run.folder) == entry
    assert {"run_id", "name", "seed", "parent", "config", "git", "versions", "digest", "scores"} <= set(entry)
    assert entry["data_fingerprints"]


def test_a_record_of_another_identity_is_never_overwritten() -> None:
    run = a_run()
    record.begin_record(run)
    record.change_record(run.folder, identity="somebody else's")
    before = (run.folder / "record.json").read_bytes()
    with pytest.raises(UsageError, match="another identity"):
        record.begin_record(run)
    assert (run.folder / "record.json").read_bytes() == before


def test_a_folder_of_something_else_is_left_alone() -> None:
    run = a_run()
    write_text(run.folder / "notes.txt", "mine")
    with pytest.raises(UsageError, match=r"notes\.txt but no record"):
        record.begin_record(run)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"run_id": "a", "status": "finished", "scores": []}'])
def test_a_damaged_record_is_told_and_not_replaced(text: str) -> None:
    run = a_run()
    write_text(run.folder / "record.json", text)
    for read in (lambda: record.begin_record(run), write_report):
        with pytest.raises(UsageError, match="no record"):
            read()
    assert (run.folder / "record.json").read_text(encoding="utf-8") == text


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"value": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"value": float("nan")})
    assert json.loads(path.read_text(encoding="utf-8")) == {"value": 1}
    assert list(tmp_path.iterdir()) == [path]


def rows(folder: Path) -> list[int]:
    return [row["step"] for row in record.read_metrics(folder)]


def test_metrics_are_continuous_over_a_kill_and_a_resume(tmp_path: Path) -> None:
    first = record.MetricsLog(tmp_path)
    for step in (1, 2, 3):
        first.log({"step": step, "loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 4, "lo')
    again = record.MetricsLog(tmp_path)
    for step in (3, 4):
        again.log({"step": step, "loss": 0.5})
    assert rows(tmp_path) == [1, 2, 3, 4]
    assert [row["loss"] for row in record.read_metrics(tmp_path)] == [1.0, 1.0, 0.5, 0.5]


def test_the_time_of_earlier_attempts_counts(tmp_path: Path) -> None:
    record.MetricsLog(tmp_path).log({"step": 1, "loss": 1.0})
    path = tmp_path / "metrics.jsonl"
    write_text(path, json.dumps({"step": 1, "loss": 1.0, "wall_s": 100.0}) + "\n")
    assert record.MetricsLog(tmp_path).log({"step": 2, "loss": 1.0})["wall_s"] >= 100.0


def test_a_value_that_is_no_number_is_null_in_the_metrics(tmp_path: Path) -> None:
    record.MetricsLog(tmp_path).log({"step": 1, "loss": 1.0, "grad_norm": float("inf")})
    assert record.read_metrics(tmp_path)[0]["grad_norm"] is None


def finished(run: Run, evals: dict) -> dict:
    config = run.config | {"evals": evals}
    entry = record.begin_record(run) | {"status": "finished", "digest": "d", "config": config}
    return entry | {"suites": record.suite_keys(config, "d")}


def test_a_finished_run_is_complete_until_its_suites_or_weights_change() -> None:
    run = a_run()
    suite = {"_target_": "evals.a.Suite", "queries": 3}
    entry = finished(run, {"a": suite})
    asks = entry["config"]
    assert record.is_complete(entry, asks)
    assert record.is_complete(entry, asks | {"evals": {}})
    assert not record.is_complete(entry, asks | {"evals": {"a": suite | {"queries": 4}}})
    assert not record.is_complete(entry, asks | {"evals": {"a": suite, "b": suite}})
    assert not record.is_complete(entry, asks | {"scoring": asks["scoring"] | {"readouts": ["slot_3"]}})
    assert not record.is_complete(entry | {"digest": "another"}, asks)
    assert not record.is_complete(entry | {"status": "failed"}, asks)


def test_scores_of_a_suite_replace_its_older_ones_and_no_others() -> None:
    def score(suite: str, value: float) -> dict:
        return {"suite": suite, "task": "t", "value": value}

    config = {"evals": {"a": {}, "b": {}}, "scoring": {}}
    entry = {"scores": [score("a", 1), score("b", 2)], "suites": {"a": "x", "b": "y"}, "config": config}
    after = record.replace_suite_scores(entry, "a", "z", [score("a", 3)], {"t": "tried before", "u": "no text"})
    assert after["scores"] == [score("b", 2), score("a", 3)]
    assert after["skipped"] == {"a": {"u": "no text"}}
    assert after["suites"] == {"a": "z", "b": "y"}
    again = record.replace_suite_scores({**entry, **after}, "a", "", [], {})
    assert again["scores"] == after["scores"]
    otherwise = {"evals": {"a": {"instruction": "x"}, "b": {}}, "scoring": {}}
    assert record.replace_suite_scores({**entry, **after, "config": otherwise}, "a", "", [], {})["scores"] == [
        score("b", 2)
    ]


def work_on(folder: Path, seconds: float, notes: Path) -> None:
    import time

    with record.lock_run(folder):
        with notes.open("a", encoding="utf-8") as file:
            file.write("in\n")
        time.sleep(seconds)
        with notes.open("a", encoding="utf-8") as file:
            file.write("out\n")


def test_one_process_at_a_time_works_on_a_run(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    notes = tmp_path / "notes"
    workers = [context.Process(target=work_on, args=(tmp_path / "run", 0.2, notes)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert notes.read_text(encoding="utf-8").split() == ["in", "out"] * 3


@pytest.mark.parametrize(("suite", "key"), [("local_sts", "file"), ("local_beir", "folder")])
def test_a_suite_over_local_data_is_asked_again_when_the_data_changes(tmp_path: Path, suite: str, key: str) -> None:
    place = tmp_path / "data"
    if key == "folder":
        place.mkdir()
    text = place / "corpus.jsonl" if key == "folder" else place
    text.write_text("one")
    config = compose(["scale=tiny", f"evals=[{suite}]", f"evals.{suite}.{key}={place}"]).resolved
    before = record.suite_keys(config, "weights")
    assert record.suite_keys(config, "weights") == before
    text.write_text("another")
    assert record.suite_keys(config, "weights") != before


def test_a_record_from_before_makers_were_kept_has_its_commits_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "code_digest_of_commit", lambda commit: f"code of {commit}")
    old = {"git": {"commit": "c", "dirty": False}, "versions": {"torch": "2"}, "hardware": {"cores": 2}}
    (maker,) = record.list_code_versions(old)
    assert maker == {"commit": "c", "dirty": False, "code": "code of c", "versions": {"torch": "2"}}
    changed = record.list_code_versions(old | {"git": {"commit": "c", "dirty": True}})
    assert changed[0]["code"] is None  # what the files held is not known
    assert record.list_code_versions(old | {"git": None})[0]["commit"] is None
    assert record.list_code_versions(old | {"hardware": None}) == []  # no worker has begun


@pytest.mark.parametrize("name", [name for name in list_options("evals") if name not in NEEDS_A_VALUE])
def test_every_suite_can_be_asked_for_and_another_checkpoint_is_asked_anew(name: str) -> None:
    config = identify(compose(["experiment=t15_ulme", "scale=none", f"evals=[{name}]"])).config
    first, other = (record.suite_keys(config, digest) for digest in ("a", "b"))
    assert all(first[suite] != other[suite] for suite in config["evals"])
