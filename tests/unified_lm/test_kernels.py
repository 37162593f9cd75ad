"""Kernels that need a GPU, as far as a CPU can follow them: their calls, masks and refusals.

The varlen kernels are driven here by a plain reference of the one operation they offer, so that what is tested is how
packs become calls; the CUDA operation itself runs only under `make doctor` and the tests marked gpu.
"""

from functools import partial

import pytest
import torch

from unified_lm.attention import Layout, Segment, segment_mask
from unified_lm.attention.flex import build_block_mask, flex_kernel
from unified_lm.attention.kernels import KERNELS, choose_kernel, dense_kernel
from unified_lm.attention.layout import COMMON_MODES
from unified_lm.attention.varlen import plan_calls, run_varlen

PACKS = {
    "causal": [("causal", 5, 0), ("causal", 1, 0), ("causal", 9, 0)],
    "bidirectional": [("bidirectional", 5, 0), ("bidirectional", 9, 0)],
    "prefix": [("prefix", 5, 2), ("prefix", 9, 9), ("prefix", 1, 1), ("prefix", 7, 1)],
    "mixed": [("causal", 4, 0), ("prefix", 6, 3), ("bidirectional", 5, 0), ("causal", 7, 0), ("prefix", 3, 3)],
}


AHEAD = [(name, 0) for name in PACKS] + [("causal", 1), ("causal", 6)]


def layout_of(name: str, ahead: int = 0) -> Layout:
    bounds, at = [], 0
    for mode, length, prefix in PACKS[name]:
        bounds.append(Segment(start=at, stop=at + length, mode=mode, prefix=prefix))
        at += length
    return Layout.from_segments(bounds, ahead)


def qkv(layout: Layout, heads=4, groups=2, width=8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    size = layout.segments[-1].stop
    shapes = ((heads, size), (groups, layout.prefix_length + size), (groups, layout.prefix_length + size))
    return [torch.randn(1, *shape, width, generator=draw) for shape in shapes]


def reference(q, k, v, part, sides, scale, dropout, softcap):
    """What a varlen kernel promises: each range's queries at the end of its keys, within the window's sides."""
    out = []
    for n in range(len(part.cu_q) - 1):
        a, b = part.cu_q[n : n + 2].tolist()
        c, d = part.cu_k[n : n + 2].tolist()
        distance = torch.arange(d - c - (b - a), d - c)[:, None] - torch.arange(d - c)[None]
        left, right = sides
        seen = (distance <= left if left >= 0 else distance < d) & (-distance <= right if right >= 0 else distance > -d)
        keys, values = (x[c:d].repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[a:b], keys) * q.shape[-1] ** -0.5
        out.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), values))
    return torch.cat(out)


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize(("name", "ahead"), AHEAD)
def test_varlen_calls_compute_every_layout(name, ahead, window):
    layout = layout_of(name, ahead)
    q, k, v = qkv(layout)
    found = run_varlen(reference, q, k, v, layout, scale=None, window=window)
    torch.testing.assert_close(found, dense_kernel(q, k, v, layout, scale=None, window=window))


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize(("name", "ahead"), AHEAD)
def test_sdpa_computes_every_layout(name, ahead, window):
    layout = layout_of(name, ahead)
    q, k, v = qkv(layout)
    found = KERNELS["sdpa"].run(q, k, v, layout, scale=None, window=window)
    torch.testing.assert_close(found, dense_kernel(q, k, v, layout, scale=None, window=window))


@pytest.mark.parametrize("name", PACKS)
def test_every_token_asks_in_exactly_one_call_and_one_mode_needs_one_call(name):
    calls = plan_calls(layout_of(name))
    asked = [torch.arange(int(c.cu_q[-1])) if c.queries is None else c.queries for c in calls]
    assert sorted(torch.cat(asked).tolist()) == list(range(layout_of(name).segments[-1].stop))
    assert len(calls) == {"causal": 1, "bidirectional": 1, "prefix": 2, "mixed": 3}[name]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("softcap", [None, 0.5])
@pytest.mark.parametrize(("name", "ahead"), AHEAD)
def test_flex_attention_computes_every_layout(name, ahead, window, softcap):
    layout = layout_of(name, ahead)
    q, k, v = qkv(layout, width=16)
    found = flex_kernel(q, k, v, layout, scale=None, window=window, softcap=softcap)
    torch.testing.assert_close(found, dense_kernel(q, k, v, layout, scale=None, window=window, softcap=softcap))


