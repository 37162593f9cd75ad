"""Packs of a few sizes: filler changes no vector, and layers are compiled once a size."""

import numpy as np
import pytest
import torch

from tests.models import unified
from tests.unified_lm.test_encode import TEXTS, counted, encoder
from unified_lm.inference import compiled_layers as static
from unified_lm.inference import shared_prefix as sharing
from unified_lm.inference.compiled_layers import CompiledLayers, build_filler, pack_sizes

MANY = [f"text {i} " * (1 + i % 7) for i in range(30)]
COMPILE = torch.compile


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that torch hands to its compiler, here run as they are."""
    found = []

    def backend(graph, inputs):
        found.append(graph)
        return graph.forward

    monkeypatch.setattr(static.torch, "compile", lambda f, **options: COMPILE(f, backend=backend, **options))
    torch.compiler.reset()
    yield found
    torch.compiler.reset()


@pytest.fixture
def uncompiled(monkeypatch):
    monkeypatch.setattr(static.torch, "compile", lambda function, **options: function)


@pytest.mark.parametrize("plan", ["causal", "bidirectional", "prefix"])
@pytest.mark.parametrize("readout", ["mean", "last", "slot_0"])
@pytest.mark.parametrize("least", [1, 8])
def test_filler_changes_no_vector_and_is_not_counted_as_a_token(plan, readout, least, uncompiled, monkeypatch):
    monkeypatch.setattr(sharing, "MIN_PREFIX_TOKENS", least)
    plain = encoder(1, plan, readout, budget=48)
    made, counters = counted(plain, compiled=True)
    for asked in ({"side": "query", "instruction": "find what is asked"}, {"side": "document"}):
        np.testing.assert_allclose(made.encode(MANY, **asked), plain.encode(MANY, **asked), atol=1e-5)
        np.testing.assert_allclose(made.encode(TEXTS, **asked), plain.encode(TEXTS, **asked), atol=1e-5)
    whole = sum(map(len, made.build_sequences(MANY, "query", "find what is asked")))
    assert counters[0]["tokens"] + counters[0]["shared_tokens"] == whole
    assert 1 < counters[0]["padding_factor"] < 1.5


def test_every_size_is_compiled_once_and_the_vectors_are_the_same(graphs):
    plain = encoder(budget=64)
    made, _ = counted(plain, compiled=True)
    made.encode(["a"], side="query")
    each = len(graphs)
    assert each > 0
    for texts in (MANY, MANY[::-1], TEXTS):
        np.testing.assert_allclose(made.encode(texts, side="query"), plain.encode(texts, side="query"), atol=1e-5)
    assert each < len(graphs) <= each * len(pack_sizes(64))
    seen = len(graphs)
    made.encode(MANY, side="query")
    assert len(graphs) == seen


def test_the_real_compiler_gives_the_vectors_behind_common_tokens(monkeypatch):
    monkeypatch.setattr(sharing, "MIN_PREFIX_TOKENS", 1)
    torch.compiler.reset()
    plain = encoder(budget=64, layers=1)
    made, counters = counted(plain, compiled=True)
    asked = {"side": "query", "instruction": "find it"}
    np.testing.assert_allclose(made.encode(["a", "the"], **asked), plain.encode(["a", "the"], **asked), atol=1e-5)
    assert counters[0]["shared_tokens"] > 0 and counters[0]["padding_factor"] > 1
    torch.compiler.reset()


def test_a_pack_is_filled_to_the_next_size_and_a_model_is_left_as_it_was():
    sequences = encoder().build_sequences(TEXTS[:2], "document")
    tokens = sum(map(len, sequences))
    assert pack_sizes(100) == [25, 50, 75, 100]
    (more,) = build_filler(sequences, 0, 4 * (tokens + 3))
    assert len(more) == 3 and more.mode == "causal"
    assert build_filler(sequences, 0, 4 * tokens) == [] and build_filler(sequences, 0, tokens - 1) == []
    model = unified()
    layers, first = CompiledLayers(model), model.backbone.base_model.layers[0]
    with pytest.raises(KeyError), layers.enable(True):
        assert "forward" in vars(first)
        raise KeyError
    with layers.enable(False):
        assert "forward" not in vars(first)
    assert "forward" not in vars(first)
