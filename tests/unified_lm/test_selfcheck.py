"""The self-check passes on every decoder and mode, and bites where attention is not what was asked for."""

from dataclasses import replace

import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tests.models import ARCHITECTURES, unified
from unified_lm.attention import Plan, function, kernels
from unified_lm.attention.layout import ALL_MODES
from unified_lm.selfcheck import AttentionCheckError, check_attention

PLANS = [Plan(embed=mode, generate="causal") for mode in ALL_MODES] + [Plan(embed="prefix", generate="prefix")]


@pytest.mark.parametrize("kernel", ["sdpa", "dense"])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_decoder_and_mode_passes_and_stays_in_its_mode(architecture, plan, kernel):
    model = unified(architecture, kernel=kernel)
    check_attention(model.train(), plan)
    assert model.training and not any(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("architecture", ["qwen2", "mistral", "gemma3"])
def test_sliding_windows_are_part_of_what_is_expected(architecture, monkeypatch):
    model = unified(architecture, sliding_window=2, layers=2)
    check_attention(model, PLANS[0])
    if architecture != "mistral":  # their last layer has no window
        return
    monkeypatch.setitem(
        kernels.KERNELS,
        "sdpa",
        kernels.Kernel(
            name="sdpa",
            run=lambda *args, window=None, **more: kernels.sdpa_kernel(*args, **more),
            modes=frozenset(ALL_MODES),
            devices=frozenset({"cpu"}),
        ),
    )
    with pytest.raises(AttentionCheckError, match="moves the state"):
        check_attention(model, PLANS[0])


def ignoring_layouts(module, query, key, value, attention_mask, layout=None, is_causal=None, **more):
    return sdpa_attention_forward(module, query, key, value, None, is_causal=ignoring_layouts.causal)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mode", ALL_MODES)
def test_an_attention_that_ignores_the_layout_stops_the_run(mode, causal):
    model = unified()
    ignoring_layouts.causal = causal
    AttentionInterface.register(function.ATTENTION_NAME, ignoring_layouts)
    try:
        with pytest.raises(AttentionCheckError, match=rf"mode {mode} through kernel=sdpa: token \d+ .*make doctor"):
            check_attention(model, Plan(embed=mode, generate="causal"))
    finally:
        AttentionInterface.register(function.ATTENTION_NAME, function.unified_attention)
    check_attention(model, Plan(embed=mode, generate="causal"))


@pytest.mark.parametrize(("asked", "done"), [("causal", "bidirectional"), ("bidirectional", "causal")])
def test_a_mode_that_becomes_another_stops_the_run(asked, done, monkeypatch):
    model = unified()
    whole = model.run_decoder

    def other(embeddings, positions, layout):
        bounds = tuple(replace(bound, mode=done) for bound in layout.segments)
        return whole(embeddings, positions, replace(layout, segments=bounds))

    monkeypatch.setattr(model, "run_decoder", other)
    with pytest.raises(AttentionCheckError, match="moves" if done == "bidirectional" else "does not move"):
        check_attention(model, Plan(embed=asked, generate=asked))


def test_half_precision_passes():
    check_attention(unified(autocast=torch.bfloat16), PLANS[1])
