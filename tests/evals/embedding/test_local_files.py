"""Retrieval and similarity over files of the user's: what is read, what is refused, and what never decides a score."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from evals.embedding.local_files import BeirFolder, StsFile, retrieval_suite, similarity_suite
from evals.embedding.suite import MtebSuite
from evals.external_models import Bm25
from evals.score import Subject
from tests.evals.lexical import ANIMALS, Constant, Lexical, beir_folder, sts_file

QUERY, EVENT = "where does the cat sleep", "the cat sleep sleep where"


def value(suite: MtebSuite, folder: Path, embedder: Lexical | None = None) -> float:
    subject = Subject(name="m", embedder=embedder) if embedder else Subject(name="bm25", search=Bm25())
    return suite.score(subject, folder=folder)[0].value


@pytest.mark.parametrize("model", [Lexical, None], ids=["embedder", "bm25"])
def test_an_excluded_document_is_not_retrieved(tmp_path: Path, model: type[Lexical] | None) -> None:
    corpus = {**ANIMALS, "7": ("", EVENT)}
    scores = {}
    for name, excluded in {"kept": {}, "excluded": {"q1": [7], "q2": ["N/A"]}}.items():
        folder = beir_folder(tmp_path / name, corpus=corpus, excluded=excluded)
        scores[name] = value(retrieval_suite(folder=folder), tmp_path, model() if model else None)
    assert scores["excluded"] == pytest.approx(1.0) and scores["kept"] < 0.95


def test_the_names_of_documents_do_not_decide_ties(tmp_path: Path) -> None:
    """mteb ranks equal scores by id: as they stand, ids that sort last would always win, and "a" would never."""
    firsts = []
    for number in range(12):
        corpus = {f"a{number}{i}": ("", f"text {i}") for i in range(4)} | {f"zzz{number}": ("", "relevant")}
        folder = beir_folder(tmp_path / str(number), corpus=corpus, queries={"q": "?"}, relevant={"q": f"zzz{number}"})
        suite = replace(retrieval_suite(folder=folder), metrics=["recall_at_1"])
        recall = suite.score(Subject(name="m", embedder=Constant()), folder=tmp_path)[1]
        firsts.append(recall.value)
    assert 0 < sum(firsts) < 12


def test_queries_without_a_relevant_document_are_not_counted(tmp_path: Path) -> None:
    folder = beir_folder(tmp_path, relevant={"q1": "d1"})
    assert retrieval_suite(folder=folder).score(Subject(name="b", search=Bm25()), folder=tmp_path)[0].n == 1


def test_a_document_without_any_text_is_read_as_a_full_stop(tmp_path: Path) -> None:
    embedder = Lexical()
    value(retrieval_suite(folder=beir_folder(tmp_path, corpus={**ANIMALS, "d9": (None, " ")})), tmp_path, embedder)
    assert ("document", "", ".") in embedder.read


def broken(name: str, line: int, content: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines()
        lines[line - 1] = content
        (folder / name).write_text("\n".join(lines) + "\n")

    return write


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (broken("corpus.jsonl", 2, "{'_id': 3}"), r"corpus.jsonl:2: no JSON object"),
        (broken("corpus.jsonl", 3, '{"text": "a"}'), r"corpus.jsonl:3: needs an object with `_id`"),
        (broken("corpus.jsonl", 3, '{"_id": "d1", "text": "a"}'), r"corpus.jsonl:3: the id 'd1' occurs twice"),
        (broken("corpus.jsonl", 1, '{"_id": "d1", "text": "a", "title": 3}'), r"corpus.jsonl:1: `title` must be text"),
        (broken("queries.jsonl", 1, '{"_id": "q1", "text": null}'), r"queries.jsonl:1: `text` must be text, not None"),
        (broken("queries.jsonl", 1, '{"_id": "q1", "text": "a", "excluded_ids": ["d77"]}'), r"excludes \['d77'\]"),
        (broken("qrels/test.tsv", 2, "q1\td1"), r"test.tsv:2: needs query id, document id"),
        (broken("qrels/test.tsv", 2, "q1\td1\tyes"), r"test.tsv:2: needs .* whole number"),
        (broken("qrels/test.tsv", 2, "q77\td1\t1"), r"test.tsv:2: queries.jsonl has no query 'q77'"),
        (broken("qrels/test.tsv", 2, "q1\td77\t1"), r"test.tsv:2: corpus.jsonl has no document 'd77'"),
        (lambda folder: (folder / "qrels/test.tsv").write_text("q1\td1\t0\n"), "no query has a relevant document"),
        (lambda folder: (folder / "queries.jsonl").unlink(), r"queries.jsonl is missing: a BEIR folder holds"),
    ],
)
def test_a_damaged_retrieval_folder_is_refused_by_file_and_line(tmp_path: Path, damage: Callable, named: str) -> None:
    folder = beir_folder(tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=named):
        BeirFolder(folder=folder).build().load_data()


@pytest.mark.parametrize("score", ["1", "2"])
def test_judgements_need_no_header(tmp_path: Path, score: str) -> None:
    folder = beir_folder(tmp_path)
    (tmp_path / "qrels/test.tsv").write_text(f"q1\td1\t{score}\n")
    assert value(retrieval_suite(folder=folder), tmp_path) == pytest.approx(1.0)


PAIRS = {
    "pairs.tsv": 'score\tsentence2\tsentence1\n5\ta "b\tx\n',
    "pairs.csv": 'sentence1,sentence2,score\nx,"a ""b",5\n',
    "sts-test.csv": 'main-news\theadlines\t2015\t0001\t5.000\tx\ta "b\tlicence\n',
}


@pytest.mark.parametrize("name", PAIRS)
def test_sentence_pairs_are_read_from_each_layout(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(PAIRS[name])
    task = StsFile(file=str(tmp_path / name)).build()
    task.load_data()
    assert task.dataset["test"].to_list() == [{"sentence1": "x", "sentence2": 'a "b', "score": 5.0}]


@pytest.mark.parametrize("text", ["", "sentence1\tsentence2\tscore\n", "\n\n"])
def test_a_file_without_pairs_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "pairs.tsv").write_text(text)
    with pytest.raises(ValueError, match=r"pairs\.tsv holds no pairs of sentences"):
        StsFile(file=str(tmp_path / "pairs.tsv")).build().load_data()


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("a\tb", r"pairs.tsv:2: 2 fields, too few"),
        ("a\tb\tmuch", r"pairs.tsv:2: the score 'much' is no number"),
        (" \tb\t3", r"pairs.tsv:2: a sentence is empty"),
    ],
)
def test_a_damaged_pair_is_refused_by_file_and_line(tmp_path: Path, line: str, named: str) -> None:
    (tmp_path / "pairs.tsv").write_text(f"sentence1\tsentence2\tscore\n{line}\n")
    with pytest.raises(ValueError, match=named):
        StsFile(file=str(tmp_path / "pairs.tsv")).build().load_data()


def test_both_sentences_of_a_pair_get_the_instruction(tmp_path: Path) -> None:
    embedder = Lexical()
    suite = similarity_suite(file=sts_file(tmp_path / "pairs.tsv"), instruction="same meaning")
    suite.score(Subject(name="m", embedder=embedder), folder=tmp_path)
    assert {(side, instruction) for side, instruction, _ in embedder.read} == {("query", "same meaning")}
