"""HyDE: a text is read through the model's answer to it."""

import numpy as np
import pytest

from tests.models import form, unified
from unified_lm.inference.encode import Encoder
from unified_lm.inference.generate import BatchedGenerator
from unified_lm.methods.hyde import Hyde, HydeEmbedder

TEXTS = ["what is one?", "how cold was the weather", "what is one?"]


def hyde(**changes) -> Hyde:
    given = dict(readout="mean", prompt="{instruction} {text}", max_new_tokens=6, sides=("query",), with_text=False)
    return Hyde(**given | changes)


def answering(**changes) -> HydeEmbedder:
    model = unified()
    maker = form(model)
    encoder = Encoder(model=model, format=maker, readout="mean")
    return hyde(**changes).build_embedder(encoder, BatchedGenerator(model, maker, weights="tiny"))


def test_a_query_has_the_vector_of_the_answer_as_a_document_and_a_document_its_own():
    embedder = answering()
    answers = embedder.generate_answers(TEXTS, "answer it")
    assert all(answers) and answers[0] == answers[2] != TEXTS[0]
    found = embedder.encode(TEXTS, side="query", instruction="answer it")
    np.testing.assert_allclose(found, embedder.embedder.encode(answers, side="document"), atol=1e-6)
    documents = embedder.encode(TEXTS, side="document")
    np.testing.assert_allclose(documents, embedder.embedder.encode(TEXTS, side="document"), atol=1e-6)


def test_with_the_text_the_vector_is_the_unit_mean_of_both():
    embedder = answering(with_text=True)
    found = embedder.encode(TEXTS, side="query")
    own = embedder.embedder.encode(TEXTS, side="query")
    answers = embedder.embedder.encode(embedder.generate_answers(TEXTS), side="document")
    np.testing.assert_allclose(found, (own + answers) / np.linalg.norm(own + answers, axis=1)[:, None], atol=1e-5)


def test_the_identity_tells_everything_that_decides_an_answer():
    identities = [answering().identity, answering(max_new_tokens=7).identity, answering(prompt="{text}").identity]
    assert len({repr(identity) for identity in identities}) == 3
    assert identities[0]["hyde"]["generator"]["weights"] == "tiny"


def test_a_model_that_cannot_generate_and_a_prompt_without_a_text_are_refused():
    embedder = answering()
    with pytest.raises(ValueError, match="needs attention=causal"):
        hyde().build_embedder(embedder.embedder, None)
    with pytest.raises(ValueError, match=r"needs \{text\}"):
        hyde(prompt="answer")
    with pytest.raises(ValueError, match="use query and document"):
        hyde(sides=("answer",))
