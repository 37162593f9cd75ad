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
from pathlib import Path
from typing import Any

import torch
import yaml

from experiments.config.build import Experiment, from_config
from experiments.config.errors import USAGE, first_line
from experiments.config.paths import display_path
from experiments.runs import progress, record
from experiments.runs.open_run import BuiltModel, build_model, load_trained_weights, open_parent_model, open_run
from experiments.runs.provenance import current_code_version, describe_hardware, read_commit
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
    with record.lock_worker(folder) if leads else nullcontext(), process_group():
        return run_rank_zero(folder) if Ranks.current().rank == 0 else run_other_rank(folder)


def run_rank_zero(folder: Path) -> int:
    """Rank 0: trains with the others, and alone writes, mirrors and scores."""
    log_to_file(folder)
    entry = record.read_record(folder)
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    try:
        experiment = from_config(config, chained=entry["parent"] is not None)
        made = prepare_model(experiment, entry)
    except (ValueError, OSError) as error:
        log.exception("refused")
        record.change_record(folder, status="failed", error=str(error))
        print(f"error: {first_line(str(error))}", file=sys.stderr)
        return USAGE
    except Exception as error:
        return record_failure(folder, error)
    mirror: Tracker = NoTracker()
    try:
        mirror = start_tracker(entry, folder, record.read_metrics(folder))
        entry = record.change_record(folder, **describe_environment(entry), wandb_id=mirror.id, error=None)
        fresh = entry["digest"] is None
        if fresh:
            entry = train_and_record(experiment, made, entry, folder, mirror)
        entry = Ranks.current().broadcast_object(entry)
        score_suites(experiment, load_scored_model(experiment, made, entry, folder, fresh=fresh), entry, folder, mirror)
        record.change_record(folder, status="finished")
        mirror.finish(failed=False)
    except (Preempted, KeyboardInterrupt) as asked:
        record.change_record(folder, status="stopped", error=first_line(str(asked)))
        mirror.finish(failed=True)
        print(f"stopped: {folder.name}: the same command continues it", file=sys.stderr)
        return REQUEUE
    except Exception as error:
        mirror.finish(failed=True)
        return record_failure(folder, error)
    return 0


def record_failure(folder: Path, error: Exception) -> int:
    log.error("failed", exc_info=error)
    why = f"{type(error).__name__}: {first_line(str(error))}"
    record.change_record(folder, status="failed", error=why)
    print(f"failed: {why} (traceback in {display_path(folder / 'worker.log')})", file=sys.stderr)
    return 1


def run_other_rank(folder: Path) -> int:
    """Any other rank: trains and scores along; what goes wrong is told by rank 0, or by this rank's own end."""
    entry = record.read_record(folder)
    experiment = from_config(entry["config"], chained=entry["parent"] is not None)
    made = prepare_model(experiment, entry)
    fresh = entry["digest"] is None
    try:
        if fresh and made is not None and experiment.trains:
            run_training(experiment, made, experiment.data.load(), entry, folder, lambda row: None)
        entry = Ranks.current().broadcast_object(entry)
        help_score_suites(experiment, load_scored_model(experiment, made, entry, folder, fresh=fresh), entry, folder)
    except (Preempted, KeyboardInterrupt):
        return REQUEUE
    return 0


def prepare_model(experiment: Experiment, entry: dict[str, Any]) -> BuiltModel | None:
    """Threads, seed and model; None for a backbone that is only scored."""
    if experiment.runtime.threads:
        torch.set_num_threads(experiment.runtime.threads)
    torch.manual_seed(experiment.seed)
    if not experiment.is_decoder:
        return None
    made = build_model(experiment, open_parent_model(entry))
    check_attention(made.model, experiment.attention)
    return made


def load_scored_model(
    experiment: Experiment, made: BuiltModel | None, entry: dict[str, Any], folder: Path, *, fresh: bool
) -> BuiltModel | None:
    """The model with the trained weights: as it comes out of training, or read where it was sharded or is not fresh."""
    if made is None or not experiment.trains:
        return made
    if fresh:
        return open_run(folder).built if experiment.launch.sharded else made
    load_trained_weights(made.model, folder, entry)
    return made


def describe_environment(entry: dict[str, Any]) -> dict[str, Any]:
    """Where and by what this is run; `makers` also names what earlier attempts were run by."""
    before, now = record.list_code_versions(entry), current_code_version()
    return {
        "git": read_commit(),
        "versions": now["versions"],
        "makers": before if now in before else [*before, now],
        "hardware": describe_hardware(),
        "threads": torch.get_num_threads(),
    }


def train_and_record(
    experiment: Experiment, made: BuiltModel | None, entry: dict[str, Any], folder: Path, mirror: Tracker
) -> dict[str, Any]:
    """Train where there is something to train, and write down where that ended."""
    if made is None or not experiment.trains:
        digest = record.content_digest(untrained_identity(experiment))[:16]
        return record.change_record(folder, digest=digest, step=None, wall_s=0.0, device_hours=0.0, status="trained")
    batches = experiment.data.load()
    facts = {
        "corpus_fingerprints": batches.corpus_fingerprints(),
        "trainable": experiment.trainable.describe(made.model),
    }
    entry = record.change_record(folder, **facts)
    metrics = record.MetricsLog(folder)
    bar, advance = progress.training_progress(experiment.optim.last_step)

    def on_log(row: dict[str, Any]) -> None:
        advance(row)
        row = metrics.log(row)
        if row["step"] % entry["config"]["logging"]["every"] == 0 or row["step"] == experiment.optim.last_step:
            mirror.log(row)

    result = run_training(experiment, made, batches, entry, folder, on_log)
    bar.close()
    rows = record.read_metrics(folder)
    seconds = rows[-1]["wall_s"] if rows else result.wall_s
    return record.change_record(
        folder,
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


def run_training(
    experiment: Experiment, made: BuiltModel, batches: Batches, entry: dict[str, Any], folder: Path, on_log: OnLog
) -> TrainResult:
    rows = (row for step in range(experiment.optim.last_step) for row in batches.batch(step))
    return train(
        model=made.model,
        method=add_teacher_vectors(experiment.method, entry.get("teacher"), rows, folder / "teacher"),
        form=made.form,
        batches=batches,
        optim=experiment.optim,
        seed=experiment.seed,
        runtime=experiment.runtime,
        folder=folder / "checkpoint",
        identity=entry["run_id"],
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
    for told in ("experiments", "evals", "unified_lm"):
        logging.getLogger(told).setLevel(logging.INFO)
    log.info("pid %d: %s", os.getpid(), folder.name)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
