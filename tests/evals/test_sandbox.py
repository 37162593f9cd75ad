"""Generated code is kept apart by the kernel, and cannot decide by itself that it passed.

Each escape is tried without any layer, where it must work, and against each layer alone that is said to stop it.
"""

import contextlib
import os
import re
import resource
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from evals.generation.generated_code import GeneratedCode, pass_at_1
from evals.generation.sandbox import seccomp, trial
from evals.generation.sandbox.trial import LAYERS, Program, Unjailed, described, failure, jail, offered
from evals.generation.tasks import RegisteredTask

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="generated code is run on Linux only")

JAILS = [("seccomp", "landlock"), ("seccomp", "namespaces"), LAYERS]
IS_ROOT = os.getuid() == 0


def needs(*layers: str) -> pytest.MarkDecorator:
    lacking = sorted(set(layers) - offered()) if sys.platform == "linux" else []
    return pytest.mark.skipif(bool(lacking), reason=f"the kernel offers no {', '.join(lacking)}")


def runs(
    body: str,
    tests: str = "assert f() == True",
    *,
    layers: tuple[str, ...] | None = None,
    seconds: float = 10.0,
    given: str = "",
) -> str:
    """Why a program with a function `f` fails, or ""."""
    program = Program(given=given, completion=textwrap.dedent(body), entry="f")
    return failure(program, tests, seconds=seconds, memory=1.0, layers=layers)


every_jail = pytest.mark.parametrize(
    "layers", [pytest.param(jail, marks=needs(*jail), id="+".join(jail)) for jail in JAILS]
)


# Honest programs


@every_jail
@pytest.mark.parametrize(
    "body",
    [
        "def f(): return 1 + 1 == 2",
        "import collections, dataclasses, datetime, decimal, enum, functools, heapq, itertools, random, re, typing\n"
        "def f(): return datetime.datetime.now().year > 2000 and random.random() < 1",
        "import numpy as np\ndef f(): return np.allclose([1.0], [1.0 + 1e-9])",
        "import sys\nprint('x' * 10**6)\ndef f(): return sys.stderr.write('y') == 1",
        "import sys\nsys.setrecursionlimit(5000)\ndef g(n): return n and g(n - 1)\ndef f(): return g(2000) == 0",
        "import hashlib, json, time\ndef f(): return time.sleep(0.01) is None and json.loads('[1]') == [1]",
    ],
    ids=["arithmetic", "imports", "numpy", "output", "recursion", "library"],
)
def test_an_honest_program_passes(body: str, layers: tuple[str, ...]) -> None:
    assert runs(body, layers=layers) == ""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("def f(): return False", "AssertionError"),
        ("def f(): assert False, 'wrong'", "AssertionError: wrong"),
        ("def f(): return [][0]", "IndexError: list index out of range"),
        ("def f(): raise UnicodeDecodeError('utf-8', b'', 0, 1, 'no')", "UnicodeDecodeError"),
        ("class Own(Exception): pass\ndef f(): raise Own('mine')", "Own: mine"),
        ("def f(: pass", "SyntaxError"),
        ("def g(): return True", "NameError: the program defines no f"),
        ("f = 1", "TypeError"),
        ("def f(): return bytearray(8 * 2**30)", "MemoryError"),
        ("def f(): return input()", "EOFError"),
        ("def f(): return object()", "a value of object is not plain"),
        ("a = []; a.append(a)\ndef f(): return a", "RecursionError"),
    ],
)
def test_a_program_that_fails_says_why(body: str, reason: str) -> None:
    assert reason in runs(body)


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import signal\nfor i in (signal.SIGXCPU, signal.SIGALRM): signal.signal(i, signal.SIG_IGN)\nwhile True: pass",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\nwhile True: pass",
        "def f():\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass",
    ],
)
@pytest.mark.parametrize("layers", [(), *JAILS[:1]])
def test_a_program_without_an_end_is_stopped(body: str, layers: tuple[str, ...]) -> None:
    assert runs(body, layers=layers, seconds=0.5) == "no end within 0.5 s"


