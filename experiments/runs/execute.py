"""From an identified run to its finished record: parents first, one worker process a run, nothing done twice."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from experiments.config.compose import Composition
from experiments.config.errors import UsageError
from experiments.config.identity import Run
from experiments.config.paths import ROOT, display_path
from experiments.runs.freshness import is_complete
from experiments.runs.locks import lock_run
from experiments.runs.record import RunRecord, begin_record, change_record, read_record
from unified_lm.training.watchdog import REQUEUE

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # what asks a run to stop


def ensure_run(run: Run) -> int:
    """Train and score a run, and its parents before it, unless they are there. Returns the worker's exit code.

    Raises `UsageError` before any work for a device that this machine lacks.
    """
    require_device(run.job)
    for older in (run.parent, run.teacher):
        if older is not None and (code := ensure_run(older)):
            print(f"{run.run_id}: not started, its parent {older.run_id} failed", file=sys.stderr)
            return code
    with lock_run(run.folder):
        if not begin_unfinished_run(run):
            print(f"already there: {display_path(run.folder)}", flush=True)
            return 0
        print(f"{run.run_id} -> {display_path(run.folder)}", flush=True)
        return run_worker(run.folder, run.config)


def begin_unfinished_run(run: Run) -> bool:
    """Open a run's directory; whether anything is left to be done in it."""
    record = begin_record(run)
    if is_complete(record, run.config):
        return False
    if record.step is not None and not is_checkpoint_intact(run.folder, record):
        print(f"{run.run_id}: its last checkpoint is gone or damaged: trained again from the one before", flush=True)
        change_record(run.folder, digest=None, step=None, status="started")
    return True


def is_checkpoint_intact(folder: Path, record: RunRecord) -> bool:
    """Whether the weights that a record names are there as they were saved."""
    from unified_lm.training import checkpoint

    try:
        saved = checkpoint.latest_checkpoint(folder / "checkpoint", record.run_id)
    except ValueError as error:  # another run's
        raise UsageError(str(error)) from error
    return saved is not None and saved.digest == record.digest


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


def run_worker(folder: Path, config: Mapping[str, Any]) -> int:
    """Run the worker with this process's terminal, passing on a request to stop; returns its exit code."""
    process = subprocess.Popen(worker_command(folder, config), env=worker_environment(config))
    with forward_stop_signals(process) as asked:
        code = process.wait()
    code, said = record_worker_end(folder, code, asked=asked.is_set())
    if said:
        print(said, file=sys.stderr)
    return code


def worker_command(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """The command of a worker."""
    return [*launch_command(config), "-m", "experiments.runs.worker", str(folder)]


def record_worker_end(folder: Path, code: int, *, asked: bool) -> tuple[int, str]:
    """The exit code of a run whose worker ended with `code`, and a line where the worker could not say it itself.

    A worker that was ended by a signal could not write down its end: it is written down here.
    """
    record = read_record(folder)
    status = None if record is None else record.status
    if code and (asked or -code in STOP_SIGNALS) and status not in ("stopped", "failed"):  # while it did not train
        change_record(folder, status="stopped", error="stopped on request")
        return REQUEUE, f"stopped: {folder.name}: the same command continues it"
    if code and status == "stopped":
        return REQUEUE, ""
    if code >= 0:
        return code, ""
    signalled = signal.Signals(-code).name
    change_record(folder, status="failed", error=f"the worker was ended by {signalled}")
    return 128 - code, f"failed: {folder.name}: ended by {signalled}; the same command continues it"


def launch_command(config: Mapping[str, Any]) -> list[str]:
    """Python for one process, torchrun for several."""
    processes, nodes = config["launch"]["processes"], config["launch"].get("nodes", 1)
    if nodes != 1:
        raise UsageError(f"launch.nodes={nodes} cannot be started from one of them: run torchrun on every node")
    if not isinstance(processes, int) or processes < 1:
        raise UsageError(f"launch.processes={processes} is no number of processes: use 1 or more")
    if processes == 1:
        return [sys.executable]
    return [sys.executable, "-m", "experiments.runs.torchrun", "--standalone", f"--nproc-per-node={processes}"]


def worker_environment(config: Mapping[str, Any], cores: int | None = None) -> dict[str, str]:
    """The worker's environment; thread variables must be set before torch is imported. `cores`: those it may use."""
    threads, processes = config["runtime"]["threads"], config["launch"]["processes"]
    if threads is None and (processes > 1 or cores is not None):
        threads = max(1, (cores or os.cpu_count() or 1) // processes)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    mine = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"} | os.environ | {"PYTHONPATH": path}
    return mine if threads is None else mine | {"OMP_NUM_THREADS": str(threads)}


@contextmanager
def forward_stop_signals(process: subprocess.Popen) -> Iterator[threading.Event]:
    """SIGTERM or SIGUSR1 to this process asks the worker to stop (torchrun passes on SIGTERM only); set once it was."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def stop(number: int, frame: FrameType | None) -> None:
        asked.set()
        process.send_signal(signal.SIGTERM)

    before = [signal.signal(number, stop) for number in STOP_SIGNALS]
    try:
        yield asked
    finally:
        for number, handler in zip(STOP_SIGNALS, before, strict=True):
            signal.signal(number, handler)
        if process.poll() is None:
            process.terminate()
            process.wait()
