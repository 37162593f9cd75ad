"""SimCSE: two passes of a text differ by dropout, and by nothing else."""

import pytest
import torch

from tests.models import form, mixed_rows, unified
from unified_lm.methods.simcse import SimCSE
from unified_lm.packing import collate, pack
from unified_lm.trainable import Lora
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import ChunkRandomness, TrainingModule, accumulate_gradients


def simcse(**changes) -> SimCSE:
    return SimCSE(**dict(temperature=0.05, attention_dropout=None, readout="mean") | changes)


def passes(model):
    batch = collate(simcse().sequences(mixed_rows(5), form(model)))
    found = simcse().read(model.hidden_states(batch), batch, model, tokens=False).vectors
    return found["query"], found["document"]


def test_two_passes_are_the_same_text_and_differ_only_while_dropout_is_active():
    model = unified(dropout=0.3)
    first, second = passes(model)
    assert torch.equal(first.hashes, second.hashes)
    torch.testing.assert_close(first.values, second.values)
    first, second = passes(model.train())
    gap = (first.values - second.values).norm(dim=1) / first.values.norm(dim=1)
    assert bool((gap > 1e-3).all())


def test_the_attention_dropout_of_the_method_replaces_the_decoders_and_is_gone_with_the_next_model():
    base = unified()
    layer = base.backbone.model.layers[0].self_attn
    asked = type(base)(base.backbone, base.tokenizer, attention_dropout=0.3)
    assert layer.attention_dropout == 0.3
    first, second = passes(asked.train())
    assert (first.values - second.values).abs().max() > 1e-3
    type(base)(base.backbone, base.tokenizer)
    assert layer.attention_dropout == 0.0


def test_dropout_of_adapters_alone_makes_the_passes_differ():
    model = unified()
    Lora(r=4, alpha=8, dropout=0.5, targets=("attention",)).apply(model)
    for module in model.backbone.modules():
        if hasattr(module, "lora_B"):
            torch.nn.init.normal_(module.lora_B["default"].weight)
    first, second = passes(model.train())
    assert (first.values - second.values).abs().max() > 1e-3


def test_training_without_any_dropout_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"method\.attention_dropout=0\.3"):
        passes(unified().train())


def test_the_loss_is_positive_because_the_passes_differ_and_its_gradient_is_not_zero():
    model, method = unified(dropout=0.3).train(), simcse()
    chunks = pack(method.sequences(mixed_rows(6), form(model)), 60)
    terms = accumulate_gradients(
        TrainingModule(model, method), chunks, ranks=Ranks(), randomness=ChunkRandomness(seed=0, step=0)
    )
    assert terms["contrastive"] > 0
    assert max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None) > 0


def test_a_slot_cannot_be_read():
    with pytest.raises(ValueError, match="use mean or last"):
        simcse(readout="slot_0").check_format(form(unified()))
