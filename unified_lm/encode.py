"""Texts to vectors: the one engine behind encoding, retrieval, mteb and reports.

A background thread tokenizes, looks texts up in the store and lays out packs while the packs before are computed
(tokenizers leave Python's lock while they work); each device takes the next pack when it is free.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from unified_lm.flops import forward_flops, mfu
from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch, Sequence, collate
from unified_lm.prompts import Format
from unified_lm.readout import Readout, normalized
from unified_lm.store import Space, Store, Writer, key, weights_digest

log = logging.getLogger(__name__)

SIDES = ("query", "document")
WINDOW = 2048  # texts that are tokenized at a time
AHEAD = 4  # packs that wait for a device at most


@dataclass(frozen=True, kw_only=True)
class Job:
    """A pack, the numbers of its texts, and their keys in the store (none without one)."""

    batch: PackedBatch
    numbers: list[int]
    keys: list[bytes]


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """A model, the format of its texts and the read-out of its vectors.

    `weights`: what identifies the parameters (a checkpoint's digest and step, or a backbone's fingerprint).
    `similarity`: "cosine" gives unit vectors. The rest changes speed and memory, not a vector: `budget` in tokens a
    pack; `store`, where vectors are kept and looked up; `replicas`, the same model on further devices; `on_log`, called
    once an encoding with its counters.
    """

    model: UnifiedLM
    form: Format
    readout: str
    weights: dict[str, Any] = field(default_factory=dict)
    similarity: str = "cosine"
    budget: int = 2048
    store: Store | None = None
    replicas: tuple[UnifiedLM, ...] = ()
    on_log: Callable[[dict[str, int | float]], None] = lambda counters: None

    @property
    def attention(self) -> str:
        return self.form.plan.embed

    @property
    def dtype(self) -> str:
        compute = self.model.autocast or next(self.model.parameters()).dtype
        return str(compute).removeprefix("torch.")

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides a vector, for keys of scores and stores."""
        return {
            "weights": self.weights,
            "dtype": self.dtype,
            "attention": self.attention,
            "template": asdict(self.form.template),
            "readout": self.readout,
            "slots": [self.form.slots, self.form.document_slots],
            "lengths": [self.form.query_length, self.form.document_length],
            "similarity": self.similarity,
        }

    @property
    def space(self) -> dict[str, Any]:
        """What decides a vector beside its sequence, by content: two runs with the same weights share their vectors."""
        config = self.model.backbone.config.to_dict()
        adapters = getattr(self.model.backbone, "peft_config", {})
        return {
            "weights": weights_digest(self.model),
            "config": {name: config[name] for name in sorted(config) if not name.startswith("_")},
            "adapters": {name: adapter.to_dict() for name, adapter in adapters.items()},
            "heads": str(self.model.heads),
            "dtype": self.dtype,
            "readout": self.readout,
            "similarity": self.similarity,
        }

    def sequences(self, texts: list[str], side: str, instruction: str = "") -> list[Sequence]:
        """The sequences that are encoded for these texts."""
        if side not in SIDES:
            raise ValueError(f"side={side!r} is unknown; use query or document")
        template = self.form.template
        if instruction and "{instruction}" not in (template.query if side == "query" else template.document):
            raise ValueError(
                f"template {template.name} has no {{instruction}} for the {side}'s {instruction!r}; use a "
                "template that has, or instructions that give none"
            )
        return (self.form.queries if side == "query" else self.form.documents)(texts, instruction)

    def encode(self, texts: list[str], *, side: str, instruction: str = "") -> np.ndarray:
        """Vectors [n, d] float32 of n texts, in their order; equal texts are computed once.

        Raises `ValueError` for an empty text, with its number.
        """
        for number, text in enumerate(texts):
            if not text.strip():
                raise ValueError(f"text {number} is empty; drop it or give it a placeholder")
        unique = list(dict.fromkeys(texts))
        out = np.zeros((len(unique), self.model.width), dtype=np.float32)
        if unique:
            self.fill(out, unique, side, instruction)
        place = {text: i for i, text in enumerate(unique)}
        return out[[place[text] for text in texts]]

    def fill(self, out: np.ndarray, texts: list[str], side: str, instruction: str) -> None:
        """Write the vectors of distinct texts into `out`, from the store or computed on all devices."""
        began = time.perf_counter()
        counters: dict[str, int | float] = {"tokens": 0, "flops": 0, "packs": 0, "waited": 0.0}
        models = (self.model, *self.replicas)
        with ExitStack() as stack:
            space = None if self.store is None else self.store.space(self.space)
            writer = None if space is None else stack.enter_context(space.writer())
            for model in models:
                stack.enter_context(evaluating(model))
            jobs = stack.enter_context(prefetched(self.jobs(texts, side, instruction, space, out)))
            lock = threading.Lock()
            with ThreadPoolExecutor(max_workers=len(models), thread_name_prefix="device") as pool:
                work = [pool.submit(self.run, model, jobs, out, writer, lock, counters) for model in models]
                for done in work:
                    done.result()
        seconds = time.perf_counter() - began
        told = {
            "texts": len(texts),
            "tokens": counters["tokens"],
            "packs": counters["packs"],
            "seconds": seconds,
            "tokens_per_s": counters["tokens"] / seconds,
            "padding_factor": 1.0,
            "data_wait_s": counters["waited"],
            **mfu(lambda: counters["flops"] / len(models), seconds, self.model.device),
        }
        log.info("encoded %s", told)
        self.on_log(told)

    def jobs(
        self, texts: list[str], side: str, instruction: str, space: Space | None, out: np.ndarray
    ) -> Iterator[Job]:
        """Packs of the texts that the store has not, the longest first; those that it has go to `out`."""
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        for start in range(0, len(order), WINDOW):
            numbers = order[start : start + WINDOW]
            sequences = self.sequences([texts[i] for i in numbers], side, instruction)
            keys = [] if space is None else [key(sequence) for sequence in sequences]
            missing = list(range(len(numbers)))
            if space is not None:
                found, vectors = space.get(keys)
                if len(found):
                    out[[numbers[i] for i in found]] = vectors
                    missing = sorted(set(missing) - set(found.tolist()))
            for part in self.packs([sequences[i] for i in missing]):
                chosen = [missing[i] for i in part]
                batch = collate(sequences[i] for i in chosen)
                yield Job(
                    batch=pinned(batch) if self.model.device.type == "cuda" else batch,
                    numbers=[numbers[i] for i in chosen],
                    keys=[keys[i] for i in chosen] if keys else [],
                )

    @torch.inference_mode()
    def run(
        self,
        model: UnifiedLM,
        jobs: Iterator[Job],
        out: np.ndarray,
        writer: Writer | None,
        lock: AbstractContextManager[Any],
        counters: dict[str, int | float],
    ) -> None:
        """Compute packs on one device until there are none. A pack's vectors are fetched while the next one runs."""
        readout = Readout.named(self.readout)
        flying: tuple[Job, torch.Tensor, Callable[[], None]] | None = None
        while True:
            start = time.perf_counter()
            with lock:
                job = next(jobs, None)
                counters["waited"] += time.perf_counter() - start
            landed, flying = flying, None
            if job is not None:
                batch = job.batch.to(model.device)
                vectors = readout.vectors(model.states(batch), batch, list(range(len(job.numbers))), model.heads)
                vectors = (normalized(vectors) if self.similarity == "cosine" else vectors).float()
                flying = (job, *fetched(vectors))
            if landed is not None:
                done, host, ready = landed
                ready()
                with lock:
                    out[done.numbers] = host.numpy()
                    counters["tokens"] += len(done.batch)
                    counters["flops"] += forward_flops(model, done.batch) if model.device.type == "cuda" else 0
                    counters["packs"] += 1
                    if writer is not None:
                        writer.put(done.keys, out[done.numbers])
            if job is None:
                return

    def packs(self, sequences: list[Sequence]) -> Iterator[list[int]]:
        """Indices of sequences, longest first, in packs of at most `budget` tokens."""
        part: list[int] = []
        room = self.budget
        for i in sorted(range(len(sequences)), key=lambda i: -len(sequences[i])):
            if part and len(sequences[i]) > room:
                yield part
                part, room = [], self.budget
            part.append(i)
            room -= len(sequences[i])
        if part:
            yield part