# The verdict


FORGERIES = {
    "prints the success": "print('+', flush=True); import os\nos._exit(0)",
    "leaves with success": "import os; os._exit(0)",
    "exits when it is called": "import os\ndef f(): os._exit(0)",
    "raises SystemExit": "import sys; sys.exit(0)",
    "raises SystemExit when it is called": "import sys\ndef f(): sys.exit(0)",
    "raises KeyboardInterrupt when it is called": "def f(): raise KeyboardInterrupt",
    "ends a loop of the tests": "def f(): raise StopIteration",
    "writes it everywhere": """
        import os
        for i in range(64):
            try: os.write(i, b'+')
            except OSError: pass
        os._exit(0)
    """,
    "writes messages everywhere": """
        import os
        for i in range(64):
            try: os.write(i, b'\\x01\\0\\0\\0T' * 1000)
            except OSError: pass
        def f(): pass
    """,
    "floods the judge": """
        import os
        def f():
            for i in range(3, 64):
                try:
                    while True: os.write(i, b'\\xff' * 2**16)
                except OSError: pass
    """,
    "equals everything": "class A:\n    def __eq__(self, other): return True\ndef f(): return A()",
    "equals all numbers": "class A(int):\n    def __eq__(self, other): return True\ndef f(): return A()",
    "is a text that equals everything": """
        class A(str):
            def __eq__(self, other): return True
            __hash__ = str.__hash__
        def f(): return A('x')
    """,
    "replaces what asserts use": """
        import builtins, sys
        builtins.AssertionError = None
        builtins.__dict__['__build_class__'] = None
        sys.excepthook = lambda *_: None
        def f(): return False
    """,
    "replaces the channel": """
        import os, sys
        for module in list(sys.modules.values()):
            for name in ('send', 'receive', 'encode', 'message', 'run_tests', 'PASSED', 'FAILED'):
                if hasattr(module, name): setattr(module, name, lambda *_: b'+')
        def f(): return False
    """,
    "unwinds the process that runs it": """
        import sys
        frame = sys._getframe()
        while frame:
            for name in list(frame.f_locals): frame.f_globals[name] = True
            frame.f_globals['__name__'] = '__main__'
            frame = frame.f_back
        def f(): return False
    """,
    "kills what is above it": """
        import os, signal
        def f():
            for process in (os.getppid(), os.getppid() + 1, os.getpid() + 1, os.getpid() + 2):
                try: os.kill(process, signal.SIGTERM)
                except OSError: pass
            return False
    """,
    "an endless iterator": "import itertools\ndef f(): return itertools.count()",
    "a result that is too large": "def f(): return b'x' * (2**26 + 1)",
}


@every_jail
@pytest.mark.parametrize("body", FORGERIES.values(), ids=FORGERIES)
def test_a_program_cannot_say_that_it_passed(body: str, layers: tuple[str, ...]) -> None:
    tests = "assert all(map(lambda _: f() is True, range(3)))"
    assert runs(body, tests, layers=layers, seconds=2.0) != ""


@pytest.mark.parametrize("body", ["def f(): pass\nimport os; os._exit(0)", "import os\ndef f(): os._exit(0)"])
def test_tests_that_forgive_exceptions_do_not_forgive_an_end(body: str) -> None:
    forgiving = "try:\n    f()\nexcept Exception:\n    pass\n"
    assert "before its end" in runs(body, forgiving)
    assert runs("def f(): raise ValueError", forgiving) == ""
    forgiving_all = forgiving.replace("Exception", "BaseException")
    assert "before its end" in runs(body, forgiving_all)


def test_what_the_tests_take_from_the_beginning_is_not_the_programs_to_replace() -> None:
    given = "import math\n\ndef helper(x):\n    return math.fabs(x)\n\ndef f():\n"
    assert runs("    return -1\nhelper = lambda _: 0\n", "assert helper(f()) == 1", given=given) == ""
    assert "AssertionError" in runs("    return -2\nhelper = lambda _: 1\n", "assert helper(f()) == 1", given=given)


