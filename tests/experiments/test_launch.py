"""One experiment on several processes, from its command line to its record (torchrun, gloo)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from experiments.config.compose import compose
from experiments.config.identity import Run, identify
from experiments.config.paths import ROOT
from experiments.runs.execute import ensure_run
from experiments.runs.metrics import read_metrics
from experiments.runs.record import read_record
from tests.models import apart

JOB = [
    "experiment=t15_ulme",
    "scale=tiny",
    "logging.wandb=disabled",
    "autocast=null",
    "runtime.chunk_tokens=100",
    "optim.steps=40",
    "evals=[local_sts]",
]


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\na cat\ta dog\t3\na cat\ta tomcat\t4\na car\tthe moon\t0\n")
    return [*JOB, f"evals.local_sts.file={pairs}"]


def started(arguments: list[str], folder: Path) -> subprocess.Popen:
    environment = os.environ | {"UNIFIED_LM_OUTPUTS": str(folder)}
    command = [sys.executable, "-m", "experiments.run", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def weights(run: Run) -> torch.Tensor:
    tensors = load_file(run.folder / "checkpoint" / "step-40" / "model.safetensors")
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)])


def test_a_run_on_two_processes_is_the_run_of_one_however_it_is_launched_and_interrupted(
    here: None, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = identify(compose(job))
    assert ensure_run(run) == 0
    entry = read_record(run.folder)
    alone = weights(run)
    for launch in ("local_2", "fsdp_2"):
        folder, arguments = tmp_path / launch, [*job, f"launch={launch}"]
        monkeypatch.setenv("UNIFIED_LM_OUTPUTS", str(folder))
        several = identify(compose(arguments))
        assert several.run_id == run.run_id
        process = started(arguments, folder)
        if launch == "fsdp_2":
            deadline = time.monotonic() + 300
            while not list(several.folder.glob("checkpoint/step-*")) and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            said = [line for line in process.communicate()[1].splitlines() if line and not line.startswith("train ")]
            assert process.returncode == 75
            assert said == [f"stopped: {run.run_id}: the same command continues it"]
            assert read_record(several.folder).status == "stopped"
            process = started(arguments, folder)
        process.communicate()
        assert process.returncode == 0
        found = read_record(several.folder)
        assert (found.status, found.step, found.streams) == ("finished", 40, entry.streams)
        assert [row["step"] for row in read_metrics(several.folder)] == list(range(1, 41))
        assert apart(weights(several), alone) <= 1e-5
        values = [[one.value for one in scored.scores] for scored in (found, entry)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)


PLAIN = ["experiment=t15_ulme", "scale=tiny", "logging.wandb=disabled"]


def test_several_processes_that_fail_say_why_and_nothing_of_torchruns_insides(outputs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments.run", *PLAIN, "launch=local_2", "optim.steps=many"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode not in (0, 75)
    assert "not a whole number" in done.stderr
    assert "torch/distributed" not in done.stderr