@contextmanager
def evaluating(model: UnifiedLM) -> Iterator[None]:
    """Without dropout, and afterwards in the mode it was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def pinned(batch: PackedBatch) -> PackedBatch:
    """A batch in page-locked memory, which copies to a GPU while the GPU computes."""
    layout = replace(batch.layout, cu_seqlens=batch.layout.cu_seqlens.pin_memory())
    moved = {name: getattr(batch, name).pin_memory() for name in ("tokens", "positions", "labels")}
    return replace(batch, layout=layout, **moved)


def fetched(vectors: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
    """The vectors on the host, whole once the second value was called."""
    if not vectors.is_cuda:
        return vectors, lambda: None
    host = torch.empty(vectors.shape, dtype=vectors.dtype, pin_memory=True)
    host.copy_(vectors, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return host, event.synchronize


END = object()


@contextmanager
def prefetched(jobs: Iterator[Job]) -> Iterator[Iterator[Job]]:
    """The same jobs, made in a background thread up to `AHEAD` early; its errors are raised where they are used."""
    ready: queue.Queue[Any] = queue.Queue(maxsize=AHEAD)
    stop = threading.Event()

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def make() -> None:
        try:
            for job in jobs:
                if not put(job):
                    return
            put(END)
        except Exception as error:  # raised again by the consumer
            put(error)

    def take() -> Iterator[Job]:
        while (item := ready.get()) is not END:
            if isinstance(item, Exception):
                put(END)
                raise item
            yield item
        put(END)  # for the other devices

    thread = threading.Thread(target=make, name="tokenize", daemon=True)
    thread.start()
    try:
        yield take()
    finally:
        stop.set()
        thread.join()
