"""A scoring that ends in the middle of a corpus goes on there, and leaves no vectors behind when it is done."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from evals.embedding import resumable as vectors
from evals.embedding.local_files import BeirFolder
from evals.embedding.suite import MtebSuite
from evals.instructions import Instructions
from evals.score import Embedder, Subject
from tests.evals.lexical import ANIMALS, QUESTIONS, Lexical, beir_folder
from tests.models import form, unified
from unified_lm.inference import embedding_store as store
from unified_lm.inference.embedding_store import EmbeddingStore
from unified_lm.inference.encode import Encoder
from unified_lm.packing import PackedBatch

MANY = {**ANIMALS, **{f"x{i}": ("", f"a text about nothing, number {i}") for i in range(40)}}


class Stopped(KeyboardInterrupt):
    pass


class Ending(Lexical):
    """Its process ends when it has read `most` documents."""

    most = 20

    def encode(self, texts: Sequence[str], *, side: str, instruction: str = "") -> np.ndarray:
        if side == "document" and sum(one == "document" for one, _, _ in self.read) >= self.most:
            raise Stopped
        return super().encode(texts, side=side, instruction=instruction)


@pytest.fixture
def suite(tmp_path: Path) -> MtebSuite:
    source = BeirFolder(folder=beir_folder(tmp_path / "beir", corpus=MANY))
    table = Instructions(name="t", tasks={"LocalBeir": {"query": ""}})
    return MtebSuite(name="s", sources=[source], instructions=table)


def score(suite: MtebSuite, embedder: Embedder, folder: Path) -> list:
    return suite.score(Subject(name="m", embedder=embedder), folder=folder)


def left(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_dir() and path.suffix == ".vectors"]


@pytest.mark.parametrize("remember", [False, True])
def test_documents_that_were_read_before_the_end_are_not_read_again(
    suite: MtebSuite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remember: bool
) -> None:
    monkeypatch.setattr(vectors, "BLOCK", 8)
    suite = replace(suite, remember=remember)
    ended, resumed = Ending(), Lexical()
    with pytest.raises(Stopped):
        score(suite, ended, tmp_path / "scores")
    assert len(left(tmp_path / "scores")) == 1
    scores = score(suite, resumed, tmp_path / "scores")
    assert scores == score(suite, Lexical(), tmp_path / "in one go")
    assert len(ended.read) == len(QUESTIONS) + 24 and len(ended.read) + len(resumed.read) == len(QUESTIONS) + len(MANY)
    assert left(tmp_path) == []


def test_a_decoder_goes_on_where_it_was_stopped(
    suite: MtebSuite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SHARD_VECTORS", 8)
    model = unified()
    states, packs = model.hidden_states, []

    def encoder(most: int) -> Encoder:
        def computed(batch: PackedBatch, *held: object) -> torch.Tensor:
            packs.append(1)
            if len(packs) > most:
                raise Stopped
            return states(batch, *held)

        monkeypatch.setattr(model, "hidden_states", computed)
        return Encoder(model=model, format=form(model), readout="mean", weights={"digest": "w"}, budget=100)

    with pytest.raises(Stopped):
        score(suite, encoder(6), tmp_path / "scores")
    packs.clear()
    resumed = score(suite, encoder(1000), tmp_path / "scores")
    rest = len(packs)
    packs.clear()
    assert resumed[0].value == pytest.approx(score(suite, encoder(1000), tmp_path / "in one go")[0].value)
    assert 0 < rest < len(packs) - 3
    assert left(tmp_path) == []


def test_a_store_that_was_asked_for_keeps_the_vectors(suite: MtebSuite, tmp_path: Path) -> None:
    model = unified()
    encoder = Encoder(model=model, format=form(model), readout="mean", store=EmbeddingStore(folder=tmp_path / "mine"))
    score(suite, encoder, tmp_path / "scores")
    assert left(tmp_path) == []
    assert sum(len(shard.keys) for shard in encoder.store.open_space(encoder.vector_identity).shards) == len(
        QUESTIONS
    ) + len(MANY)


def test_a_vector_that_is_not_finite_is_not_kept(suite: MtebSuite, tmp_path: Path) -> None:
    class Broken(Lexical):
        def encode(self, texts: Sequence[str], *, side: str, instruction: str = "") -> np.ndarray:
            return super().encode(texts, side=side, instruction=instruction) * np.nan

    with pytest.raises(ValueError, match="not finite"):
        score(suite, Broken(), tmp_path / "scores")
    mended = Lexical()
    score(suite, mended, tmp_path / "scores")
    assert len(mended.read) == len(QUESTIONS) + len(MANY)


@pytest.mark.parametrize("remember", [False, True])
def test_the_record_says_what_an_embedder_with_prompts_read(suite: MtebSuite, tmp_path: Path, remember: bool) -> None:
    class Prompted(Lexical):
        def describe_prompt(self, side: str, instruction: str) -> str:
            return f"own {side}: "

    found = score(replace(suite, remember=remember), Prompted(), tmp_path / "scores")
    assert {one.prompt for one in found} == {"own query:  | document: own document: "}
