"""Checkpoints: the trained parameters, the optimizer state and the step, written whole or not at all.

Only trained parameters are saved; the others are the backbone's, which its fingerprint identifies. Weights are
safetensors. The optimizer state is safetensors too, or torch's distributed checkpoint where it is sharded. The data
position and the schedule are functions of the step, and the model's randomness of (seed, step, chunk), so no generator
state is needed. Every save is read again and compared; a checkpoint that does not match its digests is never used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from unified_lm.model import UnifiedLM
from unified_lm.packing import Sequence, collate

WEIGHTS, OPTIMIZER, SHARDED = "model.safetensors", "optimizer.safetensors", "optimizer"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint on disk: its folder and step, the digest of its weights, and whether training ended there."""

    folder: Path
    step: int
    digest: str
    finished: bool


def trained_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Trainable parameters by name; tied parameters appear once."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def gather_to_cpu(tensor: Tensor) -> Tensor:
    """The whole tensor on the CPU; a sharded one is gathered, which all ranks must do together."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).contiguous().cpu()


def checkpoint_file_digest(path: Path) -> str:
    """SHA-256 of a file, always read: a remembered digest would hide damage."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_checkpoint(
    root: Path,
    model: UnifiedLM,
    optimizer: torch.optim.Optimizer | None,
    *,
    step: int,
    identity: str,
    keep: int = 1,
) -> Checkpoint:
    """Write `root/step-N` atomically and delete all but the last `keep` checkpoints.

    `optimizer`: None for the checkpoint of a finished run. Called by every rank; rank 0 writes. Raises `OSError` where
    the disk is full (the checkpoint before stays), and `RuntimeError` where the file does not read back as saved.
    """
    first = not dist.is_initialized() or dist.get_rank() == 0
    final, partial = root / f"step-{step}", root / f".partial-{step}"
    weights = {name: gather_to_cpu(value) for name, value in trained_parameters(model).items()}
    sharded = any(isinstance(p, DTensor) for p in model.parameters())
    if first:
        root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
    wait_for_ranks()
    try:
        if sharded and optimizer is not None:
            dcp.save(optimizer_tensors(model, optimizer), checkpoint_id=partial / SHARDED)
        if first:
            write_weights(partial, weights)
            if optimizer is not None and not sharded:
                tensors = optimizer_tensors(model, optimizer)
                save_file({name: gather_to_cpu(value) for name, value in tensors.items()}, partial / OPTIMIZER)
            state = {
                "step": step,
                "identity": identity,
                "finished": optimizer is None,
                "digests": {
                    str(path.relative_to(partial)): checkpoint_file_digest(path)
                    for path in list_checkpoint_files(partial)
                },
                "probe": None if sharded else compute_probe(model),
            }
            (partial / "state.json").write_text(json.dumps(state, indent=1))
            for path in list_checkpoint_files(partial):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
            for old in checkpoint_folders(root)[:-keep]:
                shutil.rmtree(old)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    wait_for_ranks()
    return read_checkpoint(final)


def write_weights(folder: Path, weights: dict[str, Tensor]) -> None:
    """Save the weights, read them again and compare every tensor. Raises `RuntimeError` where one differs."""
    empty = [name for name, value in weights.items() if not value.numel()]
    if empty:
        raise RuntimeError(f"nothing to save for {empty[0]}: its shard was not gathered")
    save_file(weights, folder / WEIGHTS)
    again = load_file(folder / WEIGHTS)
    wrong = [name for name in weights if name not in again or not torch.equal(again[name], weights[name])]
    if wrong or len(again) != len(weights):
        raise RuntimeError(f"{folder / WEIGHTS} does not hold what was saved: {wrong[:1] or 'extra tensors'}")


def list_checkpoint_files(folder: Path) -> Iterator[Path]:
    """All files below a folder, in order of name."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def wait_for_ranks() -> None:
    """A barrier over all ranks; nothing in a lone process."""
    if dist.is_initialized():
        dist.barrier()


def checkpoint_folders(root: Path) -> list[Path]:
    """Checkpoint folders, oldest first; folders of other names are left out."""
    found = {path: path.name.removeprefix("step-") for path in root.glob("step-*")}
    return sorted((path for path, step in found.items() if step.isdecimal()), key=lambda path: int(found[path]))


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint that the `state.json` of a folder describes."""
    state = json.loads((folder / "state.json").read_text())
    return Checkpoint(
        folder=folder, step=state["step"], digest=state["digests"][WEIGHTS][:16], finished=state["finished"]
    )


