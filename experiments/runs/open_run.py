"""From the parts of an experiment, or from a run directory, to a model, and from a model to what suites score."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from evals.score import Searcher, Subject
from experiments.config.build import Experiment, from_config
from experiments.config.errors import UsageError
from experiments.config.paths import display_path, runs_folder
from experiments.runs import record
from unified_lm.backbones import Loaded
from unified_lm.inference.embedding_store import Store
from unified_lm.inference.encode import Encoder
from unified_lm.inference.generate import Generator
from unified_lm.model import UnifiedLM
from unified_lm.prompts.template import Format
from unified_lm.trainable import merge
from unified_lm.training import checkpoint


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A decoder with its slots, and the format of its texts."""

    model: UnifiedLM
    form: Format


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A finished run: its record, its parts, and its model with the trained weights (None where it is not ours)."""

    entry: dict[str, Any]
    experiment: Experiment
    built: BuiltModel | None

    @property
    def subject(self) -> Subject:
        return build_subject(self.experiment, self.built, self.entry["digest"], self.entry["step"])


def build_model(experiment: Experiment, start: BuiltModel | None = None) -> BuiltModel:
    """The model before training, its trainable parts chosen; `start`: the parent's model, whose weights it takes over.

    Slots of the parent are kept where both have equally many. Raises `ValueError` where the method cannot work on
    these parts.
    """
    method = experiment.method
    loaded = experiment.backbone.load() if start is None else backbone_from_parent(start)
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
        heads=method.heads(loaded.model.config.get_text_config().hidden_size),
        attention_dropout=method.attention_dropout,
        modes=frozenset({experiment.attention.embed, experiment.attention.generate, "causal"}),
    )
    if start is not None and start.model.slots is not None and method.slots == len(start.model.slots):
        model.slots.load_state_dict(start.model.slots.state_dict())
    if experiment.trains:
        method.check_format(form)
        experiment.trainable.apply(model)
    return BuiltModel(model=model, form=form)


def backbone_from_parent(start: BuiltModel) -> Loaded:
    """A parent's decoder as a backbone to start from, its adapters merged."""
    model = merge(start.model) if hasattr(start.model.backbone, "peft_config") else start.model
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return Loaded(model=model.backbone, tokenizer=start.form.tokenizer)


def open_run(folder: Path) -> OpenRun:
    """The model of a run directory: the backbone, each parent's training on it, then this run's.

    Raises `UsageError` for a folder without a record or whose training has not ended.
    """
    entry = record.read_record(folder)
    if entry is None:
        raise UsageError(f"{display_path(folder)} is no run directory: it has no record.json")
    if entry["digest"] is None:
        raise UsageError(
            f"{display_path(folder)} has not been trained to its end (status {entry['status']}): run it again"
        )
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    experiment = from_config(config, chained=entry["parent"] is not None)
    if not experiment.is_decoder:
        return OpenRun(entry=entry, experiment=experiment, built=None)
    made = build_model(experiment, open_parent_model(entry))
    if experiment.trains:
        load_trained_weights(made.model, folder, entry)
    return OpenRun(entry=entry, experiment=experiment, built=made)


def open_parent_model(entry: dict[str, Any]) -> BuiltModel | None:
    return None if entry["parent"] is None else open_run(runs_folder() / entry["parent"]).built


def load_trained_weights(model: UnifiedLM, folder: Path, entry: dict[str, Any]) -> None:
    """Load the weights that the record of a run names into a model built alike.

    Raises `ValueError` where they are not there whole: no earlier checkpoint stands in for them.
    """
    saved = checkpoint.latest_checkpoint(folder / "checkpoint", entry["run_id"])
    if saved is None or saved.digest != entry["digest"]:
        raise ValueError(
            f"{display_path(folder / 'checkpoint')} lacks the weights {entry['digest']} of step {entry['step']} that "
            "the record names, or they are damaged; move the run's folder away and run it again"
        )
    checkpoint.load_weights(saved, model)


def build_subjects(experiment: Experiment, made: BuiltModel | None, digest: str, step: int | None) -> list[Subject]:
    """What is scored: the model, and for each further read-out of `scoring.readouts` its vectors by that one alone."""
    first = build_subject(experiment, made, digest, step)
    if made is None or not isinstance(first.embedder, Encoder):
        return [first]
    more = [name for name in experiment.scoring.readouts if name != first.embedder.readout]
    return [first, *(replace(first, embedder=replace(first.embedder, readout=name), generator=None) for name in more)]


def build_subject(experiment: Experiment, made: BuiltModel | None, digest: str, step: int | None) -> Subject:
    """What is scored: ours by its method's read-out, others' as they come. `digest` names the weights."""
    name = experiment.name
    if made is None:
        if isinstance(experiment.backbone, Searcher):
            return Subject(name=name, search=experiment.backbone)
        return Subject(name=name, embedder=experiment.backbone)
    method = experiment.method
    embedder = Encoder(
        model=made.model,
        form=made.form,
        readout=method.readout,
        weights={"digest": digest, "step": step},
        similarity=method.similarity,
        compiled=experiment.runtime.compile,
        store=Store.asked_for(),
    )
    generator = None
    if experiment.attention.generate != "bidirectional":
        generator = Generator(
            made.model,
            made.form,
            weights=f"{digest}@{step}",
            with_slots=experiment.scoring.slots and method.slots > 0,
            without_adapters=experiment.trains and getattr(experiment.trainable, "embed_only", False),
        )
    return Subject(name=name, embedder=method.build_embedder(embedder, generator), generator=generator, step=step)
