"""Timing of two ways to do the same: interleaved in one process, by processor time, with peak memory."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HOPELESS = 1.4
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True, kw_only=True)
class MeasuredCost:
    """Medians over repeats: processor seconds of the whole process, wall seconds, and MiB above what it held before."""

    cpu_s: float
    wall_s: float
    peak_mib: float
    repeats: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One comparison. `ratio` is peer over ours in processor time; `memory`: ours over the peer's peak.

    `goal` and `memory_goal` bound them from below and from above (None: no goal). `parity`: what was asserted equal
    before anything was timed, with the difference found.
    """

    what: str
    peer: str
    parity: str
    ours: MeasuredCost
    theirs: MeasuredCost
    goal: float | None = None
    memory_goal: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.theirs.cpu_s / self.ours.cpu_s

    @property
    def memory_ratio(self) -> float:
        return self.ours.peak_mib / max(self.theirs.peak_mib, 1e-9)

    @property
    def goals_reached(self) -> bool | None:
        if self.goal is None:
            return None
        return self.ratio >= self.goal and (self.memory_goal is None or self.memory_ratio <= self.memory_goal)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "memory": self.memory_ratio, "reached": self.goals_reached}


def measure_call(run: Callable[[], Any]) -> MeasuredCost:
    """One timed call. The peak is Linux's high-water mark of resident memory, set back before the call."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is given back, or it would hide what the call needs
    RESET.write_text("5")
    before = read_resident_memory("VmRSS")
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return MeasuredCost(cpu_s=cpu, wall_s=wall, peak_mib=max(0.0, read_resident_memory("VmHWM") - before), repeats=1)


def read_resident_memory(field: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024


def measure_in_turn(
    ours: Callable[[], Any], peers: Mapping[str, Callable[[], Any]], repeats: int
) -> tuple[MeasuredCost, dict[str, MeasuredCost]]:
    """Medians of ours and of every setting of the peer; each round runs all in turn.

    Of three rounds the median leaves a cold first one out. A setting that was `HOPELESS` times slower than the fastest
    in the first round is not run again: it could not become the one that ours is compared with.
    """
    mine: list[MeasuredCost] = []
    rounds: dict[str, list[MeasuredCost]] = {name: [] for name in peers}
    for number in range(repeats):
        mine.append(measure_call(ours))
        best = min((costs[0].cpu_s for costs in rounds.values() if costs), default=0.0)
        for name, run in peers.items():
            if not number or rounds[name][0].cpu_s <= HOPELESS * best:
                rounds[name].append(measure_call(run))
    return take_medians(mine), {name: take_medians(costs) for name, costs in rounds.items()}


def take_medians(costs: list[MeasuredCost]) -> MeasuredCost:
    names = ("cpu_s", "wall_s", "peak_mib")
    return replace(costs[0], **{n: statistics.median(getattr(c, n) for c in costs) for n in names}, repeats=len(costs))


def compare_costs(
    what: str,
    ours: Callable[[], Any],
    peers: Mapping[str, Callable[[], Any]],
    *,
    parity: str,
    repeats: int,
    goal: float | None = None,
    memory_goal: float | None = None,
    note: str = "",
) -> Comparison:
    """Ours against the fastest of the peer's settings."""
    mine, costs = measure_in_turn(ours, peers, repeats)
    best = min(peers, key=lambda name: costs[name].cpu_s)
    others = [f"{name}: {costs[name].cpu_s:.2f} s, {costs[name].peak_mib:.0f} MiB" for name in peers if name != best]
    return Comparison(
        what=what,
        peer=best,
        parity=parity,
        ours=mine,
        theirs=costs[best],
        goal=goal,
        memory_goal=memory_goal,
        note="; ".join([note, *others] if note else others),
    )
