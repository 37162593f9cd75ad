"""The bench measures what it says: costs, parity before time, and a GPU plan whose every line runs."""

import time
from dataclasses import replace

import pytest
import torch

from experiments.bench import losses, measure
from experiments.bench.cuda import encoding, plan, shapes
from experiments.bench.cuda.shapes import Shape
from experiments.bench.present import plot_comparisons, render_comparisons
from experiments.config.errors import UsageError


class Small:
    size = 32


def test_costs_are_processor_seconds_and_the_peak_of_what_a_call_needs():
    def work() -> None:
        torch.ones(64, 2**18).mul_(2)  # 64 MiB
        stop = time.process_time() + 0.05
        while time.process_time() < stop:
            pass

    cost = measure.measure_call(work)
    assert cost.cpu_s >= 0.05 and 60 <= cost.peak_mib <= 90
    assert measure.measure_call(lambda: time.sleep(0.2)).cpu_s < 0.1


def test_ways_alternate_and_the_fastest_setting_of_the_peer_is_the_peer():
    calls = []

    def spends(name: str, seconds: float):
        def run() -> None:
            calls.append(name)
            stop = time.process_time() + seconds
            while time.process_time() < stop:
                pass

        return run

    peers = {"slow": spends("slow", 0.024), "quick": spends("quick", 0.02)}
    line = measure.compare_costs("work", spends("ours", 0.01), peers, parity="none", repeats=2, goal=1.2)
    assert calls == ["ours", "slow", "quick"] * 2
    assert line.peer == "quick" and line.ratio > 1.2 and line.goals_reached and "slow:" in line.note
    calls.clear()
    peers["slow"] = spends("slow", 0.06)
    line = measure.compare_costs("work", spends("ours", 0.01), peers, parity="none", repeats=2, goal=1.2)
    assert calls == ["ours", "slow", "quick", "ours", "quick"] and line.peer == "quick" and "slow: 0.06" in line.note
    assert measure.compare_costs("work", peers["slow"], peers, parity="", repeats=1, goal=9.0).goals_reached is False


def test_a_bench_of_the_losses_asserts_parity_first_and_is_shown(tmp_path, monkeypatch):
    found = list(losses.compare_losses(Small(), 1))
    assert len(found) == 2 and all("within" in line.parity for line in found)
    facts = {
        "hardware": {"cpu": "x", "cores": 2, "memory_gib": 1.0},
        "versions": {"torch": "1", "transformers": "1", "sentence-transformers": "1"},
        "load_before": 0.1, "load_after": 0.2, "minutes": 1.0,
    }  # fmt: skip
    shown = render_comparisons(found, facts)
    assert found[0].what in shown and "| ≥ 1.00 |" in shown and "| ≤ 0.25 |" in shown
    plot_comparisons(found, tmp_path / "bench.svg")
    assert (tmp_path / "bench.svg").stat().st_size > 1000
    monkeypatch.setattr(losses, "info_nce", lambda *args, **more: (args[0] * 1.01).sum() / 1e3)
    with pytest.raises((AssertionError, RuntimeError)):
        next(losses.compare_losses(Small(), 1))


TINY = Shape(
    name="0.6B", hidden=32, inner=64, layers=2, heads=4, groups=2, head=8, vocab=512, tokens=600, budget=128, chunk=128
)


def test_every_line_of_the_gpu_plan_runs_at_a_tiny_shape(monkeypatch):
    monkeypatch.setitem(shapes.SETS, "long", (60, 0.4))
    monkeypatch.setattr(encoding, "BATCHES", (32,))
    given = [TINY, replace(TINY, name="8B", tied=False, plain=False)]
    found = list(plan.plan(torch.device("cpu"), torch.float32, given, 1))
    names = " ".join(line.what for line in found)
    wanted = (
        "padded by 32", "texts of long, sentence-transformers", "plain", "cached", "sentence-transformers cached",
        "unified step, one forward", "three packed", "three padded", "8B full fine-tuning", "8B LoRA",
        "kernel sdpa, prefix", "head of 128 tokens, torch", "InfoNCE",
    )  # fmt: skip
    assert [part for part in (*shapes.SETS, *wanted) if part not in names] == []
    assert all(line.seconds > 0 and plan.told(line) for line in found)
    assert {line.goal for line in found} >= {0.28, 0.35, 0.4, 0.45, 0.57}
    assert all("gradient within" in line.parity for line in found if "unified" in line.what)


@pytest.mark.skipif(torch.cuda.is_available(), reason="what a machine without a GPU is told")
def test_a_machine_without_a_gpu_is_told_so():
    with pytest.raises(UsageError, match="make doctor"):
        plan.main(3)
