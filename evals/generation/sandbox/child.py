"""Three processes that judge one program. Run by `evals.generation.sandbox.trial`, which reads the verdict.

- The supervisor gives the other two their place, waits for the verdict, and ends them.
- The program's process runs code that a model wrote, and answers calls of its function with plain values.
- The judge runs the tests; calls of the function go to the program's process.

The program never has the tests, the expected values, or a descriptor that leads to the verdict.
"""

import builtins
import contextlib
import os
import select
import signal
import sys

from .kernel import adopt, die_with_parent, drop_capabilities, hide, landlock, limit, namespaces, reap_descendants
from .seccomp import confine
from .values import Unreadable, receive, send

TYPING = False
if TYPING:  # as typing.TYPE_CHECKING, whose module takes longer to import than a program takes to run
    from collections.abc import Callable, Sequence
    from typing import Any

PASSED, FAILED, BROKEN = b"+", b"-", b"!"
"""How a verdict begins: the tests passed; they did not, and why; there is no verdict, and why."""

LONGEST = 4096
"""Most bytes of a verdict: as many as a pipe takes at once."""

OUT_OF_TIME = (signal.SIGXCPU, signal.SIGKILL)
KEPT_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
GONE = FAILED + b"gone"
"""The verdict on a program whose process has ended; the supervisor says how it ended."""

ENDS = (StopIteration, StopAsyncIteration)
"""Exceptions that end a loop of the tests instead of failing it."""


class Ended(BaseException):
    """The program's process ended, or does not keep to the protocol. No test can catch this as an Exception."""


