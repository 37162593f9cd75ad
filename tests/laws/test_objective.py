"""The objective is defined on the global batch: cutting it into chunks changes memory, never the gradient."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.models import ARCHITECTURES, PLANS, apart, fitting, form, gradient, mixed_rows, unified
from tests.unified_lm.methods.test_gem import gem
from tests.unified_lm.methods.test_gritlm import gritlm
from tests.unified_lm.methods.test_llm2vec_gen import gen
from tests.unified_lm.methods.test_llm_jepa import jepa
from tests.unified_lm.methods.test_mntp import mntp
from tests.unified_lm.methods.test_simcse import simcse
from tests.unified_lm.test_slots import ulme
from unified_lm.methods.contrastive import Contrastive
from unified_lm.methods.generative import Generative
from unified_lm.packing import IGNORED, collate, pack
from unified_lm.training import objective
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import ChunkRandomness, TrainingModule, accumulate_gradients

BUDGETS = (10_000, 120, 40, 1)
METHODS = {
    "contrastive": Contrastive(temperature=0.05, symmetric=False, readout="mean"),
    "contrastive symmetric, last": Contrastive(temperature=0.05, symmetric=True, readout="last"),
    "contrastive with slots": Contrastive(temperature=0.05, symmetric=True, readout="slot_1", slots=2),
    "generative": Generative(readout="mean"),
    "ulme": ulme(4),
    "ulme without slots": ulme(0),
    "ulme, gradient not stopped, last": ulme(2, stop_gradient=False, target="last"),
    "ulme, length-weighted": ulme(1, target="length_weighted"),
    "ulme, documents as answers": ulme(2, positives_as_answers=True),
    "gritlm": gritlm(),
    "gritlm, sums over samples": gritlm(generative_loss="token", embedding_weight=2.0),
    "llm2vec-gen": gen(),
    "llm2vec-gen with hard negatives": gen(margin_weight=0.5),
    "latent pooling": Contrastive(temperature=0.05, symmetric=False, readout="mean@latent", latents=8, latent_heads=2),
    "gem": gem(plain_share=0.3, temperature=0.5),
    "mntp": mntp(share=0.5),
    "simcse": simcse(temperature=0.5),
    "llm-jepa": jepa(),
    "llm-jepa reverse, predictors, info_nce": jepa(slots=2, reverse=True, distance="info_nce", stop_gradient=True),
}


def run(model, method, rows, budget, *, keep=1, plan=PLANS["causal"], step=0):
    """Terms and gradient of one global batch."""
    model.zero_grad(set_to_none=True)
    chunks = pack(method.sequences(rows, form(model, plan)), budget)
    terms = accumulate_gradients(
        TrainingModule(model, method),
        chunks,
        ranks=Ranks(),
        randomness=ChunkRandomness(seed=0, step=step),
        keep_chunks=keep,
    )
    return terms, gradient(model), len(chunks)


@pytest.mark.parametrize("name", METHODS)
def test_any_chunking_gives_the_gradient_of_one_forward(name):
    """In float64. RMSNorm's backward rounds to float32 even there: with heads, whose products round by the number of
    a chunk's rows, a last bit may decide that rounding."""
    tolerance = 1e-10 if fitting(METHODS[name]).heads else 1e-12
    for grad, whole, found, terms in chunkings(name, double=True):
        assert apart(grad, whole) <= tolerance
        assert found == pytest.approx(terms, rel=1e-10)


@pytest.mark.parametrize("name", METHODS)
def test_in_float32_any_chunking_gives_the_gradient_of_one_forward_or_one_nearer_to_float64s(name):
    """Two float32 gradients may lie 1.1e-6 apart (chunks of one sequence) because the whole one is that far off."""
    exact = run(fitting(METHODS[name], double=True), METHODS[name], mixed_rows(), BUDGETS[0])[1]
    for grad, whole, found, terms in chunkings(name, double=False):
        assert apart(grad, whole) <= 1e-6 or apart(grad.double(), exact) <= apart(whole.double(), exact)
        assert apart(grad.double(), exact) <= 1.5e-6
        assert found == pytest.approx(terms, rel=1e-5)


