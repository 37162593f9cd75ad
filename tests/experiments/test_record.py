"""The run directory: whole or absent, one identity, continuous over a resume."""

import copy
import json
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals.score import Score
from experiments.check_data import has_all_values
from experiments.config.compose import compose, list_options
from experiments.config.errors import UsageError
from experiments.config.identity import Run, identify
from experiments.report import render_run_list, write_report
from experiments.runs import record
from experiments.runs.freshness import is_complete, list_stale_suites, replace_suite_scores, suite_keys
from experiments.runs.locks import lock_run
from experiments.runs.metrics import MetricsLog, read_metrics
from experiments.runs.provenance import CodeVersion, Commit, Hardware
from experiments.runs.record import RunRecord, begin_record, change_record, read_record
from tests.a_table import record as a_record
from tests.a_table import score as a_score
from unified_lm.files import write_json, write_text

JOB = ["experiment=t15_ulme", "scale=tiny"]


def a_run(*more: str) -> Run:
    return identify(compose([*JOB, *more]))


def test_a_new_run_writes_down_what_is_about_to_be_run() -> None:
    run = a_run()
    entry = begin_record(run)
    assert entry.status == "started"
    assert (run.folder / "overrides.txt").read_text(encoding="utf-8").splitlines() == JOB
    assert read_record(run.folder) == entry
    written = json.loads((run.folder / "record.json").read_text(encoding="utf-8"))
    assert {"run_id", "name", "seed", "parent", "config", "git", "versions", "digest", "scores"} <= set(written)
    assert entry.data_fingerprints


def test_a_record_of_another_identity_is_never_overwritten() -> None:
    run = a_run()
    begin_record(run)
    change_record(run.folder, identity="somebody else's")
    before = (run.folder / "record.json").read_bytes()
    with pytest.raises(UsageError, match="another identity"):
        begin_record(run)
    assert (run.folder / "record.json").read_bytes() == before


def test_a_folder_of_something_else_is_left_alone() -> None:
    run = a_run()
    write_text(run.folder / "notes.txt", "mine")
    with pytest.raises(UsageError, match=r"notes\.txt but no record"):
        begin_record(run)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"run_id": "a", "status": "finished", "scores": []}'])
def test_a_damaged_record_is_told_and_not_replaced(text: str) -> None:
    run = a_run()
    write_text(run.folder / "record.json", text)
    for read in (lambda: begin_record(run), write_report):
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
    return [row["step"] for row in read_metrics(folder)]


