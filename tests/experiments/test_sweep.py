"""A sweep: every job runs, the failed ones are told, and each leaves its own log."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.config.compose import compose, list_options
from experiments.config.errors import UsageError
from experiments.config.identity import identify
from experiments.run import main
from experiments.runs.record import read_record
from experiments.runs.sweep import list_combinations

ROOT = Path(__file__).parents[2]
JOB = ["experiment=t15_ulme", "scale=tiny", "logging.wandb=disabled"]


IN_ONE_PROCESS = """
import sys
from experiments import run
from experiments.runs import execute
from experiments.runs import worker
execute.run_worker = lambda folder, config: worker.main(folder)
sys.exit(run.main(sys.argv[1:]))
"""


def swept(*overrides: str, workers: bool = True) -> subprocess.CompletedProcess[str]:
    """A sweep in a process of its own, since Hydra takes over a process's logging and streams; without `workers` the
    jobs run in that one, and torch is imported once."""
    begin = ["-m", "experiments.run"] if workers else ["-c", IN_ONE_PROCESS]
    command = [sys.executable, *begin, "-m", *JOB, *overrides]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_one_failing_job_does_not_stop_the_others_and_is_listed(outputs: Path) -> None:
    done = swept("optim.learning_rate=-1,1e-4", "seed=0,1", workers=False)
    assert done.returncode == 1, done.stderr
    said = done.stdout
    assert "2 of 4 jobs done, 2 failed" in said
    assert said.count("failed: ") == 2, said
    for rate, status in (("-1", None), ("1e-4", "finished")):
        for seed in (0, 1):
            run = identify(compose([*JOB, f"optim.learning_rate={rate}", f"seed={seed}"]))
            record = read_record(run.folder)
            assert (None if record is None else record.status) == status
    assert {path.name for path in outputs.iterdir()} == {"runs", "multirun"}


def test_a_sweep_in_which_all_is_well_exits_with_zero(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_LM_OUTPUTS", str(outputs / "it's a, b {c}"))
    done = swept("seed=range(2)")
    assert done.returncode == 0 and "2 of 2 jobs done, 0 failed" in done.stdout


def test_a_mistake_stops_a_sweep_before_any_work(outputs: Path) -> None:
    with pytest.raises(UsageError, match="did you mean ulme"):
        main(["-m", *JOB, "method=generative,ulm"])
    assert not outputs.exists()


def test_outputs_that_cannot_be_written_stop_a_sweep_before_any_work(outputs: Path) -> None:
    outputs.write_text("a file")
    with pytest.raises(OSError, match="outputs"):
        main(["-m", *JOB, "seed=0,1"])


def test_globs_ranges_and_lists_multiply() -> None:
    found = list_combinations(["experiment=glob(t15_*)", "seed=range(2)", "scale=tiny"])
    names = {identify(compose(overrides)).run_id for overrides in found}
    assert len(found) == len(names)
    assert len(found) == 2 * sum(option.startswith("t15_") for option in list_options("experiment"))


def test_a_glob_that_matches_nothing_is_told() -> None:
    with pytest.raises(UsageError, match="matches nothing"):
        list_combinations(["experiment=glob(nothing_*)"])
