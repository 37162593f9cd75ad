"""Tasks of mteb's own, read from a local folder of data sets in the layout of the hub, with no network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mteb
import pytest

from evals.embedding.published_sizes import published_counts
from evals.embedding.suite import MtebSuite
from evals.embedding.tasks import HubTask
from evals.instructions import Instructions
from evals.score import Score, Subject
from tests.evals.lexical import ANIMALS, QUESTIONS, RELEVANT, Lexical
from tests.evals.mirrors import beir, of, publish, revision, similarity

STS, SCIFACT = "STSBenchmark", "SciFact"
PASSKEY, BANKING = "LEMBPasskeyRetrieval", "Banking77Classification"
BRIGHT, CORE17 = "BrightBiologyRetrieval", "Core17InstructionRetrieval"
NARRATIVE, NEEDLE = "LEMBNarrativeQARetrieval", "LEMBNeedleRetrieval"
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    folder = tmp_path / "mirror"
    publish(folder, of(STS), similarity())
    publish(folder, of(SCIFACT), beir())
    return folder


@pytest.fixture
def score(tmp_path: Path, mirror: Path) -> Callable[..., list[Score]]:
    def run(*names: str, embedder: Lexical | None = None, metrics: tuple[str, ...] = (), **more: Any) -> list[Score]:
        sources = [HubTask(name=name, revision=revision(name), mirror=str(mirror), **more) for name in names]
        table = Instructions(name="none", tasks={name: {"query": ""} for name in names})
        suite = MtebSuite(name="mirrored", sources=sources, instructions=table, metrics=metrics)
        return suite.score(Subject(name="m", embedder=embedder or Lexical()), folder=tmp_path / "scores")

    return run


def test_real_tasks_run_from_a_mirror_and_name_its_content_as_their_revision(score: Callable) -> None:
    sts, scifact = score(STS, SCIFACT)
    assert (sts.metric, sts.n, scifact.metric, scifact.n) == ("cosine_spearman", 4, "ndcg_at_10", 3)
    assert scifact.value == pytest.approx(1.0) and sts.value > 0.7
    assert all(found.revision.startswith("mirror:") for found in (sts, scifact))


@pytest.mark.parametrize(("lacking", "suite"), [(0, "mirrored"), (1, "mirrored (subset)")])
def test_a_mirror_with_other_than_the_published_rows_is_scored_as_a_subset(
    score: Callable, mirror: Path, lacking: int, suite: str
) -> None:
    (rows,) = similarity().values()
    (count,) = published_counts(mteb.get_task(STS)).values()
    publish(mirror, of(STS), {("default", "test"): [rows[i % len(rows)] for i in range(count - lacking)]})
    (found,) = score(STS)
    assert (found.suite, found.n) == (suite, count - lacking)


def test_classification_and_many_splits_run_from_a_mirror(score: Callable, mirror: Path) -> None:
    texts = {0: "card arrived late", 1: "exchange rate is high", 2: "pin is blocked"}
    rows = [{"text": f"{text} {i}", "label": label} for label, text in texts.items() for i in range(9)]
    publish(mirror, of(BANKING), {("default", "train"): rows, ("default", "test"): rows[::2]})
    publish(mirror, of(PASSKEY), beir(tuple(f"test_{length}" for length in LENGTHS), single=False))
    scores = score(BANKING, PASSKEY)
    assert (scores[0].metric, scores[0].n, scores[0].value) == ("accuracy", 14, pytest.approx(1.0))
    assert [found.subset for found in scores[1:]] == [*(f"test_{length}" for length in LENGTHS), "all"]
    assert scores[-1].n == 24 and scores[-1].value == pytest.approx(sum(found.value for found in scores[1:-1]) / 8)


def bright(excluded: dict[str, list[str]]) -> dict[tuple[str, str], list[dict]]:
    """One domain of BRIGHT; d9 repeats what q1 asks, so it ranks first wherever it may be ranked."""
    texts = {name: text for name, (_, text) in ANIMALS.items()} | {"d9": "where does the cat sleep sleep sleep"}
    examples = [
        {
            "id": query, "query": text, "reasoning": "", "excluded_ids": excluded.get(query, ["N/A"]),
            "gold_ids": [RELEVANT[query]], "gold_ids_long": [RELEVANT[query]],
        }
        for query, text in QUESTIONS.items()
    ]  # fmt: skip
    documents = [{"id": name, "content": text} for name, text in texts.items()]
    return {("documents", "biology"): documents, ("examples", "biology"): examples}


def test_a_document_that_bright_excludes_is_not_ranked(score: Callable, mirror: Path) -> None:
    publish(mirror, of(BRIGHT), bright({}))
    (kept,) = score(BRIGHT)
    publish(mirror, of(BRIGHT), bright({"q1": ["d9"]}))
    (excluded,) = score(BRIGHT)
    assert (excluded.metric, excluded.subset, excluded.n, excluded.value) == ("ndcg_at_10", "standard", 3, 1.0)
    assert kept.value < 1.0


def follow_ir(changed_ranks: str) -> dict[tuple[str, str], list[dict]]:
    """A query whose changed instruction makes d1 irrelevant; `changed_ranks` is what that instruction says."""
    corpus = [{"_id": name, "title": title or "", "text": text} for name, (title, text) in ANIMALS.items()]
    instructions = {"q1-og": "about a cat", "q1-changed": changed_ranks}
    pool = {"query-id": "", "corpus-ids": list(ANIMALS)}
    return {
        ("corpus", "corpus"): corpus,
        ("queries", "queries"): [{"_id": name, "text": "the animal"} for name in instructions],
        ("instruction", "instruction"): [{"query-id": q, "instruction": text} for q, text in instructions.items()],
        ("default", "test"): [
            {"query-id": query, "corpus-id": document, "score": 1}
            for query, document in (("q1-og", "d1"), ("q1-og", "d2"), ("q1-changed", "d2"))
        ],
        ("top_ranked", "test"): [{**pool, "query-id": query} for query in instructions],
        ("qrel_diff", "qrel_diff"): [{"query-id": "q1", "corpus-ids": ["d1"]}],
    }


@pytest.mark.parametrize(("said", "sign"), [("about a dog", 1), ("about a cat", 0)])
def test_followir_rewards_a_document_that_falls_where_the_instruction_turns_against_it(
    score: Callable, mirror: Path, said: str, sign: int
) -> None:
    publish(mirror, of(CORE17), follow_ir(said))
    embedder = Lexical()
    found = {one.metric: one for one in score(CORE17, embedder=embedder, metrics=("og.map_at_1000", "og.ndcg_at_5"))}
    assert found["p-MRR"].unit == "p-MRR" and found["p-MRR"].n == 2
    assert (found["p-MRR"].value > 0) == (sign > 0)
    assert 0.5 < found["og.map_at_1000"].value <= 1.0 and found["og.ndcg_at_5"].unit == "fraction"
    assert ("query", "", f"the animal {said}") in embedder.read


def long_embed(mirror: Path, config: str, lengths: tuple[int, ...]) -> None:
    """The layout of the benchmark's own data set: three files with different columns for each configuration."""
    folder = mirror / of(NARRATIVE) / config
    folder.mkdir(parents=True)
    tables = {
        "corpus": [{"doc_id": name, "text": text} for name, (_, text) in ANIMALS.items()],
        "queries": [{"qid": name, "text": text} for name, text in QUESTIONS.items()],
        "qrels": [{"qid": query, "doc_id": document} for query, document in RELEVANT.items()],
    }
    for name, rows in tables.items():
        told = [{**row, "context_length": length} for length in lengths for row in rows] if lengths else rows
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))


def test_long_embeds_own_files_run_from_a_mirror_each_length_apart(score: Callable, mirror: Path) -> None:
    long_embed(mirror, "narrativeqa", ())
    long_embed(mirror, "needle", LENGTHS)
    narrative, *needle, overall = score(NARRATIVE, NEEDLE, by_files=True)
    assert (narrative.metric, narrative.n, narrative.value) == ("ndcg_at_10", 3, pytest.approx(1.0))
    assert [found.subset for found in needle] == [f"test_{length}" for length in LENGTHS]
    assert {(found.metric, found.n) for found in needle} == {("ndcg_at_1", 3)} and overall.subset == "all"


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
