"""Caches that cannot lie: whatever decides a score makes it computed again, and nothing else does (a real decoder)."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evals.embedding.suite import MtebSuite
from evals.embedding.tasks import HubTask
from evals.generation.suite import LmEvalSuite
from evals.generation.tasks import LmTask, RegisteredTask
from evals.instructions import Instructions
from evals.score import Score, Subject
from tests.evals.lm import Counting
from tests.evals.mirrors import beir, cups, of, publish, revision, similarity, sums
from tests.models import CHATML, PLANS, unified
from unified_lm.inference.embedding_store import weights_digest
from unified_lm.inference.encode import Encoder
from unified_lm.prompts.format import Format
from unified_lm.prompts.template import Template

TASKS = ("STSBenchmark", "SciFact")
ASKING = replace(CHATML, document="{instruction}{text}")
OTHER = replace(CHATML, query="{instruction}{text}", document="passage: {text}", answer="so: {text}{eos}")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All that decides a score, beside the data."""

    suite: str = "s"
    seed: int = 0  # of the weights
    step: int | None = 2
    dtype: str = "float32"
    autocast: torch.dtype | None = None
    template: Template = CHATML
    attention: str = "causal"
    slots: int = 2
    # how texts are embedded
    document_slots: int = 0
    query_length: int = 48
    document_length: int = 24
    readout: str = "mean"
    similarity: str = "cosine"
    ranked_by: str | None = None  # the suite's similarity
    instruction: str = "which animal"
    document_instruction: str = ""
    metrics: Sequence[str] = ()
    # how it generates
    with_slots: bool = False
    max_length: int = 512
    shots: int = 2
    style: str = "none"
    multiturn: bool = False
    budget: int = 3
    filtered: Sequence[str] = ("exact_match,strict-match",)

    def form(self) -> tuple[Any, Format]:
        model = unified(slots=self.slots, seed=self.seed, dtype=self.dtype, autocast=self.autocast)
        form = Format(
            template=self.template,
            tokenizer=model.tokenizer,
            plan=PLANS[self.attention],
            slots=self.slots,
            document_slots=self.document_slots,
            query_length=self.query_length,
            document_length=self.document_length,
        )
        return model, form


BASE = Setting()
BOTH = {
    "suite": (BASE, {"suite": "other"}),
    "weights": (BASE, {"seed": 1}),
    "checkpoint step": (BASE, {"step": 3}),
    "dtype": (BASE, {"dtype": "bfloat16"}),
    "autocast": (BASE, {"autocast": torch.bfloat16}),
    "template": (BASE, {"template": OTHER}),
    "attention": (BASE, {"attention": "prefix"}),
}
EMBEDDING = BOTH | {
    "attention to embed": (BASE, {"attention": "gritlm"}),
    "slots": (BASE, {"slots": 1}),
    "document slots": (BASE, {"document_slots": 1}),
    "query length": (BASE, {"query_length": 40}),
    "document length": (BASE, {"document_length": 9}),
    "read-out": (BASE, {"readout": "last"}),
    "slot that is read": (replace(BASE, document_slots=2, readout="slot_0"), {"readout": "slot_1"}),
    "similarity": (BASE, {"similarity": "dot"}),
    "the suite's similarity": (BASE, {"ranked_by": "dot"}),
    "instruction": (BASE, {"instruction": "what animal"}),
    "metrics": (BASE, {"metrics": ("recall_at_5",)}),
    "documents' instruction": (replace(BASE, template=ASKING), {"document_instruction": "animal"}),
}
GENERATION = BOTH | {
    "slots before the answer": (replace(BASE, style="rows"), {"with_slots": True}),
    "how many slots": (replace(BASE, style="rows", with_slots=True), {"slots": 1}),
    "max length": (BASE, {"max_length": 400}),
    "budget": (BASE, {"budget": 4}),
    "shots": (BASE, {"shots": 1}),
    "chat template": (BASE, {"style": "tokenizer"}),
    "training rows for a template": (replace(BASE, style="tokenizer"), {"style": "rows"}),
    "turns": (replace(BASE, style="tokenizer"), {"multiturn": True}),
    "filter": (BASE, {"filtered": ("exact_match,flexible-extract",)}),
}


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mirror"
    for task, tables in zip(TASKS, (similarity(), beir()), strict=True):
        publish(folder, of(task), tables)
    publish(folder, "openai/gsm8k", sums())
    publish(folder, "allenai/winogrande", cups())
    return folder


Scored = Callable[[Setting], tuple[list[Score], int]]
"""Scores a setting, always in the same folder: the scores, and how many texts or requests the model was given."""


