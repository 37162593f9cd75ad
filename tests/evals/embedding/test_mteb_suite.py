"""Laws of the mteb suite: what is reused, what is computed again, and what each side reads."""

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from mteb.abstasks import AbsTask, AbsTaskRetrieval

from evals.embedding.local_files import BeirFolder, StsFile
from evals.embedding.own_tasks import make_task, retrieval_data
from evals.embedding.suite import MtebSuite
from evals.external_models import Bm25
from evals.instructions import Instructions
from evals.random_state import preserve_random_state
from evals.score import Score, Subject
from evals.score_store import ScoreStore
from tests.evals.lexical import ANIMALS, QUESTIONS, Constant, Lexical, beir_folder, sts_file

ASK = Instructions(name="t", tasks={"LocalBeir": {"query": "find the animal"}, "LocalSts": {"query": "same meaning"}})


@pytest.fixture
def suite(tmp_path: Path) -> MtebSuite:
    sources = [BeirFolder(folder=beir_folder(tmp_path / "beir")), StsFile(file=sts_file(tmp_path / "pairs.tsv"))]
    return MtebSuite(name="local", sources=sources, instructions=ASK)


@pytest.fixture
def score(tmp_path: Path) -> Callable[..., list[Score]]:
    """Scores an embedder on a suite, always in the same folder."""

    def run(suite: MtebSuite, embedder: Lexical, step: int | None = None) -> list[Score]:
        return suite.score(Subject(name="lexical", embedder=embedder, step=step), folder=tmp_path / "scores")

    return run


def skipped(tmp_path: Path, suite: MtebSuite) -> dict[str, str]:
    return ScoreStore(folder=tmp_path / "scores", suite=suite.name).skipped_tasks()


def test_every_score_names_what_it_was_computed_from(suite: MtebSuite, score: Callable) -> None:
    retrieval, similarity = score(suite, Lexical(), step=40)
    assert (retrieval.task, retrieval.metric, retrieval.unit, retrieval.n) == ("LocalBeir", "ndcg_at_10", "fraction", 3)
    assert (similarity.metric, similarity.unit, similarity.n) == ("cosine_spearman", "correlation", 4)
    for found in (retrieval, similarity):
        assert (found.suite, found.subset, found.step) == ("local", "test", 40)
        assert (found.readout, found.attention) == ("mean", "bidirectional")
        assert found.library.startswith("mteb 2.") and len(found.revision) >= 16
    assert (retrieval.prompt, similarity.prompt) == ("find the animal", "same meaning")
    assert retrieval.value == pytest.approx(1.0)


def test_the_same_identity_is_scored_once(suite: MtebSuite, score: Callable) -> None:
    first = score(suite, Lexical())
    again = Lexical()
    assert score(suite, again) == first
    assert again.read == []


def test_two_models_in_one_folder_never_share_a_score(suite: MtebSuite, score: Callable) -> None:
    good, bad = Lexical(weights="a"), Lexical(weights="b", longest=4)
    first, second = score(suite, good), score(suite, bad)
    assert good.read and bad.read and first[0].value != second[0].value
    assert score(suite, Lexical(weights="a")) == first and score(suite, Lexical(weights="b", longest=4)) == second


def other_instruction(suite: MtebSuite) -> MtebSuite:
    tasks = {task: {"query": "which animal"} for task in ASK.tasks}
    return replace(suite, instructions=Instructions(name="t", tasks=tasks))


def document_instruction(suite: MtebSuite) -> MtebSuite:
    tasks = {task: {**sides, "document": "passage"} for task, sides in ASK.tasks.items()}
    return replace(suite, instructions=Instructions(name="t", tasks=tasks))


def other_documents(suite: MtebSuite) -> MtebSuite:
    beir_folder(Path(suite.sources[0].folder), corpus={**ANIMALS, "d5": ("Birds", "a bird sings")})
    sts = Path(suite.sources[1].file)
    sts.write_text(sts.read_text().replace("2.5", "1.5"))
    return suite


