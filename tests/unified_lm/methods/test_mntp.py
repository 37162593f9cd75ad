"""MNTP: masked tokens, predicted from the position before, the same masks wherever the text is read."""

from dataclasses import replace

import pytest
import torch

from tests.models import PLANS, form, unified
from unified_lm.data.rows import TrainingRow
from unified_lm.methods.mntp import MaskedNext
from unified_lm.packing import IGNORED, collate

BOTH_WAYS = PLANS["bidirectional"]
TEXT = "the weather was cold, but the children played outside until the evening and nobody went home "


def mntp(**changes) -> MaskedNext:
    return MaskedNext(**dict(mask_token="_", share=0.2, masking="bert", readout="mean") | changes)


def rows(count=40) -> list[TrainingRow]:
    return [TrainingRow(text=f"{i} {TEXT * 2}{i}") for i in range(count)]


def masked(method, count=40):
    maker = form(MODEL, BOTH_WAYS)
    pairs = zip(method.sequences(rows(count), maker), rows(count), strict=True)
    return [(made.tokens, maker.plain_sequence(row.text).tokens, made.labels) for made, row in pairs]


MODEL = unified()
MASK = MODEL.tokenizer.encode("_")[-1]


def test_labels_are_the_original_tokens_and_stand_one_position_before_them():
    for tokens, original, labels in masked(mntp()):
        assert tokens[0] == MODEL.tokenizer.bos_token_id and labels[-1] == IGNORED
        hidden = [i for i in range(1, len(tokens)) if labels[i - 1] != IGNORED]
        assert hidden and all(labels[i - 1] == original[i] for i in hidden)
        assert all(tokens[i] == original[i] for i in set(range(len(tokens))) - set(hidden))


@pytest.mark.parametrize(("share", "masking"), [(0.2, "bert"), (0.8, "all"), (0.5, "bert")])
def test_the_share_and_the_way_of_masking_are_as_configured(share, masking):
    chosen = replaced = kept = total = 0
    for tokens, original, labels in masked(mntp(share=share, masking=masking), 150):
        for i in range(1, len(tokens)):
            total += 1
            if labels[i - 1] != IGNORED:
                chosen += 1
                replaced += tokens[i] == MASK
                kept += tokens[i] == original[i]
    assert chosen / total == pytest.approx(share, abs=0.02)
    assert replaced / chosen == pytest.approx(1.0 if masking == "all" else 0.8, abs=0.04)
    assert kept / chosen == pytest.approx(0.0 if masking == "all" else 0.1, abs=0.04)


def test_masks_depend_on_the_text_and_the_seed_alone():
    maker = form(MODEL, BOTH_WAYS)
    made = mntp().sequences(rows(), maker)
    again = mntp().sequences(rows()[::-1], maker)[::-1]
    assert [s.tokens for s in made] == [s.tokens for s in again]
    other = mntp(mask_seed=1).sequences(rows(), maker)
    assert all(a.labels != b.labels for a, b in zip(made, other, strict=True))


def test_the_prediction_of_a_masked_token_sees_both_sides_of_it_and_not_the_token():
    maker, method = form(MODEL, BOTH_WAYS), mntp(masking="all", share=0.1)
    (made,) = method.sequences(rows(1), maker)
    at = next(i for i, label in enumerate(made.labels) if label != IGNORED)
    with torch.no_grad():
        before = MODEL.hidden_states(collate([made]))[at]
        for place in (at - 1, at + 2):
            tokens = list(made.tokens)
            tokens[place] += 1
            assert (MODEL.hidden_states(collate([replace(made, tokens=tuple(tokens))]))[at] - before).abs().max() > 1e-4
    assert made.tokens[at + 1] == MASK


def test_what_cannot_be_masked_is_refused_by_name():
    with pytest.raises(ValueError, match="use attention=bidirectional"):
        mntp().check_format(form(MODEL))
    with pytest.raises(ValueError, match="mask_token='two words' is"):
        mntp(mask_token="two words").check_format(form(MODEL, BOTH_WAYS))
    with pytest.raises(ValueError, match="use one of bert, all"):
        mntp(masking="none")
    with pytest.raises(ValueError, match="share=0"):
        mntp(share=0.0)
