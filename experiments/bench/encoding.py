"""Texts in, vectors out: against sentence-transformers' `encode`, against the bare products, and a second time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from experiments.bench.material import Material
from experiments.bench.measure import Comparison, compare_costs
from unified_lm.flops import linear_layers
from unified_lm.inference.embedding_store import EmbeddingStore
from unified_lm.inference.encode import Encoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

BUDGET = 1024  # tokens a pack: what fits a core's cache
GOALS = {"passages": 1.25, "long tail": 2.0, "queries": 1.0, "queries with an instruction": 1.0}
INSTRUCTION = "Instruct: Given a description of a function, retrieve the code that does it.\nQuery:\n"


def compare_encoding(material: Material, repeats: int) -> Iterator[Comparison]:
    encoder, peer = material.build_encoder(material.build_our_model(), BUDGET), material.build_peer()
    for name, texts in material.sets.items():
        yield compare_encoders(peer, encoder, name, texts, "", repeats)
    yield compare_encoders(peer, encoder, "queries with an instruction", material.sets["queries"], INSTRUCTION, repeats)
    yield compare_prefix_cache(encoder, material.sets["queries"], repeats)
    yield linear_layer_share(encoder, material.sets["passages"], repeats)
    yield compare_embedding_store(encoder, material.sets["passages"], repeats)


def compare_encoders(
    peer: SentenceTransformer, encoder: Encoder, name: str, texts: list[str], instruction: str, repeats: int
) -> Comparison:
    """Ours against sentence-transformers; an instruction is its `prompt`, which its pooling leaves out as ours does."""

    def ours() -> np.ndarray:
        return encoder.encode(texts, side="query", instruction=instruction)

    def theirs(size: int) -> np.ndarray:
        return peer.encode(texts, prompt=instruction or None, batch_size=size, show_progress_bar=False)

    cosine = float((ours() * theirs(32)).sum(1).min())
    if not cosine >= 0.99999:
        raise AssertionError(f"{name}: vectors differ from sentence-transformers' (cosine {cosine:.6f})")
    return compare_costs(
        f"encode {name}",
        ours,
        {f"sentence-transformers, batches of {size}": partial(theirs, size) for size in (8, 32)},
        parity=f"least cosine {cosine:.6f}",
        repeats=repeats,
        goal=GOALS.get(name),
        note=describe_padding(encoder, texts, instruction),
    )


def compare_prefix_cache(encoder: Encoder, texts: list[str], repeats: int) -> Comparison:
    """An instruction's keys and values computed once, against with every query."""
    ours, plain = (
        partial(which.encode, texts, side="query", instruction=INSTRUCTION)
        for which in (encoder, replace(encoder, share_prefix=False))
    )
    apart = float(abs(ours() - plain()).max())
    if not apart <= 1e-5:
        raise AssertionError(f"a shared instruction changes vectors by {apart:.1e}")
    return compare_costs(
        "queries with an instruction computed once",
        ours,
        {"computed with every query": plain},
        parity=f"vectors within {apart:.0e}",
        repeats=repeats,
        goal=1.0,
        note=describe_padding(encoder, texts, INSTRUCTION),
    )


def describe_padding(encoder: Encoder, texts: list[str], instruction: str = "") -> str:
    lengths = np.array([len(sequence) for sequence in encoder.build_sequences(texts, "query", instruction)])
    p50, p95 = np.percentile(lengths, [50, 95])
    return f"{len(texts)} texts, tokens: mean {lengths.mean():.0f}, p50 {p50:.0f}, p95 {p95:.0f}, max {lengths.max()}"


def linear_layer_share(encoder: Encoder, texts: list[str], repeats: int) -> Comparison:
    """The share of the time that the linear layers' products alone need, on as many rows: 1 is the limit."""
    tokens = sum(map(len, encoder.build_sequences(texts, "document")))
    layers = [layer.weight.detach() for layer in linear_layers(encoder.model)]
    inputs = {width: torch.randn(BUDGET, width) for width in {weight.shape[1] for weight in layers}}

    def products() -> None:
        for _ in range(tokens // BUDGET):
            for weight in layers:
                torch.mm(inputs[weight.shape[1]], weight.T)

    return compare_costs(
        "encode passages, of the products' time",
        lambda: encoder.encode(texts, side="document"),
        {"the linear layers' products alone": products},
        parity="equal rows and weights",
        repeats=repeats,
        goal=0.5,
    )


def compare_embedding_store(encoder: Encoder, texts: list[str], repeats: int) -> Comparison:
    """Scoring the same corpus again, from the store."""
    with tempfile.TemporaryDirectory(prefix="bench_store_") as folder:
        kept = replace(encoder, store=EmbeddingStore(folder=Path(folder)))
        first = kept.encode(texts, side="document")
        same = bool((kept.encode(texts, side="document") == first).all())
        if not same:
            raise AssertionError("the store gave other vectors than were computed")
        return compare_costs(
            "a corpus again, from the store",
            lambda: kept.encode(texts, side="document"),
            {"computing it": lambda: encoder.encode(texts, side="document")},
            parity="bit-equal",
            repeats=repeats,
            goal=10.0,
        )
