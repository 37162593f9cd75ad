"""Scoring as real processes: killed and continued within a corpus, and shared by two ranks."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments import score
from experiments.config.paths import ROOT
from experiments.runs.record import RunRecord, read_record
from tests.evals.mirrors import beir, cups, of, publish, similarity, sums
from unified_lm.backbones import Tiny

LENGTH = 16  # tokens of every document
DOCUMENTS = 6_000


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mirror"
    publish(folder, of("STSBenchmark"), similarity())
    publish(folder, of("SciFact"), beir())
    publish(folder, "openai/gsm8k", sums(train=6))
    publish(folder, "allenai/winogrande", cups())
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder, loaded = tmp_path / "model", Tiny().load()
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def command(model: Path, mirror: Path, *more: str) -> list[str]:
    settings = ["runtime.device=cpu", "runtime.threads=1", "logging.wandb=disabled", f"data_mirror={mirror}"]
    return [sys.executable, "-m", "experiments.score", f"model={model}", *settings, *more]


def ran(arguments: list[str], outputs: Path) -> tuple[RunRecord, str]:
    """The record that a command leaves in an outputs folder, and what it said."""
    done = subprocess.run(arguments, cwd=ROOT, env=environment(outputs), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return entry_in(outputs), done.stderr


def ran_here(arguments: list[str], outputs: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    """The record that the same command leaves when its worker is this process."""
    monkeypatch.setenv("UNIFIED_LM_OUTPUTS", str(outputs))
    assert score.main(arguments[3:]) == 0
    return entry_in(outputs)


def entry_in(outputs: Path) -> RunRecord:
    (folder,) = (outputs / "runs").iterdir()
    return read_record(folder)


def environment(outputs: Path) -> Mapping[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "UNIFIED_LM_OUTPUTS": str(outputs)}


def large(mirror: Path) -> None:
    """SciFact with many documents, all of them cut at the same length."""
    word = "numbers and words about nothing at all "
    rows = [{"_id": f"x{i}", "title": "", "text": f"{i} {i * i} {word * 12}"} for i in range(DOCUMENTS)]
    tables = dict(beir())
    publish(mirror, of("SciFact"), {**tables, ("corpus", "corpus"): [*tables["corpus", "corpus"], *rows]})


def computed(log: str) -> int:
    """Tokens that were computed, by the worker's own counting."""
    return sum(int(tokens) for tokens in re.findall(r"encoded \{.*?'tokens': (\d+)", log))


def kept(outputs: Path) -> int:
    """How many vectors of the corpus are on disk."""
    shards = outputs.glob("runs/*/scores/mteb/SciFact*.vectors/*/*.keys.npy")
    return sum(len(np.load(path, mmap_mode="r")) for path in shards)


@pytest.mark.slow
def test_a_scoring_killed_within_a_corpus_computes_only_what_lacks(
    here: None, mirror: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large(mirror)
    outputs = tmp_path / "killed"
    tasks = ["evals=mteb", "tasks=[STSBenchmark,SciFact]", f"lengths.document={LENGTH}"]
    process = subprocess.Popen(
        command(model, mirror, *tasks), cwd=ROOT, env=environment(outputs), start_new_session=True
    )
    deadline = time.monotonic() + 300
    while kept(outputs) < 100 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (finished,) = outputs.glob("runs/*/scores/mteb/*.json")
    assert finished.name.startswith("STSBenchmark")
    written, stored = finished.stat().st_mtime_ns, kept(outputs)
    (worker_log,) = outputs.glob("runs/*/worker.log")
    worker_log.write_text("")

    entry = ran_here(command(model, mirror, *tasks), outputs, monkeypatch)
    straight = ran_here(command(model, mirror, *tasks), tmp_path / "straight", monkeypatch)
    (straight_log,) = (tmp_path / "straight").glob("runs/*/worker.log")
    assert [replace(one, value=0.0) for one in entry.scores] == [replace(one, value=0.0) for one in straight.scores]
    assert [one.value for one in entry.scores] == pytest.approx([one.value for one in straight.scores])
    assert finished.stat().st_mtime_ns == written
    assert list(outputs.rglob("*.vectors")) == []
    pairs_and_questions = computed(straight_log.read_text()) - LENGTH * DOCUMENTS
    saved = computed(straight_log.read_text()) - computed(worker_log.read_text())
    assert 100 <= stored < DOCUMENTS
    assert abs(saved - LENGTH * stored) <= pairs_and_questions


def test_two_ranks_score_what_one_does_and_each_does_a_part(
    here: None, mirror: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suites = ["evals=[mteb,lm_eval]", "evals.mteb.tasks=[STSBenchmark,SciFact]"]
    suites += ["evals.lm_eval.tasks=[gsm8k,winogrande]", "evals.lm_eval.budget=3", "evals.lm_eval.shots=2"]
    alone = ran_here(command(model, mirror, *suites), tmp_path / "one", monkeypatch)
    shared, said = ran(command(model, mirror, *suites, "launch=local_2"), tmp_path / "two")
    assert len(alone.scores) > 4 and shared.scores == alone.scores
    assert (shared.digest, shared.suites) == (alone.digest, alone.suites)
    by_rank = {rank: set(re.findall(rf"score \w+{rank}: task \d of \d, (\w+)", said)) for rank in ("", r" \(rank 1\)")}
    assert by_rank[""] and by_rank[r" \(rank 1\)"]
    assert by_rank[""] | by_rank[r" \(rank 1\)"] == {"STSBenchmark", "SciFact", "gsm8k", "winogrande"}


def test_a_task_that_fails_on_another_rank_is_written_down_by_rank_0(mirror: Path, model: Path, tmp_path: Path) -> None:
    next(mirror.rglob("corpus-corpus.jsonl")).write_text('{"_id": "d1"\n')
    arguments = command(model, mirror, "evals=mteb", "tasks=[STSBenchmark,SciFact]", "launch=local_2")
    outputs = tmp_path / "two"
    done = subprocess.run(arguments, cwd=ROOT, env=environment(outputs), capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    (folder,) = (outputs / "runs").iterdir()
    entry = read_record(folder)
    assert entry.status == "failed" and "SciFact" in json.dumps(entry.error)
    assert {score.task for score in entry.scores} == {"STSBenchmark"} and entry.suites == {"mteb": ""}
