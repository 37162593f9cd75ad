"""What is told of a run's memory before it starts is what its training step holds."""

from functools import partial

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from unified_lm.backbones import Tiny
from unified_lm.backbones.shapes import KNOWN, decoder_config, known_config
from unified_lm.backbones.tiny import train_tiny_tokenizer
from unified_lm.memory import TrainingPlan, measure_layer, training_memory
from unified_lm.model import UnifiedLM
from unified_lm.packing import Sequence, collate
from unified_lm.trainable import Lora, Trainable

PARAMETERS = {  # billions, as the model pages state them
    "Qwen/Qwen3-0.6B": 0.6, "Qwen/Qwen3-1.7B": 1.7, "Qwen/Qwen3-4B": 4.0, "Qwen/Qwen3-8B": 8.2,
    "Qwen/Qwen2.5-0.5B-Instruct": 0.49, "Qwen/Qwen2.5-1.5B-Instruct": 1.54, "Qwen/Qwen2.5-3B-Instruct": 3.09,
    "Qwen/Qwen2.5-7B-Instruct": 7.61, "Qwen/Qwen1.5-0.5B-Chat": 0.46, "Qwen/Qwen1.5-1.8B-Chat": 1.84,
    "Qwen/Qwen1.5-4B-Chat": 3.95, "Qwen/Qwen1.5-7B-Chat": 7.72, "meta-llama/Meta-Llama-3-8B-Instruct": 8.03,
    "mistralai/Mistral-7B-Instruct-v0.2": 7.24, "Dream-org/Dream-v0-Instruct-7B": 7.62,
    "GSAI-ML/LLaDA-8B-Instruct": 8.02,
}  # fmt: skip
LORA = Lora(r=16, alpha=32, dropout=0.05, targets=("attention", "ffn"))
LEARNING = {"lora": LORA, "all": Trainable(parts=("all",)), "ffn": Trainable(parts=("ffn",))}
WIDE = {"hidden": 256, "heads": 4, "kv_heads": 2, "layers": 6}


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_shape_has_the_parameters_that_its_page_states(name):
    cost = measure_layer(
        known_config(name), train_tiny_tokenizer(512), apply=LEARNING["all"].apply, dtype=torch.bfloat16, autocast=None
    )
    assert cost.parameters / 1e9 == pytest.approx(PARAMETERS[name], rel=0.02)
    assert cost.learning == cost.parameters


@pytest.mark.parametrize("architecture", ["qwen3"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("learning", LEARNING)
def test_the_memory_that_is_told_is_the_memory_that_a_step_holds(learning, dtype, checkpointing, architecture):
    """Bytes of torch's allocator at the peak of a second step, within a fifth."""
    tiny = Tiny(architecture=architecture, dtype=dtype, **WIDE)
    measured, tokens = peak_of_a_step(tiny, LEARNING[learning], checkpointing)
    cost = measure_layer(
        decoder_config(tiny), train_tiny_tokenizer(512), apply=LEARNING[learning].apply, dtype=getattr(torch, dtype),
        autocast=torch.bfloat16, checkpointing=checkpointing, device="cpu",
    )  # fmt: skip
    told = training_memory(cost, decoder_config(tiny), TrainingPlan(chunk_tokens=tokens, next_token=False))
    assert told.total == pytest.approx(measured, rel=0.2)


def peak_of_a_step(tiny: Tiny, learning, checkpointing: bool) -> tuple[int, int]:
    """Most bytes that a training step on a pack holds, parameters and AdamW's moments included; tokens of the pack."""
    loaded = tiny.load()
    model = UnifiedLM(loaded.model, loaded.tokenizer, kernel="sdpa", autocast=torch.bfloat16)
    learning.apply(model)
    model.train()
    if checkpointing:
        model.backbone.activation_checkpointing_enable({"use_reentrant": False})
    learns = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learns)
    batch = collate([Sequence(tokens=tuple(range(5, 133)))] * 8)

    def step() -> None:
        model.hidden_states(batch).float().pow(2).mean().backward()
        optimizer.step()

    step()
    moments = [value for state in optimizer.state.values() for value in state.values()]
    there = sum(map(byte_size, [*model.parameters(), *(p.grad for p in learns), *moments]))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        highest = max(highest, now)
    return there + highest, len(batch)


def byte_size(x: torch.Tensor) -> int:
    return x.numel() * x.element_size()


def test_adapters_checkpointing_and_shards_save_what_they_are_known_to_save():
    config = known_config("Qwen/Qwen3-8B")
    measure = partial(measure_layer, config, train_tiny_tokenizer(512), autocast=torch.bfloat16)
    plan = TrainingPlan(chunk_tokens=8192)
    adapters = measure(apply=LORA.apply, dtype=torch.bfloat16)
    everything = measure(apply=LEARNING["all"].apply, dtype=torch.float32)
    small = measure(apply=LORA.apply, dtype=torch.bfloat16, checkpointing=True)
    assert adapters.learning < everything.learning / 100
    assert training_memory(small, config, plan).total < training_memory(adapters, config, plan).total / 3
    eight = TrainingPlan(chunk_tokens=8192, processes=8, sharded=True)
    whole, shard = (training_memory(everything, config, p) for p in (plan, eight))
    assert shard.optimizer == whole.optimizer / 8
    assert shard.activations == whole.activations
