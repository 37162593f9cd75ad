"""The training loop: one loop for every method."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from unified_lm.data.rows import Row
from unified_lm.methods.base import Method
from unified_lm.model import UnifiedLM
from unified_lm.packing import pack
from unified_lm.prompts import Format
from unified_lm.training import checkpoint
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import Randomness, Reader, accumulate
from unified_lm.training.optimizer import Optim


@runtime_checkable
class Batches(Protocol):
    """Rows of each step, as a pure function of the step."""

    def batch(self, step: int) -> list[Row]: ...


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How a run is computed, never what: nothing here is part of a run's identity.

    `chunk_tokens` bounds a chunk; `keep_tokens` the tokens whose graphs are kept from the first pass (None: one
    chunk's); `save_every` steps between checkpoints (None: only the last); `keep_last` checkpoints stay; `threads` of
    torch (None: as it finds them).
    """

    chunk_tokens: int
    keep_tokens: int | None = None
    save_every: int | None = None
    keep_last: int = 1
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Where training ended: the step, the digest of the trained weights, seconds, and real tokens seen."""

    step: int
    digest: str
    wall_s: float
    tokens: int


class Diverged(RuntimeError):
    """The loss or a gradient is not a number any more."""


def train(
    *,
    model: UnifiedLM,
    method: Method,
    form: Format,
    batches: Batches,
    optim: Optim,
    seed: int,
    runtime: Runtime,
    folder: Path,
    identity: str,
    on_log: Callable[[dict[str, Any]], None] = lambda entry: None,
    complain: Callable[[str], None] = lambda text: None,
) -> TrainResult:
    """Train to `optim.last_step`, continuing from the newest whole checkpoint under `folder`.

    `on_log` receives one entry a step: step, loss, each term, lr, gradient norms, tokens_per_s, padding_factor.
    Raises `Diverged` with the step where the loss is not finite; the last checkpoint stands.
    """
    ranks = Ranks.current()
    reader = Reader(model, method)
    optimizer = optim.build(model)
    saved = checkpoint.latest(folder, identity, complain)
    step = 0
    if saved is not None:
        checkpoint.load_weights(saved, model)
        step = saved.step
        if saved.finished:
            return TrainResult(step=step, digest=saved.digest, wall_s=0.0, tokens=0)
        checkpoint.load_optimizer(saved, model, optimizer)
    model.train()
    began, seen = time.perf_counter(), 0
    keep_tokens = runtime.chunk_tokens if runtime.keep_tokens is None else runtime.keep_tokens
    while step < optim.last_step:
        start = time.perf_counter()
        rows = batches.batch(step)
        chunks = pack(method.sequences(rows, form), runtime.chunk_tokens)
        mine = [chunk.to(model.device) for chunk in ranks.deal(chunks)]
        optimizer.zero_grad(set_to_none=True)
        rate = optim.prepare(optimizer, step)
        terms = accumulate(
            reader, mine, ranks=ranks, randomness=Randomness(seed=seed, step=step), keep_tokens=keep_tokens
        )
        ranks.sum_gradients(p for group in optimizer.param_groups for p in group["params"])
        norms = optim.clip_gradients(optimizer)
        loss = sum(method.weights[name] * value for name, value in terms.items())
        if not math.isfinite(loss) or not all(map(math.isfinite, norms.values())):
            raise Diverged(f"step {step}: loss {loss}, gradient norms {norms}; rows {[row.query[:40] for row in rows]}")
        optimizer.step()
        step += 1
        tokens = sum(map(len, chunks))
        seen += tokens
        on_log(
            {
                "step": step,
                "loss": loss,
                **terms,
                "lr": rate,
                "grad_norm": math.hypot(*norms.values()),
                **{f"grad_norm_{name}": value for name, value in norms.items()},
                "tokens_per_s": tokens / (time.perf_counter() - start),
                "padding_factor": 1.0,
                "tokens": tokens,
            }
        )
        if runtime.save_every and step % runtime.save_every == 0 and step < optim.last_step:
            checkpoint.save(folder, model, optimizer, step=step, identity=identity, keep=runtime.keep_last)
    model.eval()
    final = checkpoint.save(folder, model, None, step=step, identity=identity, keep=runtime.keep_last)
    return TrainResult(step=step, digest=final.digest, wall_s=time.perf_counter() - began, tokens=seen)
