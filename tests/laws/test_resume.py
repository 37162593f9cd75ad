"""Nothing is lost: a training process that is killed continues, and ends in the same bits (real processes)."""

import signal
from pathlib import Path

import pytest

from tests.laws import train_script
from tests.laws.ranks_worker import OPTIM
from tests.models import unified
from tests.processes import Talking
from unified_lm.training import checkpoint
from unified_lm.training.watchdog import REQUEUE


def start(folder: Path, pause: float = 0.0) -> Talking:
    return Talking(train_script.main, folder, pause)


def finish(folder: Path) -> list[dict]:
    process = start(folder)
    lines = list(process)
    assert process.wait() == 0
    return lines


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> list[dict]:
    return finish(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(("number", "at"), [(signal.SIGKILL, 5), (signal.SIGTERM, 8), (signal.SIGUSR1, 2)])
def test_a_killed_run_continues_and_ends_in_the_same_bits(tmp_path, whole, number, at):
    process = start(tmp_path, pause=0.2)
    for line in process:
        if line.get("step") == at:
            process.send_signal(number)
    code = process.wait()
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else REQUEUE)
    rest = finish(tmp_path)
    steps = [line for line in rest if "step" in line]
    assert 1 < steps[0]["step"] <= at + 4
    assert steps == [line for line in whole if line.get("step", 0) >= steps[0]["step"]]
    assert rest[-1]["digest"] == whole[-1]["digest"]


def test_a_truncated_checkpoint_is_named_and_the_run_continues_from_the_one_before(tmp_path, whole):
    process = start(tmp_path, pause=0.2)
    for line in process:
        if line.get("step") == 10:
            process.send_signal(signal.SIGKILL)
    process.wait()
    newest = checkpoint.checkpoint_folders(tmp_path)[-1]
    assert newest.name == "step-9"
    for name in ("model.safetensors", "optimizer.safetensors"):
        (newest / name).write_bytes((newest / name).read_bytes()[:1000])
    rest = finish(tmp_path)
    assert "using the checkpoint before it" in rest[0]["said"]
    assert next(line["step"] for line in rest if "step" in line) == 7
    assert rest[-1]["digest"] == whole[-1]["digest"]


def test_a_folder_that_is_no_checkpoint_is_left_alone(tmp_path):
    model = unified(slots=2)
    for name in ("step-x", "step-", "step-3.bak"):
        (tmp_path / name).mkdir()
    for step in (9, 10):
        checkpoint.save_checkpoint(tmp_path, model, None, step=step, identity="a", keep=1)
    assert [folder.name for folder in checkpoint.checkpoint_folders(tmp_path)] == ["step-10"]
    assert checkpoint.latest_checkpoint(tmp_path, "a").step == 10
    assert {path.name for path in tmp_path.iterdir()} == {"step-x", "step-", "step-3.bak", "step-10"}


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    model = unified(slots=2)
    optimizer = OPTIM.build_optimizer(model)
    checkpoint.save_checkpoint(tmp_path, model, optimizer, step=1, identity="a")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save_checkpoint(tmp_path, model, optimizer, step=2, identity="a")
    assert checkpoint.latest_checkpoint(tmp_path, "a").step == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


@pytest.mark.parametrize("damage", ["another value", "a tensor less", "a tensor more"])
def test_a_save_that_reads_back_as_something_else_is_refused_and_leaves_the_checkpoint_before(
    tmp_path, monkeypatch, damage
):
    model, write = unified(slots=2), checkpoint.save_file
    checkpoint.save_checkpoint(tmp_path, model, None, step=1, identity="a")

    def damaged(tensors, path):
        first, *others = tensors
        changed = {
            "another value": {**tensors, first: tensors[first] + 1},
            "a tensor less": {name: tensors[name] for name in others},
            "a tensor more": {**tensors, "more": tensors[first].clone()},
        }
        write(changed[damage], path)

    monkeypatch.setattr(checkpoint, "save_file", damaged)
    with pytest.raises(RuntimeError, match="does not hold what was saved"):
        checkpoint.save_checkpoint(tmp_path, model, None, step=2, identity="a")
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_weights_on_another_backbone_are_refused_though_they_fit(tmp_path):
    def only_slots(seed):
        model = unified(slots=2, seed=seed)
        model.backbone.requires_grad_(False)
        return model

    checkpoint.save_checkpoint(tmp_path, only_slots(0), None, step=1, identity="a")
    saved = checkpoint.latest_checkpoint(tmp_path, "a")
    checkpoint.load_weights(saved, only_slots(0))
    with pytest.raises(ValueError, match="another backbone"):
        checkpoint.load_weights(saved, only_slots(1))
