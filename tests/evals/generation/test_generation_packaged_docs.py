"""The offline generation tasks: honest questions, and numbers that an independent computation confirms."""

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from evals.generation.packaged_docs import DescriptionChoice, ExplanationPerplexity, ImportStatement
from evals.generation.suite import LmEvalSuite
from evals.generation.tasks import LmTask
from evals.score import Score, Subject
from experiments.config.build import instantiate_node
from unified_lm.attention import Plan
from unified_lm.backbones import LoadedBackbone, Tiny
from unified_lm.data.packaged.source import held_out_objects
from unified_lm.inference.generate import BatchedGenerator
from unified_lm.model import UnifiedLM
from unified_lm.prompts.format import Format

CONF = Path(__file__).parents[3] / "conf"


def suite() -> LmEvalSuite:
    config = OmegaConf.to_container(OmegaConf.load(CONF / "evals/lm_offline.yaml"))
    return instantiate_node(config["lm_offline"], "evals.generation.packaged_docs")


def generator_of(loaded: LoadedBackbone, weights: str, autocast: torch.dtype | None = None) -> BatchedGenerator:
    template = instantiate_node(OmegaConf.to_container(OmegaConf.load(CONF / "template/chatml.yaml")), "template")
    plan = Plan(embed="causal", generate="causal")
    rows = Format(template=template, tokenizer=loaded.tokenizer, plan=plan)
    return BatchedGenerator(UnifiedLM(loaded.model, loaded.tokenizer, autocast=autocast), rows, weights=weights)


def perplexity_task(documents: int) -> LmTask:
    return LmTask(
        name="explanations",
        source=ExplanationPerplexity(documents=documents, words=12),
        shots=0,
        template="rows",
        multiturn=False,
        budget=None,
        metrics=("token_perplexity", "bits_per_byte"),
    )


def value(scores: list[Score], task: str, metric: str) -> float:
    return next(score.value for score in scores if (score.task, score.metric) == (task, metric))


def test_perplexity_is_that_of_the_answers_in_training_rows(tmp_path: Path) -> None:
    task = perplexity_task(8)
    generator = generator_of(Tiny().load(), "tiny")
    scores = LmEvalSuite(name="lm", entries=(task,)).score(Subject(name="tiny", generator=generator), folder=tmp_path)
    eager = Tiny().load().model.eval()
    eager.set_attn_implementation("eager")
    queries, answers = ([row[field] for row in task.source.rows] for field in ("query", "answer"))
    nats = tokens = 0
    for row in generator.format.answer_sequences(queries, answers):
        start, stop = row.spans["answer"]
        with torch.no_grad():
            logits = eager(torch.tensor([row.tokens])).logits[0, start - 1 : stop - 1].log_softmax(-1)
        nats -= sum(logits[i, token].item() for i, token in enumerate(row.tokens[start:stop]))
        tokens += stop - start
    assert value(scores, "explanations", "token_perplexity") == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    size = sum(len(answer.encode()) for answer in answers)
    assert value(scores, "explanations", "bits_per_byte") == pytest.approx(nats / math.log(2) / size, rel=1e-4)


def test_a_choice_shows_the_own_description_among_three_of_the_same_package() -> None:
    owners = {one.description: one for one in held_out_objects()}
    rows = DescriptionChoice(documents=100).rows
    for row in rows:
        packages = {owners[choice].package for choice in row["choices"]}
        assert len(set(row["choices"])) == 4 and len(packages) == 1
        assert row["text"] == f'def {owners[row["choices"][row["gold"]]].signature}:\n    """'
    places = Counter(row["gold"] for row in rows)
    assert min(places[place] for place in range(4)) >= 15
    assert {owners[row["choices"][0]].package for row in rows} == {"scipy", "pandas"}


def test_the_shown_import_statements_are_not_asked_for() -> None:
    source = ImportStatement(documents=20, examples=2)
    data = source.config()["custom_dataset"]()
    assert (len(data["shown"]), len(data["test"])) == (2, 20)
    assert not {row["answer"] for row in data["shown"]} & {row["answer"] for row in data["test"]}
    for row in data["test"]:
        module, name = row["answer"].removeprefix("from ").split(" import ")
        assert f"Module: {module}\n" in row["text"] and f"Signature: {name}(" in row["text"]
        assert row["answer"] not in row["text"]


def test_explanations_are_cut_to_their_words_and_never_empty() -> None:
    rows = ExplanationPerplexity(documents=50, words=10).rows
    assert all(1 <= len(row["answer"].split()) <= 10 for row in rows)
    assert max(len(row["answer"].split()) for row in rows) == 10


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (DescriptionChoice(documents=10), DescriptionChoice(documents=11)),
        (ImportStatement(documents=5, examples=1), ImportStatement(documents=5, examples=2)),
        (ExplanationPerplexity(documents=5, words=8), ExplanationPerplexity(documents=5, words=9)),
    ],
)
def test_a_revision_names_the_text(one, other) -> None:
    assert one.revision == type(one)(**vars_of(one)).revision != other.revision


def vars_of(source) -> dict:
    return {name: getattr(source, name) for name in type(source).__dataclass_fields__}


def test_more_documents_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="ask for fewer documents"):
        _ = ExplanationPerplexity(documents=100_000, words=8).rows


def test_the_offline_suite_runs_whole_on_a_tiny_model(tmp_path: Path) -> None:
    whole = suite()
    scores = whole.score(Subject(name="tiny", generator=generator_of(Tiny().load(), "tiny")), folder=tmp_path)
    counts = {(score.task, score.metric): score.n for score in scores}
    for entry in whole.entries:
        assert {counts[entry.name, metric.partition(",")[0]] for metric in entry.metrics} == {entry.source.documents}
    assert counts["packaged_import_statement", "truncation_rate"] == whole.entries[-1].source.documents
    assert all(score.value == 0 for score in scores if score.metric == "prompt_cut_rate")


@pytest.mark.slow
def test_a_real_decoder_is_far_above_chance(smollm2: LoadedBackbone, tmp_path: Path) -> None:
    entries = suite().entries
    small = {
        "packaged_explanation_perplexity": ExplanationPerplexity(documents=8, words=24),
        "packaged_description_choice": DescriptionChoice(documents=12),
        "packaged_import_statement": ImportStatement(documents=3, examples=2),
    }
    fewer = LmEvalSuite(
        name="fewer",
        entries=tuple(LmTask(**(vars_of(entry) | {"source": small[entry.name]})) for entry in entries),
    )
    subject = Subject(name="smollm2", generator=generator_of(smollm2, "smollm2", torch.bfloat16))
    scores = fewer.score(subject, folder=tmp_path)
    assert 10 < value(scores, "packaged_explanation_perplexity", "token_perplexity") < 60
    assert value(scores, "packaged_description_choice", "acc_norm") > 0.35
    assert value(scores, "packaged_import_statement", "exact_match") > 0.5
    assert value(scores, "packaged_import_statement", "truncation_rate") < 0.5
