"""Train and score one run directory: `python -m experiments.runs.worker RUN_DIR`.

Started by `experiments.run`, not by hand.

Exit codes: 0 done, 2 refused (one line says why), 75 stopped on request (a scheduler requeues it, the same command
continues it), 1 failed. worker.log in the run directory holds every traceback.
"""

import faulthandler
import logging
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from experiments.config.build import Experiment
from experiments.config.errors import USAGE, first_line
from experiments.config.identity import content_digest
from experiments.config.paths import display_path
from experiments.runs.locks import lock_worker
from experiments.runs.metrics import MetricsLog, read_metrics
from experiments.runs.open_run import OpenRun, build_experiment, build_run, open_run
from experiments.runs.progress import training_progress
from experiments.runs.provenance import current_code_version, describe_hardware, read_commit
from experiments.runs.record import RunRecord, change_record, require_record
from experiments.runs.score_suites import help_score_suites, score_suites
from experiments.runs.teacher import add_teacher_vectors
from experiments.runs.wandb_mirror import NoTracker, Tracker, start_tracker
from unified_lm.data.streams import Batches
from unified_lm.selfcheck import check_attention
from unified_lm.training.distributed import Ranks, process_group
from unified_lm.training.loop import TrainResult, train
from unified_lm.training.watchdog import REQUEUE, Preempted

log = logging.getLogger("experiments")
OnLog = Callable[[dict[str, Any]], None]


def main(folder: Path) -> int:
    leads = os.environ.get("RANK", "0") == "0"
    with lock_worker(folder) if leads else nullcontext(), process_group():
        return run_rank_zero(folder) if Ranks.current().rank == 0 else run_other_rank(folder)


def run_rank_zero(folder: Path) -> int:
    """Rank 0: trains and scores with the others, and alone writes and mirrors."""
    log_to_file(folder)
    record = require_record(folder)
    try:
        run = prepare_run(folder, record)
    except (ValueError, OSError) as error:
        log.exception("refused")
        change_record(folder, status="failed", error=str(error))
        print(f"error: {first_line(str(error))}", file=sys.stderr)
        return USAGE
    except Exception as error:
        return record_failure(folder, error)
    tracker: Tracker = NoTracker()
    try:
        tracker = start_tracker(record, folder, read_metrics(folder))
        run = run.change_record(**describe_environment(record), wandb_id=tracker.id, error=None)
        fresh = record.digest is None
        if fresh:
            run = train_and_record(run, tracker)
        run = replace(run, record=Ranks.current().broadcast_object(run.record))
        score_suites(load_scored_model(run, fresh=fresh), tracker)
        change_record(folder, status="finished")
        tracker.finish(failed=False)
    except (Preempted, KeyboardInterrupt) as stop:
        change_record(folder, status="stopped", error=first_line(str(stop)))
        tracker.finish(failed=True)
        print(f"stopped: {folder.name}: the same command continues it", file=sys.stderr)
        return REQUEUE
    except Exception as error:
        tracker.finish(failed=True)
        return record_failure(folder, error)
    return 0


def record_failure(folder: Path, error: Exception) -> int:
    """Write down and print why the run failed; returns the exit code."""
    log.error("failed", exc_info=error)
    reason = f"{type(error).__name__}: {first_line(str(error))}"
    change_record(folder, status="failed", error=reason)
    print(f"failed: {reason} (traceback in {display_path(folder / 'worker.log')})", file=sys.stderr)
    return 1


def run_other_rank(folder: Path) -> int:
    """Ranks other than 0: train and score without writing.

    Errors are reported by rank 0 or by this process's exit code.
    """
    run = prepare_run(folder, require_record(folder))
    fresh = run.record.digest is None
    try:
        if fresh and run.trains:
            train_run(run, run.experiment.data.load(), lambda row: None)
        run = replace(run, record=Ranks.current().broadcast_object(run.record))
        help_score_suites(load_scored_model(run, fresh=fresh))
    except (Preempted, KeyboardInterrupt):
        return REQUEUE
    return 0