MARK = "the tests' own words " * 3
SEARCH = f"""
import re
def f():
    wanted = bytes(reversed({MARK.encode()[::-1]!r}))
    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
        for line in maps:
            start, end, rights = re.match('([0-9a-f]+)-([0-9a-f]+) (....)', line).groups()
            if rights.startswith('r') and '[v' not in line:
                memory.seek(int(start, 16))
                try:
                    found = memory.read(int(end, 16) - int(start, 16)).count(wanted)
                except OSError:
                    continue
                if found > FOUND:
                    return True
    return False
"""


def test_the_tests_are_nowhere_in_the_memory_of_the_program() -> None:
    """One copy is the search's own; that the search works is seen where the program itself holds more of them."""
    tests = f"words = {MARK!r}\nassert f() is False"
    assert runs(SEARCH.replace("FOUND", "0"), tests, layers=()) != ""
    assert runs(SEARCH.replace("FOUND", "1"), tests, layers=()) == ""


@pytest.mark.parametrize("tests", ["assert f(:", "assert f() =="])
def test_tests_that_cannot_be_run_are_no_failure_of_the_program(tests: str) -> None:
    with pytest.raises(RuntimeError, match=r"no verdict.*SyntaxError"):
        runs("def f(): return True", tests)
    with pytest.raises(RuntimeError, match=r"no verdict.*ZeroDivisionError"):
        runs("    return True", given="1 / 0\ndef f():\n")


# Escapes

ONLY_ROOT = {"forks", "starts a program", "starts a program behind Python's back", "starts a thread"}
"""Escapes that the limits alone stop, where it is not root that runs them."""