def chunkings(name, *, double):
    """Gradient and terms of every cut into chunks, beside those of one forward."""
    method, rows = METHODS[name], mixed_rows()
    model = fitting(method, double=double)
    terms, whole, pieces = run(model, method, rows, BUDGETS[0], keep=99)
    assert pieces == 1
    for budget in BUDGETS[1:]:
        for keep in (0, 100, 10**9):
            found, grad, pieces = run(model, method, rows, budget, keep=keep)
            assert pieces > 1
            yield grad, whole, found, terms


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("plan", ["bidirectional", "gritlm", "prefix"])
def test_chunking_is_exact_on_every_architecture_and_attention_plan(architecture, plan):
    method = METHODS["contrastive"] if plan != "prefix" else METHODS["ulme"]
    model = fitting(method, architecture)
    _, whole, _ = run(model, method, mixed_rows(), 10**6, plan=PLANS[plan])
    _, parts, _ = run(model, method, mixed_rows(), 60, plan=PLANS[plan])
    assert apart(parts, whole) <= 1e-6


@pytest.mark.parametrize("name", METHODS)
def test_with_dropout_two_passes_and_kept_graphs_are_bit_equal_and_dropout_is_active(name):
    method = METHODS[name]
    model = fitting(method, dropout=0.2).train()
    rows = mixed_rows()
    _, kept, _ = run(model, method, rows, 60, keep=99)
    _, again, _ = run(model, method, rows, 60, keep=0)
    assert torch.equal(kept, again)
    _, other, _ = run(model, method, rows, 60, step=1)
    assert apart(other, kept) > 1e-3


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["contrastive", "generative", "ulme"])
def test_rows_of_the_embedding_are_added_to_the_gradient_that_a_dense_backward_gives(name, tied, monkeypatch):
    model, looked_up = fitting(METHODS[name], double=True, tied=tied), []
    embedding = model.backbone.get_input_embeddings()
    hook = embedding.register_forward_hook(lambda module, *_: looked_up.append(module.sparse))
    for budget in (10**6, 60):
        _, found, _ = run(model, METHODS[name], mixed_rows(), budget)
        assert embedding.weight.grad.layout is torch.strided and not embedding.sparse
        with monkeypatch.context() as patch:
            patch.setattr(objective, "sparse_embedding_gradient", lambda embedding, on: nullcontext())
            _, dense, _ = run(model, METHODS[name], mixed_rows(), budget)
        assert apart(found, dense) <= 1e-12
    hook.remove()
    assert set(looked_up) == {True, False}


def test_the_token_loss_is_a_mean_over_the_global_count_of_labels():
    model, method = unified(), Generative(readout="mean")
    rows = mixed_rows()
    terms, _, _ = run(model, method, rows, 40)
    batch = collate(method.sequences(rows, form(model)))
    with torch.no_grad():
        logits = model.logits(model.states(batch))
    assert terms["generative"] == pytest.approx(float(F.cross_entropy(logits, batch.labels, ignore_index=IGNORED)))


def test_contrastive_terms_equal_plain_info_nce_written_out():
    model, method = unified(double=True), METHODS["contrastive"]
    rows = [replace(r, negatives=r.negatives[:1]) for r in mixed_rows(answers=False)]
    terms, _, _ = run(model, method, rows, 50)
    maker = form(model)

    def vectors(sequences):
        with torch.no_grad():
            found = [model.states(collate([s]))[slice(*s.spans["text"])].mean(0) for s in sequences]
        return F.normalize(torch.stack(found), dim=1)

    q = vectors(maker.queries([r.query for r in rows], [r.instruction for r in rows]))
    d = vectors(maker.documents([r.positive for r in rows] + [n for r in rows for n in r.negatives]))
    expected = F.cross_entropy(q @ d.T / 0.05, torch.arange(len(rows)))
    assert terms["contrastive"] == pytest.approx(float(expected), rel=1e-9)


