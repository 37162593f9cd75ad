"""Refusals before any work: a run and all its stages are built, without weights, before the first worker starts."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.config.compose import Composition
from experiments.config.errors import UsageError, first_line
from experiments.config.identity import Run
from experiments.runs.freshness import is_complete
from experiments.runs.record import RunRecord, check_directory
from experiments.runs.worker_process import launch_command

if TYPE_CHECKING:
    from experiments.config.build import Experiment


def list_stages(runs: Sequence[Run]) -> list[Run]:
    """Runs and all that they start from or learn from, each once, the older before the younger."""
    found: dict[tuple[str, str], Run] = {}
    for run in runs:
        older = list_stages([one for one in (run.parent, run.teacher) if one is not None])
        for one in (*older, run):
            found.setdefault((one.run_id, one.request_digest), one)
    return list(found.values())


def require_device(job: Composition) -> None:
    """Stop before any work, and before any data is asked for, where a job needs a GPU and torch sees none."""
    if missing_device(job):
        import torch

        scale = job.choices.get("scale")
        raise UsageError(
            f"scale={scale} needs a CUDA GPU and torch {torch.__version__} sees none here: "
            "use scale=mini (SCALE=mini with make)"
        )


def missing_device(job: Composition) -> bool:
    """Whether a job needs a GPU and torch sees none."""
    if job.config.runtime.device != "cuda":
        return False
    import torch

    return not torch.cuda.is_available()


def check_run(run: Run) -> None:
    """Check a run and every stage that it starts or learns from, where anything is left to be done in them.

    Writes nothing. Raises `UsageError`, in one line, for what would be refused after another stage was trained.
    """
    for stage in list_stages([run]):
        require_device(stage.job)
        record = check_directory(stage)
        if record is not None and is_complete(record, stage.config):
            continue
        try:
            check_stage(stage, record)
        except UsageError as error:
            raise UsageError(f"{stage.run_id}: {error}" if stage is not run else str(error)) from error


def check_stage(run: Run, record: RunRecord | None) -> None:
    """Build all of one run that needs no weights. Raises `UsageError` for what cannot work."""
    from experiments.config.build import check_config

    launch_command(run.config)
    experiment = check_config(run.config, chained=run.parent is not None)
    method = experiment.method
    if experiment.trains and method.reads_teacher and run.teacher is None and method.teacher is None:
        raise UsageError(
            f"method {type(method).__name__} learns from a teacher; give the run teacher=EXPERIMENT, or method.teacher"
        )
    if experiment.trains:
        check_format(experiment)
    if run.teacher is not None:
        check_teacher(run.teacher)
    check_scored_steps(run, record, experiment)


def check_format(experiment: "Experiment") -> None:
    """Raises `UsageError` for attention modes, slots or read-outs that the method cannot work with.

    A small tokenizer stands in for the backbone's, which only its loading reads; it knows the method's mask token.
    """
    from experiments.runs.open_run import build_format
    from unified_lm.backbones.tiny import Tiny, train_tiny_tokenizer

    method, tokenizer = experiment.method, copy.deepcopy(train_tiny_tokenizer(Tiny().vocab))
    if mask_token := getattr(method, "mask_token", None):
        tokenizer.add_tokens([mask_token])
    try:
        method.check_format(build_format(experiment, tokenizer))
    except ValueError as error:
        raise UsageError(first_line(str(error))) from error


def check_teacher(teacher: Run) -> None:
    """Raises `UsageError` for a teacher that gives no vectors of its own decoder."""
    from experiments.config.build import check_config
    from unified_lm.methods.base import Method

    experiment = check_config(teacher.config, chained=teacher.parent is not None)
    if not experiment.is_decoder or type(experiment.method).build_embedder is not Method.build_embedder:
        raise UsageError(
            f"teacher {teacher.run_id} gives no vectors of a decoder; use an experiment such as t1_llm2vec_unsup"
        )


def check_scored_steps(run: Run, record: RunRecord | None, experiment: "Experiment") -> None:
    """Raises `UsageError` for a step of `scoring.steps` whose checkpoint is not kept.

    With checkpoints by the minute the steps are not known before training, and nothing is refused.
    """
    from unified_lm.training.checkpoint import checkpoint_at_step

    wanted = sorted(step for step in experiment.scoring.steps if step != experiment.optim.last_step)
    if not wanted or not experiment.trains:
        return
    if record is not None and record.digest is not None:  # trained: what is there decides
        for step in wanted:
            try:
                checkpoint_at_step(run.folder / "checkpoint", step, run.run_id)
            except ValueError as error:
                raise UsageError(first_line(str(error))) from error
        return
    runtime, last = experiment.runtime, experiment.optim.last_step
    if isinstance(runtime.save_every, str):
        return
    saved = [*range(runtime.save_every, last, runtime.save_every)] if runtime.save_every else []
    kept = [*saved, last][-runtime.keep_last :]
    if lacking := [step for step in wanted if step not in kept]:
        raise UsageError(
            f"scoring.steps asks for step {lacking[0]}, whose checkpoint is not kept: runtime.save_every="
            f"{runtime.save_every} and runtime.keep_last={runtime.keep_last} keep only {', '.join(map(str, kept))}; "
            "raise keep_last, or change save_every"
        )
