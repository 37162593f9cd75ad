"""One experiment from its command line to its record, and what happens when it cannot be."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import reproduce
from experiments.config.compose import compose
from experiments.config.errors import UsageError
from experiments.config.identity import Run, identify
from experiments.config.paths import ROOT
from experiments.run import main
from experiments.runs.execute import ensure_run
from experiments.runs.metrics import read_metrics
from experiments.runs.record import RunRecord, begin_record, change_record, read_record

JOB = ["experiment=t15_ulme", "scale=tiny", "logging.wandb=disabled"]


def a_run(*more: str) -> Run:
    return identify(compose([*JOB, *more]))


def entry_of(run: Run) -> RunRecord:
    entry = read_record(run.folder)
    assert entry is not None
    return entry


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "experiments.run", *arguments]


def test_a_run_leaves_its_record_its_metrics_and_a_checkpoint(here: None) -> None:
    assert main(JOB) == 0
    run = a_run()
    entry = entry_of(run)
    assert entry.status == "finished"
    assert entry.step == 3
    assert len(entry.digest) == 16
    assert {"loss", "semantic", "generative", "predictive"} <= set(entry.losses)
    assert entry.threads == 1
    assert entry.hardware.cores == os.cpu_count()
    assert entry.corpus_fingerprints
    assert {stream["rows_seen"] for stream in entry.streams.values()} == {12}
    assert entry.trainable["slots"] == 4
    rows = read_metrics(run.folder)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert {"loss", "lr", "grad_norm", "tokens_per_s", "padding_factor"} <= set(rows[0])
    assert list((run.folder / "checkpoint").rglob("model.safetensors"))


def test_a_record_names_every_version_that_had_a_part_in_it_once(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run()
    assert ensure_run(run) == 0
    (first,) = entry_of(run).code_versions
    assert first.code and first.versions["torch"]
    change_record(run.folder, status="trained")
    assert ensure_run(run) == 0
    assert entry_of(run).code_versions == (first,)
    later = replace(first, code="another")
    monkeypatch.setattr("experiments.runs.worker.current_code_version", lambda: later)
    change_record(run.folder, status="trained")
    assert ensure_run(run) == 0
    assert entry_of(run).code_versions == (first, later)


def test_doing_it_again_does_nothing(here: None, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run()
    assert ensure_run(run) == 0
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.safetensors")}
    metrics = (run.folder / "metrics.jsonl").read_bytes()
    assert ensure_run(run) == 0
    assert "already there" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.safetensors")} == before
    assert (run.folder / "metrics.jsonl").read_bytes() == metrics


def test_an_impossible_combination_is_refused_in_one_line_and_leaves_nothing(outputs: Path) -> None:
    cases = {
        "attention=bidirectional": "attention=causal",
        "kernel=flash": "kernel=flash cannot be used here",
        "method.target=men": "method.target=men is unknown",
        "optim.schedule=linaer": "optim.schedule=linaer is unknown",
        "optim.steps=many": "not a whole number",
        "+method.slotz=3": "did you mean slots",
        "backbone=bm25": "use method=none",
        "autocast=int8": "autocast=int8 is unknown",
        "lengths.query=0": "lengths.query=0",
        "~method.temperature": "'temperature'",
        "scoring.readouts=[slot_9]": "asks for a slot that is not there",
        "scoring.readouts=[slt_0]": "readout=slt_0 is unknown",
        "optim.warmup=-1": "must not be negative",
    }
    for override, said in cases.items():
        run = a_run(override)
        with pytest.raises(UsageError) as told:
            ensure_run(run)
        assert said in str(told.value), override
        assert "\n" not in str(told.value), override
        assert not outputs.exists(), override


def test_a_row_that_trains_nothing_has_the_backbone_for_its_digest(here: None) -> None:
    run = identify(compose(["experiment=t15_base", "scale=tiny", "logging.wandb=disabled"]))
    assert ensure_run(run) == 0
    assert entry_of(run).digest
    assert entry_of(run).step is None
    assert not (run.folder / "checkpoint").exists()


def test_a_record_says_why_a_task_has_no_score(here: None, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\na cat\ta cat\t5\na cat\ta dog\t2\na cat\ta ball\t0\n")
    suite = ["evals=[local_sts]", f"evals.local_sts.file={pairs}"]
    run = identify(compose(["experiment=t15_bm25", "scale=tiny", "logging.wandb=disabled", *suite]))
    assert ensure_run(run) == 0
    assert entry_of(run).scores == ()
    assert "STS needs vectors" in entry_of(run).skipped["local_sts"]["LocalSts"]


def test_a_paper_scale_run_without_a_gpu_stops_before_any_work_and_names_mini(outputs: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    for command in (["experiment=t15_ulme"], ["experiment=t1_ulme"], ["-m", "experiment=t1_ulme", "seed=0,1"]):
        with pytest.raises(UsageError, match="scale=mini"):  # before commits of its data are asked for
            main([*command, "scale=paper"])
    with pytest.raises(UsageError, match="scale=mini"):
        reproduce.main(["1", "scale=paper"])
    assert not outputs.exists()


def test_a_parent_is_trained_first_once_and_its_weights_are_where_the_child_starts(
    here: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.runs.open_run import open_run

    child = a_run("parent=t15_contrastive", "optim.learning_rate=1e-30")
    assert ensure_run(child) == 0
    assert entry_of(child).parent == child.parent.run_id
    assert entry_of(child.parent).status == "finished"
    older, younger = (
        dict(open_run(run.folder).built.model.backbone.named_parameters()) for run in (child.parent, child)
    )
    assert all(bool((older[name] == younger[name]).all()) for name in older)
    capsys.readouterr()
    assert ensure_run(a_run("parent=t15_contrastive", "optim.learning_rate=1e-29")) == 0
    assert f"already there: {child.parent.folder}" in capsys.readouterr().out.replace("\n", " ")


BEGIN = """
import sys
from experiments.runs.locks import lock_run
from experiments.runs.record import begin_record
from experiments.config.compose import compose
from experiments.config.identity import identify
run = identify(compose(sys.argv[1:]))
with lock_run(run.folder):
    begin_record(run)
