"""Run by `evals.generation.sandbox` as a script: reads a token, limits and a program, gives up what the program must
not have, runs it, and writes the token where it came to its end, else what stopped it."""

import io
import math
import os
import resource
import signal
import sys
from typing import Any

REFUSED = (
    *("socket.", "subprocess.", "ctypes.", "shutil.", "pty.", "resource.", "syslog.", "tempfile.", "webbrowser."),
    *("sqlite3.", "mmap.", "signal.pthread_kill", "sys.addaudithook", "fcntl."),
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.kill", "os.remove", "os.rename", "os.rmdir"),
    *("os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.chdir", "os.putenv", "os.utime"),
)
"""Beginnings of the audit events that end a program."""

OUT_OF_TIME = 124
"""The exit code of a program that used up its processor time."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
READABLE = tuple(os.path.realpath(at) + os.sep for at in (sys.prefix, sys.base_prefix, os.path.dirname(io.__file__)))


def guard(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: lets code read what is installed, and nothing else."""
    if event == "open" and not isinstance(arguments[0], int):
        if (arguments[2] or 0) & WRITING or not installed(arguments[0]):
            raise PermissionError(f"a file is out of reach: {arguments[0]}")
    elif event in ("os.listdir", "os.scandir"):
        if isinstance(arguments[0], int) or not installed(arguments[0] or "."):
            raise PermissionError(f"a folder is out of reach: {arguments[0]}")
    elif event.startswith(REFUSED):
        raise PermissionError(f"refused: {event}")


def installed(place: str | bytes) -> bool:
    return (os.path.realpath(os.fsdecode(place)) + os.sep).startswith(READABLE)


def limit(seconds: float, memory: float) -> None:
    """Limits that the kernel keeps: processor time, memory (GiB), no written bytes, no new processes, no core files.

    At the end of its time the program is told to leave, and one second later it is killed.
    """
    signal.signal(signal.SIGXCPU, lambda *_: os._exit(OUT_OF_TIME))
    most = math.ceil(seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
    for name, most in {"AS": int(memory * 2**30), "FSIZE": 0, "NPROC": 0, "CORE": 0}.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def main() -> None:
    token, seconds, memory = sys.stdin.readline().split()
    program = sys.stdin.read()
    report = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), io.StringIO(), io.StringIO()
    if "numpy" in program:  # it loads libraries, which the guard would refuse
        import numpy.testing  # noqa: F401
    limit(float(seconds), float(memory))
    sys.addaudithook(guard)
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        said = token
    except BaseException as error:  # whatever ends a program, the caller is told
        said = f"{type(error).__name__}: {str(error)[:200]}"
    os.write(report, said.encode("utf-8", "replace"))
    os._exit(0)


if __name__ == "__main__":
    main()
