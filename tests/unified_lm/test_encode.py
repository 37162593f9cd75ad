"""Encoding: a text's vector depends on the text, its side and its instruction, and on nothing else."""

import numpy as np
import pytest
import torch

from tests.models import PLANS, form, unified
from unified_lm.encode import Encoder

TEXTS = ["a", "some text", "a somewhat longer text about numbers", "one, two, three. " * 12, "the end"]


def encoder(slots=0, plan="causal", readout="mean", budget=2048, similarity="cosine", **options) -> Encoder:
    model = unified(slots=slots, **options)
    maker = form(model, PLANS[plan])
    return Encoder(model=model, form=maker, readout=readout, budget=budget, similarity=similarity)


@pytest.mark.parametrize("plan", ["causal", "bidirectional", "prefix"])
@pytest.mark.parametrize("readout", ["mean", "weighted_mean", "last", "slot_0", "slot_1"])
@pytest.mark.parametrize("side", ["query", "document"])
def test_adding_texts_changes_no_vector_and_order_is_kept(plan, readout, side):
    small = encoder(2, plan, readout, budget=40)
    large = encoder(2, plan, readout, budget=4000)
    together = large.encode(TEXTS, side=side, instruction="find")
    np.testing.assert_allclose(small.encode(TEXTS, side=side, instruction="find"), together, atol=1e-6)
    for i, text in enumerate(TEXTS):
        np.testing.assert_allclose(large.encode([text], side=side, instruction="find")[0], together[i], atol=1e-6)
    np.testing.assert_allclose(large.encode(TEXTS[::-1], side=side, instruction="find")[::-1], together, atol=1e-6)
    repeated = large.encode([TEXTS[1], *TEXTS, TEXTS[1]], side=side, instruction="find")
    np.testing.assert_array_equal(repeated[0], repeated[-1])
    np.testing.assert_allclose(repeated[1:-1], together, atol=1e-6)


def test_sides_and_instructions_give_other_vectors_and_cosine_vectors_have_length_one():
    made = encoder()
    query, told = (made.encode(TEXTS, side="query", instruction=i) for i in ("", "find it"))
    document = made.encode(TEXTS, side="document")
    assert query.shape == (len(TEXTS), made.model.width) and query.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(query, axis=1), 1, atol=1e-6)
    assert abs(query - told).max() > 1e-3 and abs(query - document).max() > 1e-3
    assert abs(np.linalg.norm(encoder(similarity="dot").encode(TEXTS, side="query"), axis=1) - 1).min() > 1e-3


def test_every_leaf_of_the_identity_is_in_it():
    base = encoder()
    others = [
        encoder(slots=1),
        encoder(plan="bidirectional"),
        encoder(readout="last"),
        encoder(similarity="dot"),
        encoder(autocast=torch.bfloat16),
        Encoder(model=base.model, form=form(base.model, query_length=7), readout="mean"),
        Encoder(model=base.model, form=base.form, readout="mean", weights={"digest": "1"}),
    ]
    identities = [str(e.identity) for e in (base, *others)]
    assert len(set(identities)) == len(identities)
    assert str(encoder(budget=7).identity) == identities[0]


def test_no_texts_give_no_vectors_and_an_empty_text_is_named():
    made = encoder()
    assert made.encode([], side="query").shape == (0, made.model.width)
    with pytest.raises(ValueError, match="text 1 is empty"):
        made.encode(["a", " "], side="query")
    with pytest.raises(ValueError, match="use query or document"):
        made.encode(["a"], side="passage")


def test_encoding_uses_no_dropout_and_leaves_the_model_in_the_mode_it_was_in():
    made = encoder(dropout=0.5)
    made.model.train()
    np.testing.assert_array_equal(made.encode(TEXTS, side="query"), made.encode(TEXTS, side="query"))
    assert made.model.training