ESCAPES: dict[str, tuple[str, str]] = {
    # name: (what it does and how it sees that it worked, the layers of which each stops it alone)
    "reads a file": ("return open(SECRET).read() == 'secret'", "landlock namespaces"),
    "reads a file through ctypes": (
        "import ctypes; return ctypes.CDLL(None).open(SECRET.encode(), 0) > 0",
        "landlock namespaces",
    ),
    "lists a folder": ("import os; return os.listdir(OUTSIDE) != []", "landlock namespaces"),
    "sees that a file exists": ("import os; return os.path.exists(SECRET)", "namespaces"),
    "reads another process's command": ("return open(f'/proc/{VICTIM}/cmdline').read() != ''", "landlock namespaces"),
    "makes a file": ("open(NEW, 'w').close(); return True", "seccomp landlock namespaces"),
    "makes a file in its folder": ("open('new', 'w').close(); return True", "seccomp landlock namespaces"),
    "makes a file in memory": ("import os; return os.memfd_create('x') > 0", "seccomp"),
    "empties a file": ("open(SECRET, 'w').close(); return True", "seccomp landlock namespaces"),
    "cuts a file": ("import os; os.truncate(SECRET, 1); return True", "seccomp landlock namespaces"),
    "deletes a file": ("import os; os.remove(SECRET); return True", "seccomp landlock namespaces"),
    "renames a file": ("import os; os.rename(SECRET, NEW); return True", "seccomp landlock namespaces"),
    "makes a link": ("import os; os.link(SECRET, NEW); return True", "seccomp landlock namespaces"),
    "makes a symbolic link": ("import os; os.symlink(SECRET, NEW); return True", "seccomp landlock namespaces"),
    "makes a folder": ("import os; os.mkdir(NEW); return True", "seccomp landlock namespaces"),
    "deletes a folder": ("import os; os.rmdir(OUTSIDE + '/empty'); return True", "seccomp landlock namespaces"),
    "makes a pipe with a name": ("import os; os.mkfifo(NEW); return True", "seccomp landlock namespaces"),
    "makes a node": (
        "import os, stat; os.mknod(NEW, stat.S_IFREG | 0o600); return True",
        "seccomp landlock namespaces",
    ),
    "changes rights": ("import os; os.chmod(SECRET, 0o777); return True", "seccomp namespaces"),
    "changes times": ("import os; os.utime(SECRET, (0, 0)); return True", "seccomp namespaces"),
    "reaches a server": (
        "import socket; return socket.create_connection(('127.0.0.1', PORT), 2) is not None",
        "seccomp landlock namespaces",
    ),
    "sends a datagram": (
        "import socket; return socket.socket(2, 2).sendto(b'x', ('127.0.0.1', PORT)) == 1",
        "seccomp namespaces",
    ),
    "reaches a socket with a name": (
        "import socket; return socket.socket(1, 1).connect(NAMED) is None",
        "seccomp namespaces",
    ),
    "reaches a socket without a file": (
        "import socket; return socket.socket(1, 1).connect(ABSTRACT) is None",
        "seccomp landlock namespaces",
    ),
    "opens a socket": ("import socket; return socket.socketpair() is not None", "seccomp"),
    "forks": ("import os\nif (p := os.fork()) == 0: os._exit(0)\nreturn os.waitpid(p, 0)[1] == 0", "seccomp"),
    "starts a program": (
        "import subprocess; return subprocess.run(['/bin/true']).returncode == 0",
        "seccomp landlock namespaces",
    ),
    "starts a program behind Python's back": (
        "import ctypes; return ctypes.CDLL(None).system(b'/bin/true') == 0",
        "seccomp landlock namespaces",
    ),
    "starts a thread": (
        "import threading; t = threading.Thread(target=print); t.start(); t.join(); return True",
        "seccomp",
    ),
    "signals another process": ("import os; os.kill(VICTIM, 10); return True", "seccomp landlock namespaces"),
    "asks for signals to another process": (
        "import fcntl; return fcntl.fcntl(1, fcntl.F_SETOWN, VICTIM) == 0",
        "seccomp namespaces",
    ),
    "changes another process's limits": (
        "import resource; return resource.prlimit(VICTIM, resource.RLIMIT_CORE, (0, 0)) is not None",
        "seccomp namespaces",
    ),
    "leaves its process group": ("import os; os.setpgid(0, 0); return True", "seccomp"),
    "outlives its parent": ("import ctypes; return ctypes.CDLL(None).prctl(1, 0) == 0", "seccomp"),
    "takes namespaces of its own": ("import ctypes; return ctypes.CDLL(None).unshare(0x10000000) == 0", "seccomp"),
    "shares memory": ("import ctypes; return ctypes.CDLL(None).shmget(0, 4096, 0o1600) >= 0", "seccomp"),
    "watches a file": (
        "import ctypes; l = ctypes.CDLL(None); return l.inotify_add_watch(l.inotify_init(), SECRET.encode(), 1) > 0",
        "seccomp namespaces",
    ),
}


@dataclass(frozen=True)
class Outside:
    """What there is outside of a sandbox: a folder with files, sockets that listen, and a process."""

    folder: Path
    names: Mapping[str, Any]
    victim: subprocess.Popen

    def state(self) -> Any:
        """What an escape may change: rights, sizes, times of change, contents. Times of access change by looking."""
        files = [(path, path.lstat()[:1], path.lstat()[6:9:2], path.is_dir() or path.read_bytes())
                 for path in sorted(self.folder.rglob("*"))]  # fmt: skip
        return files, self.victim.poll(), resource.prlimit(self.victim.pid, resource.RLIMIT_CORE)

    def program(self, body: str) -> str:
        defined = "".join(f"{name} = {value!r}\n" for name, value in self.names.items())
        return f"{defined}def f():\n{textwrap.indent(body, '    ')}\n"


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    (tmp_path / "empty").mkdir()
    secret = tmp_path / "secret"
    secret.write_text("secret")
    names = {"NAMED": f"/tmp/{secrets.token_hex(8)}", "ABSTRACT": "\0" + secrets.token_hex(8)}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for name in names.values():
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(name)
            listening.listen()
        stack.callback(Path(names["NAMED"]).unlink)
        victim = stack.enter_context(subprocess.Popen(["sleep", "60"]))
        stack.callback(victim.kill)
        names |= {"OUTSIDE": str(tmp_path), "SECRET": str(secret), "NEW": str(tmp_path / "new"), "VICTIM": victim.pid,
                  "PORT": server.getsockname()[1]}  # fmt: skip
        yield Outside(tmp_path, names, victim)


