"""Locks of a run directory: one command and one worker at a time work on a run."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def lock_run(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Keep other commands off a run; a second command waits and then finds the run finished.

    The worker of a command that was killed may still be at work: it is waited for as well. Raises `Timeout` where
    somebody holds the lock and `wait` is false.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with acquire_lock(folder / ".lock", wait=wait):
        with lock_worker(folder, wait=wait):
            pass
        yield


def lock_worker(folder: Path, *, wait: bool = True) -> AbstractContextManager[None]:
    """What a worker holds while it works on a run."""
    return acquire_lock(folder / ".worker.lock", wait=wait)


@contextmanager
def acquire_lock(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock file; says so once where it has to wait."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not wait:
            raise
        print(f"{path.parent.name} is being made by another process: waiting for it", flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
