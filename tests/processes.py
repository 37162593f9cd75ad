"""Real processes that start at once: forked from one that has imported our code (the standard library's forkserver).

Importing torch and transformers takes six seconds of processor time, more than most of what a test has a process do.
What is started from a command line is tested as that, in tests/experiments.
"""

import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["tests.laws.cuda_worker", "tests.laws.ranks_worker", "tests.laws.train_script"])


class Talking:
    """A process that runs `work(*arguments, say)`: what it says can be read until it ends."""

    def __init__(self, work: Callable[..., int], *arguments: Any) -> None:
        self.heard, say = FORKING.Pipe(duplex=False)
        self.process: BaseProcess = FORKING.Process(target=_work, args=(work, arguments, say))
        self.process.start()
        say.close()

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                yield self.heard.recv()
            except EOFError:
                return

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def wait(self) -> int:
        """The exit code: what `work` returned, or the negative number of the signal that ended it."""
        self.process.join()
        return self.process.exitcode


def _work(work: Callable[..., int], arguments: tuple[Any, ...], say: Connection) -> None:
    raise SystemExit(work(*arguments, say.send))


def ranks(work: Callable[..., None], size: int, *arguments: Any) -> list[int]:
    """Run `work(*arguments)` on so many ranks, with the environment that torchrun would give each; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    several = [
        FORKING.Process(target=_rank, args=(work, place | {"RANK": str(i), "LOCAL_RANK": str(i)}, arguments))
        for i in range(size)
    ]
    for process in several:
        process.start()
    for process in several:
        process.join()
    return [process.exitcode for process in several]


def _rank(work: Callable[..., None], place: dict[str, str], arguments: tuple[Any, ...]) -> None:
    os.environ.update(place)
    work(*arguments)
