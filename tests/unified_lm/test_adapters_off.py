"""A retrieval LoRA that is switched off to generate: vectors are tuned, and what is written is the base's, exactly."""

import pytest
import torch

from tests.models import CAUSAL, form, unified
from unified_lm.inference.encode import Encoder
from unified_lm.inference.generate import BatchedGenerator
from unified_lm.trainable import Lora

PROMPTS = ["A query asks a question", "Sort the list, return the first element and", "Translate"]


def adapted():
    model = unified()
    torch.manual_seed(0)
    Lora(r=4, alpha=8, dropout=0.1, targets=("attention", "ffn"), embed_only=True).apply(model)
    for module in model.backbone.modules():
        if hasattr(module, "lora_B"):
            torch.nn.init.normal_(module.lora_B["default"].weight, std=0.1)
    return model


def written(model, **options):
    generator = BatchedGenerator(model, form(model, CAUSAL), weights="w", **options)
    ids = [generator.tokenizer.encode(text) for text in PROMPTS]
    pairs = [(prompt, prompt[::-1]) for prompt in ids]
    return generator.logprobs(pairs), [answer.text for answer in generator.generate(ids, 12)]


def test_likelihoods_and_answers_are_those_of_the_base_to_the_last_bit():
    base, model = unified(), adapted()
    assert written(model, without_adapters=True) == written(base)
    assert written(model)[0] != written(base)[0]


def test_vectors_are_those_of_the_adapters_before_and_after_it_generates():
    base, model = unified(), adapted()
    tuned, plain = (
        Encoder(model=m, format=form(m), readout="mean").encode(PROMPTS, side="query") for m in (model, base)
    )
    written(model, without_adapters=True)
    after = Encoder(model=model, format=form(model), readout="mean").encode(PROMPTS, side="query")
    assert abs(tuned - plain).max() > 1e-3
    assert (after == tuned).all()


def test_the_identity_of_a_generator_tells_whether_adapters_were_on():
    model = adapted()
    on, off = (
        BatchedGenerator(model, form(model), weights="w", without_adapters=off).identity for off in (False, True)
    )
    assert on != off


def test_adapters_come_back_and_keep_learning_also_after_an_error():
    model = adapted()
    learnt = [p.requires_grad for p in model.parameters()]
    with pytest.raises(ValueError, match="empty prompt"):
        BatchedGenerator(model, form(model), weights="w", without_adapters=True).generate([[]], 3)
    written(model, without_adapters=True)
    assert [p.requires_grad for p in model.parameters()] == learnt
