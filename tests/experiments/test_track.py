"""W&B mirrors a run and is never needed: offline without a key, one run an experiment, nothing lost on a resume."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.config.compose import compose
from experiments.config.identity import identify
from experiments.config.paths import ROOT
from experiments.runs import wandb_mirror as track
from experiments.runs.record import RunRecord, begin_record
from tests.a_table import score


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_without_a_key_it_is_offline_and_with_one_online(monkeypatch: pytest.MonkeyPatch) -> None:
    assert track.choose_wandb_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert track.choose_wandb_mode("auto") == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert track.choose_wandb_mode("auto") == "disabled"
    assert track.choose_wandb_mode("offline") == "offline"
    with pytest.raises(ValueError, match="use one of"):
        track.choose_wandb_mode("on")


def begun(*overrides: str) -> tuple[RunRecord, Path]:
    run = identify(compose(["experiment=t15_ulme", "scale=tiny", *overrides]))
    return begin_record(run), run.folder


def offline(folder: Path) -> list[Path]:
    return sorted((folder / "wandb").glob("offline-run-*"))


def test_runs_of_one_process_are_runs_of_their_own_each_with_its_axes() -> None:
    for seed in (0, 1):
        entry, folder = begun(f"seed={seed}")
        mirror = track.start_tracker(entry, folder, [])
        assert mirror.id == entry.run_id
        assert mirror.run.step == 0
        assert mirror.run.group == "table-15"
        assert set(mirror.run.tags) == {"method:ulme", "backbone:tiny", "attention:causal", "trainable:all"}
        mirror.log({"step": 1, "loss": 2.0, "grad_norm": None})
        mirror.log_scores([score("t", "m", 0.5, readout="mean")])
        mirror.finish(failed=bool(seed))
        assert len(offline(folder)) == 1


def test_a_resumed_run_replays_its_history_under_its_own_steps() -> None:
    entry, folder = begun()
    mirror = track.start_tracker(entry, folder, [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}])
    assert mirror.run.step == 2
    mirror.log({"step": 3, "loss": 1.0})
    assert mirror.run.step == 3
    mirror.finish(failed=False)


def test_off_is_an_object_that_does_nothing() -> None:
    entry, folder = begun("logging.wandb=disabled")
    mirror = track.start_tracker(entry, folder, [])
    assert mirror.id is None
    mirror.log({"step": 1})
    mirror.log_scores([])
    mirror.finish(failed=False)
    assert not (folder / "wandb").exists()


SCRIPT = """
import json, sys
from pathlib import Path
from experiments.runs.record import read_record
from experiments.runs import wandb_mirror as track
folder = Path(sys.argv[1])
mirror = track.start_tracker(read_record(folder), folder, [])
print(mirror.run.settings.mode)
mirror.finish(failed=False)
"""


def started(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    mine = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}  # this process's own
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=mine | environment,
        timeout=120,
        check=False,
    )


def test_no_key_and_no_input_do_not_block_a_start() -> None:
    _, folder = begun()
    done = started(folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "offline"


def test_nothing_is_written_into_the_users_home(outputs: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    _, folder = begun()
    mine = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)], cwd=ROOT, env=mine | {"HOME": str(home)}, timeout=120, check=False
    )
    assert done.returncode == 0
    assert offline(folder)
    assert [path for path in home.rglob("*") if path.is_file()] == []


def test_a_key_without_a_network_goes_offline() -> None:
    _, folder = begun()
    done = started(folder, WANDB_API_KEY="0" * 40, WANDB_BASE_URL="http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "offline"
    assert "W&B cannot run online" in done.stderr
    assert offline(folder)


def test_what_goes_wrong_with_the_mirror_is_told_once_and_raises_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    entry, folder = begun()
    mirror = track.start_tracker(entry, folder, [])
    mirror.run.finish()
    for step in (1, 2):
        mirror.log({"step": step, "loss": 1.0})
    mirror.finish(failed=False)
    assert capsys.readouterr().err.count("W&B mirrors no further") == 1