def test_metrics_are_continuous_over_a_kill_and_a_resume(tmp_path: Path) -> None:
    first = MetricsLog(tmp_path)
    for step in (1, 2, 3):
        first.log({"step": step, "loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 4, "lo')
    again = MetricsLog(tmp_path)
    for step in (3, 4):
        again.log({"step": step, "loss": 0.5})
    assert rows(tmp_path) == [1, 2, 3, 4]
    assert [row["loss"] for row in read_metrics(tmp_path)] == [1.0, 1.0, 0.5, 0.5]


def test_the_time_of_earlier_attempts_counts(tmp_path: Path) -> None:
    MetricsLog(tmp_path).log({"step": 1, "loss": 1.0})
    path = tmp_path / "metrics.jsonl"
    write_text(path, json.dumps({"step": 1, "loss": 1.0, "wall_s": 100.0}) + "\n")
    assert MetricsLog(tmp_path).log({"step": 2, "loss": 1.0})["wall_s"] >= 100.0


def test_a_value_that_is_no_number_is_null_in_the_metrics(tmp_path: Path) -> None:
    MetricsLog(tmp_path).log({"step": 1, "loss": 1.0, "grad_norm": float("inf")})
    assert read_metrics(tmp_path)[0]["grad_norm"] is None


def finished(run: Run, evals: dict) -> RunRecord:
    config = run.config | {"evals": evals}
    suites = suite_keys(config, "d")
    return replace(RunRecord.new(run), status="finished", digest="d", config=config, suites=suites)


def test_a_finished_run_is_complete_until_its_suites_or_weights_change() -> None:
    run = a_run()
    suite = {"_target_": "evals.a.Suite", "queries": 3}
    entry = finished(run, {"a": suite})
    asks = entry.config
    assert is_complete(entry, asks)
    assert is_complete(entry, asks | {"evals": {}})
    assert not is_complete(entry, asks | {"evals": {"a": suite | {"queries": 4}}})
    assert not is_complete(entry, asks | {"evals": {"a": suite, "b": suite}})
    assert not is_complete(entry, asks | {"scoring": asks["scoring"] | {"readouts": ["slot_3"]}})
    assert not is_complete(replace(entry, digest="another"), asks)
    assert not is_complete(replace(entry, status="failed"), asks)


def test_scores_of_a_suite_replace_its_older_ones_and_no_others() -> None:
    def score(suite: str, value: float) -> Score:
        return a_score("t", "m", value, suite=suite)

    entry = a_record(
        scores=(score("a", 0.1), score("b", 0.2)),
        suites={"a": "x", "b": "y"},
        config={"evals": {"a": {}, "b": {}}, "scoring": {}},
    )
    skipped = {"t": "tried before", "u": "no text"}
    after = replace(entry, **replace_suite_scores(entry, "a", "z", [score("a", 0.3)], skipped))
    assert after.scores == (score("b", 0.2), score("a", 0.3))
    assert after.skipped == {"a": {"u": "no text"}}
    assert after.suites == {"a": "z", "b": "y"}
    again = replace_suite_scores(after, "a", "", [], {})
    assert again["scores"] == after.scores
    otherwise = replace(after, config={"evals": {"a": {"instruction": "x"}, "b": {}}, "scoring": {}})
    assert replace_suite_scores(otherwise, "a", "", [], {})["scores"] == (score("b", 0.2),)


def work_on(folder: Path, seconds: float, notes: Path) -> None:
    import time

    with lock_run(folder):
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
    before = suite_keys(config, "weights")
    assert suite_keys(config, "weights") == before
    text.write_text("another")
    assert suite_keys(config, "weights") != before


def test_a_suite_with_instructions_of_its_own_is_asked_again_when_they_change() -> None:
    def key(text: str) -> str:
        table = {"_target_": "evals.instructions.Instructions", "name": "mine", "tasks": {"A": {"query": text}}}
        suite = {"_target_": "evals.embedding.suite.MtebSuite", "name": "own", "instructions": table}
        return suite_keys({"evals": {"own": suite}, "scoring": {}}, "digest")["own"]

    assert key("find") == key("find") != key("find it")


def test_a_record_from_before_code_versions_were_kept_has_its_commits_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "code_digest_of_commit", lambda commit: f"code of {commit}")
    machine = Hardware(cpu="a processor", cores=2, gpus=())
    old = a_record(git=Commit(commit="c", dirty=False), versions={"torch": "2"}, hardware=machine)
    (version,) = old.list_code_versions()
    assert version == CodeVersion(commit="c", dirty=False, code="code of c", versions={"torch": "2"})
    (changed,) = replace(old, git=Commit(commit="c", dirty=True)).list_code_versions()
    assert changed.code is None  # what the files held is not known
    assert replace(old, git=None).list_code_versions()[0].commit is None
    assert replace(old, hardware=None).list_code_versions() == ()  # no worker has begun


@pytest.mark.parametrize("name", [name for name in list_options("evals") if has_all_values("evals", name)])
def test_every_suite_can_be_asked_for_and_another_checkpoint_is_asked_anew(name: str) -> None:
    config = identify(compose(["experiment=t15_ulme", "scale=none", f"evals=[{name}]"])).config
    first, other = (suite_keys(config, digest) for digest in ("a", "b"))
    assert all(first[suite] != other[suite] for suite in config["evals"])


def full_record() -> dict[str, Any]:
    """The content of a record.json whose every field holds something."""
    machine = Hardware(cpu="a processor", cores=2, memory_gib=1.5, gpus=("a GPU",), system="Linux")
    version = CodeVersion(commit="c", dirty=False, code="d", versions={"torch": "2"})
    entry = replace(
        RunRecord.new(a_run("evals=[lm_gsm8k]")),
        parent="p",
        teacher="t",
        git=Commit(commit="c", dirty=True),
        code_versions=(version,),
        hardware=machine,
        threads=2,
        wall_s=1.5,
        device_hours=0.5,
        digest="d",
        step=3,
        losses={"loss": 0.5},
        corpus_fingerprints={"s": "f"},
        streams={"s": {"rows_seen": 3}},
        trainable={"slots": 4},
        wandb_id="w",
        suites={"lm_gsm8k": "k"},
        suite_settings={"lm_gsm8k": "w"},
        scores=(a_score("find", "ndcg_at_10", 0.5),),
        skipped={"lm_gsm8k": {"t": "no text"}},
        error="why",
    )
    return json.loads(json.dumps(entry.to_json()))


def iterate_paths(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in children:
        yield (*path, key)
        yield from iterate_paths(value, (*path, key))


def replaced(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(content)
    node = changed
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return changed


def test_a_record_comes_back_as_it_was_written() -> None:
    content = full_record()
    assert RunRecord.from_json(content).to_json() == RunRecord.from_json(content).to_json()
    assert json.loads(json.dumps(RunRecord.from_json(content).to_json())) == content


def test_a_record_of_an_older_version_is_read() -> None:
    content = full_record()
    older = {name: value for name, value in content.items() if name not in ("version", "config_digest")}
    older["makers"], older["ways"] = older.pop("code_versions"), older.pop("suite_settings")
    assert RunRecord.from_json(older) == RunRecord.from_json(content)
    for name in ("makers", "ways", "teacher", "skipped", "data_fingerprints", "streams", "trainable"):
        del older[name]
    assert RunRecord.from_json(older).scores == RunRecord.from_json(content).scores


def test_a_value_of_another_kind_is_refused_by_its_file_and_field_or_harms_nobody(outputs: Path) -> None:
    run = a_run("evals=[lm_gsm8k]")
    content, refused = full_record(), 0
    for path in iterate_paths(content):
        for value in (None, True, 3, -2.5, "text", [], {}, [None], {"a": None}):
            write_json(run.folder / "record.json", replaced(content, path, value))
            try:
                entry = read_record(run.folder)
            except UsageError as error:
                refused += 1
                said = str(error)
                assert said.count("\n") == 0 and "record.json" in said and str(path[0]) in said, (path, value, said)
                continue
            is_complete(entry, run.config)
            list_stale_suites(entry, run.config)
            entry.list_code_versions()
            render_run_list([entry])
            assert RunRecord.from_json(json.loads(json.dumps(entry.to_json()))) == entry
    assert refused > 1000


@pytest.mark.parametrize("text", [b"\xff", b"[" * 100_000, b'{"run_id": NaN}', b"null", b"3"])
def test_bytes_that_are_no_record_are_refused_in_one_line(text: bytes) -> None:
    run = a_run()
    run.folder.mkdir(parents=True)
    (run.folder / "record.json").write_bytes(text)
    with pytest.raises(UsageError, match=r"record\.json is no record: ") as told:
        read_record(run.folder)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("row", ["3", "[]", '{"step": "x"}', '{"step": 1}', '{"step": 1, "wall_s": 2, "loss": "low"}'])
def test_a_row_of_the_metrics_of_another_shape_is_refused_by_file_and_line(tmp_path: Path, row: str) -> None:
    write_text(tmp_path / "metrics.jsonl", f'{{"step": 1, "wall_s": 0.5}}\n{row}\n')
    with pytest.raises(UsageError, match=r"metrics\.jsonl:2: "):
        read_metrics(tmp_path)
