"""Embedders around embedders: what one does not change is that of the one inside."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evals.embedding.resumable import CachedEmbedder
from experiments.bench.harnesses import RecordingEmbedder
from tests.models import form, unified
from unified_lm.inference.embedder import ComparedBy, DelegatingEmbedder, Embedder, describe_prompt, with_similarity
from unified_lm.inference.embedding_store import EmbeddingStore
from unified_lm.inference.encode import Encoder
from unified_lm.inference.generate import BatchedGenerator
from unified_lm.methods.hyde import Hyde

TEXTS = ["what is one?", "how cold was the weather"]


def encoder() -> Encoder:
    model = unified()
    return Encoder(model=model, format=form(model), readout="mean", weights={"digest": "w"})


def around(kind: type[DelegatingEmbedder], inner: Encoder, folder: Path) -> Embedder:
    """An embedder of this kind around an encoder."""
    if kind is CachedEmbedder:
        return CachedEmbedder(embedder=inner, store=EmbeddingStore(folder=folder, trust_weights=True))
    if kind is ComparedBy:
        return ComparedBy(embedder=inner, other="dot")
    if kind in (DelegatingEmbedder, RecordingEmbedder):
        return kind(embedder=inner)
    hyde = Hyde(readout="mean", prompt="{text}", max_new_tokens=4, sides=("query",), with_text=False)
    return hyde.build_embedder(inner, BatchedGenerator(inner.model, inner.format, weights="tiny"))


def kinds(base: type = DelegatingEmbedder) -> list[type]:
    return [base, *(kind for below in base.__subclasses__() for kind in kinds(below))]


@pytest.mark.parametrize("kind", kinds())
def test_every_embedder_around_another_has_its_readout_and_attention_and_says_its_prompt(
    kind: type, tmp_path: Path
) -> None:
    class Prompted(Encoder):
        def describe_prompt(self, side: str, instruction: str) -> str:
            return f"own {side}: "

    inner = encoder()
    outer = around(kind, inner, tmp_path)
    assert isinstance(outer, Embedder)
    assert (outer.readout, outer.attention) == (inner.readout, inner.attention)
    assert describe_prompt(outer, "query", "find") == "find"
    fields = {name: getattr(inner, name) for name in ("model", "format", "readout", "weights")}
    assert describe_prompt(replace(outer, embedder=Prompted(**fields)), "query", "find") == "own query: "


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind is not ComparedBy])
def test_under_dot_every_embedder_gives_vectors_that_are_not_normalized(kind: type, tmp_path: Path) -> None:
    outer = around(kind, encoder(), tmp_path)
    cosine, dot = (with_similarity(outer, similarity) for similarity in ("cosine", "dot"))
    assert cosine is outer and dot.similarity == "dot" and dot.identity != outer.identity
    unit, long = (one.encode(TEXTS, side="query") for one in (cosine, dot))
    lengths = np.linalg.norm(long, axis=1)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-5)
    assert (abs(lengths - 1) > 0.1).all()
    np.testing.assert_allclose(long / lengths[:, None], unit, atol=1e-5)
    assert with_similarity(dot, "cosine").identity == outer.identity


def test_vectors_of_an_embedder_that_knows_one_similarity_are_compared_as_they_are() -> None:
    class Fixed:
        identity, similarity, readout, attention = {"similarity": "cosine"}, "cosine", "own", "own"

        def encode(self, texts: Sequence[str], *, side: str, instruction: str = "") -> np.ndarray:
            return np.ones((len(texts), 2), dtype=np.float32)

    fixed = Fixed()
    other = with_similarity(fixed, "dot")
    assert (other.similarity, other.identity) == ("dot", {"similarity": "dot"})
    assert with_similarity(other, "cosine") is fixed


def test_scores_under_dot_of_answers_are_never_taken_from_those_that_were_normalized(tmp_path: Path) -> None:
    hyde = around(Hyde, encoder(), tmp_path)
    identity = with_similarity(hyde, "dot").identity
    assert identity["hyde"] == {**hyde.identity["hyde"], "normalized": False}