print(run.run_id)
"""


def test_eight_jobs_at_once_have_eight_directories(outputs: Path) -> None:
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN, *JOB, f"seed={seed}"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for seed in range(8)
    ]
    ids = {job.communicate()[0].strip() for job in jobs}
    assert {path.name for path in (outputs / "runs").iterdir()} == ids
    assert len(ids) == 8


def test_a_killed_run_continues_from_another_folder_to_the_same_weights(
    here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker as a process: SIGTERM while it trains, then the same command from elsewhere; compared with one go."""
    long = ["optim.steps=200", "runtime.save_every=5"]
    run, straight = a_run(*long), a_run(*long)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command(*JOB, *long), cwd=ROOT, env=environment)
    deadline = time.monotonic() + 300
    while not list(run.folder.glob("checkpoint/step-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 75
    assert entry_of(run).status == "stopped"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    subprocess.run(command(*JOB, *long), cwd=elsewhere, env=environment, check=True)
    assert not list(elsewhere.iterdir())
    resumed = entry_of(run)
    assert [row["step"] for row in read_metrics(run.folder)] == list(range(1, 201))
    monkeypatch.setenv("UNIFIED_LM_OUTPUTS", str(tmp_path / "in_one_go"))
    assert ensure_run(straight) == 0
    assert resumed.digest == entry_of(straight).digest


def test_a_worker_that_outlives_its_killed_command_is_waited_for_and_never_joined(outputs: Path) -> None:
    long = ["optim.steps=60", "runtime.save_every=5"]
    run = a_run(*long)
    process = subprocess.Popen(command(*JOB, *long), cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 90
    while not list(run.folder.glob("checkpoint/step-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert entry_of(run).status == "started"
    assert ensure_run(run) == 0
    assert [row["step"] for row in read_metrics(run.folder)] == list(range(1, 61))
    assert (run.folder / "worker.log").read_text(encoding="utf-8").count("pid ") == 1


def test_a_request_to_stop_that_finds_the_worker_not_training_is_no_failure(outputs: Path) -> None:
    run = a_run()
    process = subprocess.Popen(command(*JOB), cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 90
    while not (run.folder / "worker.log").exists() and time.monotonic() < deadline:
        time.sleep(0.02)  # the worker is there, and is still making its model
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 75
    assert entry_of(run).status == "stopped"


def test_how_an_earlier_attempt_ended_does_not_speak_for_this_one(outputs: Path) -> None:
    run = a_run()
    for status in ("stopped", "failed"):
        begin_record(run)
        change_record(run.folder, status=status, error="why")
        assert begin_record(run) == RunRecord.new(run)


def test_weights_that_the_record_does_not_name_are_never_taken_for_a_run(here: None) -> None:
    from experiments.runs.open_run import open_run

    run = a_run("runtime.keep_last=2")
    assert ensure_run(run) == 0
    final = max(run.folder.glob("checkpoint/step-*"))
    (final / "model.safetensors").write_bytes(b"cut")
    assert list(run.folder.glob("checkpoint/step-*")) != [final]
    with pytest.raises(ValueError, match=f"lacks the weights {entry_of(run).digest}"):
        open_run(run.folder)


def test_a_finished_run_whose_weights_are_damaged_is_trained_again_to_the_same_weights(
    here: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\na cat\ta dog\t3\na cat\ta tomcat\t4\na car\tthe moon\t0\n")
    plain = a_run("runtime.keep_last=2", "runtime.save_every=2")
    assert ensure_run(plain) == 0
    digest = entry_of(plain).digest
    final = plain.folder / "checkpoint" / "step-3" / "model.safetensors"
    final.write_bytes(final.read_bytes()[:-10])
    asked = a_run("runtime.keep_last=2", "runtime.save_every=2", "evals=[local_sts]", f"evals.local_sts.file={pairs}")
    assert asked.folder == plain.folder
    assert ensure_run(asked) == 0
    assert "trained again from the one before" in capsys.readouterr().out
    assert entry_of(plain).digest == digest
    assert entry_of(plain).scores
