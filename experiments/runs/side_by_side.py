"""Independent runs at once, each with its share of the machine: two workers of one thread do more than one of two."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from filelock import Timeout

from experiments.config.errors import USAGE, UsageError, first_line
from experiments.config.identity import Run
from experiments.config.paths import display_path
from experiments.runs.execute import (
    STOP_SIGNALS,
    begin_unfinished_run,
    record_worker_end,
    worker_command,
    worker_environment,
)
from experiments.runs.locks import lock_run
from experiments.runs.progress import LogFollower
from experiments.runs.record import require_record
from unified_lm.training.watchdog import REQUEUE

SECONDS = 0.2  # between two looks at the workers
ASKING = (
    *STOP_SIGNALS,
    signal.SIGINT,
    signal.SIGHUP,
)  # workers have sessions of their own, so that we pass all of these on


@dataclass(frozen=True, kw_only=True)
class MachineShare:
    """Where a run may work: how many cores (None: the environment says it) and which GPUs (None: all)."""

    cores: int | None
    gpus: str | None

    def environment(self, run: Run) -> dict[str, str]:
        mine = worker_environment(run.config, self.cores)
        return mine if self.gpus is None else mine | {"CUDA_VISIBLE_DEVICES": self.gpus}


@dataclass(frozen=True, kw_only=True)
class WorkerJob:
    """A run at work; `hold` keeps other commands off it, `log` tells how far it is."""

    run: Run
    place: MachineShare
    process: subprocess.Popen
    hold: ExitStack
    log: LogFollower
    began: float


class Crew:
    """Makes runs and the older ones that they need, as many at a time as there are places.

    Lines tell each start, how far it is, and each end; all that a worker says goes to its worker.log. A run that fails
    stops none but those that start from it.
    """

    def __init__(self, runs: Sequence[Run], jobs: int) -> None:
        self.waiting = list_stages(runs)
        self.labels = {
            id(run): f"[{i}/{len(self.waiting)}] {run.run_id}" for i, run in enumerate(self.waiting, start=1)
        }
        self.free = divide_machine(self.waiting, jobs)
        self.working: list[WorkerJob] = []
        self.codes: dict[str, int] = {}  # run id -> exit code
        self.ends: dict[tuple[str, str], int] = {}  # the same of each thing asked of a run: its training, its scores
        self.asked: int | None = None  # the signal that asked for an end
        self.told: set[int] = set()  # processes that know of it
        self.elsewhere: set[str] = set()  # runs that another process is at

    def work(self) -> dict[str, int]:
        """Run id -> exit code of all that was begun; after a signal each has stopped behind a checkpoint.

        Raises `KeyboardInterrupt` where the signal was Ctrl-C.
        """
        with self.listening():
            while self.working or (self.waiting and self.asked is None):
                self.collect()
                if self.asked is None:
                    self.start()
                else:
                    self.stop()
                time.sleep(SECONDS)
        if self.asked == signal.SIGINT:
            raise KeyboardInterrupt
        return self.codes

    def collect(self) -> None:
        """Tell how far the workers are, and take note of those that ended."""
        over = [job for job in self.working if job.process.poll() is not None]
        for job in self.working:
            if (line := job.log.latest_progress()) is not None:
                print(f"{self.labels[id(job.run)]}: {line}", flush=True)
        for job in over:
            code, _ = record_worker_end(job.run.folder, job.process.returncode, asked=self.asked is not None)
            job.hold.close()
            self.working.remove(job)
            self.free.append(job.place)
            error = first_line(require_record(job.run.folder).error or f"exit code {code}")
            words = {0: "done", REQUEUE: "stopped"}.get(code, f"failed ({error})")
            self.note(job.run, code, f"{words} after {time.monotonic() - job.began:.0f} s")

    def stop(self) -> None:
        for job in self.working:
            if job.process.pid not in self.told:
                self.told.add(job.process.pid)
                job.process.terminate()

    def start(self) -> None:
        """Give a free place to each run whose older ones are there."""
        for run in list(self.waiting):
            older = [
                self.ends.get((one.run_id, one.request_digest)) for one in (run.parent, run.teacher) if one is not None
            ]
            if any(older):
                self.waiting.remove(run)
                self.note(run, 1, "not started: what it starts from is not there")
            elif self.free and None not in older:
                self.begin(run)

    def begin(self, run: Run) -> None:
        hold = ExitStack()
        try:
            hold.enter_context(lock_run(run.folder, wait=False))
            left = begin_unfinished_run(run)
        except Timeout:  # it is looked at again
            if run.run_id not in self.elsewhere:
                self.elsewhere.add(run.run_id)
                print(f"{self.labels[id(run)]} is being made by another process", flush=True)
            return
        except UsageError as error:
            hold.close()
            self.waiting.remove(run)
            return self.note(run, USAGE, f"refused: {error}")
        self.waiting.remove(run)
        if not left:
            hold.close()
            return self.note(run, 0, "already there")
        place = self.free.pop(0)
        told = LogFollower(run.folder / "worker.log")
        with told.log.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                worker_command(run.folder, run.config),
                env=place.environment(run),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.working.append(
            WorkerJob(run=run, place=place, process=process, hold=hold, log=told, began=time.monotonic())
        )
        print(f"{self.labels[id(run)]} started, see {display_path(told.log)}", flush=True)

    def note(self, run: Run, code: int, words: str) -> None:
        self.codes[run.run_id] = self.codes.get(run.run_id) or code
        self.ends[run.run_id, run.request_digest] = code
        print(f"{self.labels[id(run)]} {words}", flush=True)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A signal asks every worker to stop, a second one again; none outlives this process."""

        def stop(number: int, frame: object) -> None:
            self.asked, self.told = number, set()

        heard = [number for number in ASKING if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores SIGHUP
        before = {number: signal.signal(number, stop) for number in heard}
        try:
            yield
        finally:
            for job in self.working:
                job.process.terminate()
                job.process.wait()
            for number, handler in before.items():
                signal.signal(number, handler)


def list_stages(runs: Sequence[Run]) -> list[Run]:
    """Runs and all that they start from or learn from, each once, the older before the younger."""
    found: dict[tuple[str, str], Run] = {}
    for run in runs:
        older = list_stages([one for one in (run.parent, run.teacher) if one is not None])
        for one in (*older, run):
            found.setdefault((one.run_id, one.request_digest), one)
    return list(found.values())


def divide_machine(runs: Sequence[Run], jobs: int) -> list[MachineShare]:
    """Equal shares of the machine. Threads that the environment already limits are left as they are.

    Raises `UsageError` where runs would have to share a GPU.
    """
    cores = None if "OMP_NUM_THREADS" in os.environ else max(1, count_cores() // jobs)
    if not any(uses_gpu(run) for run in runs):
        return [MachineShare(cores=cores, gpus=None)] * jobs
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
