"""A text of one token has nothing to predict, and stops no training."""

from dataclasses import replace

import pytest

from tests.methods import METHODS
from tests.models import CHATML, PLANS, fitting, form
from tests.unified_lm.methods import test_gem, test_gritlm
from unified_lm.data.rows import TrainingRow
from unified_lm.packing import IGNORED, pack
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import ChunkRandomness, TrainingModule, accumulate_gradients

TERMS = {"generative": "generative", "mntp": "masked", "gem": "generative"}
ATTENTION = {"generative": PLANS["causal"], "mntp": PLANS["bidirectional"], "gem": test_gem.PLAN}


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("bos", [True, False])
def test_a_lone_token_is_a_target_behind_a_bos_and_none_without(name: str, bos: bool) -> None:
    method = METHODS[name]
    model = fitting(method, dropout=0.1)
    model.train()
    maker = form(model, ATTENTION[name], replace(CHATML, bos=bos))
    maker = replace(maker, document_slots=method.document_slots)
    (short,) = model.tokenizer.encode("a", add_special_tokens=False)
    targets, whole = {}, ["the cat sat on it", "a dog ran"]
    for texts in (whole, [*whole, "a"]):
        made = method.sequences([TrainingRow(text=text) for text in texts], maker)
        last = [s for s in made if s.row == len(texts) - 1]
        targets[len(texts)] = [label for sequence in last for label in sequence.labels or () if label != IGNORED]
        terms = accumulate_gradients(
            TrainingModule(model, method),
            pack(made, 90),
            ranks=Ranks(),
            randomness=ChunkRandomness(seed=0, step=0),
            keep_chunks=1,
        )
        assert terms[TERMS[name]] > 0
    assert targets[3] == ([short] if bos else [])


@pytest.mark.parametrize("loss", ["mean", "token", "mixed", "sample"])
def test_gritlm_takes_samples_without_a_label_as_nothing_whatever_its_loss(loss: str) -> None:
    method = test_gritlm.gritlm(generative_loss=loss, mixed_rows=1)
    model = fitting(method)
    maker = form(model, PLANS["gritlm"], replace(CHATML, bos=False))
    for texts, labels in ((["a"], 0), (["a", "the cat sat on it"], 1)):
        chunks = pack(method.sequences([TrainingRow(text=text) for text in texts], maker), 90)
        terms = accumulate_gradients(
            TrainingModule(model, method),
            chunks,
            ranks=Ranks(),
            randomness=ChunkRandomness(seed=0, step=0),
            keep_chunks=1,
        )
        assert (terms.get("generative", 0) > 0) == bool(labels)
