"""One program on trial: it runs in a jail that the kernel keeps, and its tests run where it cannot reach them.

Who does what is told in `evals.generation.sandbox.child`; what the kernel is asked for, in `kernel` and `seccomp`.
"""

import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from evals.generation.sandbox.values import message

LAYERS = ("seccomp", "landlock", "namespaces")
"""What a kernel may offer beyond limits; each works without the others."""

PATIENCE = 6  # times its limit by the clock: how busy the machine is must not decide whether a program passes
GRACE = 2.0  # seconds beyond that for Python to start

SHARED = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo")
"""What Python's libraries read outside of its own folders."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """Code that a model wrote: `given`, the beginning that it was shown, `completion`, and the name of its function."""

    given: str
    completion: str
    entry: str


class Unjailed(ValueError):
    """The kernel does not offer what keeps a program apart."""


def failure(
    program: Program, tests: str, *, seconds: float, memory: float, layers: Collection[str] | None = None
) -> str:
    """Why the program failed its tests, or "" where it passed them.

    `seconds` of processor time and `memory` in GiB are limits, of the program and of its tests each. `layers`: which of
    `LAYERS` keep it apart; None: all that the kernel offers, which must be enough. Raises `Unjailed` where it is not,
    and RuntimeError where there is no verdict, for a reason that is not the program's.
    """
    layers = jail() if layers is None else layers
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "seconds": seconds,
            "memory": memory,
            "patience": PATIENCE * seconds + GRACE,
            "layers": list(layers),
            "folder": os.path.realpath(folder),
            "readable": readable(),
            "libraries": libraries(),
            "given": program.given,
            "entry": program.entry,
        }
        order = b"".join(map(message, (settings, program.given + program.completion, tests)))
        verdict = answer_of_child(order, 2 * settings["patience"]).decode("utf-8", "replace")
    if verdict[:1] not in ("+", "-"):
        raise RuntimeError(f"there is no verdict on a program of {program.entry}: {verdict[1:] or 'the sandbox ended'}")
    return verdict[1:]


def answer_of_child(order: bytes, patience: float) -> bytes:
    """What the supervisor says; it and all in its process group are ended when this returns."""
    root = Path(__file__).parents[1]
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}  # Python itself may need it
    variables = {"PYTHONPATH": str(root), "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-s", "-S", "-P", "-B", "-c", "from sandbox.child import main; main()"]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=kept | variables, start_new_session=True, **streams) as process:
        try:
            return process.communicate(order, timeout=patience)[0]
        except subprocess.TimeoutExpired:
            return b""
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@cache
def libraries() -> list[str]:
    """Folders that a program imports from: those of Python and of what is installed, of this project none."""
    installed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    own = [sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED")]
    return [os.path.realpath(path) for path in (*own, *installed) if path and os.path.isdir(path)]


@cache
def readable() -> list[str]:
    """Files and folders that a program may read, none of them inside another."""
    places = [*libraries(), *SHARED, os.path.join(sys.base_prefix, "lib")]
    found = sorted({os.path.realpath(place) for place in places if os.path.exists(place)})
    return [place for place in found if not any(Path(place).is_relative_to(other) for other in found if other != place)]


@cache
def offered() -> frozenset[str]:
    """Which of `LAYERS` this system offers: each is tried."""
    return frozenset(layer for layer in LAYERS if works(layer))


def works(layer: str) -> bool:
    program = Program(given="", completion="def f():\n    return 1\n", entry="f")
    try:
        return not failure(program, "assert f() == 1", seconds=5.0, memory=1.0, layers=[layer])
    except RuntimeError:
        return False


def jail(*, unsafe: bool = False) -> frozenset[str]:
    """The layers that keep a program apart on this system.

    Raises `Unjailed` where they are not enough, unless that is what the user wants: seccomp closes network, processes
    and writing; Landlock, or a file system in a namespace, closes the user's files to reading.
    """
    layers = offered()
    if ("seccomp" in layers and len(layers) > 1) or unsafe:
        return layers
    lacking = "seccomp" if "seccomp" not in layers else "Landlock and user namespaces"
    raise Unjailed(
        f"code that a model wrote cannot be kept apart here: the system offers no {lacking}; run it on a Linux kernel "
        "of at least 5.13 (a container must allow these), or in spite of that with unsafe=true of its suite, such as "
        "evals.lm_humaneval.unsafe=true"
    )


def described() -> str:
    """What keeps the code apart on this machine."""
    layers = offered()
    return ", ".join(["limits", *(layer for layer in LAYERS if layer in layers)])
