"""From identified runs to finished records: parents and teachers first, one worker process a run, nothing done twice.

One run at a time works with this process's terminal. Several at once get a share of the machine each: two workers of
one thread do more than one of two.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

from filelock import Timeout

from experiments.config.errors import USAGE, UsageError, first_line
from experiments.config.identity import Run
from experiments.config.paths import display_path
from experiments.runs.freshness import is_complete
from experiments.runs.locks import lock_run
from experiments.runs.preflight import check_run, list_stages
from experiments.runs.progress import LogFollower
from experiments.runs.record import RunRecord, begin_record, change_record, check_directory, require_record
from experiments.runs.worker_process import (
    STOP_SIGNALS,
    record_worker_end,
    run_worker,
    worker_command,
    worker_environment,
)
from unified_lm.training.watchdog import REQUEUE

POLL_S = 0.2  # seconds between two looks at the workers
CREW_SIGNALS = (*STOP_SIGNALS, signal.SIGINT, signal.SIGHUP)  # workers of several have sessions of their own


def ensure_run(run: Run) -> int:
    """Train and score a run, and its parents before it, unless they are there. Returns the exit code.

    Raises `UsageError` before any work, and before any file is written, for a run that would be refused.
    """
    check_run(run)
    return Crew([run]).work().get(run.run_id, REQUEUE)


def execute_runs(runs: Sequence[Run], jobs: int) -> dict[str, int]:
    """Train and score several runs, `jobs` at a time; returns run id -> exit code of all that were begun.

    A run that fails or is refused stops none but those that start from it.
    """
    return Crew(runs, jobs).work()


def begin_unfinished_run(run: Run) -> bool:
    """Open a run's directory where anything is left to be done in it; a complete one stays as it is."""
    record = check_directory(run)
    if record is not None and is_complete(record, run.config):
        return False
    record = begin_record(run)
    if record.step is not None and not is_checkpoint_intact(record, run):
        print(f"{run.run_id}: its last checkpoint is gone or damaged: trained again from the one before", flush=True)
        change_record(run.folder, digest=None, step=None, status="started")
    return True


def is_checkpoint_intact(record: RunRecord, run: Run) -> bool:
    """Whether the weights that a record names are there as they were saved."""
    from unified_lm.training import checkpoint

    try:
        saved = checkpoint.latest_checkpoint(run.folder / "checkpoint", record.run_id)
    except ValueError as error:  # another run's
        raise UsageError(str(error)) from error
    return saved is not None and saved.digest == record.digest


@dataclass(frozen=True, kw_only=True)
class MachineShare:
    """What a run may use: how many cores (None: the environment says it) and which GPUs (None: all)."""

    cores: int | None = None
    gpus: str | None = None

    def environment(self, run: Run) -> dict[str, str]:
        mine = worker_environment(run.config, self.cores)
        return mine if self.gpus is None else mine | {"CUDA_VISIBLE_DEVICES": self.gpus}


@dataclass(frozen=True, kw_only=True)
class WorkerJob:
    """A run at work; `lock` keeps other commands off it, `log` tells how far it is."""

    run: Run
    share: MachineShare
    process: subprocess.Popen
    lock: ExitStack
    log: LogFollower
    began: float


