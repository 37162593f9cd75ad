"""The objective is defined on the global batch: cutting it into chunks changes memory, never the gradient."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.laws.ranks_worker import ForwardTwice
from tests.methods import METHODS
from tests.models import ARCHITECTURES, PLANS, apart, fitting, form, gradient, mixed_rows, unified
from tests.unified_lm.test_slots import ulme
from unified_lm.methods.contrastive import Contrastive
from unified_lm.methods.generative import Generative
from unified_lm.packing import IGNORED, collate, pack
from unified_lm.training import objective
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import ChunkRandomness, TrainingModule, accumulate_gradients

BUDGETS = (10_000, 120, 40, 1)


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
        logits = model.logits(model.hidden_states(batch))
    assert terms["generative"] == pytest.approx(float(F.cross_entropy(logits, batch.labels, ignore_index=IGNORED)))


def test_contrastive_terms_equal_plain_info_nce_written_out():
    model, method = unified(double=True), METHODS["contrastive"]
    rows = [replace(r, negatives=r.negatives[:1]) for r in mixed_rows(answers=False)]
    terms, _, _ = run(model, method, rows, 50)
    maker = form(model)

    def vectors(sequences):
        with torch.no_grad():
            found = [model.hidden_states(collate([s]))[slice(*s.spans["text"])].mean(0) for s in sequences]
        return F.normalize(torch.stack(found), dim=1)

    q = vectors(maker.query_sequences([r.query for r in rows], [r.instruction for r in rows]))
    d = vectors(maker.document_sequences([r.positive for r in rows] + [n for r in rows for n in r.negatives]))
    expected = F.cross_entropy(q @ d.T / 0.05, torch.arange(len(rows)))
    assert terms["contrastive"] == pytest.approx(float(expected), rel=1e-9)


def test_a_repeated_document_is_no_negative():
    model, method = unified(double=True), METHODS["contrastive"]
    rows = [replace(r, negatives=()) for r in mixed_rows(6, answers=False)]
    rows.append(replace(rows[0], query="another question with the same document"))
    batch = collate(method.sequences(rows, form(model)))
    with torch.no_grad():
        vectors = method.read(model.hidden_states(batch), batch, model, tokens=False).vectors
    queries, documents = (F.normalize(vectors[name].values, dim=1) for name in ("query", "document"))
    losses = []
    for i, row in enumerate(rows):
        others = [k for k, other in enumerate(rows) if other.positive != row.positive]
        assert len(others) == (5 if i in (0, 6) else 6)
        losses.append(F.cross_entropy(queries[i] @ documents[[i, *others]].T / 0.05, torch.tensor(0)))
    terms, _, _ = run(model, method, rows, 10**6)
    assert terms["contrastive"] == pytest.approx(float(torch.stack(losses).mean()), rel=1e-9)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if "document" in method.roles])
def test_in_no_method_does_a_query_see_the_other_copy_of_its_document(name):
    method, rows = METHODS[name], [replace(r, negatives=()) for r in mixed_rows(6, answers=False)]
    rows.append(replace(rows[0], query="another question with the same document"))
    model = fitting(method, double=True)
    batch = collate(method.sequences(rows, form(model)))
    with torch.no_grad():
        vectors = method.read(model.hidden_states(batch), batch, model, tokens=False).vectors

    def slope_of_first_query(changed: int | None) -> torch.Tensor:
        values, documents = vectors["query"].values.clone().requires_grad_(), vectors["document"].values.clone()
        if changed is not None:
            documents[changed] = documents[changed].flip(0)
        given = {"query": replace(vectors["query"], values=values)}
        given["document"] = replace(vectors["document"], values=documents)
        loss = sum(method.objective(vectors | given).values())
        return torch.autograd.grad(loss, values)[0][0]

    assert torch.equal(slope_of_first_query(len(rows) - 1), slope_of_first_query(None))
    assert not torch.equal(slope_of_first_query(1), slope_of_first_query(None))


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_method_that_runs_the_decoder_otherwise_than_it_declares_is_refused_in_its_first_chunk(lockstep, monkeypatch):
    model = unified()
    batch = collate(METHODS["generative"].sequences(mixed_rows(), form(model)))
    with pytest.raises(RuntimeError, match=r"ForwardTwice ran the decoder 2 times .* second_forward is False"):
        TrainingModule(model, ForwardTwice(readout="mean"), anchored=lockstep)(batch)
    monkeypatch.setattr(ForwardTwice, "second_forward", True)
    TrainingModule(model, ForwardTwice(readout="mean"), anchored=lockstep)(batch)
    monkeypatch.setattr(Generative, "second_forward", True)
    with pytest.raises(RuntimeError, match=r"Generative ran the decoder 1 times .* second_forward is True"):
        TrainingModule(model, METHODS["generative"], anchored=lockstep)(batch)


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
        embeddings = model.embed_tokens(batch.tokens).detach().requires_grad_()
        states = model.run_decoder(embeddings, batch.positions, batch.layout)
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
