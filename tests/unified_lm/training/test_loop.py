"""The training loop: it learns, it logs, it resumes to the same bits."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.models import form, mixed_rows, unified
from tests.unified_lm.test_slots import ulme
from unified_lm.data.rows import TrainingRow
from unified_lm.training import checkpoint
from unified_lm.training.loop import Runtime, train
from unified_lm.training.optimizer import Optim
from unified_lm.training.watchdog import Diverged

OPTIM = Optim(
    learning_rate=1e-3,
    steps=8,
    schedule="linear",
    warmup=2,
    weight_decay=0.01,
    betas=(0.9, 0.999),
    eps=1e-8,
    clip=1.0,
    slots_ratio=20.0,
)


class Shuffled:
    """A few rows in an order that the step decides."""

    def batch(self, step: int) -> list:
        rows = mixed_rows(18)
        return [rows[(step * 5 + i) % 18] for i in range(9)]

    def row_ids(self, step: int) -> list[str]:
        return [f"stream/source[{(step * 5 + i) % 18}]" for i in range(9)]


def run(folder: Path, *, optim=OPTIM, runtime=None, model=None, method=None, **changes):
    model = model or unified(slots=2, dropout=0.1)
    log: list[dict] = []
    given = dict(
        model=model,
        method=method or ulme(2),
        form=form(model),
        batches=Shuffled(),
        optim=optim,
        seed=0,
        runtime=runtime or Runtime(chunk_tokens=80),
        folder=folder,
        identity="run-a",
        on_log=log.append,
    )
    return train(**given | changes), log, model


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_training_lowers_every_term_and_logs_each_step(tmp_path):
    result, log, _ = run(tmp_path, optim=replace(OPTIM, steps=20))
    assert result.step == 20 and [entry["step"] for entry in log] == list(range(1, 21))
    for term in ("semantic", "generative"):
        assert log[-1][term] < log[0][term]
    assert all(entry["grad_norm"] > 0 and entry["tokens_per_s"] > 0 for entry in log)
    assert log[0]["loss"] == pytest.approx(
        sum(ulme(2).weights[t] * log[0][t] for t in ("semantic", "generative", "predictive"))
    )


def test_a_run_that_was_cut_and_continued_ends_in_the_same_bits(tmp_path):
    _, whole, straight = run(tmp_path / "straight")

    class Stop(Exception):
        pass

    def stop_at(step):
        def on_log(entry):
            if entry["step"] == step:
                raise Stop

        return on_log

    runtime = Runtime(chunk_tokens=80, save_every=2, keep_last=2)
    for step in (3, 6):
        with pytest.raises(Stop):
            run(tmp_path / "cut", runtime=runtime, on_log=stop_at(step))
    result, rest, resumed = run(tmp_path / "cut", runtime=runtime)
    assert rest[0]["step"] == 5  # the checkpoint of step 4 is the newest before the second cut
    assert torch.equal(weights(resumed), weights(straight))
    assert [entry["loss"] for entry in rest] == [entry["loss"] for entry in whole[4:]]
    again, nothing, loaded = run(tmp_path / "cut", runtime=runtime)
    assert again.digest == result.digest and not nothing and torch.equal(weights(loaded), weights(straight))


def test_chunk_size_is_no_part_of_the_result(tmp_path):
    ends = []
    for tokens in (60, 10_000):
        _, _, model = run(tmp_path / str(tokens), model=unified(slots=2), runtime=Runtime(chunk_tokens=tokens))
        ends.append(weights(model))
    assert (ends[0] - ends[1]).norm() <= 1e-4 * ends[1].norm()


def test_only_what_is_trainable_moves_and_is_saved(tmp_path):
    model = unified(slots=2)
    model.backbone.requires_grad_(False)
    before = weights(model.backbone)
    start = model.slots.vectors.detach().clone()
    run(tmp_path, model=model)
    assert torch.equal(weights(model.backbone), before)
    assert (model.slots.vectors.detach() - start).abs().min(dim=1).values.max() > 0
    saved = checkpoint.latest_checkpoint(tmp_path, "run-a")
    fresh = unified(slots=2)
    fresh.backbone.requires_grad_(False)
    checkpoint.load_weights(saved, fresh)
    assert torch.equal(fresh.slots.vectors, model.slots.vectors)
    with pytest.raises(ValueError, match="does not fit this model"):
        checkpoint.load_weights(saved, unified(slots=2))


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(tmp_path):
    model = unified(slots=2)
    optimizer = OPTIM.build_optimizer(model)
    for step in (1, 2):
        checkpoint.save_checkpoint(tmp_path, model, optimizer, step=step, identity="run-a", keep=2)
    path = tmp_path / "step-2" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    said: list[str] = []
    assert checkpoint.latest_checkpoint(tmp_path, "run-a", said.append).step == 1
    assert "does not match its digest" in said[0]
    with pytest.raises(ValueError, match="not to run-b"):
        checkpoint.latest_checkpoint(tmp_path, "run-b")


class Unusable(Shuffled):
    """One row of which has an instruction that leaves no room for its text."""

    def batch(self, step: int) -> list:
        rows = super().batch(step)
        return [*rows[:4], TrainingRow(query="too long", positive="p", instruction="and on " * 2000), *rows[5:]]


def test_a_row_that_cannot_be_used_is_named_by_its_place_in_the_data(tmp_path):
    with pytest.raises(ValueError, match=r"step 0, stream/source\[4\] \('too long'\): .* leave no room"):
        run(tmp_path, batches=Unusable())


def test_a_loss_that_is_no_number_stops_the_run_with_its_step_and_every_row_of_the_batch(tmp_path):
    model = unified(slots=2)
    with torch.no_grad():
        model.slots.vectors[0, 0] = math.nan
    with pytest.raises(Diverged, match="step 0") as stopped:
        run(tmp_path, model=model)
    assert all(place in str(stopped.value) for place in Shuffled().row_ids(0))
    assert not list(tmp_path.glob("step-*"))


@pytest.mark.parametrize(
    ("change", "step", "share"),
    [
        ({}, 0, 0.5),
        ({}, 1, 1.0),
        ({"steps": 10}, 6, 0.5),
        ({"steps": 10}, 9, 0.125),
        ({"schedule": "cosine", "steps": 10}, 6, 0.5),
        ({"schedule": "constant"}, 7, 1.0),
        ({"warmup": 0.25}, 0, 0.5),
        ({"floor": 0.1, "steps": 10}, 6, 0.55),
        ({"steps": 100, "warmup": 0, "stop_after": 25}, 24, 0.76),
    ],
)
def test_schedules_have_their_values(change, step, share):
    assert replace(OPTIM, **change).learning_rate_factor(step) == pytest.approx(share)


def test_stopping_inside_a_schedule_is_not_a_shorter_schedule(tmp_path):
    _, stopped, _ = run(tmp_path / "a", optim=replace(OPTIM, steps=100, stop_after=8))
    _, short, _ = run(tmp_path / "b")
    assert len(stopped) == len(short) == 8
    assert stopped[-1]["lr"] > 0.9 * OPTIM.learning_rate > 5 * short[-1]["lr"]


def test_slots_have_their_own_learning_rate_clip_and_no_weight_decay():
    model = unified(slots=2)
    optimizer = OPTIM.build_optimizer(model)
    backbone, slots = optimizer.param_groups
    OPTIM.set_learning_rates(optimizer, 1)
    assert slots["lr"] == pytest.approx(20 * backbone["lr"]) and slots["weight_decay"] == 0
    for group, size in ((backbone, 1e3), (slots, 1e-3)):
        for p in group["params"]:
            p.grad = torch.full_like(p, size)
    norms = OPTIM.clip_gradients(optimizer)
    assert norms["backbone"] > 1 > norms["slots"]
    assert torch.stack([p.grad.norm() for p in backbone["params"]]).norm() == pytest.approx(1, rel=1e-3)
    assert float(slots["params"][0].grad.norm()) == pytest.approx(norms["slots"], rel=1e-3)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="use one of linear, cosine, constant"):
        replace(OPTIM, schedule="poly")
    with pytest.raises(ValueError, match="must lie within"):
        replace(OPTIM, stop_after=9)
    model = unified()
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing is trainable"):
        OPTIM.build_optimizer(model)
