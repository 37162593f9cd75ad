"""GritLM: two streams in their own attention and format, and its generative losses pinned by hand."""

import pytest
import torch
import torch.nn.functional as F

from tests.models import PLANS, form, mixed_rows, unified
from unified_lm.data.rows import TrainingRow
from unified_lm.methods.gritlm import GritLM
from unified_lm.packing import IGNORED, collate, pack
from unified_lm.prompts.template import Template
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import ChunkRandomness, TrainingModule, accumulate_gradients

TEMPLATE = Template(
    name="gritlm",
    query="{instruction}<|embed|>\n{text}",
    instruction="<|user|>\n{instruction}\n",
    document="<|embed|>\n{text}",
    prompt="<|user|>\n{text}\n",
    answer="<|assistant|>\n{text}{eos}",
)


def gritlm(**changes) -> GritLM:
    given = dict(
        temperature=0.05,
        embedding_weight=1.0,
        generative_weight=1.0,
        generative_loss="mixed",
        mixed_rows=2,
        readout="mean",
    )
    return GritLM(**given | changes)


def sample_losses(model, rows) -> list[torch.Tensor]:
    """Cross-entropies of each row's labels, one forward a row."""
    found = []
    for sample in form(model).answer_sequences([r.query for r in rows], [r.answer for r in rows]):
        batch = collate([sample])
        with torch.no_grad():
            found.append(F.cross_entropy(model.logits(model.hidden_states(batch)), batch.labels, reduction="none"))
    return [loss[loss != 0] for loss in found]


@pytest.mark.parametrize("loss", ["mean", "token", "mixed", "sample"])
def test_each_generative_loss_is_what_its_name_says_for_any_chunking(loss):
    model = unified(double=True)
    rows = [TrainingRow(query=f"what is {i}?", answer="it is a number " * (1 + i % 3)) for i in range(5)]
    each = sample_losses(model, rows)
    expected = {
        "mean": torch.cat(each).mean(),
        "token": torch.cat(each).sum() / 5,
        "mixed": torch.stack([torch.cat(each[i : i + 2]).mean() for i in (0, 2, 4)]).mean(),
        "sample": torch.stack([one.mean() for one in each]).mean(),
    }
    method = gritlm(generative_loss=loss)
    for budget in (10_000, 30, 1):
        chunks = pack(method.sequences(rows, form(model)), budget)
        terms = accumulate_gradients(
            TrainingModule(model, method), chunks, ranks=Ranks(), randomness=ChunkRandomness(seed=0, step=0)
        )
        assert terms["generative"] == pytest.approx(float(expected[loss]), rel=1e-6)


def test_embeddings_look_ahead_and_answers_do_not():
    model = unified()
    made = gritlm().sequences(mixed_rows(), form(model, PLANS["gritlm"], TEMPLATE))
    assert {(s.role, s.mode) for s in made if not s.role.startswith("negative")} == {
        ("query", "bidirectional"),
        ("document", "bidirectional"),
        ("sample", "causal"),
    }
    gritlm().check_format(form(model, PLANS["causal"], TEMPLATE))
    with pytest.raises(ValueError, match="use attention=causal"):
        gritlm().check_format(form(model, PLANS["bidirectional"], TEMPLATE))


def test_the_exact_strings_of_both_formats():
    model = unified()
    rows = [TrainingRow(query="how?", instruction="Find it", positive="so.", answer="thus.")]
    made = gritlm().sequences(rows, form(model, PLANS["gritlm"], TEMPLATE))
    text = {s.role: model.tokenizer.decode(s.tokens) for s in made}
    assert text["query"] == "<|im_start|><|user|>\nFind it\n<|embed|>\nhow?"
    assert text["document"] == "<|im_start|><|embed|>\nso."
    query = next(s for s in made if s.role == "query")
    assert model.tokenizer.decode(query.tokens[slice(*query.spans["text"])]) == "how?"
    sample = next(s for s in made if s.role == "sample")
    assert model.tokenizer.decode([i for i in sample.labels if i != IGNORED]) == "thus.<|im_end|>"


def test_an_unknown_loss_and_an_empty_sub_batch_are_refused():
    with pytest.raises(ValueError, match="use one of mean, token, mixed, sample"):
        gritlm(generative_loss="sum")
    with pytest.raises(ValueError, match="1 row or more"):
        gritlm(mixed_rows=0)
