"""From the parts of an experiment to a model, and from a model to what the suites score."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evals.external import Bm25
from evals.score import Subject
from experiments.build import Experiment
from unified_lm.encode import Encoder
from unified_lm.generate import Generator
from unified_lm.model import UnifiedLM
from unified_lm.prompts import Format
from unified_lm.training import checkpoint


@dataclass(frozen=True, kw_only=True)
class Built:
    """A decoder with its slots, and the format of its texts."""

    model: UnifiedLM
    form: Format


def built(experiment: Experiment) -> Built:
    """The model before training, its trainable parts chosen.

    Raises `ValueError` where the method cannot work on these parts.
    """
    loaded = experiment.backbone.load()
    method = experiment.method
    form = Format(
        template=experiment.template,
        tokenizer=loaded.tokenizer,
        plan=experiment.attention,
        slots=method.slots,
        document_slots=method.document_slots,
        query_length=experiment.lengths.query,
        document_length=experiment.lengths.document,
        answer_length=experiment.lengths.answer,
    )
    model = UnifiedLM(
        loaded.model.to(experiment.device),
        loaded.tokenizer,
        slots=method.slots,
        slots_start=experiment.slots_start,
        kernel=experiment.kernel,
        autocast=None if experiment.autocast is None else getattr(torch, experiment.autocast),
    )
    if experiment.trains:
        method.require(form)
        experiment.trainable.apply(model)
    return Built(model=model, form=form)


def restore(model: UnifiedLM, folder: Path, identity: str) -> str:
    """Load the newest whole checkpoint of a run directory into a model built alike; returns its digest.

    Raises `ValueError` where there is none.
    """
    saved = checkpoint.latest(folder / "checkpoint", identity)
    if saved is None:
        raise ValueError(f"{folder} has no checkpoint; run it again")
    checkpoint.load_weights(saved, model)
    return saved.digest


def subject(experiment: Experiment, made: Built | None, digest: str, step: int | None) -> Subject:
    """What is scored: ours by its method's read-out, others' as they come. `digest` names the weights."""
    name = experiment.name
    if made is None:
        if isinstance(experiment.backbone, Bm25):
            return Subject(name=name, search=experiment.backbone)
        return Subject(name=name, embedder=experiment.backbone)
    weights: dict[str, Any] = {"digest": digest, "step": step}
    method = experiment.method
    embedder = Encoder(
        model=made.model, form=made.form, readout=method.readout, weights=weights, similarity=method.similarity
    )
    generator = None
    if experiment.attention.generate != "bidirectional":
        slots = experiment.scoring.slots and method.slots > 0
        generator = Generator(made.model, made.form, weights=f"{digest}@{step}", with_slots=slots)
    return Subject(name=name, embedder=embedder, generator=generator, step=step)
