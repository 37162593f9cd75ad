"""From an identified run to its finished record: parents first, one worker process a run, nothing done twice."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from experiments import record
from experiments.errors import UsageError
from experiments.identity import Run
from experiments.places import ROOT, shown


def ensure(run: Run) -> int:
    """Train and score a run, and its parents before it, unless they are there. Returns the worker's exit code.

    Raises `UsageError` before any work for a device that this machine lacks.
    """
    require_device(run)
    if run.parent is not None and (code := ensure(run.parent)):
        print(f"{run.run_id}: not started, its parent {run.parent.run_id} failed", file=sys.stderr)
        return code
    with record.held(run.folder):
        entry = record.begin(run)
        if record.complete(entry, run.config):
            print(f"already there: {shown(run.folder)}", flush=True)
            return 0
        print(f"{run.run_id} -> {shown(run.folder)}", flush=True)
        code = work(run)
    if code < 0:
        record.change(run.folder, status="failed", error=f"the worker was ended by signal {signal.Signals(-code).name}")
        print(
            f"failed: {run.run_id}: ended by {signal.Signals(-code).name}; the same command continues it",
            file=sys.stderr,
        )
        return 128 - code
    return code


def require_device(run: Run) -> None:
    """Stop before any work where a run needs a GPU and torch sees none."""
    if run.config["runtime"]["device"] != "cuda":
        return
    import torch

    if not torch.cuda.is_available():
        scale = run.job.choices.get("scale")
        raise UsageError(
            f"scale={scale} needs a CUDA GPU and torch {torch.__version__} sees none here: "
            "use scale=mini (SCALE=mini with make)"
        )


def work(run: Run) -> int:
    """Run the worker with this process's terminal, passing on a request to stop."""
    process = subprocess.Popen(command(run), env=environment(run))
    with passing_on(process):
        return process.wait()


def command(run: Run) -> list[str]:
    return [sys.executable, "-m", "experiments.worker", str(run.folder)]


def environment(run: Run) -> dict[str, str]:
    """The worker's environment; thread variables must be set before torch is imported."""
    threads = run.config["runtime"]["threads"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    mine = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"} | os.environ | {"PYTHONPATH": path}
    return mine if threads is None else mine | {"OMP_NUM_THREADS": str(threads)}


@contextmanager
def passing_on(process: subprocess.Popen) -> Iterator[None]:
    """SIGTERM to this process ends the worker too, and then this process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if process.poll() is None:
            process.terminate()
            process.wait()
