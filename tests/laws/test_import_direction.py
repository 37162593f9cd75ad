"""unified_lm <- evals <- experiments: one direction, and only experiments knows hydra and wandb."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = {
    "unified_lm": {"evals", "experiments", "hydra", "omegaconf", "wandb", "mteb", "lm_eval"},
    "evals": {"experiments", "hydra", "omegaconf", "wandb"},
}
FILES = [path for package in FORBIDDEN for path in sorted((ROOT / package).rglob("*.py"))]
HEAVY = ("torch", "transformers", "mteb", "lm_eval", "sentence_transformers", "datasets", "matplotlib", "wandb")
LIGHT = ("experiments.run", "experiments.table", "experiments.reproduce", "experiments.score", "experiments.encode")


def imported(path: Path) -> set[str]:
    """Top-level names of everything that a file imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_package_imports_nothing_from_above_it(path: Path) -> None:
    wrong = imported(path) & FORBIDDEN[path.relative_to(ROOT).parts[0]]
    assert not wrong, f"{path.relative_to(ROOT)} imports {', '.join(sorted(wrong))}"


def loaded(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(' '.join(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("module", LIGHT)
def test_a_command_starts_without_the_heavy_packages(module: str) -> None:
    heavy = loaded(f"import {module}") & set(HEAVY)
    assert not heavy, f"importing {module} imports {', '.join(sorted(heavy))}"


def test_composing_and_naming_a_run_needs_no_heavy_package() -> None:
    code = "from experiments.config.compose import compose; from experiments.config.identity import identify\n"
    heavy = loaded(code + "identify(compose(['experiment=t15_ulme', 'scale=mini'])).run_id") & set(HEAVY)
    assert not heavy, f"composing imports {', '.join(sorted(heavy))}"
