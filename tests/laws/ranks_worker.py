"""Run on every rank: gradients and trained weights of many cases on this many ranks, written to one file.

On one rank it is the reference; of several each computes its share.
"""

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tests.methods import METHODS
from tests.models import PLANS, fitting, form, mixed_rows, unified
from unified_lm.methods.generative import Generative
from unified_lm.packing import pack
from unified_lm.trainable import Lora, Trainable
from unified_lm.training.distributed import Ranks, process_group
from unified_lm.training.fsdp import Launch, set_gradient_sync, shard_module
from unified_lm.training.loop import Runtime, train
from unified_lm.training.objective import ChunkRandomness, TrainingModule, accumulate_gradients
from unified_lm.training.optimizer import Optim

OPTIM = Optim(
    learning_rate=1e-3,
    steps=20,
    schedule="linear",
    warmup=2,
    weight_decay=0.01,
    betas=(0.9, 0.999),
    eps=1e-6,
    clip=1.0,
    slots_ratio=20.0,
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One gradient: a method, what is trainable, and how it is computed."""

    method: str
    trainable: object = Trainable(parts=("all",))
    dropout: float = 0.0
    keep: int = 1
    tied: bool = True
    plan: str = "causal"
    answers: bool = True
    documents: bool = True
    scale: float = 1.0
    checkpointing: bool = False


CASES = {
    **{name: Case(method=name, dropout=0.2 if name in ("simcse", "gem") else 0.0) for name in METHODS},
    **{f"{name}, dropout": Case(method=name, dropout=0.2) for name in ("ulme", "contrastive")},
    "two passes": Case(method="ulme", keep=0, dropout=0.2),
    "kept graphs": Case(method="ulme", keep=99, dropout=0.2),
    "untied": Case(method="ulme", tied=False),
    "documents only": Case(method="ulme", answers=False, tied=False),
    "answers only": Case(method="ulme", documents=False),
    "lora": Case(method="ulme", trainable=Lora(r=4, alpha=8, dropout=0.0, targets=("ffn", "attention"))),
    "lora, checkpointing": Case(
        method="ulme", trainable=Lora(r=4, alpha=8, dropout=0.1, targets=("ffn",)), checkpointing=True
    ),
    "ffn": Case(method="ulme", trainable=Trainable(parts=("ffn",))),
    "slots": Case(method="ulme", trainable=Trainable(parts=("slots",))),
    "slots and two forwards": Case(method="llm2vec_gen", trainable=Trainable(parts=("slots",))),
    "lora and two forwards": Case(
        method="llm2vec_gen", trainable=Lora(r=4, alpha=8, dropout=0.1, targets=("ffn", "attention"))
    ),
    "bidirectional": Case(method="contrastive", plan="bidirectional"),
    "emulation of 4 GPUs": Case(method="ulme", scale=0.25),
}


class Rows:
    def batch(self, step: int) -> list:
        rows = mixed_rows(18)
        return [rows[(step * 5 + i) % 18] for i in range(12)]

    def row_ids(self, step: int) -> list[str]:
        return [f"rows[{(step * 5 + i) % 18}]" for i in range(12)]


def gradient_of(case: Case, ranks: Ranks) -> torch.Tensor:
    torch.manual_seed(0)
    method = METHODS[case.method]
    model = fitting(method, dropout=case.dropout, tied=case.tied)
    case.trainable.apply(model)
    model.train()
    if case.checkpointing:
        model.backbone.activation_checkpointing_enable({"use_reentrant": False})
    reader = TrainingModule(model, method, anchored=ranks.lockstep)
    if ranks.lockstep:
        shard_module(reader, Launch(processes=ranks.size, sharding="fsdp"))
    rows = mixed_rows(12, answers=case.answers, documents=case.documents)
    chunks = pack(method.sequences(rows, form(model, PLANS[case.plan])), 90)
    accumulate_gradients(
        reader,
        ranks.distribute_chunks(chunks),
        ranks=ranks,
        randomness=ChunkRandomness(seed=0, step=0),
        keep_chunks=case.keep,
        batch_scale=case.scale,
        on_backward=set_gradient_sync,
    )
    parameters = [p for p in model.parameters() if p.requires_grad]
    ranks.sum_gradients(parameters)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([(g.full_tensor() if isinstance(g, DTensor) else g).reshape(-1) for g in grads])


def trained_weights(folder: Path, launch: Launch, **changes) -> torch.Tensor:
    torch.manual_seed(0)
    method = METHODS["ulme"]
    model = unified(slots=4, dropout=0.1)
    train(
        model=model,
        method=method,
        form=form(model),
        batches=Rows(),
        optim=replace(OPTIM, **changes),
        seed=0,
        runtime=Runtime(chunk_tokens=90, save_every=7, keep_last=9),
        launch=launch,
        folder=folder,
        identity="ranks",
    )
    weights = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([weight.detach().reshape(-1) for weight in weights])


def main(out: Path) -> None:
    torch.set_num_threads(1)
    with process_group():
        found = {}
        for sharding in ("replicated", "fsdp") if dist.is_initialized() else ("replicated",):
            ranks = Ranks.current(lockstep=sharding == "fsdp")
            for name, case in CASES.items():
                found[f"{sharding}: {name}"] = gradient_of(case, ranks)
            if ranks.size > 2:
                continue
            launch = Launch(processes=ranks.size, sharding=sharding)
            folder = out.parent / f"{out.stem}-{sharding}"
            found[f"{sharding}: 20 steps"] = trained_weights(folder, launch)
            if dist.is_initialized() and sharding == "fsdp":
                again = out.parent / f"{out.stem}-resumed"
                if ranks.rank == 0:
                    again.mkdir()
                    (folder / "step-14").rename(again / "step-14")
                dist.barrier()
                found["fsdp: resumed at step 14"] = trained_weights(again, launch)
                half = Launch(processes=ranks.size, sharding="fsdp", reduce_dtype="bfloat16")
                found["fsdp: bf16 reduction"] = trained_weights(out.parent / f"{out.stem}-bf16", half)
        if not dist.is_initialized() or dist.get_rank() == 0:
            torch.save(found, out)


class ForwardTwice(Generative):
    """A method whose `read` runs the decoder again without a `second_forward`."""

    def read(self, states, batch, model, *, tokens):
        return super().read(states + model.hidden_states(batch), batch, model, tokens=tokens)


def undeclared_second_forward(out: Path) -> None:
    """Under FSDP rank 0 has a chunk with an objective, the others have fillers; SIGALRM ends a rank that hangs."""
    signal.alarm(300)
    torch.set_num_threads(1)
    with process_group():
        torch.manual_seed(0)
        method, ranks = ForwardTwice(readout="mean"), Ranks.current(lockstep=True)
        module = TrainingModule(unified(), method, anchored=True)
        shard_module(module, Launch(processes=ranks.size, sharding="fsdp"))
        chunks = pack(method.sequences(mixed_rows(3), form(module.model)), 10_000)
        randomness = ChunkRandomness(seed=0, step=0)
        try:
            mine = ranks.distribute_chunks(chunks, first=False)
            accumulate_gradients(module, mine, ranks=ranks, randomness=randomness, on_backward=set_gradient_sync)
        except RuntimeError as error:
            (out / f"{ranks.rank}.txt").write_text(str(error))
            os._exit(1)
