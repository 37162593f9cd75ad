"""Laws of the tasks made of packaged documentation: what is asked, what is relevant, and that nothing gives it away."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import instantiate
from mteb.abstasks import AbsTask
from omegaconf import OmegaConf

from evals.embedding import packaged_docs as offline
from evals.embedding.suite import MtebSuite
from evals.score import Score, Subject
from evals.score_store import ScoreStore
from tests.evals.lexical import Constant, Lexical
from unified_lm.data.packaged.source import HELD_OUT_PACKAGES, DocumentedObject, held_out_objects

CONF = Path(__file__).parents[3] / "conf" / "evals"
RANKED = ("PackagedCodeRetrieval", "PackagedExplanationRetrieval", "PackagedCodeReranking")


@pytest.fixture(scope="module")
def suite() -> MtebSuite:
    return instantiate(OmegaConf.load(CONF / "mteb_offline.yaml").mteb_offline, _convert_="all")


@pytest.fixture(scope="module")
def tasks(suite: MtebSuite) -> dict[str, AbsTask]:
    built = {source.name: source.build() for source in suite.sources}
    for task in built.values():
        task.load_data()
    return built


@pytest.fixture(scope="module")
def objects() -> dict[str, DocumentedObject]:
    return {found.description: found for found in held_out_objects()}


def parts(task: AbsTask) -> dict:
    return task.dataset["default"]["test"]


def test_the_sizes_fit_a_demonstration(tasks: dict[str, AbsTask]) -> None:
    for name in RANKED:
        part = parts(tasks[name])
        assert 100 <= len(part["queries"]) <= 150 and 290 <= len(part["corpus"]) <= 410
    sizes = {name: len(task.dataset["test"]) for name, task in tasks.items() if name not in RANKED}
    assert all(120 <= size <= 320 for size in sizes.values()), sizes


def test_every_scored_text_comes_from_a_held_out_package(tasks: dict[str, AbsTask], objects: dict) -> None:
    assert {found.package for found in objects.values()} == set(HELD_OUT_PACKAGES)
    known = {text for found in objects.values() for text in (found.description, found.code, found.explanation)}
    for name in RANKED:
        assert {*parts(tasks[name])["corpus"]["text"], *parts(tasks[name])["queries"]["text"]} <= known


@pytest.mark.parametrize(
    ("name", "text"), [(RANKED[0], "code"), (RANKED[1], "explanation"), (RANKED[2], "code")], ids=RANKED
)
def test_a_description_finds_the_text_of_its_own_object(
    tasks: dict[str, AbsTask], objects: dict, name: str, text: str
) -> None:
    part = parts(tasks[name])
    corpus = dict(zip(part["corpus"]["id"], part["corpus"]["text"], strict=True))
    assert len(set(corpus.values())) == len(corpus)
    for query, description in zip(part["queries"]["id"], part["queries"]["text"], strict=True):
        (relevant,) = part["relevant_docs"][query]
        assert corpus[relevant] == getattr(objects[description], text)


def test_a_query_is_reranked_among_six_functions_of_its_module(tasks: dict[str, AbsTask], objects: dict) -> None:
    part = parts(tasks["PackagedCodeReranking"])
    modules = {found.code: found.module for found in objects.values() if found.code}
    corpus = dict(zip(part["corpus"]["id"], part["corpus"]["text"], strict=True))
    for query, candidates in part["top_ranked"].items():
        assert len(set(candidates)) == 6 and set(part["relevant_docs"][query]) < set(candidates)
        assert len({modules[corpus[document]] for document in candidates}) == 1


def test_pairs_are_balanced_and_a_wrong_one_stays_in_the_module(tasks: dict[str, AbsTask], objects: dict) -> None:
    rows = tasks["PackagedExplanationPairs"].dataset["test"]
    owners = {found.explanation: found for found in objects.values() if found.explanation}
    assert Counter(rows["labels"]) == {0: len(rows) // 2, 1: len(rows) // 2}
    for row in rows:
        asked, explained = objects[row["sentence1"]], owners[row["sentence2"]]
        assert (asked is explained) == bool(row["labels"]) and asked.module == explained.module


def test_classes_are_balanced_and_no_text_is_both_learnt_from_and_asked(tasks: dict[str, AbsTask]) -> None:
    classified, clustered = (tasks[f"PackagedSubpackage{kind}"].dataset for kind in ("Classification", "Clustering"))
    assert set(Counter(classified["train"]["label"]).values()) == {8}
    assert set(Counter(classified["test"]["label"]).values()) == {16}
    assert not set(classified["train"]["text"]) & set(classified["test"]["text"])
    assert set(Counter(clustered["test"]["labels"]).values()) == {24}
    assert not {"io", "_lib"} & set(clustered["test"]["labels"])


def test_the_order_of_rows_says_nothing_about_their_labels(tasks: dict[str, AbsTask]) -> None:
    labels = np.array(tasks["PackagedExplanationPairs"].dataset["test"]["labels"])
    assert abs(labels[: len(labels) // 2].mean() - 0.5) < 0.15


def test_a_model_that_sees_no_difference_gets_what_chance_gives(suite: MtebSuite, tmp_path: Path) -> None:
    """Were ids, rows or candidates in an order that depends on relevance, ties would be broken in its favour."""
    found = {score.task: score for score in scores_of(suite, Constant(), tmp_path) if score.metric == main(score)}
    assert found["PackagedCodeReranking"].value == pytest.approx(sum(1 / rank for rank in range(1, 7)) / 6, abs=0.08)
    assert found["PackagedCodeRetrieval"].value < 0.05 and found["PackagedExplanationRetrieval"].value < 0.05
    assert found["PackagedExplanationPairs"].value == pytest.approx(0.5, abs=0.01)
    assert found["PackagedSubpackageClassification"].value == pytest.approx(1 / 8, abs=0.01)
    assert found["PackagedSubpackageClustering"].value < 0.01


def test_shared_words_are_worth_more_than_chance_in_every_task(suite: MtebSuite, tmp_path: Path) -> None:
    embedder = Lexical()
    found = {score.task: score for score in scores_of(suite, embedder, tmp_path) if score.metric == main(score)}
    floors = dict(zip(suite.tasks, (0.1, 0.2, 0.48, 0.6, 0.08, 0.25), strict=True))
    assert {task: score.value for task, score in found.items() if score.value < floors[task]} == {}
    assert ScoreStore(folder=tmp_path, suite=suite.name).skipped_tasks() == {}
    assert len(set(embedder.read)) == len(embedder.read), "the tasks share texts, and each is read once"
    assert {instruction for _, instruction, _ in embedder.read} == {""}


def scores_of(suite: MtebSuite, embedder: Lexical, folder: Path) -> list[Score]:
    return suite.score(Subject(name="m", embedder=embedder), folder=folder)


def main(score: Score) -> str:
    mains = {"Retrieval": "ndcg_at_10", "Reranking": "mrr_at_10", "Pairs": "similarity_ap", "Clustering": "v_measure"}
    return next((metric for ending, metric in mains.items() if score.task.endswith(ending)), "accuracy")


BUILDERS: dict[str, Callable] = {
    "retrieval": lambda **sizes: offline.CodeRetrieval(**{"groups": 9, "group": 4, "queries": 1, **sizes}),
    "pairs": lambda **sizes: offline.ExplanationPairs(**{"groups": 9, "group": 4, "queries": 1, **sizes}),
}


@pytest.mark.parametrize("kind", BUILDERS)
def test_the_revision_names_the_rows_and_nothing_else(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def revision(**sizes: int) -> str:
        return BUILDERS[kind](**sizes).build().metadata.dataset["revision"]

    usual = revision()
    assert revision(groups=8) != usual and revision(queries=2) != usual
    shuffled = held_out_objects()
    random.Random(1).shuffle(shuffled)
    monkeypatch.setattr(offline, "held_out_objects", lambda: shuffled)
    assert revision() == usual
    monkeypatch.setattr(offline, "held_out_objects", lambda: shuffled[: len(shuffled) // 2])
    assert revision() != usual


def test_more_than_the_packages_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"groups of 6 in one module, fewer than 5000"):
        offline.CodeReranking(groups=5000, group=6, queries=1).build()
    with pytest.raises(ValueError, match=r"300 descriptions .* there are only"):
        offline.SubpackageClustering(subpackages=["stats", "linalg"], texts=300).build()
