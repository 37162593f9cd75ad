"""What a model really reads on each task and side, character by character, and which of it becomes the vector."""

from pathlib import Path

import pytest
import yaml

from evals.instructions import read_instructions
from tests.models import CAUSAL, form, unified
from unified_lm.inference.encode import Encoder
from unified_lm.packing import collate
from unified_lm.prompts.template import Template
from unified_lm.readout import Readout

TEMPLATES = Path(__file__).parents[2] / "conf" / "template"
ASK = "Given a claim, find documents that refute the claim"


def template(name: str) -> Template:
    fields = yaml.safe_load((TEMPLATES / f"{name}.yaml").read_text())
    return Template(**{key: value for key, value in fields.items() if key != "_target_"})


@pytest.fixture(scope="module")
def model():
    return unified()


def shown(model, name: str, readout: str, table: str, task: str, side: str, text: str) -> tuple[str, str]:
    """(all that is read, the part that is pooled), with the special tokens written as <s> and </s>."""
    encoder = Encoder(model=model, format=form(model, CAUSAL, template(name)), readout=readout)
    batch = collate(encoder.build_sequences([text], side, read_instructions(table).instruction_for(task, side)))
    start, stop = Readout.from_name(readout).token_range(batch.sequences[0])
    tokens, tokenizer = batch.tokens.tolist(), model.tokenizer
    assert tokens[0] == tokenizer.bos_token_id and tokenizer.bos_token_id not in tokens[1:]
    whole, pooled = tokenizer.decode(tokens), tokenizer.decode(tokens[start:stop])
    return tuple(
        text.replace(tokenizer.bos_token, "<s>").replace(tokenizer.eos_token, "</s>") for text in (whole, pooled)
    )


GOLDEN = [
    ("llm2vec", "mean", "llm2vec", "ArguAna", "query", f"<s>{ASK}: a cat", " a cat"),
    ("llm2vec", "mean", "llm2vec", "ArguAna", "document", "<s>a cat", "a cat"),
    ("llm2vec", "mean", "llm2vec", "STS12", "query", "<s>Retrieve semantically similar text: a cat", " a cat"),
    ("llm2vec", "mean", "llm2vec", "BrightAopsRetrieval", "query",
     "<s>Given a Math problem, retrieve relevant examples that help answer the problem; a cat", " a cat"),
    ("llm2vec", "mean", "llm2vec_gen", "ArguAna", "query",
     "<s>Generate text that refutes this claim. Just output the text, no other text or description: a cat", " a cat"),
    ("llm2vec", "mean", "llm2vec_gen", "ArguAna", "document", "<s>Summarize the following passage: a cat", " a cat"),
    ("llm2vec", "mean", "llm2vec_gen", "AdvBenchIR", "query",
     "<s>Generate a relevant document that answers this query: a cat", " a cat"),
    ("llm2vec", "mean", "llm2vec_gen", "BrightBiologyRetrieval", "query",
     "<s>Given a biology post, generate relevant passages that help answer the post: a cat", " a cat"),
    ("llm2vec", "mean+instruction", "diffembed", "BrightAopsRetrieval", "query",
     "<s>Given a problem, rretrieve the relevant problems that can be solved by the similar math theorems: a cat",
     "<s>Given a problem, rretrieve the relevant problems that can be solved by the similar math theorems: a cat"),
    ("llm2vec", "mean+instruction", "diffembed", "LEMBQMSumRetrieval", "document", "<s>a cat", "<s>a cat"),
    ("llm2vec", "mean+instruction", "diffembed", "Core17InstructionRetrieval", "query",
     "<s>Retrieve text based on user query: a cat", "<s>Retrieve text based on user query: a cat"),
    ("gritlm", "mean", "gritlm", "ArguAna", "query", f"<s><|user|>\n{ASK}\n<|embed|>\na cat", "a cat"),
    ("gritlm", "mean", "gritlm", "ArguAna", "document", "<s><|embed|>\na cat", "a cat"),
    ("gritlm", "mean", "gritlm", "AskUbuntuDupQuestions", "document",
     "<s><|user|>\nRetrieve duplicate questions from AskUbuntu forum\n<|embed|>\na cat", "a cat"),
    ("e5", "last", "gritlm", "ArguAna", "query", f"<s>Instruct: {ASK}\nQuery: a cat</s>", "</s>"),
    ("e5", "last", "gritlm", "ArguAna", "document", "<s>a cat</s>", "</s>"),
    ("plain", "mean", "mteb", "BrightTheoremQATheoremsRetrieval", "query",
     "<s>Instruct: Represent this Math problem for searching relevant theorems: \nQuery: a cat", " a cat"),
    ("bellm", "mean+instruction", "none", "STS12", "query", '<s>The representative word for sentence a cat is:"',
     '<s>The representative word for sentence a cat is:"'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "readout", "table", "task", "side", "whole", "pooled"),
    GOLDEN,
    ids=[f"{row[2]}-{row[3]}-{row[4]}-{row[0]}" for row in GOLDEN],
)
def test_what_is_read_and_what_is_pooled(
    model, name: str, readout: str, table: str, task: str, side: str, whole: str, pooled: str
) -> None:
    assert shown(model, name, readout, table, task, side, "a cat") == (whole, pooled)


def test_an_instruction_that_the_template_has_no_place_for_is_refused_and_not_dropped(model) -> None:
    with pytest.raises(ValueError, match=r"template plain has no \{instruction\} for the document"):
        shown(model, "plain", "mean", "llm2vec_gen", "ArguAna", "document", "a cat")
    with pytest.raises(ValueError, match=r"template bellm has no \{instruction\} for the query"):
        shown(model, "bellm", "mean", "llm2vec", "STS12", "query", "a cat")
