"""Heads: states that pass through parameters of a method's own before they are read."""

import pytest
import torch

from tests.models import PLANS, fitting, form, mixed_rows, unified
from unified_lm.heads import LatentAttention
from unified_lm.inference.encode import Encoder
from unified_lm.methods.contrastive import Contrastive
from unified_lm.packing import collate, pack
from unified_lm.readout import Readout
from unified_lm.trainable import Trainable
from unified_lm.training import checkpoint
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import ChunkRandomness, TrainingModule, accumulate_gradients


def latent(**changes) -> Contrastive:
    given = dict(temperature=0.05, symmetric=False, readout="mean@latent", latents=16, latent_heads=4)
    return Contrastive(**given | changes)


def test_the_attention_to_latents_is_softmax_of_queries_and_keys_times_values_written_out():
    torch.manual_seed(0)
    head = LatentAttention(8, 5, 2, residual=False).double()
    states = torch.randn(7, 8, dtype=torch.float64)
    q, k, v = head.query(head.norm(states)), head.key(head.latents), head.value(head.latents)
    parts = [torch.softmax(q[:, s] @ k[:, s].T / 2, dim=1) @ v[:, s] for s in (slice(0, 4), slice(4, 8))]
    expected = head.network(head.out(torch.cat(parts, dim=1)))
    torch.testing.assert_close(head(states), expected)


def test_a_head_with_residuals_starts_as_the_plain_read_out():
    model = fitting(latent())
    batch = collate(form(model).query_sequences(["a question", "another and longer question"]))
    states = model.hidden_states(batch)
    plain = Readout.from_name("mean").read_vectors(states, batch, [0, 1])
    torch.testing.assert_close(Readout.from_name("mean@latent").read_vectors(states, batch, [0, 1], model.heads), plain)


def test_a_vector_through_a_head_is_the_same_alone_and_in_company():
    model = fitting(latent(latent_residual=False))
    encoder = Encoder(model=model, format=form(model, PLANS["bidirectional"]), readout="mean@latent")
    texts = ["a question", "another and longer question", "why"]
    together = encoder.encode(texts, side="query")
    alone = [encoder.encode([text], side="query")[0] for text in texts]
    torch.testing.assert_close(torch.tensor(together), torch.stack([torch.tensor(v) for v in alone]), atol=1e-6, rtol=0)
    assert encoder.identity["readout"] == "mean@latent"


@pytest.mark.parametrize("parts", [("all",), ("ffn",)])
def test_a_head_is_trained_and_saved_whatever_part_of_the_backbone_learns(tmp_path, parts):
    method = latent()
    model = fitting(method)
    Trainable(parts=parts).apply(model)
    chunks = pack(method.sequences(mixed_rows(), form(model)), 80)
    accumulate_gradients(
        TrainingModule(model, method), chunks, ranks=Ranks(), randomness=ChunkRandomness(seed=0, step=0)
    )
    assert model.heads["latent"].out.weight.grad.norm() > 0
    torch.nn.init.normal_(model.heads["latent"].out.weight)
    saved = checkpoint.save_checkpoint(tmp_path, model, None, step=1, identity="heads")
    again = fitting(method)
    Trainable(parts=parts).apply(again)
    checkpoint.load_weights(saved, again)
    assert torch.equal(again.heads["latent"].out.weight, model.heads["latent"].out.weight)


def test_a_head_that_is_not_there_and_latents_that_are_not_read_are_refused():
    model = unified()
    with pytest.raises(ValueError, match="needs the head 'latent'"):
        Encoder(model=model, format=form(model), readout="mean@latent").encode(["a"], side="query")
    with pytest.raises(ValueError, match="do not go together"):
        latent(readout="mean").check_format(form(model))
    with pytest.raises(ValueError, match="must divide the width"):
        LatentAttention(64, 4, 7, residual=True)