@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_works_where_no_layer_stops_it(name: str, outside: Outside) -> None:
    if name in ONLY_ROOT and not IS_ROOT:
        pytest.skip("the limits stop it")
    assert runs(outside.program(ESCAPES[name][0]), layers=()) == ""


@pytest.mark.parametrize(
    ("name", "layer"),
    [pytest.param(name, layer, marks=needs(layer), id=f"{layer}: {name}") for name, (_, layers) in ESCAPES.items()
     for layer in layers.split()],
)  # fmt: skip
def test_each_layer_alone_stops_what_it_is_there_for(name: str, layer: str, outside: Outside) -> None:
    before = outside.state()
    assert runs(outside.program(ESCAPES[name][0]), layers=(layer,)) != ""
    assert outside.state() == before


def test_every_escape_but_a_look_at_names_is_stopped_in_every_jail() -> None:
    for jailed in JAILS:
        open_ = {name for name, (_, layers) in ESCAPES.items() if not set(layers.split()) & set(jailed)}
        assert open_ == (set() if "namespaces" in jailed else {"sees that a file exists"})


@needs("seccomp")
def test_no_system_call_is_made_that_is_not_on_the_list() -> None:
    """But 335 and 336: these are the kernel's own for probes, no filter sees them, and whoever makes them is ended."""
    column = seccomp.MACHINES[os.uname().machine][1]
    tables = (seccomp.ALLOWED, *({k: v[0] for k, v in table.items()} for table in (seccomp.CHOSEN, seccomp.OPENED)))
    allowed = {numbers[column] for table in tables for numbers in table.values()} - {None}
    body = f"""
        import ctypes
        def f():
            call = ctypes.CDLL(None, use_errno=True).syscall
            made = []
            for number in {{*range(1024), *range(1 << 30, (1 << 30) + 1024)}} - {{335, 336}}:
                if number not in {allowed} and (call(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 38):
                    made.append(number)
            return made
    """
    assert runs(body, "assert f() == [], f()", layers=("seccomp",)) == ""


@needs("seccomp")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="these are calls of x86")
def test_no_system_call_is_made_by_the_numbers_of_another_machine() -> None:
    """int 0x80 with the number of getpid, which is that of writev here: an allowed one."""
    body = """
        import ctypes, mmap
        code = mmap.mmap(-1, 4096, prot=7)
        code.write(bytes.fromhex('b814000000cd80c3'))
        def f():
            return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() != 0
    """
    assert f"signal or exit {-signal.SIGSYS}" in runs(body, layers=("seccomp",))


def test_the_numbers_of_system_calls_are_the_kernels() -> None:
    headers = {
        "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        "aarch64": Path("/usr/include/asm-generic/unistd.h"),
    }
    if not any(header.is_file() for header in headers.values()):
        pytest.skip("no headers of the kernel are installed")
    for machine, header in headers.items():
        if not header.is_file():
            continue
        text = header.read_text()
        aliases = {"newfstatat": "fstatat"} if machine == "aarch64" else {}
        pattern = r"#define __NR(?:3264)?_(\w+)\s+(\d+)"
        numbers = {name: int(number) for name, number in re.findall(pattern, text)}
        for table in (seccomp.ALLOWED, seccomp.CHOSEN, seccomp.OPENED):
            for name, entry in table.items():
                pair = entry if table is seccomp.ALLOWED else entry[0]
                assert numbers.get(aliases.get(name, name)) == pair[seccomp.MACHINES[machine][1]], (machine, name)


# What is left, and what it costs


