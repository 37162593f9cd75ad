"""Checkpoints: the trained parameters, the optimizer and the step, as safetensors, written at once or not at all.

Only what was trained is kept (everything else is the backbone's own, known by its fingerprint). The data position and
the schedule are functions of the step, and the model's randomness of (seed, step, chunk), so no generator state is
needed. A checkpoint that does not match its digests is never used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint on disk: its folder, step, the digest of its weights, and whether training ended there."""

    folder: Path
    step: int
    digest: str
    finished: bool


def trained(model: nn.Module) -> dict[str, Tensor]:
    """Trainable parameters by name; tied parameters appear once."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save(
    root: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    *,
    step: int,
    identity: str,
    keep: int = 1,
) -> Saved:
    """Write `root/step-N` atomically and drop all but the last `keep`; without an optimizer it is a finished run's."""
    root.mkdir(parents=True, exist_ok=True)
    final, partial = root / f"step-{step}", root / f".partial-{step}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    weights = trained(model)
    save_file({name: value.contiguous().cpu() for name, value in weights.items()}, partial / "model.safetensors")
    if optimizer is not None:
        save_file(optimizer_tensors(model, optimizer), partial / "optimizer.safetensors")
    digests = {path.name: file_digest(path) for path in sorted(partial.glob("*.safetensors"))}
    state = {"step": step, "identity": identity, "digests": digests, "finished": optimizer is None}
    (partial / "state.json").write_text(json.dumps(state, indent=1))
    for path in partial.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    for old in steps(root)[:-keep]:
        shutil.rmtree(old)
    return Saved(folder=final, step=step, digest=digests["model.safetensors"][:16], finished=optimizer is None)


def steps(root: Path) -> list[Path]:
    """Checkpoint folders, oldest first."""
    return sorted(root.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def latest(root: Path, identity: str, complain=lambda text: None) -> Saved | None:
    """The newest checkpoint that is whole; a damaged one is named through `complain` and the one before it is used.

    Raises `ValueError` for a checkpoint of another identity: it is never continued.
    """
    for folder in reversed(steps(root)):
        try:
            state = json.loads((folder / "state.json").read_text())
        except (OSError, ValueError) as error:
            complain(f"{folder} is damaged ({error}); using the checkpoint before it")
            continue
        if state["identity"] != identity:
            raise ValueError(f"{folder} belongs to {state['identity']}, not to {identity}; it is not continued")
        damaged = [n for n, d in state["digests"].items() if not (folder / n).exists() or file_digest(folder / n) != d]
        if damaged:
            complain(f"{folder}/{damaged[0]} does not match its digest; using the checkpoint before it")
            continue
        digest = state["digests"]["model.safetensors"][:16]
        return Saved(folder=folder, step=state["step"], digest=digest, finished=state["finished"])
    return None


def load_weights(saved: Saved, model: nn.Module) -> None:
    """Copy a checkpoint's weights into a model built alike.

    Raises `ValueError` where names or shapes differ: then it was built for something else.
    """
    found, wanted = load_file(saved.folder / "model.safetensors"), trained(model)
    wrong = sorted(set(found) ^ set(wanted)) or [n for n in found if found[n].shape != wanted[n].shape]
    if wrong:
        raise ValueError(f"{saved.folder} does not fit this model: {wrong[0]} and {len(wrong) - 1} other tensors differ")
    with torch.no_grad():
        for name, value in found.items():
            wanted[name].copy_(value)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names = {id(p): name for name, p in model.named_parameters()}
    out = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            out[f"{names[id(parameter)]}//{key}"] = torch.as_tensor(value).contiguous().cpu()
    return out


def load_optimizer(saved: Saved, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore the optimizer's state, tensor for tensor."""
    parameters = dict(model.named_parameters())
    for name, value in load_file(saved.folder / "optimizer.safetensors").items():
        parameter, _, key = name.rpartition("//")
        target = parameters[parameter]
        moved = value.to(target.device) if value.shape else value
        optimizer.state[target][key] = moved