def prepare_run(folder: Path, record: RunRecord) -> OpenRun:
    """Set the seed and the number of threads, and build the model as it is before training."""
    experiment = build_experiment(record)
    if experiment.runtime.threads:
        torch.set_num_threads(experiment.runtime.threads)
    torch.manual_seed(experiment.seed)
    run = build_run(folder, record, experiment)
    if run.built is not None:
        check_attention(run.built.model, run.experiment.attention)
    return run


def load_scored_model(run: OpenRun, *, fresh: bool) -> OpenRun:
    """The run with its trained weights: `fresh` from training, or read where they were sharded or trained before."""
    if not run.trains:
        return run
    if fresh:
        return open_run(run.folder) if run.experiment.launch.sharded else run
    run.load_trained_weights()
    return run


def describe_environment(record: RunRecord) -> dict[str, Any]:
    """Where and by what code this attempt runs, as fields of the record; earlier code versions are kept."""
    earlier, now = record.list_code_versions(), current_code_version()
    return {
        "git": read_commit(),
        "versions": now.versions,
        "code_versions": earlier if now in earlier else (*earlier, now),
        "hardware": describe_hardware(),
        "threads": torch.get_num_threads(),
    }


def train_and_record(run: OpenRun, tracker: Tracker) -> OpenRun:
    """Train where there is something to train, and write down where that ended."""
    experiment = run.experiment
    if not run.trains:
        digest = content_digest(untrained_identity(experiment))[:16]
        return run.change_record(digest=digest, step=None, wall_s=0.0, device_hours=0.0, status="trained")
    batches = experiment.data.load()
    run = run.change_record(
        corpus_fingerprints=batches.corpus_fingerprints(),
        trainable=experiment.trainable.describe(run.built.model),
    )
    metrics = MetricsLog(run.folder)
    bar, advance = training_progress(experiment.optim.last_step)

    def on_log(row: dict[str, Any]) -> None:
        advance(row)
        row = metrics.log(row)
        if row["step"] % run.record.config["logging"]["every"] == 0 or row["step"] == experiment.optim.last_step:
            tracker.log(row)

    result = train_run(run, batches, on_log)
    bar.close()
    rows = read_metrics(run.folder)
    seconds = rows[-1]["wall_s"] if rows else result.wall_s
    return run.change_record(
        digest=result.digest,
        step=result.step,
        wall_s=round(seconds, 2),
        device_hours=round(seconds / 3600 * experiment.launch.processes, 4),
        losses=last_losses(rows, experiment),
        streams=batches.counters(result.step),
        status="trained",
    )


def last_losses(rows: list[dict[str, Any]], experiment: Experiment) -> dict[str, float]:
    """The last logged loss and its terms."""
    wanted = {"loss", *experiment.method.weights}
    return {key: value for row in rows[-1:] for key, value in row.items() if key in wanted}


def train_run(run: OpenRun, batches: Batches, on_log: OnLog) -> TrainResult:
    """Train the model of a run from its last checkpoint, or from the beginning, to the last step."""
    experiment, record = run.experiment, run.record
    rows = (row for step in range(experiment.optim.last_step) for row in batches.batch(step))
    return train(
        model=run.built.model,
        method=add_teacher_vectors(experiment.method, record.teacher, rows, run.folder / "teacher"),
        form=run.built.form,
        batches=batches,
        optim=experiment.optim,
        seed=experiment.seed,
        runtime=experiment.runtime,
        folder=run.folder / "checkpoint",
        identity=record.run_id,
        launch=experiment.launch,
        on_log=on_log,
        warn=log.warning,
    )


def untrained_identity(experiment: Experiment) -> dict[str, Any]:
    """What stands for the weights of a model that is not trained here."""
    backbone = experiment.backbone
    return {"backbone": backbone.fingerprint() if experiment.is_decoder else dict(backbone.identity)}


def log_to_file(folder: Path) -> None:
    """worker.log: warnings, tracebacks, each encoding's speed, and the stacks of a crash in native code."""
    file = (folder / "worker.log").open("a", encoding="utf-8")
    faulthandler.enable(file)
    logging.basicConfig(
        level=logging.WARNING, stream=file, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    for package in ("experiments", "evals", "unified_lm"):
        logging.getLogger(package).setLevel(logging.INFO)
    log.info("pid %d: %s", os.getpid(), folder.name)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
