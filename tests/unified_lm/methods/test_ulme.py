"""ULME: each term of its objective written out row by row, from states of sequences that were read alone."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.models import form, unified
from unified_lm.data.rows import TrainingRow
from unified_lm.methods.ulme import Ulme
from unified_lm.packing import collate

TAU = 0.2
ROWS = [
    TrainingRow(query="how long is it", answer="it is three miles long"),
    TrainingRow(query="a cat", positive="the cat that sat", negatives=("a dog", "two dogs")),
    TrainingRow(query="name a colour", answer="green"),
    TrainingRow(query="a tree", positive="an oak of some size"),
    TrainingRow(
        query="how far is it", answer="it is three miles long"
    ),  # the same answer: no negative of the first row
    TrainingRow(query="a kitten", positive="the cat that sat"),  # the same document: no negative of the second row
    TrainingRow(query="a stone", positive="granite", answer="it is hard, and grey"),
]


def ulme(**changes) -> Ulme:
    given = dict(slots=4, temperature=TAU, semantic_weight=1.0, generative_weight=1.0, predictive_weight=0.3)
    return Ulme(**given | dict(target="mean", stop_gradient=True) | changes)


def found(model, method, rows):
    batch = collate(method.sequences(rows, form(model)))
    return method.objective(method.read(model.hidden_states(batch), batch, model, tokens=False).vectors)


def alone(model, sequence):
    return model.hidden_states(collate([sequence]))


def nce(query, positive, negatives):
    """-log softmax of the positive's cosine / tau among it and the negatives."""
    scores = torch.stack([F.cosine_similarity(query, other, dim=0) / TAU for other in (positive, *negatives)])
    return -scores.log_softmax(0)[0]


def last_of_query(sequence):
    return sequence.spans["prompt"][1] - 1


@pytest.mark.parametrize("slots", [0, 1, 4])
def test_l_sem_is_symmetric_info_nce_of_slot_0_and_the_documents_slot(slots):
    model, method = unified(slots=slots, double=True), ulme(slots=slots)
    maker, pairs = form(model), [row for row in ROWS if row.positive]
    queries, documents, extra = [], {}, {}
    for row in pairs:
        (query,) = maker.query_sequences([row.query])
        place = query.spans["slots"][0] if slots else last_of_query(query)
        queries.append(alone(model, query)[place])
        for text in (row.positive, *row.negatives):
            (document,) = maker.document_sequences([text])
            place = document.spans["slots"][0] if slots else last_of_query(document)
            (documents if text == row.positive else extra)[text] = alone(model, document)[place]
    losses = []
    for row, query in zip(pairs, queries, strict=True):
        own = documents[row.positive]
        others = [vector for text, vector in (documents | extra).items() if text != row.positive]
        # two rows have one document, which stands among the candidates of every other row twice
        twice = [documents["the cat that sat"]] if row.positive != "the cat that sat" else []
        rivals = [q for r, q in zip(pairs, queries, strict=True) if r.positive != row.positive]
        losses.append((nce(query, own, others + twice) + nce(own, query, rivals)) / 2)
    torch.testing.assert_close(found(model, method, ROWS)["semantic"], torch.stack(losses).mean(), rtol=1e-6, atol=0)


def pooled(states, span, target):
    start, stop = span
    if target == "last":
        return states[stop - 1]
    places = torch.arange(1, stop - start + 1, dtype=states.dtype)
    weights = places if target == "length_weighted" else torch.ones_like(places)
    return (states[start:stop] * weights[:, None]).sum(0) / weights.sum()


@pytest.mark.parametrize("target", ["mean", "length_weighted", "last"])
@pytest.mark.parametrize("slots", [0, 1, 4])
@pytest.mark.parametrize("documents", [False, True], ids=["answers", "documents as answers"])
def test_l_pred_is_info_nce_of_the_last_slot_and_the_pooled_answer_of_the_same_forward(slots, target, documents):
    model = unified(slots=slots, double=True)
    method = ulme(slots=slots, target=target, positives_as_answers=documents)
    rows = [replace(r, answer=r.positive) if documents and r.answer is None else r for r in ROWS]
    rows = [row for row in rows if row.answer is not None]
    reasons, answers = [], []
    for row in rows:
        (sequence,) = form(model).answer_sequences([row.query], [row.answer])
        states = alone(model, sequence)
        reasons.append(states[sequence.spans["slots"][1] - 1 if slots else last_of_query(sequence)])
        answers.append(pooled(states, sequence.spans["answer"], target))
    losses = [
        nce(reason, answer, [a for other, a in zip(rows, answers, strict=True) if other.answer != row.answer])
        for row, reason, answer in zip(rows, reasons, answers, strict=True)
    ]
    torch.testing.assert_close(found(model, method, ROWS)["predictive"], torch.stack(losses).mean(), rtol=1e-6, atol=0)


def test_the_weights_are_those_of_the_paper_and_a_weight_of_zero_leaves_its_term_out():
    model = unified(slots=4)
    assert ulme().weights == {"semantic": 1.0, "generative": 1.0, "predictive": 0.3}
    for name in ("semantic", "predictive"):
        assert set(found(model, ulme(**{f"{name}_weight": 0.0}), ROWS)) == {"semantic", "predictive"} - {name}
    batch = collate(ulme().sequences(ROWS, form(model)))
    assert ulme().counts(batch) == {"generative": batch.label_count}
    assert ulme(generative_weight=0.0).counts(batch) == {}
