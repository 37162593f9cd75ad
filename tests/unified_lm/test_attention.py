"""Who sees whom, on every architecture, mode and kernel."""

from dataclasses import replace

import pytest
import torch

from tests.models import ARCHITECTURES, unified
from unified_lm.attention import Layout, Plan, Segment
from unified_lm.attention.kernels import KERNELS, choose_kernel
from unified_lm.attention.varlen import plan_calls
from unified_lm.packing import Sequence, collate

MODES = ("causal", "bidirectional", "prefix")
WINDOWED = [(name, None) for name in ARCHITECTURES] + [(name, 6) for name in ARCHITECTURES if name != "llama"]


def sequences(mode: str, lengths=(9, 1, 14, 14, 5), seed=0) -> list[Sequence]:
    draw = torch.Generator().manual_seed(seed)
    return [
        Sequence(
            tokens=tuple(torch.randint(9, 500, (n,), generator=draw).tolist()),
            mode=mode,
            prefix=(n + 1) // 2 if mode == "prefix" else 0,
            row=i,
        )
        for i, n in enumerate(lengths)
    ]


def states(model, *given: Sequence) -> torch.Tensor:
    with torch.no_grad():
        return model.hidden_states(collate(given))


def close(a: torch.Tensor, b: torch.Tensor, relative=1e-5) -> bool:
    return bool((a - b).abs().max() <= relative * b.abs().max())


@pytest.mark.parametrize("kernel", [name for name, kernel in KERNELS.items() if "cpu" in kernel.devices])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("architecture", "window"), WINDOWED)
def test_a_future_token_moves_position_0_where_the_mode_looks_ahead_and_never_where_it_does_not(
    architecture, window, mode, kernel
):
    model = unified(architecture, sliding_window=window, kernel=kernel)
    (before,) = sequences(mode, lengths=(5,))
    inside = before.prefix - 1 if mode == "prefix" else 4
    for at in {inside, 4} - {0}:
        tokens = list(before.tokens)
        tokens[at] += 1
        after = Sequence(tokens=tuple(tokens), mode=mode, prefix=before.prefix)
        moved = (states(model, before)[0] - states(model, after)[0]).abs().max() > 1e-4
        looks_ahead = mode == "bidirectional" or (mode == "prefix" and at < before.prefix)
        assert bool(moved) == looks_ahead, f"token {at} and position 0 in {mode}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("architecture", "window"), WINDOWED)
def test_packed_equals_alone_equals_the_dense_oracle_and_no_text_sees_another(architecture, window, mode):
    model, oracle = (unified(architecture, sliding_window=window, kernel=kernel) for kernel in ("sdpa", "dense"))
    mixed = [s for m in (mode, *MODES) for s in sequences(m)]
    packed = states(model, *mixed)
    assert close(packed, states(oracle, *mixed))
    assert close(packed, torch.cat([states(model, s) for s in mixed]))
    assert close(states(model, *reversed(mixed)), torch.cat([states(model, s) for s in reversed(mixed)]))


@pytest.mark.parametrize("mode", ["causal", "bidirectional"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("architecture", "window"), WINDOWED)
def test_packed_equals_transformers_own_padded_eager_attention(architecture, window, mode, side):
    if window is not None and mode == "bidirectional":
        pytest.skip("transformers turns a window off or halves it when its own switch makes a decoder bidirectional")
    model = unified(architecture, sliding_window=window)
    given = sequences(mode)
    packed = states(model, *given)
    peer = unified(architecture, sliding_window=window).backbone
    peer.set_attn_implementation("eager")
    longest = max(map(len, given))
    ids = torch.full((len(given), longest), model.tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, s in enumerate(given):
        where = slice(longest - len(s), longest) if side == "left" else slice(0, len(s))
        ids[row, where], mask[row, where] = torch.tensor(s.tokens), 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        out = peer.model(ids, attention_mask=mask, position_ids=positions, is_causal=mode == "causal")
    assert close(packed, out.last_hidden_state[mask.bool()])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_of_a_pack_equal_those_of_the_oracle_with_and_without_activation_checkpointing(architecture):
    mixed = [s for mode in MODES for s in sequences(mode)]
    found = []
    for kernel, checkpointing in (("dense", False), ("sdpa", False), ("sdpa", True)):
        model = unified(architecture, kernel=kernel)
        if checkpointing:
            model.backbone.activation_checkpointing_enable()
            model.train()
        first, second = model.hidden_states(collate(mixed)), model.hidden_states(collate(mixed[::-1]))
        (first.square().mean() + second.abs().mean()).backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]))
    for other in found[1:]:
        assert (other - found[0]).norm() <= 1e-5 * found[0].norm()


