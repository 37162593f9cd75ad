"""LLM-JEPA: two views that do not see each other, coupled at their last tokens."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.models import form, mixed_rows, unified
from unified_lm.methods.llm_jepa import LlmJepa
from unified_lm.packing import collate


def jepa(**changes) -> LlmJepa:
    given = dict(
        slots=0,
        temperature=0.05,
        semantic_weight=1.0,
        generative_weight=1.0,
        predictive_weight=0.3,
        distance="cosine",
        coupling_temperature=0.07,
        reverse=False,
        stop_gradient=False,
    )
    return LlmJepa(**given | changes)


def vectors(model, method, rows):
    batch = collate(method.sequences(rows, form(model)))
    return method.read(model.hidden_states(batch), batch, model, tokens=False).vectors


def test_the_coupling_is_one_minus_cosine_of_the_last_states_of_both_views_written_out():
    model, method = unified(double=True), jepa()
    rows = mixed_rows()
    maker = form(model)
    found = method.objective(vectors(model, method, rows))["predictive"]
    both = []
    for row in rows:
        if row.answer is not None:
            texts = maker.query_sequences([row.query], row.instruction) + maker.document_sequences([row.answer])
            both.append([model.hidden_states(collate([text]))[-1] for text in texts])
    expected = torch.stack([1 - F.cosine_similarity(a, b, dim=0) for a, b in both]).mean()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_the_answers_view_does_not_depend_on_the_query_and_its_gradient_flows_unless_stopped():
    rows = mixed_rows(4, documents=False)
    for reverse in (False, True):
        for stop in (False, True):
            model = unified(slots=2)
            method = jepa(slots=2, reverse=reverse, stop_gradient=stop)
            read = vectors(model, method, rows)
            other = vectors(model, method, [replace(row, query="another question") for row in rows])
            torch.testing.assert_close(read["view"].values, other["view"].values)
            for v in read.values():
                v.values.retain_grad()
            method.objective(read)["predictive"].backward()
            target, predictor = ("asked", "view") if reverse else ("view", "query")
            assert (read[target].values.grad is None) == stop
            assert read[predictor].values.grad.norm() > 0


@pytest.mark.parametrize("distance", ["cosine", "l2", "mse", "info_nce"])
def test_every_distance_pulls_the_views_together_in_both_directions(distance):
    for reverse in (False, True):
        model = unified(slots=1)
        method = jepa(slots=1, distance=distance, reverse=reverse, semantic_weight=0.0, generative_weight=0.0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        losses = []
        for _ in range(4):
            loss = method.objective(vectors(model, method, mixed_rows(6)))["predictive"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]


def test_the_next_token_view_holds_no_predictor_tokens():
    model = unified(slots=2)
    made = jepa(slots=2).sequences(mixed_rows(), form(model))
    assert all(min(s.tokens) >= 0 for s in made if "answer" in s.spans)
    assert any(min(s.tokens) < 0 for s in made if s.role == "query")


def test_an_unknown_distance_is_refused():
    with pytest.raises(ValueError, match="use one of cosine, l2, mse, info_nce"):
        jepa(distance="angle")
