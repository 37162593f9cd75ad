"""The worker process of a run: its command, its environment, its signals, and how its end is recorded."""

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

from experiments.config.errors import UsageError
from experiments.config.paths import ROOT
from experiments.runs.record import change_record, read_record
from unified_lm.training.watchdog import REQUEUE

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # what asks a run to stop


def run_worker(folder: Path, config: Mapping[str, Any]) -> int:
    """Run the worker with this process's terminal, passing on a request to stop; returns its exit code."""
    process = subprocess.Popen(worker_command(folder, config), env=worker_environment(config))
    with forward_stop_signals(process) as stop_requested:
        code = process.wait()
    code, message = record_worker_end(folder, code, stop_requested=stop_requested.is_set())
    if message:
        print(message, file=sys.stderr)
    return code


def worker_command(folder: Path, config: Mapping[str, Any]) -> list[str]:
    return [*launch_command(config), "-m", "experiments.runs.worker", str(folder)]


def record_worker_end(folder: Path, code: int, *, stop_requested: bool) -> tuple[int, str]:
    """The exit code of a run whose worker ended with `code`, and a message where the worker could not print it itself.

    A worker that was ended by a signal could not write down its end: it is written down here.
    """
    record = read_record(folder)
    status = None if record is None else record.status
    stopped = code and (stop_requested or -code in STOP_SIGNALS)
    if stopped and status not in ("stopped", "failed"):  # while it did not train
        change_record(folder, status="stopped", error="stopped on request")
        return REQUEUE, f"stopped: {folder.name}: the same command continues it"
    if code and status == "stopped":
        return REQUEUE, ""
    if code >= 0:
        return code, ""
    name = signal.Signals(-code).name
    change_record(folder, status="failed", error=f"the worker was ended by {name}")
    return 128 - code, f"failed: {folder.name}: ended by {name}; the same command continues it"


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
    """Pass SIGTERM and SIGUSR1 on to the worker, as SIGTERM (torchrun passes on no other); yields whether one came.

    A thread other than the main one gets no signals and passes none on.
    """
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested
        return

    def stop(number: int, frame: FrameType | None) -> None:
        requested.set()
        process.send_signal(signal.SIGTERM)

    before = [signal.signal(number, stop) for number in STOP_SIGNALS]
    try:
        yield requested
    finally:
        for number, handler in zip(STOP_SIGNALS, before, strict=True):
            signal.signal(number, handler)
        if process.poll() is None:
            process.terminate()
            process.wait()
