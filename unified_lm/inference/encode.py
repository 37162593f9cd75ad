"""Encoder: texts to vectors, for encoding, retrieval, mteb and reports.

A background thread tokenizes, looks vectors up in the store and builds packs while earlier packs are computed
(tokenizers release Python's global lock). Each device takes the next pack when it is free. In causal mode, the prefix
that all texts of a window share, such as an instruction, is computed once per device where that saves enough.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from unified_lm.attention.layout import PrefixCache
from unified_lm.device import copy_to_host, use_device
from unified_lm.flops import forward_flops, model_flops_utilization
from unified_lm.inference.compiled_layers import CompiledLayers, build_filler, pack_sizes
from unified_lm.inference.embedding_store import EmbeddingStore, ShardWriter, VectorSpace, vector_key, weights_digest
from unified_lm.inference.prefetch import pin_batch, prefetch
from unified_lm.inference.shared_prefix import shared_prefix_length
from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch, Sequence, collate
from unified_lm.prompts.format import Format
from unified_lm.readout import Readout, normalize_vectors

log = logging.getLogger(__name__)

SIDES = ("query", "document")
TEXTS_PER_WINDOW = 2048  # texts tokenized at a time
PACKS_AHEAD = 4  # most packs that wait for a device


@dataclass(frozen=True, kw_only=True)
class PackJob:
    """A pack to compute: its number of filler tokens, and the indices of its texts and their keys in the store."""

    batch: PackedBatch
    filler: int
    numbers: list[int]
    keys: list[bytes]


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """A model, the format of its texts and the read-out of its vectors.

    `weights`: what identifies the parameters (a checkpoint's digest and step, or a backbone's fingerprint).
    `similarity`: "cosine" gives unit vectors. The rest changes speed and memory, not a vector: `budget` in tokens a
    pack; `sharing`, whether first tokens that texts have in common may be computed once; `compiled`, whether packs are
    filled up to a few sizes and the decoder's layers compiled for them; `store`, where vectors are kept and looked up;
    `replicas`, the same model on further devices; `on_log`, called once an encoding with its counters.
    """

    model: UnifiedLM
    format: Format
    readout: str
    weights: dict[str, Any] = field(default_factory=dict)
    similarity: str = "cosine"
    budget: int = 2048
    share_prefix: bool = True
    compiled: bool = False
    store: EmbeddingStore | None = None
    replicas: tuple[UnifiedLM, ...] = ()
    on_log: Callable[[dict[str, int | float]], None] = lambda counters: None

    @property
    def attention(self) -> str:
        return self.format.plan.embed

    def with_similarity(self, similarity: str) -> Encoder:
        """The same encoder; its vectors are normalized for "cosine" only."""
        return replace(self, similarity=similarity)

    @property
    def dtype(self) -> str:
        compute = self.model.autocast or next(self.model.parameters()).dtype
        return str(compute).removeprefix("torch.")

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides a vector; part of the keys of scores and stores."""
        return {
            "weights": self.weights,
            "dtype": self.dtype,
            "attention": self.attention,
            "template": asdict(self.format.template),
            "readout": self.readout,
            "slots": [self.format.slots, self.format.document_slots],
            "lengths": [self.format.query_length, self.format.document_length],
            "similarity": self.similarity,
        }

    @property
    def vector_identity(self) -> dict[str, Any]:
        """What decides a vector besides its sequence, by content: runs with equal weights share vectors."""
        named = self.weights if self.store is not None and self.store.trust_weights else {}
        config = self.model.backbone.config.to_dict()
        adapters = getattr(self.model.backbone, "peft_config", {})
        return {
            "weights": named or weights_digest(self.model),
            "config": {name: config[name] for name in sorted(config) if not name.startswith("_")},
            "adapters": {name: adapter.to_dict() for name, adapter in adapters.items()},
            "heads": str(self.model.heads),
            "dtype": self.dtype,
            "readout": self.readout,
            "similarity": self.similarity,
        }

    def build_sequences(self, texts: list[str], side: str, instruction: str = "") -> list[Sequence]:
        """Build the sequences of texts. Raises `ValueError` for an instruction that the template has no field for."""
        if side not in SIDES:
            raise ValueError(f"side={side!r} is unknown; use query or document")
        template = self.format.template
        if instruction and "{instruction}" not in (template.query if side == "query" else template.document):
            raise ValueError(
                f"template {template.name} has no {{instruction}} for the {side}'s {instruction!r}; use a "
                "template that has, or instructions that give none"
            )
        return (self.format.query_sequences if side == "query" else self.format.document_sequences)(texts, instruction)

    def encode(self, texts: list[str], *, side: str, instruction: str = "") -> np.ndarray:
        """Encode n texts to vectors [n, d] float32, in order; equal texts are computed once.

        Raises `ValueError` for an empty text, with its index.
        """
        for number, text in enumerate(texts):
            if not text.strip():
                raise ValueError(f"text {number} is empty; drop it or give it a placeholder")
        unique = list(dict.fromkeys(texts))
        out = np.zeros((len(unique), self.model.width), dtype=np.float32)
        if unique:
            self.encode_into(out, unique, side, instruction)
        place = {text: i for i, text in enumerate(unique)}
        return out[[place[text] for text in texts]]

    def encode_into(self, out: np.ndarray, texts: list[str], side: str, instruction: str) -> None:
        """Write the vectors of distinct texts into `out`, from the store or computed on all devices."""
        began = time.perf_counter()
        counters: dict[str, int | float] = dict.fromkeys(("tokens", "filler", "shared", "flops", "packs", "waited"), 0)
        models = (self.model, *self.replicas)
        with ExitStack() as stack:
            space = None if self.store is None else self.store.open_space(self.vector_identity)
            writer = None if space is None else stack.enter_context(space.open_writer())
            for model in models:
                stack.enter_context(evaluating(model))
            prepared = self.prepare_jobs(texts, side, instruction, space, out)
            jobs = stack.enter_context(prefetch(prepared, PACKS_AHEAD, self.model.device))
            lock = threading.Lock()
            with ThreadPoolExecutor(max_workers=len(models), thread_name_prefix="device") as pool:
                work = [pool.submit(self.compute_packs, model, jobs, out, writer, lock, counters) for model in models]
                for done in work:
                    done.result()
        if lost := [number for number, vector in enumerate(out) if not np.isfinite(vector).all()]:
            raise ValueError(
                f"{len(lost)} of {len(texts)} vectors hold NaN or infinity in {self.dtype}, the first that of "
                f"{texts[lost[0]][:40]!r}: damaged weights, or too large for the type: use backbone.dtype=bfloat16"
            )
        seconds = time.perf_counter() - began
        told = {
            "texts": len(texts),
            "tokens": counters["tokens"],
            "shared_tokens": counters["shared"],
            "packs": counters["packs"],
            "seconds": seconds,
            "tokens_per_s": counters["tokens"] / seconds,
            "padding_factor": 1 + counters["filler"] / max(1, counters["tokens"]),
            "data_wait_s": counters["waited"],
            **model_flops_utilization(lambda: counters["flops"] / len(models), seconds, self.model.device),
        }
        log.info("encoded %s", told)
        self.on_log(told)

    def prepare_jobs(
        self, texts: list[str], side: str, instruction: str, space: VectorSpace | None, out: np.ndarray
    ) -> Iterator[PackJob]:
        """Yield packs of the texts that are not in the store, longest first; write stored vectors to `out`."""
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        for start in range(0, len(order), TEXTS_PER_WINDOW):
            numbers = order[start : start + TEXTS_PER_WINDOW]
            sequences = self.build_sequences([texts[i] for i in numbers], side, instruction)
            keys = [] if space is None else [vector_key(sequence) for sequence in sequences]
            missing = list(range(len(numbers)))
            if space is not None:
                found, vectors = space.look_up(keys)
                if len(found):
                    out[[numbers[i] for i in found]] = vectors
                    missing = sorted(set(missing) - set(found.tolist()))
            new = [sequences[i] for i in missing]
            shared = shared_prefix_length(new, Readout.from_name(self.readout)) if self.share_prefix else 0
            for part in self.group_by_budget([len(sequence) - shared for sequence in new]):
                chosen = [missing[i] for i in part]
                packed = [sequences[i] for i in chosen]
                more = build_filler(packed, shared, self.budget) if self.compiled else []
                batch = collate([*packed, *more], prefix_length=shared)
                yield PackJob(
                    batch=pin_batch(batch) if self.model.device.type == "cuda" else batch,
                    filler=sum(len(sequence) - shared for sequence in more),
                    numbers=[numbers[i] for i in chosen],
                    keys=[keys[i] for i in chosen] if keys else [],
                )

    def compute_packs(
        self,
        model: UnifiedLM,
        jobs: Iterator[PackJob],
        out: np.ndarray,
        writer: ShardWriter | None,
        lock: AbstractContextManager[Any],
        counters: dict[str, int | float],
    ) -> None:
        """Compute packs on one device until none is left. A pack's vectors are copied while the next pack runs."""
        layers = CompiledLayers(model) if self.compiled else None
        first: tuple[int, ...] = ()
        held: PrefixCache = {}
        flying: tuple[PackJob, torch.Tensor, Callable[[], None]] | None = None
        with use_device(model.device), torch.inference_mode():
            while True:
                start = time.perf_counter()
                with lock:
                    job = next(jobs, None)
                    counters["waited"] += time.perf_counter() - start
                landed, flying = flying, None
                if job is not None:
                    batch = job.batch.to(model.device)
                    if batch.shared_prefix and batch.shared_prefix != first:
                        first, held = batch.shared_prefix, model.compute_prefix_cache(batch.shared_prefix)
                    with layers.enable(len(batch) in pack_sizes(self.budget)) if layers else nullcontext():
                        states = model.hidden_states(batch, held)
                    flying = (job, *copy_to_host(self.read_pack(model, states, batch, len(job.numbers))))
                if landed is not None:
                    done, host, wait = landed
                    wait()
                    with lock:
                        out[done.numbers] = host.numpy()
                        counters["tokens"] += len(done.batch) - done.filler
                        counters["filler"] += done.filler
                        counters["shared"] += len(done.batch.shared_prefix) * len(done.numbers)
                        counters["flops"] += forward_flops(model, done.batch) if model.device.type == "cuda" else 0
                        counters["packs"] += 1
                        if writer is not None:
                            writer.add(done.keys, out[done.numbers])
                if job is None:
                    return

    def read_pack(self, model: UnifiedLM, states: torch.Tensor, batch: PackedBatch, count: int) -> torch.Tensor:
        """Return the vectors [count, d] float32 of the first `count` sequences of a pack."""
        readout = Readout.from_name(self.readout)
        vectors = readout.read_vectors(states, batch, list(range(count)), model.heads)
        return (normalize_vectors(vectors) if self.similarity == "cosine" else vectors).float()

    def group_by_budget(self, lengths: list[int]) -> Iterator[list[int]]:
        """Group the indices of sequences, longest first, into packs of at most `budget` tokens."""
        part: list[int] = []
        room = self.budget
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            if part and lengths[i] > room:
                yield part
                part, room = [], self.budget
            part.append(i)
            room -= lengths[i]
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
