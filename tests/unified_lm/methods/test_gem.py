"""GEM: a suffix that knows its prefix through slots, and a contrastive term that comes in later."""

from dataclasses import replace

import pytest
import torch

from tests.models import form, unified
from unified_lm.attention import Plan
from unified_lm.data.rows import TrainingRow
from unified_lm.inference.encode import Encoder
from unified_lm.methods.gem import Gem
from unified_lm.packing import IGNORED, collate, pack
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import ChunkRandomness, TrainingModule, accumulate_gradients

PLAN = Plan(embed="bottleneck", generate="causal")
TEXT = "the weather was cold, but the children played outside until the evening "


def gem(**changes) -> Gem:
    given = dict(
        slots=3,
        temperature=0.05,
        generative_weight=1.0,
        contrastive_weight=1.0,
        plain_share=0.8,
        ramp_start=0,
        ramp_steps=0,
        attention_dropout=None,
        readout="slots",
    )
    return Gem(**given | changes)


def rows(count=6) -> list[TrainingRow]:
    return [TrainingRow(text=f"{i} {TEXT}{i}") for i in range(count)]


def maker_of(model, method):
    return replace(form(model, PLAN), document_slots=method.document_slots)


def test_every_token_but_the_slots_is_predicted_once_and_the_first_behind_them_from_the_last_slot():
    model, method = unified(slots=3), gem(plain_share=0.0)
    maker = maker_of(model, method)
    for text, row in zip((s for s in method.sequences(rows(), maker) if s.labels), rows(), strict=True):
        plain = maker.plain_sequence(row.text)
        targets = [label for label in text.labels if label != IGNORED]
        assert targets == [label for label in plain.labels if label != IGNORED]
        start, stop = text.spans["slots"]
        assert text.tokens[start:stop] == (-1, -2, -3) and text.prefix == start
        assert text.labels[start - 1 : stop - 1] == (IGNORED,) * 3
        assert text.labels[stop - 1] == text.tokens[stop]


def test_the_share_of_plain_texts_and_the_point_of_the_cut_depend_on_the_text_alone():
    model, method = unified(slots=3), gem()
    maker = maker_of(model, method)
    first = [s for s in method.sequences(rows(200), maker) if s.labels]
    again = [s for s in method.sequences(rows(200)[::-1], maker) if s.labels][::-1]
    assert [s.tokens for s in first] == [s.tokens for s in again]
    assert sum(s.mode == "causal" for s in first) / 200 == pytest.approx(0.8, abs=0.07)
    other = gem(cut_seed=1)
    assert [s.tokens for s in first] != [s.tokens for s in other.sequences(rows(200), maker) if s.labels]


def test_the_suffix_learns_from_the_prefix_through_the_slots_alone():
    model, method = unified(slots=3, layers=1), gem(plain_share=0.0)
    (text,) = [s for s in method.sequences(rows(1), maker_of(model, method)) if s.labels]
    batch = collate([text])
    embeddings = model.embed_tokens(batch.tokens).detach().requires_grad_()
    model.run_decoder(embeddings, batch.positions, batch.layout)[text.spans["slots"][1] :].sum().backward()
    assert embeddings.grad[: text.prefix].abs().max() == 0
    assert embeddings.grad[slice(*text.spans["slots"])].abs().max() > 0


def test_the_contrastive_weight_comes_in_after_its_steps_at_once_or_along_a_ramp():
    jump, ramp = gem(ramp_start=100), gem(ramp_start=10, ramp_steps=20, contrastive_weight=2.0)
    assert [jump.weights_at(step)["contrastive"] for step in (0, 99, 100, 1000)] == [0, 0, 1, 1]
    assert [ramp.weights_at(step)["contrastive"] for step in (0, 10, 20, 30, 99)] == [0, 0, 1, 2, 2]


def test_the_weight_of_a_step_is_the_one_that_its_gradient_has():
    model, method = unified(slots=3, double=True), gem(ramp_start=5)
    maker = maker_of(model, method)

    def gradient(step, method):
        model.zero_grad(set_to_none=True)
        chunks = pack(method.sequences(rows(), maker), 60)
        accumulate_gradients(
            TrainingModule(model, method), chunks, ranks=Ranks(), randomness=ChunkRandomness(seed=0, step=step)
        )
        return model.slots.vectors.grad.clone()

    before, after = gradient(4, method), gradient(5, method)
    torch.testing.assert_close(before, gradient(4, gem(contrastive_weight=0.0)))
    torch.testing.assert_close(after, gradient(4, gem()))
    assert (before - after).norm() > 1e-3 * after.norm()


def test_a_vector_is_the_mean_of_slots_that_do_not_see_each_other():
    model, method = unified(slots=3), gem()
    encoder = Encoder(model=model, format=maker_of(model, method), readout="slots", similarity="dot")
    each = [Encoder(model=model, format=encoder.format, readout=f"slot_{k}", similarity="dot") for k in range(3)]
    vectors = [one.encode(["a text"], side="document") for one in each]
    mean = encoder.encode(["a text"], side="document")
    torch.testing.assert_close(torch.tensor(mean), torch.tensor(sum(vectors) / 3), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        model.slots.vectors[0] += 1.0
    assert abs(each[2].encode(["a text"], side="document") - vectors[2]).max() < 1e-6
    assert abs(each[0].encode(["a text"], side="document") - vectors[0]).max() > 1e-3


def test_attention_that_lets_slots_see_each_other_or_no_slots_at_all_are_refused():
    with pytest.raises(ValueError, match="use attention=bottleneck"):
        gem().check_format(form(unified(slots=3)))
    with pytest.raises(ValueError, match="must be 1 or more"):
        gem(slots=0)