@pytest.mark.parametrize("name", PACKS)
def test_the_block_mask_is_the_definition(name):
    from torch.nn.attention.flex_attention import create_mask

    layout = layout_of(name)
    size = layout.segments[-1].stop
    mask = create_mask(build_block_mask(layout, 4).mask_mod, None, None, size, size, device="cpu")[0, 0]
    assert torch.equal(mask, torch.block_diag(*[segment_mask(b, "cpu", 4).float() for b in layout.segments]).bool())


def test_what_a_kernel_derives_from_a_layout_is_made_once():
    made = []
    layout = layout_of("mixed")
    for _ in range(3):
        layout.derive_once("x", lambda layout: made.append(1) or 7)
    assert len(made) == 1 and layout.to("cpu").derived == {}


def test_a_kernel_that_cannot_is_refused_and_those_that_can_are_named():
    modes = frozenset(COMMON_MODES)
    if not torch.cuda.is_available():
        for name in ("flash", "varlen", "flex"):
            with pytest.raises(ValueError, match="use kernel=auto or one of sdpa, dense"):
                choose_kernel(name, modes, "cpu")
        with pytest.raises(ValueError, match="no CUDA GPU"):
            choose_kernel("varlen", modes, "cuda")
    with pytest.raises(ValueError, match=r"cap attention scores.*one of dense"):
        choose_kernel("sdpa", modes, "cpu", softcap=True)
    assert choose_kernel("auto", modes, "cpu", softcap=True).name == "dense"
    with pytest.raises(ValueError, match="unknown"):
        choose_kernel("flash2", modes, "cpu")


def test_head_sizes_and_dtypes_that_flash_kernels_lack_are_refused():
    layout = layout_of("causal")
    with pytest.raises(ValueError, match="head size 512"):
        run_varlen(reference, *qkv(layout, width=512), layout, scale=None)
    with pytest.raises(ValueError, match="autocast=bfloat16"):
        KERNELS["varlen"].run(*qkv(layout), layout, scale=None)


def test_soft_capped_scores_are_capped_in_packs_and_in_generation():
    from transformers import AutoModelForCausalLM, Gemma2Config

    from unified_lm.backbones import Tiny
    from unified_lm.model import UnifiedLM
    from unified_lm.packing import Sequence, collate

    tokenizer = Tiny().load().tokenizer
    config = Gemma2Config(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, initializer_range=0.2, sliding_window=6,
        attn_logit_softcapping=0.5, pad_token_id=2, eos_token_id=2, bos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    peer = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.randint(9, 500, (1, 14))
    with torch.no_grad():
        expected = peer.model(ids).last_hidden_state[0]
        tokens = peer.generate(ids, max_new_tokens=6, do_sample=False)
        model = UnifiedLM(peer, tokenizer)
        packed = model.hidden_states(collate([Sequence(tokens=tuple(ids[0].tolist()))] * 2))
        assert model.kernel == "dense"
        torch.testing.assert_close(packed[:14], expected, atol=1e-5, rtol=1e-4)
        assert torch.equal(peer.generate(ids, max_new_tokens=6, do_sample=False), tokens)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", PACKS)
@pytest.mark.parametrize("kernel", ["flash", "varlen", "flex"])
def test_cuda_kernels_equal_the_oracle(kernel, name, backward):
    if KERNELS[kernel].find_missing() is not None:
        pytest.skip(KERNELS[kernel].find_missing())
    layout = layout_of(name).to("cuda")
    exact = [x.cuda().requires_grad_() for x in qkv(layout, width=64)]
    rough = [x.detach().to(torch.bfloat16).requires_grad_() for x in exact]
    wanted = dense_kernel(*exact, layout, scale=None)
    found = partial(KERNELS[kernel].run, scale=None)(*rough, layout)
    torch.testing.assert_close(found.float(), wanted, atol=2e-2, rtol=2e-2)
    if backward:
        wanted.square().sum().backward()
        found.float().square().sum().backward()
        for a, b in zip(rough, exact, strict=True):
            assert (a.grad.float() - b.grad).norm() <= 3e-2 * b.grad.norm()
