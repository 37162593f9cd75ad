"""Every CUDA kernel, through a strict stand-in, gives what the dense oracle gives: states, gradients and text."""

import itertools

import pytest
import torch

from tests import kernel_stand_ins
from tests.methods import METHODS
from tests.models import ARCHITECTURES, PLANS, apart, fitting, form, gradient, mixed_rows, unified
from unified_lm.inference.encode import Encoder
from unified_lm.packing import Sequence, collate, pack
from unified_lm.selfcheck import check_attention
from unified_lm.trainable import Lora
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import ChunkRandomness, TrainingModule, accumulate_gradients

PRECISIONS = {  # weights, autocast
    "float32 weights under autocast": ("float32", torch.bfloat16),
    "bfloat16 weights under autocast": ("bfloat16", torch.bfloat16),
    "bfloat16 weights": ("bfloat16", None),
    "float32 weights under float16 autocast": ("float32", torch.float16),
}
STATES, GRADIENTS = (
    3e-2,
    5e-2,
)  # bfloat16 against bfloat16 by another order of sums, relative to the largest and the norm


def batch_of(model, mode, shared=0):
    draw = torch.Generator().manual_seed(0)
    first = tuple(torch.randint(9, 500, (shared,), generator=draw).tolist())
    texts = [tuple(torch.randint(9, 500, (n,), generator=draw).tolist()) for n in (17, 5, 9, 30)]
    prefix = {"prefix": 4}.get(mode, 0)
    return collate([Sequence(tokens=first + t, mode=mode, prefix=prefix) for t in texts], prefix_length=shared).to(
        model.device
    )


def states_and_gradient(model, batch):
    model.zero_grad(set_to_none=True)
    out = model.hidden_states(batch)
    target = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out.device)
    (out.float() * target).sum().backward()
    return out.detach().float(), gradient(model).float()


def compare(model, batch, kernel):
    """States and gradient of a kernel against those of the oracle, by the same weights and data types."""
    kernel_stand_ins.CALLS.clear()
    model.kernel = kernel
    states, grad = states_and_gradient(model, batch)
    assert kernel_stand_ins.CALLS, "the kernel was not called"
    model.kernel = "dense"
    wanted, wanted_grad = states_and_gradient(model, batch)
    assert (states - wanted).abs().max() <= STATES * wanted.abs().max()
    assert apart(grad, wanted_grad) <= GRADIENTS


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", kernel_stand_ins.NAMES)
def test_every_kernel_takes_every_precision(name, precision, monkeypatch):
    kernel = kernel_stand_ins.install(monkeypatch, name)
    weights, autocast = PRECISIONS[precision]
    for architecture, mode in itertools.product(ARCHITECTURES, ("causal", "bidirectional", "prefix")):
        narrow = {"sliding_window": 8} if architecture in ("mistral", "gemma3") else {}
        model = unified(architecture, dtype=weights, autocast=autocast, kernel="auto", **narrow)
        assert model.kernel == kernel
        check_attention(model, PLANS[mode])
        compare(model, batch_of(model, mode), kernel)


@pytest.mark.parametrize("precision", ["float32 weights under autocast", "bfloat16 weights under autocast"])
@pytest.mark.parametrize("name", kernel_stand_ins.NAMES)
def test_adapters_checkpointing_and_a_shared_prefix_run_through_every_kernel(name, precision, monkeypatch):
    kernel = kernel_stand_ins.install(monkeypatch, name)
    weights, autocast = PRECISIONS[precision]
    model = unified("qwen3", dtype=weights, autocast=autocast, kernel=kernel)
    with torch.no_grad():
        batch = batch_of(model, "causal", shared=8)
        states = model.hidden_states(batch)
        model.kernel = "dense"
        wanted = model.hidden_states(batch)
    assert (states - wanted).abs().max() <= STATES * wanted.abs().max()
    Lora(r=4, alpha=8, dropout=0.0, targets=("attention", "ffn")).apply(model)
    for part, value in model.named_parameters():
        if "lora_B" in part:
            torch.nn.init.normal_(value, std=0.1, generator=torch.Generator().manual_seed(5))
    compare(model, batch_of(model, "causal"), kernel)
    model.backbone.activation_checkpointing_enable()
    model.train()
    compare(model, batch_of(model, "causal"), kernel)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["flash 2", "varlen"])
def test_every_method_trains_through_every_kernel_that_can_express_its_attention(name, method, monkeypatch):
    kernel = kernel_stand_ins.install(monkeypatch, name)
    model = fitting(METHODS[method], "qwen3", autocast=torch.bfloat16)

    def gradient_of(used):
        model.kernel = used
        model.zero_grad(set_to_none=True)
        chunks = pack(METHODS[method].sequences(mixed_rows(), form(model)), 150)
        accumulate_gradients(
            TrainingModule(model, METHODS[method]), chunks, ranks=Ranks(), randomness=ChunkRandomness(seed=0, step=0)
        )
        return gradient(model).float()

    if any(
        bound.mode == "bottleneck"
        for bound in pack(METHODS[method].sequences(mixed_rows(), form(model)), 10**6)[0].layout.segments
    ):
        with pytest.raises(ValueError, match="bottleneck"):
            gradient_of(kernel)
        return
    assert apart(gradient_of(kernel), gradient_of("dense")) <= 2 * GRADIENTS


@pytest.mark.parametrize("name", kernel_stand_ins.NAMES)
def test_vectors_of_every_kernel_are_the_oracles(name, monkeypatch):
    kernel = kernel_stand_ins.install(monkeypatch, name)
    texts = [f"text number {i} " * (1 + i % 9) for i in range(20)]
    for precision, slots in itertools.product(PRECISIONS.values(), (0, 4)):
        model = unified("qwen3", dtype=precision[0], autocast=precision[1], kernel=kernel, slots=slots)
        vectors = {}
        for used in (kernel, "dense"):
            model.kernel = used
            encoder = Encoder(model=model, format=form(model), readout="slot_0" if slots else "mean", budget=64)
            vectors[used] = torch.as_tensor(encoder.encode(texts, side="query"))
        assert torch.nn.functional.cosine_similarity(vectors[kernel], vectors["dense"]).min() >= 0.999