@pytest.mark.parametrize("layers", [(), pytest.param(("namespaces",), marks=needs("namespaces"))])
@pytest.mark.skipif(not IS_ROOT, reason="the limits let nobody but root fork")
def test_nothing_that_a_program_started_is_left(layers: tuple[str, ...]) -> None:
    """A grandchild in a session of its own, with every descriptor open, whose parent has ended."""
    name = secrets.token_hex(6)
    body = f"""
        import ctypes, os, time
        def f():
            if (child := os.fork()) == 0:
                os.setsid()
                if os.fork() == 0:
                    ctypes.CDLL(None).prctl(15, b'{name}')
                    time.sleep(60)
                os._exit(0)
            return os.waitpid(child, 0)[1] == 0
    """
    begun = time.monotonic()
    assert runs(body, layers=layers) == ""
    assert time.monotonic() - begun < 20
    assert name not in {comm for comm in map(name_of, Path("/proc").glob("[0-9]*/comm"))}


def name_of(comm: Path) -> str:
    try:
        return comm.read_text().strip()
    except OSError:
        return ""


def test_a_program_ends_with_the_process_that_wanted_its_verdict() -> None:
    name = secrets.token_hex(6)
    wants = (
        "from evals.generation.sandbox.trial import Program, failure\n"
        "body = 'import ctypes, time; ctypes.CDLL(None).prctl(15, b\"%s\"); time.sleep(60)'\n"
        "failure(Program(given='', completion=body, entry='f'), '', seconds=60, memory=1, layers=())"
    )
    process = subprocess.Popen([sys.executable, "-c", wants % name], cwd=Path(__file__).parents[2])
    assert within(20, lambda: name in map(name_of, Path("/proc").glob("[0-9]*/comm")))
    process.kill()
    process.wait()
    assert within(20, lambda: name not in map(name_of, Path("/proc").glob("[0-9]*/comm")))


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("layers", [(), LAYERS])
def test_a_flood_of_output_costs_the_scoring_process_nothing(layers: tuple[str, ...]) -> None:
    body = """
        import os, sys
        while True:
            sys.stdout.write('x' * 2**20)
            os.write(1, b'x' * 2**20)
            os.write(2, b'x' * 2**20)
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert runs(body, layers=tuple(offered() & set(layers)), seconds=1.0) == "no end within 1 s"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**15  # KiB


@every_jail
def test_a_program_finds_an_empty_folder_an_empty_environment_and_no_open_file(layers: tuple[str, ...]) -> None:
    body = """
        import os
        def f():
            open_ = []
            for i in range(1024):
                try: open_.append(os.fstat(i) and i)
                except OSError: pass
            return os.listdir(), sorted(os.environ), len(open_), os.read(0, 1)
    """
    wanted = ([], ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"], 5, b"")
    assert runs(body, f"assert f() == {wanted}, f()", layers=layers) == ""


# Where the kernel offers less


@pytest.mark.parametrize("layers", [some for n in range(4) for some in combinations(LAYERS, n)], ids="+".join)
def test_what_cannot_be_kept_apart_is_run_only_by_name(
    layers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set(layers)
    monkeypatch.setattr(trial, "offered", lambda: frozenset(found))
    registered = RegisteredTask(file="humaneval/humaneval.yaml", commit="0" * 40)
    limits = {"seconds": 5.0, "memory": 1.0}
    enough = "seccomp" in found and len(found) > 1
    assert jail(unsafe=True) == found
    source = GeneratedCode(registered=registered, allowed=True, unsafe=True, **limits)
    assert source.config()["metric_list"][0]["unsafe"] is True
    assert all((layer in described()) == (layer in found) for layer in LAYERS)
    if enough:
        assert jail() == found
        return
    program = Program(given="", completion="def f(): pass", entry="f")
    for refused in (
        jail,
        GeneratedCode(registered=registered, allowed=True, unsafe=False, **limits).config,
        lambda: failure(program, "f()", **limits),
        lambda: pass_at_1(["f()"], [[program]], unsafe=False, **limits),
    ):
        with pytest.raises(Unjailed, match=r"unsafe=true"):
            refused()


def test_a_layer_that_fails_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is never run with less than what was wanted."""
    monkeypatch.setattr(trial, "readable", lambda: ["/does/not/exist"])
    for layer in offered() - {"seccomp"}:
        with pytest.raises(RuntimeError, match="no verdict"):
            runs("def f(): return True", layers=(layer,))
