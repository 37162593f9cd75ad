"""A small table and the records that fill it, for the tests of tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evals.score import Score
from experiments.runs.provenance import Hardware
from experiments.runs.record import RunRecord
from experiments.tables.definition import Column, Definition, Row
from experiments.tables.fill import RowRun, Table, fill_table

COLUMNS = (
    Column(key="found", label="retrieval", suite="s", task="find", metric="ndcg_at_10", better="higher", factor=100),
    Column(key="ppl", label="perplexity", suite="s", task="guess", metric="perplexity", better="lower"),
)
ROWS = (
    Row(key="base", label="base", experiment="base", readout="mean", deterministic=True),
    Row(key="ours", label="ours", experiment="ours", readout="slot_0"),
    Row(key="words", label="BM25", experiment="words", deterministic=True, undefined=("ppl",)),
)
DEFINITION = Definition(
    number=7,
    title="a title",
    source="nobody",
    scale="mini",
    about="a test",
    comparable=False,
    columns=COLUMNS,
    rows=ROWS,
)


def score(task: str, metric: str, value: float, **more: Any) -> Score:
    unit = "perplexity" if metric == "perplexity" else "fraction"
    known = {"suite": "s", "task": task, "metric": metric, "value": value, "unit": unit, "subset": "test", "step": 3}
    other = {"readout": "none", "attention": "causal", "revision": "r", "library": "l", "prompt": "", "n": 100}
    return Score(**(known | other | more))


def record(**fields: Any) -> RunRecord:
    """The record of a finished run, with these fields."""
    known = {"run_id": "r", "identity": "i", "name": "r", "seed": 0, "choices": {}, "digest": "d", "step": 3}
    empty = {"config": {"evals": {}, "scoring": {}}, "suites": {}, "scores": (), "status": "finished"}
    return RunRecord(**(known | empty | fields))


def made(name: str, seed: int, found: float | None, ppl: float | None, **more: Any) -> RowRun:
    scores = (
        [] if found is None else [score("find", "ndcg_at_10", found, readout="slot_0" if name == "ours" else "mean")]
    )
    scores += [] if ppl is None else [score("guess", "perplexity", ppl)]
    machine = Hardware(gpus=(), cores=2, cpu="a processor")
    run_id = f"{name}-s{seed}-0123456789"
    fields = {"run_id": run_id, "seed": seed, "scores": tuple(scores), "device_hours": 0.5, "hardware": machine}
    return RowRun(seed=seed, run_id=run_id, command=f"make {run_id}", record=record(**(fields | more)))


def runs(seeds: Sequence[int] = (0,), found: Mapping[int, float] | None = None) -> dict[str, list[RowRun]]:
    return {
        "base": [made("base", 0, 0.10, 40.0)],
        "ours": [made("ours", seed, (found or {}).get(seed, 0.5), 38.0) for seed in seeds],
        "words": [made("words", 0, 0.60, None)],
    }


def table(**more: Any) -> Table:
    return fill_table(replace(DEFINITION, **more), runs(), (0,))


def lacking() -> Table:
    absent = runs()
    absent["ours"] = [replace(absent["ours"][0], record=None)]
    return fill_table(DEFINITION, absent, (0,))
