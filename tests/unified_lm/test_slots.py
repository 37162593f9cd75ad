"""Slots: placed by position, started from words, trained with any trainable set."""

import pytest
import torch

from tests.models import form, mixed_rows, unified
from unified_lm.methods.ulme import Ulme
from unified_lm.packing import collate, pack
from unified_lm.slots import Slots
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import ChunkRandomness, TrainingModule, accumulate_gradients


def ulme(slots=4, **changes) -> Ulme:
    given = dict(
        slots=slots,
        temperature=0.05,
        semantic_weight=1.0,
        generative_weight=1.0,
        predictive_weight=0.3,
        target="mean",
        stop_gradient=True,
    )
    return Ulme(**given | changes)


def test_slots_change_only_the_positions_that_hold_them():
    model = unified(slots=2)
    tokens = torch.tensor([5, -1, 7, -2])
    out = model.embed_tokens(tokens)
    plain = model.backbone.get_input_embeddings()(tokens.clamp(min=0))
    torch.testing.assert_close(out[[1, 3]], model.slots.vectors)
    torch.testing.assert_close(out[[0, 2]], plain[[0, 2]])


def test_a_slot_token_without_slots_is_refused():
    with pytest.raises(ValueError, match="the model has none"):
        unified().embed_tokens(torch.tensor([5, -1]))


@pytest.mark.parametrize("kind", ["words", "mean", "normal", "eos"])
def test_slots_start_as_configured_and_differ_from_each_other(kind):
    model = unified()
    slots = Slots(12, model.width)
    slots.initialize(model.backbone.get_input_embeddings(), model.tokenizer, kind)
    assert len(slots.vectors.detach().unique(dim=0)) == 12
    table = model.backbone.get_input_embeddings().weight.detach()
    typical = table.norm(dim=1).mean()
    norms = slots.vectors.detach().norm(dim=1)
    if kind == "normal":
        assert norms.mean() < 0.3 * typical
    elif kind != "eos":  # the row of EOS is zero in this random model, which pads with it
        assert bool((norms > 0.5 * typical).all()) and bool((norms < 2 * typical).all())
    if kind == "words":
        word = model.tokenizer.encode(" summary", add_special_tokens=False)[0]
        torch.testing.assert_close(slots.vectors[0].detach(), table[word])
    with pytest.raises(ValueError, match="use words, mean, normal or eos"):
        slots.initialize(model.backbone.get_input_embeddings(), model.tokenizer, "zeros")


@pytest.mark.slow
def test_word_starts_give_a_far_smaller_first_gradient_than_the_usual_random_rows(smollm2):
    from unified_lm.model import UnifiedLM

    norms = {}
    model = UnifiedLM(smollm2.model, smollm2.tokenizer, slots=4)
    maker, method = form(model), ulme()
    chunks = pack(method.sequences(mixed_rows(6), maker), 400)
    model.backbone.requires_grad_(False)
    for kind in ("words", "normal"):
        model.slots.initialize(model.backbone.get_input_embeddings(), model.tokenizer, kind)
        model.slots.vectors.grad = None
        accumulate_gradients(
            TrainingModule(model, method), chunks, ranks=Ranks(), randomness=ChunkRandomness(seed=0, step=0)
        )
        norms[kind] = float(model.slots.vectors.grad.norm())
    model.backbone.requires_grad_(True)
    assert norms["normal"] > 5 * norms["words"], norms


def test_a_readout_does_not_depend_on_later_slots():
    model = unified(slots=4)
    batch = collate(form(model).query_sequences(["a question"]))
    with torch.no_grad():
        before = model.hidden_states(batch)
        model.slots.vectors[2:] += 1.0
        after = model.hidden_states(batch)
    start = batch.span(0, "slots")[0]
    torch.testing.assert_close(before[: start + 2], after[: start + 2])
    assert (before[start + 2 :] - after[start + 2 :]).abs().max() > 1e-3
