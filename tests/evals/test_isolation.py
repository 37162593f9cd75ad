"""Generated code is run where it can do no harm: with namespaces of its own and, where there are none, without."""

import subprocess

import pytest

from evals.generation.sandbox import NAMESPACES, described, failure, namespaces

APART = pytest.mark.parametrize(
    "apart",
    [
        pytest.param(True, marks=pytest.mark.skipif(not namespaces(), reason="the system allows no namespaces")),
        False,
    ],
    ids=["own namespaces", "refusals only"],
)


def fails(program: str, apart: bool, seconds: float = 20.0) -> str:
    return failure(program, seconds=seconds, memory=2.0, apart=apart)


@APART
@pytest.mark.parametrize(
    "program",
    [
        "assert 1 + 1 == 2",
        "import collections, dataclasses, datetime, enum, functools, heapq, itertools, math, random, re, typing",
        "import numpy as np\nassert np.allclose([1.0], [1.0 + 1e-9])",
        "print('x' * 10**6)\nimport sys\nsys.stderr.write('y')",
    ],
    ids=["arithmetic", "imports", "numpy", "output"],
)
def test_an_honest_program_runs_to_its_end(program: str, apart: bool) -> None:
    assert fails(program, apart) == ""


@APART
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("assert False, 'wrong'", "AssertionError: wrong"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; os._exit(0)", "before its end"),
        ("def broken(:", "SyntaxError"),
        ("x = bytearray(8 * 2**30)", "MemoryError"),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "refused: socket"),
        ("import urllib.request as u; u.urlopen('http://example.org')", "refused: socket"),
        ("open('written', 'w').write('x')", "out of reach"),
        ("import os; os.open('/tmp/written', os.O_CREAT | os.O_WRONLY)", "out of reach"),
        ("open('/etc/passwd').read()", "out of reach"),
        ("import os; os.listdir('/')", "out of reach"),
        ("import os; os.remove('/etc/hostname')", "refused: os.remove"),
        ("import os; os.fork()", "refused: os.fork"),
        ("import subprocess; subprocess.run(['true'])", "refused: subprocess"),
        ("import os; os.kill(1, 9)", "refused: os.kill"),
        ("import ctypes; ctypes.CDLL(None)", "refused: ctypes"),
    ],
)
def test_a_program_that_fails_or_reaches_out_says_why(program: str, reason: str, apart: bool) -> None:
    assert reason in fails(program, apart)


@APART
@pytest.mark.parametrize("program", ["while True: pass", "import time; time.sleep(60)"])
def test_a_program_without_an_end_is_stopped(program: str, apart: bool) -> None:
    assert fails(program, apart, seconds=0.5) == "no end within 0.5 s"


@pytest.mark.skipif(not namespaces(), reason="the system allows no namespaces")
def test_in_a_namespace_of_its_own_a_program_has_no_network_even_where_nothing_refuses_it() -> None:
    listed = [*NAMESPACES, "cat", "/proc/net/dev"]
    interfaces = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]


def test_what_keeps_the_code_apart_is_said() -> None:
    assert ("own namespaces" in described()) == namespaces()