@pytest.mark.parametrize("mode", MODES)
def test_bf16_autocast_keeps_the_direction_of_every_state(mode):
    exact, rough = unified(), unified(autocast=torch.bfloat16)
    given = sequences(mode)
    assert torch.cosine_similarity(states(exact, *given), states(rough, *given).float()).min() > 0.999


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("window", [None, 6])
def test_generation_alone_equals_left_padded_equals_static_cache_equals_eager(architecture, window):
    window = None if architecture == "llama" else window
    ours, peer = unified(architecture, sliding_window=window).backbone, unified(architecture, sliding_window=window)
    peer = peer.backbone
    peer.set_attn_implementation("eager")
    pad = ours.config.pad_token_id
    prompts = [list(s.tokens) for s in sequences("causal", lengths=(9, 3, 14))]
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": -1, "pad_token_id": pad}
    alone = [ours.generate(torch.tensor([p]), **options)[0, len(p) :].tolist() for p in prompts]
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    for model, more in ((ours, {}), (ours, {"cache_implementation": "static"}), (peer, {})):
        out = model.generate(ids, attention_mask=mask, **options, **more)[:, longest:]
        assert out.tolist() == alone


def test_a_sequence_of_equal_length_in_an_equal_and_an_unequal_company_has_the_same_states():
    model = unified()
    given = sequences("bidirectional", lengths=(8, 8, 8, 5))
    assert close(states(model, *given[:3])[:8], states(model, given[0], given[3])[:8])


def bottleneck(before: int, slots: int, after: int, seed=3) -> Sequence:
    (plain,) = sequences("causal", lengths=(before + slots + after,), seed=seed)
    return replace(plain, mode="bottleneck", prefix=before, spans={"slots": (before, before + slots)})


def moved(model, given: Sequence, at: int) -> set[int]:
    """The positions whose states depend on token `at`."""
    tokens = list(given.tokens)
    tokens[at] += 1
    change = states(model, given) - states(model, replace(given, tokens=tuple(tokens)))
    return set((change.abs().amax(dim=1) > 1e-5).nonzero().squeeze(1).tolist())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_behind_a_bottleneck_the_text_is_known_through_slots_alone_and_slots_do_not_see_each_other(architecture):
    model = unified(architecture, layers=1)  # with one layer, what a token sees is what it depends on
    given = bottleneck(4, 3, 4)
    assert moved(model, given, 1) == {1, 2, 3, 4, 5, 6}
    assert [moved(model, given, slot) for slot in (4, 5, 6)] == [{slot, 7, 8, 9, 10} for slot in (4, 5, 6)]
    assert moved(model, given, 8) == {8, 9, 10}
    deep = unified(architecture)
    assert moved(deep, given, 1) == set(range(1, 11))


def test_a_bottleneck_in_a_pack_equals_alone_equals_the_oracle_and_other_kernels_are_refused():
    model, oracle = unified(), unified(kernel="dense")
    mixed = [bottleneck(4, 3, 4), bottleneck(5, 2, 4), bottleneck(6, 1, 0), *sequences("causal"), bottleneck(4, 3, 4)]
    packed = states(model, *mixed)
    assert close(packed, states(oracle, *mixed))
    assert close(packed, torch.cat([states(model, s) for s in mixed]))
    with pytest.raises(ValueError, match="use kernel=sdpa"):
        plan_calls(collate(mixed).layout)
    with pytest.raises(ValueError, match="cannot express bottleneck attention"):
        choose_kernel("flex", frozenset({"bottleneck"}), "cuda")
    with pytest.raises(ValueError, match="use attention=causal"):
        Segment(start=0, stop=4, mode="bottleneck", prefix=3, slots=2)
    with pytest.raises(ValueError, match="use causal or prefix"):
        Plan(embed="bottleneck", generate="bottleneck")


def test_unknown_modes_kernels_and_prefixes_are_refused_by_name():
    with pytest.raises(ValueError, match="use one of causal, bidirectional, prefix"):
        Plan(embed="sideways", generate="causal")
    with pytest.raises(ValueError, match="prefix of 9 tokens"):
        Segment(start=0, stop=4, mode="prefix", prefix=9)
    with pytest.raises(ValueError, match="use auto or one of"):
        choose_kernel("flsh", frozenset({"causal"}), "cpu")
    assert choose_kernel("auto", frozenset(MODES), "cpu").name == "sdpa"


def test_a_layout_names_each_boundary_once():
    layout = Layout.from_segments([Segment(start=0, stop=3), Segment(start=3, stop=10)])
    assert layout.cu_seqlens.tolist() == [0, 3, 10] and layout.longest == 7
