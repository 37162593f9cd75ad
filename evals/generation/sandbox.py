"""Code that a model wrote, run in a process that can reach neither network nor files nor other processes.

Where the system allows it the process has namespaces of its own (no network interface, no other process in sight, and
all that it starts dies with it). Everywhere its time, memory and written bytes are limited by the kernel, and Python's
audit events refuse sockets, processes, files to write and files outside the installation. That keeps out honest
mistakes and plain misuse; it is no jail for an attacker, so run it on a machine that holds nothing precious.
"""

import secrets
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from evals.generation.sandbox_child import OUT_OF_TIME

NAMESPACES = ("unshare", "--user", "--map-root-user", "--net", "--ipc", "--pid", "--fork", "--kill-child")
PATIENCE = 6  # times its limit by the clock: how busy the machine is must not decide whether a program passes
GRACE = 2.0  # seconds beyond that for Python to start
STOPPED = (OUT_OF_TIME, -signal.SIGKILL, 128 + signal.SIGKILL)  # how its limit ends it

CHILD = Path(__file__).with_name("sandbox_child.py")


@cache
def namespaces() -> bool:
    """Whether this system lets a process have namespaces of its own."""
    try:
        return subprocess.run([*NAMESPACES, "true"], capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def described() -> str:
    """What keeps the code apart on this machine."""
    return "own namespaces, limits and refusals" if namespaces() else "limits and refusals, no namespaces"


def failure(program: str, *, seconds: float, memory: float, apart: bool | None = None) -> str:
    """Why the program failed, or "" where it ran to its end without an error.

    `seconds` of processor time and `memory` in GiB are its limits. `apart`: whether it has namespaces of its own; None
    where the system allows it.
    """
    apart = namespaces() if apart is None else apart
    token = secrets.token_hex(16)
    command = [*(NAMESPACES if apart else ()), sys.executable, "-I", str(CHILD)]
    variables = {"PATH": "/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=variables,
            start_new_session=True,
        ) as process,
    ):
        given = f"{token} {seconds} {memory}\n{program}".encode("utf-8", "replace")
        try:
            said = process.communicate(given, timeout=PATIENCE * seconds + GRACE)[0].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return f"no end within {seconds:g} s"
    if said == token:
        return ""
    if process.returncode in STOPPED:
        return f"no end within {seconds:g} s"
    return said or f"ended by signal or exit {process.returncode} before its end"