@pytest.fixture
def embedded(mirror: Path, tmp_path: Path) -> Scored:
    def run(setting: Setting) -> tuple[list[Score], int]:
        model, form = setting.form()
        read: list[Mapping[str, Any]] = []
        embedder = Encoder(
            model=model,
            format=form,
            readout=setting.readout,
            similarity=setting.similarity,
            weights={"digest": weights_digest(model), "step": setting.step},
            on_log=read.append,
        )
        sides = {"query": setting.instruction, "document": setting.document_instruction}
        suite = MtebSuite(
            name=setting.suite,
            sources=[HubTask(name=task, revision=revision(task), mirror=str(mirror)) for task in TASKS],
            instructions=Instructions(name="t", tasks={task: sides for task in TASKS}),
            metrics=setting.metrics,
            similarity=setting.ranked_by,
        )
        scores = suite.score(Subject(name="m", embedder=embedder, step=setting.step), folder=tmp_path / "scores")
        return scores, sum(each["texts"] for each in read)

    return run


@pytest.fixture
def generated(mirror: Path, tmp_path: Path) -> Scored:
    def run(setting: Setting) -> tuple[list[Score], int]:
        model, form = setting.form()
        generator = Counting(
            model, form, weights=weights_digest(model), with_slots=setting.with_slots, max_length=setting.max_length
        )

        def task(name: str, file: str, budget: int | None, metrics: Sequence[str]) -> LmTask:
            source = RegisteredTask(file=file, commit="0" * 40, mirror=str(mirror))
            pins = {"shots": setting.shots, "template": setting.style, "multiturn": setting.multiturn}
            return LmTask(name=name, source=source, budget=budget, metrics=metrics, **pins)

        entries = (
            task("gsm8k", "gsm8k/gsm8k.yaml", setting.budget, setting.filtered),
            task("winogrande", "winogrande/default.yaml", None, ("acc",)),
        )
        suite = LmEvalSuite(name=setting.suite, entries=entries)
        subject = Subject(name="m", generator=generator, step=setting.step)
        return suite.score(subject, folder=tmp_path / "scores"), generator.asked

    return run


def computed_once(scored: Scored, setting: Setting, *, parts: int) -> list[Score]:
    """The scores of a setting, of which `parts` requests were computed the first time and none the second."""
    scores, asked = scored(setting)
    assert asked == parts
    assert scored(setting) == (scores, 0)
    return scores


TEXTS = 4 + 4 - 1 + 3 + 4
"""Two sides of four pairs, of which two begin alike (equal texts are read once), three questions, four documents."""


@pytest.mark.parametrize(("base", "change"), EMBEDDING.values(), ids=EMBEDDING)
def test_whatever_decides_a_vector_or_its_rank_is_computed_again(
    embedded: Scored, base: Setting, change: dict[str, Any]
) -> None:
    first = computed_once(embedded, base, parts=TEXTS)
    computed_once(embedded, replace(base, **change), parts=TEXTS)
    assert embedded(base) == (first, 0)


@pytest.mark.parametrize(("base", "change"), GENERATION.values(), ids=GENERATION)
def test_whatever_decides_an_answer_or_its_worth_is_computed_again(
    generated: Scored, base: Setting, change: dict[str, Any]
) -> None:
    answers, options = 2, 12  # two answers; six questions with two options
    first = computed_once(generated, base, parts=answers + options)
    generative_only = {"budget", "filtered"} & set(change)
    computed_once(generated, replace(base, **change), parts=answers + (0 if generative_only else options))
    assert generated(base) == (first, 0)


def test_every_setting_is_changed_by_some_case() -> None:
    changed = {name for _, change in (*EMBEDDING.values(), *GENERATION.values()) for name in change}
    assert changed == {field.name for field in fields(Setting)}


def rewritten(mirror: Path, dataset: str) -> Iterator[None]:
    """A data set with one more file, and then with its rows in another order."""
    folder = mirror / dataset
    (folder / "LICENSE").write_text("free")
    yield
    file = max(folder.glob("*.jsonl"))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[::-1]))
    yield


@pytest.mark.parametrize(
    ("dataset", "scored", "parts"),
    [(of("SciFact"), "embedded", 7), ("openai/gsm8k", "generated", 2), ("allenai/winogrande", "generated", 12)],
    ids=["SciFact", "GSM8K", "WinoGrande"],
)
def test_other_data_in_the_mirror_is_scored_again_and_other_data_sets_are_not(
    mirror: Path, request: pytest.FixtureRequest, dataset: str, scored: str, parts: int
) -> None:
    run: Scored = request.getfixturevalue(scored)
    run(BASE)
    for _ in rewritten(mirror, dataset):
        assert run(BASE)[1] == parts
        assert run(BASE)[1] == 0


def test_a_moved_mirror_with_the_same_content_is_not_scored_again(
    mirror: Path, embedded: Scored, generated: Scored
) -> None:
    for run in (embedded, generated):
        run(BASE)
    mirror.rename(mirror.with_name("elsewhere"))
    mirror.symlink_to(mirror.with_name("elsewhere"))
    for run in (embedded, generated):
        assert run(BASE)[1] == 0
