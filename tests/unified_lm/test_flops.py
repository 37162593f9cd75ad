"""The FLOPs that MFU is made of, against torch's own counter and against pairs counted one by one."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.models import form, mixed_rows, unified
from unified_lm.attention import Layout, Segment, segment_mask
from unified_lm.flops import count_attended_pairs, forward_flops, model_flops_utilization, training_flops
from unified_lm.methods.generative import Generative
from unified_lm.packing import collate


@pytest.mark.parametrize("window", [None, 1, 3, 9, 50])
def test_pairs_are_those_of_the_definition(window):
    bounds = [Segment(start=0, stop=5), Segment(start=5, stop=14, mode="bidirectional")]
    bounds += [Segment(start=14, stop=21, mode="prefix", prefix=4)]
    bounds += [Segment(start=21, stop=30, mode="bottleneck", prefix=4, slots=2)]
    assert count_attended_pairs(Layout.from_segments(bounds), window) == sum(
        int(segment_mask(b, "cpu", window).sum()) for b in bounds
    )


def test_forward_flops_are_those_that_torch_counts_in_the_linear_layers_and_the_head():
    model = unified()
    batch = collate(Generative(readout="mean").sequences(mixed_rows(), form(model)))
    labelled = batch.labels.ge(0).nonzero().squeeze(1)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.logits(model.hidden_states(batch)[labelled])
    products = sum(n for op, n in counter.get_flop_counts()["Global"].items() if "mm" in str(op))
    width, heads, layers = 16, 4, 2
    assert forward_flops(model, batch) == products + 4 * layers * heads * width * count_attended_pairs(batch.layout)


def test_training_costs_three_forwards_and_two_where_the_body_is_frozen():
    model = unified()
    batch = collate(Generative(readout="mean").sequences(mixed_rows(), form(model)))
    forward = forward_flops(model, batch)
    assert training_flops(model, [batch, batch]) == 6 * forward
    model.requires_grad_(False)
    assert training_flops(model, [batch]) == 2 * forward


def test_there_is_no_share_of_an_unknown_peak():
    assert model_flops_utilization(lambda: 1e12, 1.0, torch.device("cpu")) == {}