def checkpoint_at_step(root: Path, step: int, identity: str) -> Checkpoint:
    """The checkpoint of one step.

    Raises `ValueError` where it was not kept or is damaged, naming the steps that are there.
    """
    warnings: list[str] = []
    saved = latest_checkpoint(root, identity, warnings.append, only=step)
    if saved is None:
        there = ", ".join(path.name.removeprefix("step-") for path in checkpoint_folders(root)) or "none"
        why = f" ({warnings[0]})" if warnings else ""
        raise ValueError(
            f"{root} has no whole checkpoint of step {step}{why}; steps that are there: {there}. Train with "
            "runtime.save_every and runtime.keep_last so that it stays"
        )
    return saved


def latest_checkpoint(
    root: Path, identity: str, warn: Callable[[str], None] = lambda text: None, *, only: int | None = None
) -> Checkpoint | None:
    """The newest intact checkpoint; `warn` is told of a damaged one, and the one before it is used.

    `only`: look at the checkpoint of this step alone. Raises `ValueError` for a checkpoint of another identity.
    """
    for folder in reversed(checkpoint_folders(root)):
        if only is not None and folder.name != f"step-{only}":
            continue
        try:
            state = json.loads((folder / "state.json").read_text())
        except (OSError, ValueError) as error:
            warn(f"{folder} is damaged ({error}); using the checkpoint before it")
            continue
        if state["identity"] != identity:
            raise ValueError(f"{folder} belongs to {state['identity']}, not to {identity}; it is not continued")
        damaged = [
            n
            for n, d in state["digests"].items()
            if not (folder / n).exists() or checkpoint_file_digest(folder / n) != d
        ]
        if damaged:
            warn(f"{folder}/{damaged[0]} does not match its digest; using the checkpoint before it")
            continue
        return read_checkpoint(folder)
    return None


def load_weights(saved: Checkpoint, model: UnifiedLM) -> None:
    """Copy a checkpoint's weights into a model of the same build, before the model is sharded.

    Raises `ValueError` where names or shapes differ, or where the model's outputs differ from those at the save: it has
    another backbone or other adapters.
    """
    tensors, wanted = load_file(saved.folder / WEIGHTS), trained_parameters(model)
    wrong = sorted(set(tensors) ^ set(wanted)) or [n for n in tensors if tensors[n].shape != wanted[n].shape]
    if wrong:
        raise ValueError(f"{saved.folder} does not fit this model: {wrong[0]} and {len(wrong) - 1} others differ")
    with torch.no_grad():
        for name, value in tensors.items():
            wanted[name].copy_(value)
    before = json.loads((saved.folder / "state.json").read_text())["probe"]
    if before is not None:
        then, now = torch.tensor(before), torch.tensor(compute_probe(model))
        if torch.cosine_similarity(then, now, dim=0) < 0.999:
            raise ValueError(f"{saved.folder} was trained on another backbone: its weights load, but compute otherwise")


@torch.no_grad()
def compute_probe(model: UnifiedLM) -> list[float]:
    """What the model computes, in 64 numbers: parts of a state and of its logits, for fixed tokens and all slots."""
    slots = 0 if model.slots is None else len(model.slots)
    tokens = tuple(range(3, min(40, model.vocabulary_size))) + tuple(-(k + 1) for k in range(slots))
    training = model.training
    model.eval()
    states = model.hidden_states(collate([Sequence(tokens=tokens)]).to(model.device))
    logits = model.logits(states[-1:])
    model.train(training)
    parts = [part.float() / part.float().abs().max() for part in (states[-1, :32], logits[0, :32])]
    return torch.cat(parts).cpu().tolist()


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as one flat dictionary of tensors, named by parameter."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        f"{names[id(parameter)]}//{key}": torch.as_tensor(value)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def load_optimizer(saved: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore the optimizer's state, tensor for tensor."""
    parameters = dict(model.named_parameters())
    if (saved.folder / SHARDED).exists():
        for group in optimizer.param_groups:
            for p in group["params"]:
                zeros = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                optimizer.state[p] = {"step": torch.zeros(()), **zeros}
        dcp.load(optimizer_tensors(model, optimizer), checkpoint_id=saved.folder / SHARDED)
        return
    for name, value in load_file(saved.folder / OPTIMIZER).items():
        parameter, _, key = name.rpartition("//")
        target = parameters[parameter]
        optimizer.state[target][key] = value.to(target.device) if value.shape else value