def main() -> None:
    """Reads settings, a program and its tests from standard input; writes a verdict to standard output."""
    try:
        die_with_parent(os.getppid())
        settings: dict[str, Any] = receive(0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        if apart := "namespaces" in settings["layers"]:
            namespaces(settings["folder"], settings["readable"])
            inner = os.fork()  # the first process of a namespace: all others in it end with it
            if inner:
                os.close(1)
                os.waitpid(inner, 0)
                os._exit(0)
            die_with_parent(0)  # a parent outside of the namespace has no number in it
        else:
            adopt()
        hide()
        os.chdir(settings["folder"])
        verdict = supervise(settings, nowhere, apart)
    except OSError as error:
        verdict = BROKEN + said(error)
    os.write(1, verdict)
    os._exit(0)


def supervise(settings: "dict[str, Any]", nowhere: int, apart: bool) -> bytes:
    """The verdict on the program that comes next on standard input. Nothing that it started is left afterwards."""
    sys.path[:] = settings["libraries"]
    for name in set(os.environ) - set(KEPT_VARIABLES):
        del os.environ[name]
    calls, to_program = os.pipe()
    replies, to_judge = os.pipe()
    code = receive(0)
    program = start(lambda: run_program(settings, code, calls, to_judge), nowhere, calls, to_judge)
    verdicts, to_supervisor = os.pipe()
    tests = receive(0)  # read only now, so that the program's process never had them
    ends = (to_program, replies, to_supervisor)
    judge = start(lambda: run_tests(settings, tests, *ends), nowhere, *ends)
    for end in (calls, to_judge, *ends):
        os.close(end)
    ready, _, _ = select.select([verdicts], [], [], settings["patience"])
    verdict = os.read(verdicts, LONGEST) if ready else b""
    codes = reap_descendants(apart)
    late = not ready or (not verdict and -codes[judge] in OUT_OF_TIME)
    if verdict == GONE:
        verdict = FAILED + b"ended by signal or exit %d before its end" % codes[program]
        late = -codes[program] in OUT_OF_TIME
    if late:
        return FAILED + f"no end within {settings['seconds']:g} s".encode()
    return verdict or FAILED + b"its tests ended by signal or exit %d" % codes[judge]


def start(body: "Callable[[], None]", nowhere: int, *kept: int) -> int:
    """Starts a process that holds no descriptors but these, and no output that anybody reads."""
    parent = os.getpid()
    process = os.fork()
    if process:
        return process
    try:
        die_with_parent(parent)
        for standard in range(3):
            os.dup2(nowhere, standard)
        below = 3
        for descriptor in (*sorted(kept), os.sysconf("SC_OPEN_MAX")):
            os.closerange(below, descriptor)
            below = descriptor + 1
        body()
    finally:
        os._exit(1)


def confine_all(settings: "dict[str, Any]") -> None:
    """Gives up whatever running a program does not need. Raises OSError where the kernel does not do it."""
    hide()
    drop_capabilities()
    limit(settings["seconds"], settings["memory"])
    if "landlock" in settings["layers"]:
        landlock([*settings["readable"], settings["folder"]])
    if "seccomp" in settings["layers"]:
        confine()


def run_program(settings: "dict[str, Any]", code: str, calls: int, to_judge: int) -> None:
    """Runs a program, then calls its function as often as it is asked to."""
    try:
        confine_all(settings)
    except OSError as error:
        return send(to_judge, str(error))
    send(to_judge, "")
    space: dict[str, Any] = {"__name__": "__main__"}
    answer(to_judge, execute, code, space)
    while True:
        positional, named = receive(calls)
        answer(to_judge, call, space, settings["entry"], positional, named)


def execute(code: str, space: "dict[str, Any]") -> None:
    exec(compile(code, "<program>", "exec"), space)


def call(space: "dict[str, Any]", name: str, positional: "Sequence[Any]", named: "dict[str, Any]") -> "Any":
    if name not in space:
        raise NameError(f"the program defines no {name}")
    return space[name](*positional, **named)


def answer(to_judge: int, work: "Callable[..., Any]", *arguments: "Any") -> None:
    """Sends what the work gives, or what it raises."""
    try:
        send(to_judge, ["", work(*arguments)])
    except BaseException as error:  # whatever ends the program's work, the judge is told
        send(to_judge, [type(error).__name__, str(error)[:200]])


def run_tests(settings: "dict[str, Any]", tests: str, to_program: int, replies: int, to_supervisor: int) -> None:
    """Runs the tests and writes the verdict."""
    space: dict[str, Any] = {"__name__": "__main__"}
    try:
        confine_all(settings)
        if trouble := receive(replies):
            raise OSError(trouble)
        exec(beginning(settings["given"]), space)  # what the tests may use, which the program cannot replace
        compiled = compile(tests, "<tests>", "exec")
    except BaseException as error:  # not the program's fault: it has not begun, or had no part in this
        return write_verdict(to_supervisor, BROKEN + said(error))
    function = Function(to_program, replies)
    try:
        function.wait()
        space[settings["entry"]] = function
        exec(compiled, space)
        verdict = PASSED
    except BaseException as error:
        verdict = FAILED + said(error)
    return write_verdict(to_supervisor, function.ended or verdict)


def beginning(given: str) -> "Any":
    """What is given of a program, compiled: it ends where a body begins, or at the end of a statement."""
    try:
        return compile(given + "\n    pass\n", "<given>", "exec")
    except SyntaxError:
        return compile(given, "<given>", "exec")


class Function:
    """The program's function, as the tests see it. It raises what the program says it raised."""

    def __init__(self, to_program: int, replies: int) -> None:
        self.to_program, self.replies = to_program, replies
        self.ended = b""  # the verdict, once no more calls are answered: whatever the tests make of it

    def __call__(self, *positional: "Any", **named: "Any") -> "Any":
        with contextlib.suppress(BrokenPipeError):  # then no reply comes
            send(self.to_program, [positional, named])
        return self.wait()

    def wait(self) -> "Any":
        """The next reply of the program's process."""
        try:
            reply = receive(self.replies)
        except EOFError:
            return self.end(GONE)
        except Unreadable as error:
            return self.end(FAILED + said(error))
        match reply:
            case ["", value]:
                return value
            case [str(name), str(text)] if name not in ("SystemExit", "KeyboardInterrupt", "GeneratorExit"):
                raise raised(name, text)
            case [str(name), str(text)]:
                return self.end(FAILED + f"{name}: {text}".encode("utf-8", "replace"))
        return self.end(FAILED + b"no reply to a call")

    def end(self, verdict: bytes) -> None:
        self.ended = verdict
        raise Ended


def raised(name: str, text: str) -> Exception:
    """An exception that the program says it raised: one of Python's own, else a RuntimeError."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, ENDS):
        with contextlib.suppress(TypeError):  # some take more than a text
            return kind(text)
    return RuntimeError(f"{name}: {text}")


def said(error: BaseException) -> bytes:
    return f"{type(error).__name__}: {str(error)[:200]}".encode("utf-8", "replace")


def write_verdict(to_supervisor: int, verdict: bytes) -> None:
    os.write(to_supervisor, verdict[:LONGEST])


if __name__ == "__main__":
    main()
