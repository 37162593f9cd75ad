"""Read-outs against brute force."""

import pytest
import torch

from tests.models import form, unified
from unified_lm.packing import collate
from unified_lm.readout import Readout, normalize_vectors, pool_ranges


def test_each_readout_equals_its_definition_written_out():
    model = unified(slots=3)
    maker = form(model)
    batch = collate(
        maker.query_sequences(["a short one", "and a second, longer query"], "do it")
        + maker.document_sequences(["a text"])
    )
    states = torch.randn(len(batch), 16)
    for i, sequence in enumerate(batch.sequences):
        own = states[batch.starts[i] : batch.starts[i] + len(sequence)]
        (a, b), (_, end), (s, e) = (sequence.spans[name] for name in ("text", "prompt", "slots"))
        weights = torch.arange(1, b - a + 1).float()
        expected = {
            "mean": own[a:b].mean(0),
            "mean+instruction": own[:end].mean(0),
            "weighted_mean": (own[a:b] * weights[:, None]).sum(0) / weights.sum(),
            "last": own[s - 1],
            "slot_0": own[s],
            "slot_2": own[e - 1],
        }
        for name, value in expected.items():
            found = Readout.from_name(name).read_vectors(states, batch, [i])[0]
            assert Readout.from_name(name).name == name
            torch.testing.assert_close(found, value)


def test_a_half_precision_mean_of_thousands_of_tokens_is_the_exact_mean():
    states = (1 + torch.rand(4000, 8) / 100).to(torch.bfloat16)
    found = pool_ranges(states, torch.tensor([0]), torch.tensor([4000]))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[0].double(), states.double().mean(0), atol=1e-4, rtol=0)


def test_normalized_vectors_have_length_one_in_float32():
    out = normalize_vectors(torch.randn(5, 7, dtype=torch.bfloat16))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.norm(dim=1), torch.ones(5))


def test_unreadable_things_are_refused():
    with pytest.raises(ValueError, match="use mean, weighted_mean, last, slot or slots"):
        Readout.from_name("max")
    with pytest.raises(ValueError, match="readout=mean\\+eos"):
        Readout.from_name("mean+eos")
    batch = collate(form(unified()).query_sequences(["a"]))
    with pytest.raises(ValueError, match="without slots"):
        Readout.from_name("slot_0").read_vectors(torch.zeros(len(batch), 4), batch, [0])
    with pytest.raises(ValueError, match="no tokens"):
        pool_ranges(torch.zeros(3, 2), torch.tensor([1]), torch.tensor([1]))