@pytest.mark.parametrize(
    ("model", "step", "change"),
    [
        ({"weights": "b"}, None, lambda suite: suite),
        ({"longest": 5}, None, lambda suite: suite),
        ({"similarity": "dot"}, None, lambda suite: suite),
        ({}, 7, lambda suite: suite),
        ({}, None, other_instruction),
        ({}, None, document_instruction),
        ({}, None, other_documents),
        ({}, None, lambda suite: replace(suite, name="other")),
        ({}, None, lambda suite: replace(suite, metrics=["recall_at_5"])),
    ],
    ids=["weights", "max length", "similarity", "step", "instruction", "document", "data", "suite", "metrics"],
)
def test_whatever_decides_a_score_makes_it_computed_again(
    suite: MtebSuite, score: Callable, model: dict, step: int | None, change: Callable
) -> None:
    score(suite, Lexical())
    changed = Lexical(**model)
    score(change(suite), changed, step)
    assert len(changed.read) == 3 + len(ANIMALS) + 6 + (change is other_documents)


def test_each_side_reads_its_own_instruction_and_titles_are_joined(suite: MtebSuite, score: Callable) -> None:
    embedder = Lexical()
    score(suite, embedder)
    documents = {text for side, instruction, text in embedder.read if side == "document" and instruction == ""}
    assert documents == {
        "Cats a cat sleeps on the warm mat", "Dogs a dog runs after the red ball",
        "a horse eats fresh grass in the field", "Fish a fish swims in the cold river",
    }  # fmt: skip
    queries = [(instruction, text) for side, instruction, text in embedder.read if side == "query"]
    assert ("find the animal", "where does the cat sleep") in queries
    assert [text for instruction, text in queries if instruction == "same meaning"].count("a cat sleeps") == 1
    assert len(documents) + len(queries) == len(embedder.read)


@dataclass(frozen=True, kw_only=True)
class InstructedQueries:
    """Retrieval in which each query brings an instruction of its own."""

    name: str = "Instructed"

    def data(self) -> dict:
        data = retrieval_data(
            corpus=[(name, title or "", text) for name, (title, text) in ANIMALS.items()],
            queries=[("q1", "where is it"), ("q2", "what does it chase")],
            relevant={"q1": {"d1": 1}, "q2": {"d2": 1}},
        )
        part = data["default"]["test"]
        part["queries"] = Dataset.from_dict({**part["queries"].to_dict(), "instruction": ["about cats", "about dogs"]})
        return data

    def build(self) -> AbsTask:
        return make_task(
            AbsTaskRetrieval, name=self.name, type_="InstructionRetrieval", description="d", main_score="ndcg_at_10",
            path="p", revision="1", data=self.data,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("table", "read"),
    [
        ("ask: {instruction}", [("ask: about cats", "where is it"), ("ask: about dogs", "what does it chase")]),
        ("ask", [("ask", "where is it about cats"), ("ask", "what does it chase about dogs")]),
    ],
)
def test_a_querys_own_instruction_goes_where_the_table_puts_it(score: Callable, table: str, read: list) -> None:
    instructions = Instructions(name="t", tasks={"Instructed": {"query": table}})
    embedder = Lexical()
    score(MtebSuite(name="s", sources=[InstructedQueries()], instructions=instructions), embedder)
    assert {(instruction, text) for side, instruction, text in embedder.read if side == "query"} == set(read)


def test_a_task_without_an_instruction_in_the_table_is_refused_before_anything_runs(suite: MtebSuite) -> None:
    with pytest.raises(ValueError, match="do not know the task 'LocalBeir'"):
        replace(suite, instructions=Instructions(name="empty", tasks={}))


def test_a_task_is_listed_once(suite: MtebSuite) -> None:
    with pytest.raises(ValueError, match=r"\['LocalSts'\] listed twice"):
        replace(suite, sources=[*suite.sources, suite.sources[1]])


class Killed(Lexical):
    """Its process ends before it has read its first sentence pair."""

    def encode(self, texts: Sequence[str], *, side: str, instruction: str = "") -> np.ndarray:
        if instruction == "same meaning":
            raise KeyboardInterrupt
        return super().encode(texts, side=side, instruction=instruction)


def test_scoring_continues_after_a_kill_with_the_task_that_was_not_finished(suite: MtebSuite, score: Callable) -> None:
    with pytest.raises(KeyboardInterrupt):
        score(suite, Killed())
    resumed = Lexical()
    scores = score(suite, resumed)
    assert {instruction for _, instruction, _ in resumed.read} == {"same meaning"}
    assert [found.task for found in scores] == ["LocalBeir", "LocalSts"]


