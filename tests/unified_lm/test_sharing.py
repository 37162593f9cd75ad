"""Common first tokens computed once: the vectors are those of texts computed alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.models import PLANS, form, unified
from tests.unified_lm.test_encode import counted, encoder
from unified_lm.attention import Layout, Segment, segment_mask
from unified_lm.flops import count_attended_pairs
from unified_lm.inference import shared_prefix as sharing
from unified_lm.inference.embedding_store import EmbeddingStore
from unified_lm.inference.shared_prefix import common_prefix_length, shared_prefix_length
from unified_lm.packing import Sequence, collate
from unified_lm.readout import Readout

INSTRUCTION = "Given a claim, find documents that support or refute the claim"
TEXTS = ["x", "some text", "a longer text about numbers", "two", "one, two, three. " * 9, "the end", "six", "the and"]


@pytest.fixture
def always(monkeypatch):
    """Sharing wherever it is possible, whether or not it pays."""
    monkeypatch.setattr(sharing, "MIN_PREFIX_TOKENS", 1)
    monkeypatch.setattr(sharing, "MIN_SAVED_SHARE", 0.0)


def both(made, texts=TEXTS, instruction=INSTRUCTION) -> tuple[np.ndarray, np.ndarray, dict]:
    """Vectors with common tokens shared, and without; the counters of the first."""
    noting, counters = counted(made)
    found = noting.encode(texts, side="query", instruction=instruction)
    alone = replace(noting, share_prefix=False).encode(texts, side="query", instruction=instruction)
    assert counters[1]["shared_tokens"] == 0
    return found, alone, counters[0]


@pytest.mark.parametrize("kernel", ["sdpa", "dense"])
@pytest.mark.parametrize("readout", ["mean", "weighted_mean", "last", "slot_0", "slots"])
@pytest.mark.parametrize("budget", [16, 60, 4000])
def test_shared_equals_alone_for_every_readout_and_cut_into_packs(kernel, readout, budget, always):
    made = encoder(2, "causal", readout, budget=budget, kernel=kernel)
    found, alone, counters = both(made)
    np.testing.assert_allclose(found, alone, atol=1e-5)
    whole = sum(map(len, made.build_sequences(TEXTS, "query", INSTRUCTION)))
    assert counters["shared_tokens"] > whole / 4 and counters["tokens"] + counters["shared_tokens"] == whole


@pytest.mark.parametrize("window", [None, 3, 25])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral", "gemma3"])
def test_shared_equals_alone_on_every_decoder_with_grouped_queries_and_sliding_windows(architecture, window, always):
    window = None if architecture == "llama" else window
    found, alone, counters = both(encoder(architecture=architecture, sliding_window=window))
    np.testing.assert_allclose(found, alone, atol=1e-5)
    assert counters["shared_tokens"] > 0


def test_shared_equals_alone_with_a_head_for_each_query_and_nearly_in_bf16(always):
    found, alone, _ = both(encoder(kv_heads=4))
    np.testing.assert_allclose(found, alone, atol=1e-5)
    found, alone, counters = both(encoder(autocast=torch.bfloat16))
    assert counters["shared_tokens"] > 0 and (found * alone).sum(1).min() > 0.999


@pytest.mark.parametrize("count", [1, 2, 3, 17])
def test_shared_equals_alone_for_any_number_and_length_of_texts_and_on_further_devices(count, always):
    made = replace(encoder(budget=20), replicas=(unified(),))
    texts = ["a" * (1 + i) for i in range(count)]
    found, alone, counters = both(made, texts)
    np.testing.assert_allclose(found, alone, atol=1e-5)
    assert (counters["shared_tokens"] > 0) == (count > 1)


def test_what_looks_ahead_is_read_or_is_too_little_is_not_shared():
    def shared(plan="causal", readout="mean", instruction=INSTRUCTION, texts=TEXTS) -> int:
        made = encoder(2, plan, readout)
        return shared_prefix_length(made.build_sequences(texts, "query", instruction), Readout.from_name(readout))

    assert shared() > sharing.MIN_PREFIX_TOKENS and shared(readout="slot_1") == shared(readout="last") == shared()
    assert shared(plan="bidirectional") == shared(plan="prefix") == shared(readout="mean+instruction") == 0
    assert shared(texts=TEXTS[:1]) == shared(instruction="") == 0
    assert shared(texts=[f"{i} {'long ' * 400}" for i in range(4)]) == 0


def test_what_is_common_ends_where_tokens_differ_and_before_what_is_read():
    def of(*rows: tuple[int, ...], text: int) -> list[Sequence]:
        return [Sequence(tokens=row, spans={"text": (text, len(row)), "prompt": (0, len(row))}) for row in rows]

    mean, last = Readout.from_name("mean"), Readout.from_name("last")
    assert common_prefix_length(of((1, 2, 3, 4), (1, 2, 9), (1, 2, 3, 5), text=2), mean) == 2
    assert common_prefix_length(of((1, 2, 3, 4), (1, 2, 3, 5), text=2), mean) == 2
    assert common_prefix_length(of((1, 2, 3, 4), (1, 2, 3, 5), text=2), last) == 3
    assert common_prefix_length(of((1, 2, 3), (1, 2, 3, 5), text=2), last) == 2
    assert common_prefix_length(of((1, 2, 3), (4, 2, 3), text=2), last) == 0


def test_a_store_knows_a_vector_however_it_was_computed(always, tmp_path):
    made, counters = counted(encoder(), store=EmbeddingStore(folder=tmp_path))
    first = made.encode(TEXTS, side="query", instruction=INSTRUCTION)
    again = replace(made, share_prefix=False).encode(TEXTS, side="query", instruction=INSTRUCTION)
    np.testing.assert_array_equal(again, first)
    assert [c["packs"] for c in counters] == [1, 0] and counters[0]["shared_tokens"] > 0


def test_a_pack_without_its_keys_at_hand_computes_them_and_a_wrong_pack_is_refused():
    model = unified()
    with torch.no_grad():
        rows = form(model).query_sequences(TEXTS, INSTRUCTION)
        batch, whole = collate(rows, prefix_length=5), collate(rows)
        kept = torch.cat([torch.arange(a + 5, a + len(row)) for a, row in zip(whole.starts, rows, strict=True)])
        torch.testing.assert_close(model.hidden_states(batch), model.hidden_states(whole)[kept], atol=1e-5, rtol=1e-5)
    assert [batch.tokens[batch.span(i, "text")[0]] for i in range(len(rows))] == [
        row.tokens[row.spans["text"][0]] for row in rows
    ]
    with pytest.raises(ValueError, match="do not begin with the same 4 tokens"):
        collate([Sequence(tokens=(1, 2, 3, 4, 5)), Sequence(tokens=(1, 2, 3, 4))], prefix_length=4)
    with pytest.raises(ValueError, match="causal sequences, not bidirectional ones"):
        collate(form(model, PLANS["bidirectional"]).query_sequences(TEXTS, INSTRUCTION), prefix_length=3)


@pytest.mark.parametrize("window", [None, 3, 50])
def test_pairs_behind_shared_tokens_are_those_of_the_definition(window):
    layout = Layout.from_segments([Segment(start=0, stop=5), Segment(start=5, stop=6)], 4)
    wanted = sum(int(segment_mask(bound, "cpu", window, 4).sum()) for bound in layout.segments)
    assert count_attended_pairs(layout, window) == wanted
    whole = segment_mask(Segment(start=0, stop=9), "cpu", window)
    assert torch.equal(whole[4:], segment_mask(layout.segments[0], "cpu", window, 4))
