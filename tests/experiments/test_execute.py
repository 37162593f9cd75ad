"""Several runs at once: each in its share of the machine, with its own log, and none that stops another."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.config.compose import compose
from experiments.config.errors import UsageError
from experiments.config.identity import Run, identify
from experiments.config.paths import ROOT
from experiments.reproduce import parse_jobs
from experiments.runs.execute import Crew, count_cores, divide_machine
from experiments.runs.locks import lock_worker
from experiments.runs.preflight import list_stages
from experiments.runs.record import RunRecord, read_record

JOB = ["experiment=t15_ulme", "scale=tiny", "logging.wandb=disabled", "runtime.threads=null"]


def a_run(*more: str) -> Run:
    return identify(compose([*JOB, *more]))


def entry_of(run: Run) -> RunRecord:
    entry = read_record(run.folder)
    assert entry is not None
    return entry


def test_runs_work_at_once_in_their_share_of_the_cores_and_each_tells_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    runs = [a_run(f"seed={seed}") for seed in (0, 1)]
    assert Crew(runs, 2).work() == {run.run_id: 0 for run in runs}
    said = capfd.readouterr()
    first, second, *later = said.out.splitlines()
    assert first.startswith(f"[1/2] {runs[0].run_id} started")
    assert second.startswith(f"[2/2] {runs[1].run_id} started")
    assert sorted(line.rpartition(" after ")[0] for line in later if " after " in line) == [
        f"[{number}/2] {run.run_id} done" for number, run in enumerate(runs, start=1)
    ]
    assert said.err == ""
    for number, run in enumerate(runs, start=1):
        progress = [line for line in later if line.startswith(f"[{number}/2] {run.run_id}: ")]
        assert "train 3/3" in progress[-1]
        assert entry_of(run).threads == max(1, count_cores() // 2)
        assert "train 3/3" in (run.folder / "worker.log").read_text(encoding="utf-8")
    assert Crew(runs, 2).work() == {run.run_id: 0 for run in runs}
    assert capfd.readouterr().out.count("already there") == 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_or_refused_run_stops_none_but_those_that_start_from_it(
    jobs: int, capfd: pytest.CaptureFixture[str]
) -> None:
    unmade = a_run("parent=t15_contrastive", "parent_overrides=['optim.learning_rate=1e30']")
    bad = a_run("parent=t15_contrastive", "optim.learning_rate=-1", "seed=3")
    good, strange = a_run("seed=1"), a_run("seed=2")
    strange.folder.mkdir(parents=True)
    (strange.folder / "notes.txt").write_text("mine")
    codes = Crew([unmade, bad, strange, good], jobs).work()
    assert codes == {unmade.parent.run_id: 1, unmade.run_id: 1, bad.run_id: 2, strange.run_id: 2, good.run_id: 0}
    assert not unmade.folder.exists() and not bad.folder.exists() and not bad.parent.folder.exists()
    said = capfd.readouterr().out
    assert f"{unmade.parent.run_id} failed (" in said
    assert f"{unmade.run_id} not started" in said
    assert f"{bad.run_id} refused: " in said
    assert f"{strange.run_id} refused: " in said
    assert entry_of(good).status == "finished"


SCRIPT = """
import sys
from experiments.config.compose import compose
from experiments.config.identity import identify
from experiments.runs.execute import execute_runs
runs = [identify(compose([*sys.argv[2:], f"seed={seed}"])) for seed in (0, 1, 2)]
codes = execute_runs(runs, int(sys.argv[1]))
print(sorted(codes.values()))
"""


@pytest.mark.parametrize(("jobs", "number"), [(1, signal.SIGTERM), (2, signal.SIGTERM), (2, signal.SIGINT)])
def test_a_request_to_stop_ends_all_runs_behind_a_checkpoint_and_begins_no_other(jobs: int, number: int) -> None:
    long = ["optim.steps=5000", "runtime.save_every=5"]
    runs = [a_run(*long, f"seed={seed}") for seed in range(3)]
    command = [sys.executable, "-c", SCRIPT, str(jobs), *JOB, *long]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not all(list(r.folder.glob("checkpoint/step-*")) for r in runs[:jobs]):
        time.sleep(0.05)
    process.send_signal(number)
    try:
        said = process.communicate(timeout=100)[0]
    finally:
        process.terminate()
    if number == signal.SIGINT:
        assert process.returncode != 0
    else:
        assert said.splitlines()[-1] == str([75] * jobs)
    for run in runs[:jobs]:
        assert entry_of(run).status == "stopped"
        with lock_worker(run.folder, wait=False):  # no worker is left
            assert list(run.folder.glob("checkpoint/step-*"))
    assert not any(run.folder.exists() for run in runs[jobs:])


def test_a_run_that_is_asked_for_twice_waits_for_itself_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\na cat\ta dog\t3\na cat\ta tomcat\t4\na car\tthe moon\t0\n")
    stage, row = a_run(), a_run("evals=[local_sts]", f"evals.local_sts.file={pairs}")
    assert stage.run_id == row.run_id
    assert Crew([row, stage], 2).work() == {row.run_id: 0}
    said = capfd.readouterr().out
    assert "another process" not in said
    assert f"[2/2] {stage.run_id} already there" in said
    before = (row.folder / "record.json").read_bytes()
    assert Crew([stage]).work() == {row.run_id: 0}
    assert (row.folder / "record.json").read_bytes() == before  # its suites stay in the record


def test_older_runs_come_before_those_that_need_them_and_each_comes_once() -> None:
    child, parent = a_run("parent=t15_contrastive"), identify(compose(["experiment=t15_contrastive", "scale=tiny"]))
    other = a_run("seed=1")
    assert [run.run_id for run in list_stages([child, other, parent, child])] == [
        parent.run_id,
        child.run_id,
        other.run_id,
    ]


def test_runs_never_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    one, two, cpu = a_run(), a_run("launch=local_2"), a_run("runtime.device=cpu")
    assert [place.gpus for place in divide_machine([one], 2)] == ["0", "1"]
    assert [place.gpus for place in divide_machine([one, two], 2)] == ["0,1", "2,3"]
    assert [place.gpus for place in divide_machine([cpu], 2)] == [None, None]
    with pytest.raises(UsageError, match=r"need 6 GPUs.* there are 4: use jobs=2"):
        divide_machine([two], 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert divide_machine([one], 2)[1].environment(one)["CUDA_VISIBLE_DEVICES"] == "7"


@pytest.mark.parametrize("count", ["0", "-1", "two", "1.5", ""])
def test_jobs_is_a_count(count: str) -> None:
    with pytest.raises(UsageError, match="jobs="):
        parse_jobs([f"jobs={count}"])
    assert parse_jobs([]) == 1
