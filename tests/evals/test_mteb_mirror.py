"""Tasks of mteb's own, read from a local folder of data sets in the layout of the hub, with no network."""

import json
from collections.abc import Callable
from pathlib import Path

import mteb
import pytest
from lexical import ANIMALS, QUESTIONS, RELEVANT, Lexical

from evals.instructions import Instructions
from evals.mteb_suite import MtebSuite
from evals.score import Score, Subject
from evals.tasks import HubTask

STS, SCIFACT = "STSBenchmark", "SciFact"
PASSKEY, BANKING = "LEMBPasskeyRetrieval", "Banking77Classification"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))


def revision(name: str) -> str:
    return mteb.get_task(name).metadata.dataset["revision"]


def publish(mirror: Path, task: str, tables: dict[tuple[str, str], list[dict]]) -> Path:
    """Writes {(config, split): rows} as the folder that `hf download` leaves for the task's data set."""
    folder = mirror / mteb.get_task(task).metadata.dataset["path"]
    folder.mkdir(parents=True, exist_ok=True)
    configs: dict[str, list[str]] = {}
    for (config, split), rows in tables.items():
        name = f"{config}-{split}.jsonl"
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        configs.setdefault(config, []).append(f"  - split: {split}\n    path: {name}\n")
    listed = [f"- config_name: {config}\n  data_files:\n" + "".join(files) for config, files in configs.items()]
    (folder / "README.md").write_text("---\nconfigs:\n" + "".join(listed) + "---\n")
    return folder


def beir(splits: tuple[str, ...], single: bool) -> dict[tuple[str, str], list[dict]]:
    tables = {}
    for split in splits:
        corpus = [{"_id": name, "title": title or "", "text": text} for name, (title, text) in ANIMALS.items()]
        queries = [{"_id": name, "text": text} for name, text in QUESTIONS.items()]
        qrels = [{"query-id": query, "corpus-id": document, "score": 1} for query, document in RELEVANT.items()]
        tables |= {
            ("corpus", "corpus" if single else split): corpus,
            ("queries", "queries" if single else split): queries,
            ("default", split): qrels,
        }
    return tables


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    folder = tmp_path / "mirror"
    pairs = [("a cat", "a cat", 5.0), ("a cat", "cats and a cat", 4.0), ("a dog", "a red ball", 1.0), ("x", "y", 0.0)]
    rows = [{"sentence1": first, "sentence2": second, "score": score} for first, second, score in pairs]
    publish(folder, STS, {("default", "test"): rows})
    publish(folder, SCIFACT, beir(("test",), single=True))
    return folder


@pytest.fixture
def score(tmp_path: Path, mirror: Path) -> Callable[..., list[Score]]:
    def run(*names: str, embedder: Lexical | None = None) -> list[Score]:
        sources = [HubTask(name=name, revision=revision(name), mirror=str(mirror)) for name in names]
        table = Instructions(name="none", tasks={name: {"query": ""} for name in names})
        suite = MtebSuite(name="mirrored", sources=sources, instructions=table)
        return suite.score(Subject(name="m", embedder=embedder or Lexical()), folder=tmp_path / "scores")

    return run


def test_real_tasks_run_from_a_mirror_and_name_its_content_as_their_revision(score: Callable) -> None:
    sts, scifact = score(STS, SCIFACT)
    assert (sts.metric, sts.n, scifact.metric, scifact.n) == ("cosine_spearman", 4, "ndcg_at_10", 3)
    assert scifact.value == pytest.approx(1.0) and sts.value > 0.7
    assert all(found.revision.startswith("mirror:") for found in (sts, scifact))


def test_classification_and_many_splits_run_from_a_mirror(score: Callable, mirror: Path) -> None:
    texts = {0: "card arrived late", 1: "exchange rate is high", 2: "pin is blocked"}
    rows = [{"text": f"{text} {i}", "label": label} for label, text in texts.items() for i in range(9)]
    publish(mirror, BANKING, {("default", "train"): rows, ("default", "test"): rows[::2]})
    lengths = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
    publish(mirror, PASSKEY, beir(tuple(f"test_{length}" for length in lengths), single=False))
    scores = score(BANKING, PASSKEY)
    assert (scores[0].metric, scores[0].n, scores[0].value) == ("accuracy", 14, pytest.approx(1.0))
    assert [found.subset for found in scores[1:]] == [*(f"test_{length}" for length in lengths), "all"]
    assert scores[-1].n == 24 and scores[-1].value == pytest.approx(sum(found.value for found in scores[1:-1]) / 8)


def test_a_changed_mirror_is_scored_again_and_an_unchanged_one_is_not(score: Callable, mirror: Path) -> None:
    score(SCIFACT)
    again = Lexical()
    score(SCIFACT, embedder=again)
    assert again.read == []
    file = next(mirror.rglob("corpus-corpus.jsonl"))
    file.write_text(file.read_text().replace("horse", "pony"))
    score(SCIFACT, embedder=again)
    assert ("document", "", "a pony eats fresh grass in the field") in again.read


def test_mtebs_own_registry_is_left_alone(score: Callable) -> None:
    before = dict(mteb.get_task(STS).metadata.dataset)
    score(STS)
    assert mteb.get_task(STS).metadata.dataset == before


def test_what_a_mirror_lacks_is_named_with_the_command_that_fetches_it(score: Callable) -> None:
    with pytest.raises(ValueError, match=r"no .*mteb/banking77; fetch it with: hf download --repo-type dataset"):
        score(BANKING)


def test_a_pin_that_mteb_does_not_read_is_refused() -> None:
    with pytest.raises(ValueError, match="pinned at revision 0123, but mteb"):
        HubTask(name=STS, revision="0123").build()


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ValueError, match="knows no task 'SciFakt'"):
        HubTask(name="SciFakt", revision="0").build()