def test_a_repeated_document_is_no_negative():
    model, method = unified(double=True), METHODS["contrastive"]
    rows = [replace(r, negatives=()) for r in mixed_rows(6, answers=False)]
    once = run(model, method, rows, 10**6)[0]["contrastive"]
    doubled = [*rows, replace(rows[0], query="another question with the same document")]
    batch = run(model, method, doubled, 10**6)[0]["contrastive"]
    maker = form(model)
    queries = method.sequences(doubled, maker)
    assert sum(s.hashes["text"] == queries[1].hashes["text"] for s in queries if s.role == "document") == 2
    own = run(model, method, [doubled[-1], *rows[1:]], 10**6)[0]["contrastive"]
    # rows 1..5 see one document more in neither case; row 0 and its double see the same five negatives
    shared = [run(model, method, [r, *rows[:i], *rows[i + 1 :]], 10**6)[0]["contrastive"] for i, r in enumerate(rows)]
    assert shared == pytest.approx([once] * len(rows))
    assert batch != pytest.approx(once) and own != pytest.approx(once)


def test_ulme_without_slots_and_coupling_is_contrastive_plus_generative_on_the_same_rows():
    rows = mixed_rows()
    model = unified(double=True)
    terms, joint, _ = run(model, ulme(0, predictive_weight=0.0), rows, 80)
    one, a, _ = run(model, METHODS["contrastive symmetric, last"], rows, 80)
    two, b, _ = run(model, METHODS["generative"], rows, 80)
    assert terms["semantic"] == pytest.approx(one["contrastive"], rel=1e-6)
    assert terms["generative"] == pytest.approx(two["generative"], rel=1e-6)
    assert apart(joint, a + b) < 1e-6  # RMSNorm rounds to float32 even in a float64 model


def test_the_stop_gradient_stops_and_its_absence_does_not():
    only = dict(semantic_weight=0.0, generative_weight=0.0)
    for stop in (True, False):
        model = unified(slots=2)
        method = ulme(2, stop_gradient=stop, **only)
        rows = mixed_rows()
        batch = collate(method.sequences(rows, form(model)))
        embeddings = model.embed(batch.tokens).detach().requires_grad_()
        states = model.hidden(embeddings, batch.positions, batch.layout)
        reading = method.read(states, batch, model, tokens=False)
        method.objective(reading.vectors)["predictive"].backward()
        holders = [i for i, sequence in enumerate(batch.sequences) if "answer" in sequence.spans]
        answers = torch.cat([torch.arange(*batch.span(i, "answer")) for i in holders])
        moved = embeddings.grad[answers].abs().max()
        assert bool(moved == 0) == stop
        assert embeddings.grad.abs().max() > 0


def test_every_term_reaches_the_parameters_it_should_and_zero_weights_leave_no_term():
    rows = mixed_rows()
    for weights, names in (
        ({"predictive_weight": 0.0}, {"semantic", "generative"}),
        ({"semantic_weight": 0.0}, {"generative", "predictive"}),
        ({"generative_weight": 0.0}, {"semantic", "predictive"}),
    ):
        model = unified(slots=2)
        terms, grad, _ = run(model, ulme(2, **weights), rows, 80)
        assert set(terms) == names and grad.norm() > 0
        assert model.slots.vectors.grad.abs().sum(1).min() > 0 or "predictive" not in names


def test_one_candidate_for_the_whole_batch_is_refused():
    with pytest.raises(ValueError, match="add rows to the step, or negatives"):
        run(unified(), METHODS["contrastive"], [replace(mixed_rows()[0], negatives=())], 100)


def test_impossible_plans_are_refused_with_the_way_out():
    model = unified(slots=2)
    for method in (ulme(2), METHODS["generative"]):
        with pytest.raises(ValueError, match="use attention=causal"):
            method.check_format(form(model, PLANS["bidirectional"]))
    with pytest.raises(ValueError, match="in one forward"):
        ulme(2).check_format(form(model, PLANS["gritlm"]))
    with pytest.raises(ValueError, match=r"set method\.slots or use readout=last"):
        Contrastive(temperature=1.0, symmetric=False, readout="slot_0").check_format(form(unified()))
