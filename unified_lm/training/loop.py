"""The training loop: one loop for every method, any number of chunks and ranks."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from unified_lm.data.rows import TrainingRow
from unified_lm.flops import model_flops_utilization, training_flops
from unified_lm.inference.prefetch import pin_batch, prefetch
from unified_lm.methods.base import Method
from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch, pack
from unified_lm.prompts.format import Format
from unified_lm.prompts.token_cache import TokenCache
from unified_lm.training import checkpoint
from unified_lm.training.distributed import Ranks
from unified_lm.training.fsdp import Launch, set_gradient_sync, shard_module
from unified_lm.training.objective import ChunkBudget, ChunkRandomness, RedoStep, TrainingModule, accumulate_gradients
from unified_lm.training.optimizer import Optim
from unified_lm.training.watchdog import Preempted, Watchdog, catch_stop_signals


@runtime_checkable
class BatchSource(Protocol):
    """Rows of each step and their ids ("stream/source[index]"), as pure functions of the step."""

    def batch(self, step: int) -> list[TrainingRow]: ...

    def row_ids(self, step: int) -> list[str]: ...


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How a run is computed, never what: nothing here is part of a run's identity.

    `chunk_tokens`: most tokens of a chunk. `keep_tokens`: most tokens whose graphs are kept from the first pass (None:
    one chunk's). `save_every`: steps between checkpoints, or minutes as in "10m" (None: only the last). `keep_last`:
    number of checkpoints that stay. `threads`: of torch (None: torch's default). `token_cache`: keep tokenized texts on
    disk. `compile`: compile the decoder's layers when texts are encoded for scoring.
    """

    chunk_tokens: int
    keep_tokens: int | None = None
    save_every: int | str | None = None
    keep_last: int = 1
    threads: int | None = None
    token_cache: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        every = self.save_every
        if isinstance(every, str) and not (every.endswith("m") and every[:-1].isdigit()):
            raise ValueError(f"runtime.save_every={every} is neither steps (500) nor minutes (10m)")

    @property
    def keep_chunks(self) -> int:
        return max(1, (self.keep_tokens or 0) // self.chunk_tokens)

    def is_save_due(self, step: int, minutes: float) -> bool:
        """Whether a checkpoint is due after `step` steps, `minutes` after the one before."""
        if isinstance(self.save_every, str):
            return minutes >= int(self.save_every[:-1])
        return bool(self.save_every) and step % self.save_every == 0


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Where training ended: the step, the digest of the trained weights, seconds, and real tokens seen."""

    step: int
    digest: str
    wall_s: float
    tokens: int


@dataclass(frozen=True, kw_only=True)
class PreparedStep:
    """This rank's chunks of a step, its rows' ids, the tokens of the global batch, and the seconds waited for it."""

    ids: list[str]
    chunks: list[PackedBatch]
    tokens: int
    waited: float


def train(
    *,
    model: UnifiedLM,
    method: Method,
    form: Format,
    batches: BatchSource,
    optim: Optim,
    seed: int,
    runtime: Runtime,
    folder: Path,
    identity: str,
    launch: Launch | None = None,
    on_log: Callable[[dict[str, Any]], None] = lambda entry: None,
    warn: Callable[[str], None] = lambda text: None,
) -> TrainResult:
    """Train to `optim.last_step`, continuing from the newest intact checkpoint under `folder`.

    Called on every rank with the same arguments. `on_log` receives one entry a step, `warn` one line a warning. Raises
    `Diverged` where a loss or gradient is not finite or stays exactly zero (the last checkpoint stays), and `Preempted`
    after SIGTERM or SIGUSR1, once a checkpoint is written.
    """
    launch = launch or Launch(processes=1)
    ranks = Ranks.current(lockstep=launch.sharded)
    saved = checkpoint.latest_checkpoint(folder, identity, warn)
    if saved is not None:
        checkpoint.load_weights(saved, model)
        if saved.finished:
            return TrainResult(step=saved.step, digest=saved.digest, wall_s=0.0, tokens=0)
    ranks.broadcast_module(model)
    if launch.checkpointing:
        model.backbone.activation_checkpointing_enable({"use_reentrant": False})
    if runtime.token_cache:
        form = replace(form, cache=TokenCache(form.tokenizer))
    reader = TrainingModule(model, method, anchored=ranks.lockstep)
    if launch.sharded:
        shard_module(reader, launch)
    optimizer = optim.build_optimizer(model)
    if saved is not None:
        checkpoint.load_optimizer(saved, model, optimizer)
    watchdog = Watchdog(folder=folder, vocabulary=model.vocabulary_size, warn=warn)
    model.train()
    done = 0 if saved is None else saved.step
    began = last_save = time.perf_counter()
    seen = 0
    budget = ChunkBudget(runtime.chunk_tokens)

    def keep(final: bool = False) -> checkpoint.Checkpoint:
        return checkpoint.save_checkpoint(
            folder, model, None if final else optimizer, step=done, identity=identity, keep=runtime.keep_last
        )

    steps = prefetch_steps(batches, method, form, ranks, budget, range(done, optim.last_step), model.device)
    with catch_stop_signals() as asked, closing(steps):
        for step in steps:
            start = time.perf_counter()
            rate = optim.set_learning_rates(optimizer, done)
            chunks = [chunk.to(model.device) for chunk in step.chunks]
            terms = compute_gradients(reader, optimizer, chunks, ranks, seed, done, runtime, budget, optim, warn)
            norms = optim.clip_gradients(optimizer)
            weights = method.weights_at(done)
            loss = sum(weights[name] * value for name, value in terms.items())
            next_token_loss = None if method.next_token_term is None else terms.get(method.next_token_term)
            watchdog.check_step(done, loss, terms, norms, step.ids, next_token_loss)
            optimizer.step()
            done += 1
            seen += step.tokens
            seconds = time.perf_counter() - start
            on_log(
                {
                    "step": done,
                    "loss": loss,
                    **terms,
                    "lr": rate,
                    "grad_norm": math.hypot(*norms.values()),
                    **{f"grad_norm_{name}": value for name, value in norms.items()},
                    "tokens": step.tokens,
                    "tokens_per_s": step.tokens / (seconds + step.waited),
                    "padding_factor": padding_factor(step.chunks, ranks, step.tokens),
                    "data_wait_s": step.waited,
                    **model_flops_utilization(
                        partial(training_flops, model, step.chunks), seconds + step.waited, model.device
                    ),
                    "peak_memory_gib": peak_memory(),
                }
            )
            minutes = (time.perf_counter() - last_save) / 60
            due, stopping = ranks.any_rank(runtime.is_save_due(done, minutes), asked())
            if done < optim.last_step and (due or stopping):
                keep()
                last_save = time.perf_counter()
                if stopping:
                    raise Preempted(f"stopped on request after step {done}; the same command continues")
        model.eval()
        final = keep(final=True)
        if ranks.any_rank(asked())[0]:
            raise Preempted(f"stopped on request after the last step, {done}; the same command continues with scoring")
    return TrainResult(step=done, digest=final.digest, wall_s=time.perf_counter() - began, tokens=seen)


def compute_gradients(
    reader: TrainingModule,
    optimizer: torch.optim.Optimizer,
    chunks: list[PackedBatch],
    ranks: Ranks,
    seed: int,
    step: int,
    runtime: Runtime,
    budget: ChunkBudget,
    optim: Optim,
    warn: Callable[[str], None],
) -> dict[str, float]:
    """Compute the gradient of one step, summed over ranks; redone with smaller chunks where memory ran out."""
    before = budget.tokens
    budget.cut(chunks)
    while True:
        optimizer.zero_grad(set_to_none=True)
        try:
            terms = accumulate_gradients(
                reader,
                chunks,
                ranks=ranks,
                randomness=ChunkRandomness(seed=seed, step=step),
                budget=budget,
                keep_chunks=runtime.keep_chunks,
                batch_scale=optim.batch_scale,
                on_backward=set_gradient_sync,
            )
            break
        except RedoStep:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    if budget.tokens < before:
        warn(
            f"step {step}: out of memory, so chunks hold {budget.tokens} instead of {before} tokens from here on; the "
            "objective is the same, dropout draws other masks; "
            f"runtime.chunk_tokens={budget.tokens} or launch.checkpointing=true avoids the lost time"
        )
    ranks.sum_gradients(p for group in optimizer.param_groups for p in group["params"])
    return terms


def prefetch_steps(
    batches: BatchSource,
    method: Method,
    form: Format,
    ranks: Ranks,
    budget: ChunkBudget,
    steps: range,
    device: torch.device,
) -> Iterator[PreparedStep]:
    """Yield the steps' chunks; each step is tokenized and packed in the background while the one before is computed."""

    def prepare(step: int) -> PreparedStep:
        rows = batches.batch(step)
        try:
            chunks = pack(method.sequences(rows, form), budget.tokens)
        except ValueError as error:
            raise ValueError(f"step {step}{find_bad_row(batches, step, rows, method, form)}: {error}") from error
        mine = ranks.distribute_chunks(chunks, first=step == 0)
        pinned = [pin_batch(chunk) if device.type == "cuda" else chunk for chunk in mine]
        return PreparedStep(ids=batches.row_ids(step), chunks=pinned, tokens=sum(map(len, chunks)), waited=0.0)

    with prefetch(map(prepare, steps), 1, device) as prepared:
        for _ in steps:
            start = time.perf_counter()
            step = next(prepared)
            yield replace(step, waited=time.perf_counter() - start)


def find_bad_row(batches: BatchSource, step: int, rows: list[TrainingRow], method: Method, form: Format) -> str:
    """Describe the first row of a step that the method cannot turn into sequences: its id and how it begins."""
    for row_id, row in zip(batches.row_ids(step), rows, strict=True):
        try:
            method.sequences([row], form)
        except ValueError:
            return f", {row_id} ({(row.query or row.text or '')[:40]!r})"
    return ""


def padding_factor(chunks: list[PackedBatch], ranks: Ranks, tokens: int) -> float:
    """Computed tokens over real tokens; above 1 only through filler chunks under FSDP."""
    return ranks.sum_counts({"computed": sum(map(len, chunks))})["computed"] / tokens if ranks.lockstep else 1.0


def peak_memory() -> float:
    """Peak memory so far in GiB: allocated on the GPU, or this process's resident set on a CPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