class Crew:
    """Makes runs and the stages that they need, as many at a time as there are shares of the machine.

    With one job at a time the worker has this process's terminal. With several, a line tells each start, how far it
    is, and each end, and all else that a worker prints goes to its worker.log.
    """

    def __init__(self, runs: Sequence[Run], jobs: int = 1) -> None:
        every = list_stages(runs)
        self.foreground = jobs == 1
        self.numbered = len(runs) > 1
        self.labels = {
            key_of(run): f"[{i}/{len(every)}] {run.run_id}" if self.numbered else run.run_id
            for i, run in enumerate(every, start=1)
        }
        self.refusals = {key_of(run): message for run in runs if (message := explain_refusal(run)) is not None}
        self.refused = [run for run in runs if key_of(run) in self.refusals]
        self.waiting = list_stages([run for run in runs if key_of(run) not in self.refusals])
        self.free = [MachineShare()] if self.foreground else divide_machine(self.waiting, jobs)
        self.working: list[WorkerJob] = []
        self.codes: dict[str, int] = {}  # run id -> exit code
        self.ends: dict[tuple[str, str], int] = {}  # the same of each thing asked of a run: its training, its scores
        self.stop_signal: int | None = None
        self.stopping = False
        self.told: set[int] = set()  # processes that were asked to stop
        self.elsewhere: set[str] = set()  # runs that another process works on

    def work(self) -> dict[str, int]:
        """Run id -> exit code of all that was begun; after a signal each has stopped behind a checkpoint.

        Raises `KeyboardInterrupt` where the signal was Ctrl-C.
        """
        for run in self.refused:
            self.note(run, USAGE, f"{self.labels[key_of(run)]} refused: {self.refusals[key_of(run)]}")
        with nullcontext() if self.foreground else self.listening():
            while self.working or (self.waiting and not self.stopping):
                self.collect()
                if self.stopping:
                    self.stop()
                else:
                    self.start()
                if not self.foreground:
                    time.sleep(POLL_S)
        if self.stop_signal == signal.SIGINT:
            raise KeyboardInterrupt
        return self.codes

    def collect(self) -> None:
        """Tell how far the workers are, and take note of those that ended."""
        over = [job for job in self.working if job.process.poll() is not None]
        for job in self.working:
            if (line := job.log.latest_progress()) is not None:
                print(f"{self.labels[key_of(job.run)]}: {line}", flush=True)
        for job in over:
            code, _ = record_worker_end(job.run.folder, job.process.returncode, stop_requested=self.stopping)
            job.lock.close()
            self.working.remove(job)
            self.free.append(job.share)
            self.note_end(job.run, code, job.began)

    def stop(self) -> None:
        for job in self.working:
            if job.process.pid not in self.told:
                self.told.add(job.process.pid)
                job.process.terminate()

    def start(self) -> None:
        """Give a free share to each run whose stages are there and that is not at work already."""
        for run in list(self.waiting):
            stages = [one for one in (run.parent, run.teacher) if one is not None]
            codes = [self.ends.get(key_of(stage)) for stage in stages]
            if any(codes):
                self.waiting.remove(run)
                why = "not started: what it starts from is not there"
                self.note(run, next(filter(None, codes)), f"{self.labels[key_of(run)]} {why}")
            elif self.free and None not in codes and run.run_id not in {job.run.run_id for job in self.working}:
                self.begin(run)
            if self.stopping:
                return

    def begin(self, run: Run) -> None:
        lock = ExitStack()
        try:
            lock.enter_context(lock_run(run.folder, wait=self.foreground))
            unfinished = begin_unfinished_run(run)
        except Timeout:  # it is looked at again
            if run.run_id not in self.elsewhere:
                self.elsewhere.add(run.run_id)
                print(f"{self.labels[key_of(run)]} is being made by another process", flush=True)
            return
        except UsageError as error:
            lock.close()
            self.waiting.remove(run)
            return self.note(run, USAGE, f"{self.labels[key_of(run)]} refused: {error}")
        self.waiting.remove(run)
        if not unfinished:
            lock.close()
            label, folder = self.labels[key_of(run)], display_path(run.folder)
            return self.note(run, 0, f"{label} already there" if self.numbered else f"already there: {folder}")
        if self.foreground:
            with lock:
                self.work_here(run)
        else:
            self.work_aside(run, lock)

    def work_here(self, run: Run) -> None:
        """Run the worker with this process's terminal, to its end."""
        began = time.monotonic()
        print(f"{self.labels[key_of(run)]} -> {display_path(run.folder)}", flush=True)
        code = run_worker(run.folder, run.config)
        self.stopping = code == REQUEUE
        self.note_end(run, code, began)

    def work_aside(self, run: Run, lock: ExitStack) -> None:
        """Start the worker in a session of its own; what it prints goes to worker.log."""
        share = self.free.pop(0)
        follower = LogFollower(run.folder / "worker.log")
        with follower.log.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                worker_command(run.folder, run.config),
                env=share.environment(run),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        began = time.monotonic()
        self.working.append(WorkerJob(run=run, share=share, process=process, lock=lock, log=follower, began=began))
        print(f"{self.labels[key_of(run)]} started, see {display_path(follower.log)}", flush=True)

    def note_end(self, run: Run, code: int, began: float) -> None:
        error = "" if code in (0, REQUEUE) else first_line(require_record(run.folder).error or f"exit code {code}")
        how = {0: "done", REQUEUE: "stopped"}.get(code, f"failed ({error})")
        line = f"{self.labels[key_of(run)]} {how} after {time.monotonic() - began:.0f} s"
        self.note(run, code, line if self.numbered else "")  # a lone worker has said it

    def note(self, run: Run, code: int, line: str) -> None:
        """Take note of a run's exit code, and print a line where there is one."""
        self.codes[run.run_id] = self.codes.get(run.run_id) or code
        self.ends[key_of(run)] = code
        if line:
            print(line, flush=True)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A signal asks every worker to stop, a second one again; none outlives this process."""

        def stop(number: int, frame: object) -> None:
            self.stop_signal, self.stopping, self.told = number, True, set()

        heard = [n for n in CREW_SIGNALS if signal.getsignal(n) != signal.SIG_IGN]  # nohup ignores SIGHUP
        before = {number: signal.signal(number, stop) for number in heard}
        try:
            yield
        finally:
            for job in self.working:
                job.process.terminate()
                job.process.wait()
            for number, handler in before.items():
                signal.signal(number, handler)


def key_of(run: Run) -> tuple[str, str]:
    """What tells two requests apart: one run may be asked for its training alone and for scores."""
    return run.run_id, run.request_digest


def explain_refusal(run: Run) -> str | None:
    """Why a run would be refused; None where it would not."""
    try:
        check_run(run)
    except UsageError as error:
        return str(error)
    return None


def divide_machine(runs: Sequence[Run], jobs: int) -> list[MachineShare]:
    """Equal shares of the machine. Threads that the environment already limits are left as they are.

    Raises `UsageError` where runs would have to share a GPU.
    """
    cores = None if "OMP_NUM_THREADS" in os.environ else max(1, count_cores() // jobs)
    if not any(uses_gpu(run) for run in runs):
        return [MachineShare(cores=cores)] * jobs
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    gpus = [gpu for gpu in visible.split(",") if gpu]
    each = max(run.config["launch"]["processes"] for run in runs)
    if jobs * each > len(gpus):
        raise UsageError(
            f"jobs={jobs} runs at once need {jobs * each} GPUs, one for each of their processes, and there are "
            f"{len(gpus)}: use jobs={max(1, len(gpus) // each)}, or runtime.device=cpu"
        )
    return [MachineShare(cores=cores, gpus=",".join(gpus[i * each : (i + 1) * each])) for i in range(jobs)]


def uses_gpu(run: Run) -> bool:
    """Whether a run works on a GPU of this machine."""
    if run.config["runtime"]["device"] == "cpu":
        return False
    import torch

    return torch.cuda.is_available()


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
