"""Attention dependence is what whole attention maps give, without a map."""

import pytest
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, Gemma2Config

from tests.models import unified
from unified_lm.backbones.tiny import ARCHITECTURES, Tiny
from unified_lm.dependence import AFTER, BEFORE, PARTS, SELF, attention_shares, measure_dependence
from unified_lm.model import UnifiedLM
from unified_lm.packing import Sequence

WINDOWED = [(name, window) for name in ARCHITECTURES for window in (None, 5) if window is None or name != "llama"]
LENGTHS = (11, 2, 17)


def texts(seed: int = 0) -> list[Sequence]:
    draw = torch.Generator().manual_seed(seed)
    return [
        Sequence(tokens=tuple(torch.randint(9, 500, (n,), generator=draw).tolist()), row=i)
        for i, n in enumerate(LENGTHS)
    ]


def softcapped() -> UnifiedLM:
    """Gemma 2: capped scores, and a sliding window in every second layer."""
    config = Gemma2Config(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, initializer_range=0.2, sliding_window=5,
        attn_logit_softcapping=0.5, pad_token_id=2, eos_token_id=2, bos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    decoder = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return UnifiedLM(decoder, Tiny().load().tokenizer)


MODELS = {
    f"{name}-{window}": (lambda name=name, window=window: unified(name, sliding_window=window))
    for name, window in WINDOWED
}
MODELS["gemma2-5"] = softcapped


def whole_maps(model: UnifiedLM, text: Sequence, forward: str) -> torch.Tensor:
    """The attention maps [layers, heads, l, l] of transformers' decoder with an attention function that keeps them."""
    length, maps = len(text), []
    distance = torch.arange(length)[:, None] - torch.arange(length)[None]

    def attend(module, query, key, value, attention_mask, scaling=None, sliding_window=None, softcap=None, **ignored):
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        scores = query @ key.transpose(2, 3) * scaling
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        if sliding_window is not None:
            scores = scores.masked_fill(distance.abs() >= sliding_window, -torch.inf)
        maps.append(scores.softmax(-1)[0])
        if forward == "causal":
            scores = scores.masked_fill(distance < 0, -torch.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None

    AttentionInterface.register("keeps_maps", attend)
    model.backbone.set_attn_implementation("keeps_maps")
    try:
        with torch.no_grad():
            model.backbone.base_model(torch.tensor([text.tokens]), use_cache=False)
    finally:
        model.backbone.set_attn_implementation("unified")
    return torch.stack(maps)


def parts_of(maps: torch.Tensor, *, per_token: bool) -> torch.Tensor:
    """The three parts [3, layers, heads], by loops over the maps' definition."""
    length = maps.shape[-1]
    found = torch.zeros(3, *maps.shape[:2])
    found[SELF] = maps.diagonal(dim1=-2, dim2=-1).mean(-1)
    for i in range(length):
        earlier, later = maps[..., i, :i], maps[..., i, i + 1 :]
        if per_token:
            found[BEFORE] += earlier.mean(-1) / (length - 1) if i else 0
            found[AFTER] += later.mean(-1) / (length - 1) if i < length - 1 else 0
        else:
            found[BEFORE] += earlier.sum(-1) / length
            found[AFTER] += later.sum(-1) / length
    return found


@pytest.mark.parametrize("block", [3, 256])
@pytest.mark.parametrize("forward", ["bidirectional", "causal"])
@pytest.mark.parametrize("name", MODELS)
def test_dependence_equals_that_of_whole_attention_maps(name, forward, block):
    model = MODELS[name]()
    given = texts()
    found = measure_dependence(model, given, forward=forward, block=block)
    assert [one.tokens for one in found] == list(LENGTHS)
    for text, one in zip(given, found, strict=True):
        maps = whole_maps(model, text, forward)
        torch.testing.assert_close(one.mass, parts_of(maps, per_token=False), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(one.per_token, parts_of(maps, per_token=True), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(one.mass.sum(0), torch.ones(one.mass.shape[1:]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_measured_bidirectional_attention_is_that_of_transformers_eager(architecture):
    model, text = unified(architecture), texts()[2]
    (found,) = measure_dependence(model, [text], forward="bidirectional")
    model.backbone.set_attn_implementation("eager")
    nothing_hidden = torch.zeros(1, 1, len(text), len(text))
    kinds = set(getattr(model.backbone.config, "layer_types", None) or ()) if architecture != "mistral" else set()
    with torch.no_grad():
        out = model.backbone.base_model(
            torch.tensor([text.tokens]),
            attention_mask=dict.fromkeys(kinds, nothing_hidden) if kinds else nothing_hidden,
            output_attentions=True,
            use_cache=False,
        )
    torch.testing.assert_close(found.mass, parts_of(torch.cat(out.attentions), per_token=False), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [2, 5, 40])
def test_uniform_attention_has_the_closed_form(length):
    shares = attention_shares(torch.zeros(4, length, 8), torch.randn(2, length, 8), block=7)
    side = (length - 1) / (2 * length)
    torch.testing.assert_close(shares.mean(-1), torch.tensor([1 / length, side, side])[:, None].expand(3, 4))


def test_a_text_is_measured_alike_alone_and_in_any_pack():
    model, given = unified("qwen3"), texts()
    together = measure_dependence(model, given, forward="bidirectional")
    for text, one in zip(given, together, strict=True):
        for budget in (1, 4096):
            (alone,) = measure_dependence(model, [text], forward="bidirectional", budget=budget)
            torch.testing.assert_close(alone.mass, one.mass, atol=1e-6, rtol=1e-5)


def test_a_text_of_one_token_is_refused_by_its_number():
    with pytest.raises(ValueError, match="text 7 has one token"):
        measure_dependence(unified(), [Sequence(tokens=(9,), row=7)], forward="causal")


def test_the_parts_have_their_names():
    assert [PARTS[i] for i in (SELF, BEFORE, AFTER)] == ["self", "before", "after"]
