"""LLM2Vec-Gen: slots of a frozen decoder, drawn to a teacher's vector and made to hold the answer."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.models import PLANS, fitting, form, mixed_rows
from unified_lm.data.rows import TrainingRow
from unified_lm.files import text_hash
from unified_lm.inference.encode import Encoder
from unified_lm.methods.llm2vec_gen import LLM2VecGen
from unified_lm.packing import Sequence, collate, pack
from unified_lm.trainable import Trainable
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import ChunkRandomness, TrainingModule, accumulate_gradients


class Drawn:
    """A vector for every hash there is."""

    def lookup(self, hashes: list[int]) -> np.ndarray:
        return np.stack([np.random.default_rng(abs(h)).normal(size=64) for h in hashes])


def gen(**changes) -> LLM2VecGen:
    given = dict(slots=3, alignment_weight=1.0, reconstruction_weight=1.0, squared_error="mean", teacher=Drawn())
    return LLM2VecGen(**given | changes)


def terms_of(model, method, rows, budget=10_000):
    model.zero_grad(set_to_none=True)
    maker = form(model)
    chunks = pack(method.sequences(rows, maker), budget)
    return accumulate_gradients(
        TrainingModule(model, method), chunks, ranks=Ranks(), randomness=ChunkRandomness(seed=0, step=0)
    )


@pytest.mark.parametrize("squared_error", ["mean", "sum"])
def test_both_terms_are_what_they_say_written_out_row_by_row(squared_error):
    method = gen(squared_error=squared_error)
    model = fitting(method, double=True)
    rows = [row for row in mixed_rows() if row.answer is not None]
    maker, errors, losses = form(model), [], []
    reconstruct, align = model.heads["reconstruct"], model.heads["align"]
    with torch.no_grad():
        for row in rows:
            (query,) = maker.query_sequences([row.query], row.instruction)
            slots = reconstruct(model.hidden_states(collate([query]))[slice(*query.spans["slots"])])
            error = align(slots).mean(0) - torch.tensor(Drawn().lookup([text_hash(row.answer)])[0])
            errors.append(error.square().mean() if squared_error == "mean" else error.square().sum())
            (whole,) = maker.answer_sequences([row.query], [row.answer], row.instruction)
            tail = torch.tensor(whole.tokens[whole.spans["slots"][1] :])
            soft = torch.cat([slots, model.embed_tokens(tail)])
            batch = collate([Sequence(tokens=(1,) * len(soft))])
            states = model.run_decoder(soft, batch.positions, batch.layout)
            labels = torch.tensor(whole.labels[whole.spans["slots"][0] :])
            losses.append(F.cross_entropy(model.logits(states), labels, reduction="none", ignore_index=-100))
    terms = terms_of(model, method, rows)
    assert terms["alignment"] == pytest.approx(torch.stack(errors).mean().item(), rel=1e-6)
    losses = torch.cat(losses)
    assert terms["reconstruction"] == pytest.approx(losses[losses != 0].mean().item(), rel=1e-6)


def test_the_decoder_stays_frozen_while_slots_and_both_maps_learn():
    method = gen()
    model = fitting(method)
    names = Trainable(parts=("slots",)).apply(model)
    assert {name.partition(".")[0] for name in names} == {"slots", "heads"}
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    history = []
    for _ in range(6):
        history.append(terms_of(model, method, mixed_rows()))
        optimizer.step()
    assert all(p.grad is None for p in model.backbone.parameters())
    assert all(p.grad.norm() > 0 for name, p in model.named_parameters() if name in names)
    for term in ("alignment", "reconstruction"):
        assert history[-1][term] < history[0][term]


def test_the_reconstruction_knows_the_query_through_the_slots_alone():
    method = gen(alignment_weight=0.0)
    model = fitting(method)
    with torch.no_grad():
        model.heads["reconstruct"].weight.zero_()
    one, other = ([TrainingRow(query=q, answer="it is a number")] for q in ("what is one?", "where are the children?"))
    assert terms_of(model, method, one)["reconstruction"] == terms_of(model, method, other)["reconstruction"]


def test_hard_negatives_are_drawn_to_their_own_answers_and_every_row_is_kept_away_from_them_and_from_other_rows():
    method = gen(margin_weight=2.0, margin=10.0)
    model = fitting(method, double=True)
    rows = [row for row in mixed_rows() if row.answer is not None]
    rows.append(replace(rows[0], answer="another answer to the same question", negative_dialogues=()))
    hard_negatives = [(row.instruction, *negative) for row in rows for negative in row.negative_dialogues]
    maker = form(model)
    encoder = Encoder(model=model, format=maker, readout=method.readout, similarity="dot")

    def embedded(query: str, instruction: str) -> torch.Tensor:
        return torch.tensor(encoder.encode([query], side="query", instruction=instruction)[0])

    asked = [embedded(row.query, row.instruction) for row in rows]
    others = [embedded(query, instruction) for instruction, query, _ in hard_negatives]
    texts = [row.query for row in rows] + [query for _, query, _ in hard_negatives]
    short = [
        max(0.0, 100.0 - float((mine - other).square().sum()))
        for row, mine in zip(rows, asked, strict=True)
        for text, other in zip(texts, asked + others, strict=True)
        if text != row.query
    ]
    assert len(hard_negatives) > 3 and max(short) > 0
    wanted = torch.tensor(Drawn().lookup([text_hash(answer) for *_, answer in hard_negatives]))
    errors = (torch.stack(others) - wanted).square().mean(dim=1)
    terms = terms_of(model, method, rows)
    assert terms["margin"] == pytest.approx(np.mean(short), rel=1e-5)
    assert terms["negatives"] == pytest.approx(errors.mean().item(), rel=1e-5)
    without = terms_of(model, gen(), rows)
    assert {name: terms[name] for name in without} == pytest.approx(without, rel=1e-9)
    assert method.weights["margin"] == 2.0 and method.weights["negatives"] == method.alignment_weight


def test_a_margin_without_hard_negatives_is_refused_by_the_data_it_needs():
    with pytest.raises(ValueError, match="data=llm2vec_gen_negatives"):
        terms_of(fitting(gen()), gen(margin_weight=1.0), [replace(row, negative_dialogues=()) for row in mixed_rows()])


def test_an_embedding_is_the_mean_of_the_slots_through_both_maps_and_needs_no_answer():
    model = fitting(gen())
    maker = form(model)
    encoder = Encoder(model=model, format=maker, readout=gen().readout, similarity="dot")
    (query,) = maker.query_sequences(["a question"])
    with torch.no_grad():
        slots = model.hidden_states(collate([query]))[slice(*query.spans["slots"])]
        expected = model.heads["align"](model.heads["reconstruct"](slots)).mean(0)
    torch.testing.assert_close(torch.tensor(encoder.encode(["a question"], side="query")[0]), expected)


def test_attention_in_which_slots_would_see_the_answer_is_refused():
    with pytest.raises(ValueError, match="use attention=causal"):
        gen().check_format(form(fitting(gen()), PLANS["prefix"]))
    with pytest.raises(ValueError, match="mean or sum"):
        gen(squared_error="max")
