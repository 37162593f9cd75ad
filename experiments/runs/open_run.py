"""From the parts of an experiment, or a run directory, to a model, and from a model to what suites score."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from evals.score import Searcher, Subject
from experiments.config.build import Experiment, from_config
from experiments.config.errors import UsageError
from experiments.config.paths import display_path, runs_folder
from experiments.runs.record import RunRecord, change_record, require_record
from unified_lm.backbones import LoadedBackbone
from unified_lm.inference.embedding_store import EmbeddingStore
from unified_lm.inference.encode import Encoder
from unified_lm.inference.generate import BatchedGenerator
from unified_lm.model import UnifiedLM
from unified_lm.prompts.format import Format
from unified_lm.trainable import merge_adapters
from unified_lm.training import checkpoint


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A decoder with its slots, and the format of its texts."""

    model: UnifiedLM
    form: Format


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A run that is worked on: its directory, what the record there says, its parts, and its model.

    `built` is None for a backbone that is no decoder of ours and is only scored.
    """

    folder: Path
    record: RunRecord
    experiment: Experiment
    built: BuiltModel | None

    @property
    def subject(self) -> Subject:
        return build_subject(self.experiment, self.built, self.record.digest, self.record.step)

    @property
    def trains(self) -> bool:
        return self.built is not None and self.experiment.trains

    def change_record(self, **fields: Any) -> "OpenRun":
        """The run with these fields of its record replaced, in memory and on disk."""
        return replace(self, record=change_record(self.folder, **fields))

    def list_subjects(self, digest: str, step: int | None) -> list[Subject]:
        """What is scored: the model, and for each further read-out of `scoring.readouts` its vectors by that one alone.

        `digest` and `step` name the weights in the model.
        """
        first = build_subject(self.experiment, self.built, digest, step)
        if self.built is None or not isinstance(first.embedder, Encoder):
            return [first]
        more = [name for name in self.experiment.scoring.readouts if name != first.embedder.readout]
        return [
            first,
            *(replace(first, embedder=replace(first.embedder, readout=name), generator=None) for name in more),
        ]

    def load_trained_weights(self) -> None:
        """Load the weights that the record names into the model.

        Raises `ValueError` where they are not there whole: no earlier checkpoint stands in for them.
        """
        saved = checkpoint.latest_checkpoint(self.folder / "checkpoint", self.record.run_id)
        if saved is None or saved.digest != self.record.digest:
            raise ValueError(
                f"{display_path(self.folder / 'checkpoint')} lacks the weights {self.record.digest} of step "
                f"{self.record.step} that the record names, or they are damaged; move the run's folder away and run it "
                "again"
            )
        checkpoint.load_weights(saved, self.built.model)


def build_model(experiment: Experiment, start: BuiltModel | None = None) -> BuiltModel:
    """The model before training, its trainable parts chosen; `start`: the parent's model, whose weights it takes over.

    Slots of the parent are kept where both have equally many. Raises `ValueError` where the method cannot work on
    these parts.
    """
    method = experiment.method
    loaded = experiment.backbone.load() if start is None else backbone_from_parent(start)
    form = build_format(experiment, loaded.tokenizer)
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


def build_format(experiment: Experiment, tokenizer: PreTrainedTokenizerBase) -> Format:
    """The format of an experiment's texts, by the tokenizer of its backbone."""
    return Format(
        template=experiment.template,
        tokenizer=tokenizer,
        plan=experiment.attention,
        slots=experiment.method.slots,
        document_slots=experiment.method.document_slots,
        query_length=experiment.lengths.query,
        document_length=experiment.lengths.document,
        answer_length=experiment.lengths.answer,
    )


def backbone_from_parent(start: BuiltModel) -> LoadedBackbone:
    """A parent's decoder as a backbone to start from, its adapters merged."""
    model = merge_adapters(start.model) if hasattr(start.model.backbone, "peft_config") else start.model
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return LoadedBackbone(model=model.backbone, tokenizer=start.form.tokenizer)


def open_run(folder: Path) -> OpenRun:
    """A trained run: the backbone, each parent's training on it, then this run's.

    Raises `UsageError` for a folder without a record or whose training has not ended.
    """
    record = require_record(folder)
    if record.digest is None:
        raise UsageError(
            f"{display_path(folder)} has not been trained to its end (status {record.status}): run it again"
        )
    run = build_run(folder, record, build_experiment(record))
    if run.trains:
        run.load_trained_weights()
    return run


def build_experiment(record: RunRecord) -> Experiment:
    """The parts of a run, from the config in its record."""
    return from_config(record.config, chained=record.parent is not None)


def build_run(folder: Path, record: RunRecord, experiment: Experiment) -> OpenRun:
    """A run with its model as it is before training, its parents' training included."""
    built = None
    if experiment.is_decoder:
        parent = None if record.parent is None else open_run(runs_folder() / record.parent).built
        built = build_model(experiment, parent)
    return OpenRun(folder=folder, record=record, experiment=experiment, built=built)


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
        format=made.form,
        readout=method.readout,
        weights={"digest": digest, "step": step},
        similarity=method.similarity,
        compiled=experiment.runtime.compile,
        store=EmbeddingStore.from_environment(),
    )
    generator = None
    if experiment.attention.generate != "bidirectional":
        generator = BatchedGenerator(
            made.model,
            made.form,
            weights=f"{digest}@{step}",
            with_slots=experiment.scoring.slots and method.slots > 0,
            without_adapters=experiment.trains and getattr(experiment.trainable, "embed_only", False),
        )
    return Subject(name=name, embedder=method.build_embedder(embedder, generator), generator=generator, step=step)