def test_progress_names_the_task_and_counts(suite: MtebSuite, tmp_path: Path) -> None:
    seen = []
    subject = Subject(name="lexical", embedder=Lexical())
    suite.score(subject, folder=tmp_path, progress=lambda task, i, n: seen.append((task, i, n)))
    assert seen == [("LocalBeir", 1, 2), ("LocalSts", 2, 2)]


def test_a_search_model_is_scored_where_documents_are_ranked_and_skipped_elsewhere(
    suite: MtebSuite, tmp_path: Path
) -> None:
    scores = suite.score(Subject(name="bm25", search=Bm25()), folder=tmp_path / "scores")
    assert [(found.task, found.value, found.prompt) for found in scores] == [("LocalBeir", pytest.approx(1.0), "")]
    assert skipped(tmp_path, suite) == {"LocalSts": "STS needs vectors, and bm25 only ranks documents"}


def test_vectors_that_are_no_numbers_stop_the_scoring(suite: MtebSuite, score: Callable) -> None:
    class Broken(Lexical):
        def encode(self, texts: Sequence[str], *, side: str, instruction: str = "") -> np.ndarray:
            return super().encode(texts, side=side, instruction=instruction) * np.nan

    with pytest.raises(ValueError, match="LocalBeir: the vector of query 0 is not finite: 'where does the cat sleep'"):
        score(suite, Broken())


def test_a_correlation_that_does_not_exist_is_no_score(suite: MtebSuite, score: Callable, tmp_path: Path) -> None:
    assert [found.task for found in score(suite, Constant())] == ["LocalBeir"]
    assert skipped(tmp_path, suite) == {"LocalSts": "cosine_spearman is no number: are all vectors equal?"}


def test_the_declared_similarity_ranks_the_documents(tmp_path: Path, score: Callable) -> None:
    corpus = {"short": ("", "cat"), "long": ("", "cat cat cat cat dog dog dog bird horse")}
    folder = beir_folder(tmp_path / "beir", corpus=corpus, queries={"q": "cat"}, relevant={"q": "short"})
    instructions = Instructions(name="t", tasks={"LocalBeir": {"query": ""}})
    suite = MtebSuite(name="s", sources=[BeirFolder(folder=folder)], instructions=instructions)
    cosine, dot = (score(suite, Lexical(similarity=similarity))[0].value for similarity in ("cosine", "dot"))
    assert cosine == 1.0 and dot < 1.0


def test_tasks_that_share_texts_read_them_once_where_vectors_are_remembered(suite: MtebSuite, tmp_path: Path) -> None:
    plain, remembering = Lexical(), Lexical()
    again = replace(suite.sources[0], name="Again")
    tasks = {**ASK.tasks, "Again": ASK.tasks["LocalBeir"]}
    suite = replace(suite, sources=[*suite.sources, again], instructions=Instructions(name="t", tasks=tasks))
    scores = [
        replace(suite, remember=remember).score(Subject(name="m", embedder=embedder), folder=tmp_path / str(remember))
        for remember, embedder in ((False, plain), (True, remembering))
    ]
    assert scores[0] == scores[1]
    assert sorted(set(plain.read)) == sorted(remembering.read)
    assert len(plain.read) == len(remembering.read) + len(ANIMALS) + len(QUESTIONS)


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def test_scoring_leaves_the_random_state_of_a_run_as_it_was(suite: MtebSuite, score: Callable) -> None:
    seed_everything(5)
    expected = np.random.rand(), torch.rand(1).item()
    seed_everything(5)
    score(suite, Lexical())  # the type checker of the tests draws from Python's generator itself: see the next test
    assert (np.random.rand(), torch.rand(1).item()) == expected


def test_a_block_that_seeds_every_generator_leaves_them_as_they_were() -> None:
    seed_everything(5)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    seed_everything(5)
    with preserve_random_state():
        seed_everything(6)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


def test_importing_the_scorers_writes_nothing_to_the_users_home(tmp_path: Path) -> None:
    embedding = ", ".join(f"evals.embedding.{name}" for name in ("suite", "packaged_docs", "local_files"))
    code = f"import {embedding}, evals.external_models"
    environment = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path), "PATH": ""}
    (tmp_path / "home").mkdir()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert list((tmp_path / "home").rglob("*")) == []
