"""What the scoring libraries' own loops cost beside ours."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from evals.embedding.packaged_docs import CodeRetrieval
from evals.embedding.suite import MtebSuite
from evals.instructions import read_instructions
from evals.score import Subject
from experiments.bench.material import Material
from experiments.bench.measure import Comparison, compare_costs
from unified_lm.inference.embedder import DelegatingEmbedder
from unified_lm.inference.encode import Encoder
from unified_lm.inference.generate import BatchedGenerator

BATCH = 8


def compare_harnesses(material: Material, repeats: int) -> Iterator[Comparison]:
    yield compare_mteb_retrieval(material, repeats)
    yield compare_log_likelihoods(material, repeats)


@dataclass(frozen=True, kw_only=True)
class RecordingEmbedder(DelegatingEmbedder):
    """An embedder that records its calls, so that the same texts can be encoded without a benchmark around it."""

    calls: list[tuple[list[str], str, str]] = field(default_factory=list)

    def encode(self, texts: list[str], *, side: str, instruction: str = "") -> np.ndarray:
        self.calls.append((list(texts), side, instruction))
        return super().encode(texts, side=side, instruction=instruction)


def compare_mteb_retrieval(material: Material, repeats: int) -> Comparison:
    """A task through mteb's own loop and our wrapper, against encoding its texts and nothing else."""
    encoder = material.build_encoder(material.build_our_model(), 1024)
    source = CodeRetrieval(groups=24 // material.size, group=6, queries=2)
    suite = MtebSuite(name="bench", sources=(source,), instructions=read_instructions("offline"))

    def scored(embedder: Encoder | RecordingEmbedder) -> None:
        with tempfile.TemporaryDirectory(prefix="bench_mteb_") as folder:
            suite.score(Subject(name="bench", embedder=embedder), folder=Path(folder))

    recording = RecordingEmbedder(embedder=encoder)
    scored(recording)

    def bare() -> None:
        for texts, side, instruction in recording.calls:
            encoder.encode(texts, side=side, instruction=instruction)

    return compare_costs(
        "a retrieval task through mteb (1 is no overhead)",
        lambda: scored(encoder),
        {"encoding its texts alone": bare},
        parity=f"the same {sum(len(texts) for texts, _, _ in recording.calls)} texts",
        repeats=repeats,
        goal=0.8,
    )


def compare_log_likelihoods(material: Material, repeats: int) -> Comparison:
    """Log-likelihoods of answers: ours against lm-eval's own loop on the stock decoder."""
    from lm_eval.models.huggingface import HFLM

    rows = material.pairs[: 64 // material.size]
    encode = material.tokenizer.encode
    pairs = [(encode(row.query + "\n" + row.positive[:600]), encode(" " + row.answer)) for row in rows]
    generator = BatchedGenerator(material.build_our_model(), weights="bench")
    stock = copy.deepcopy(material.decoder)
    peers = {
        f"lm-eval, batches of {size}": HFLM(pretrained=stock, tokenizer=material.tokenizer, batch_size=size)
        for size in (1, BATCH)
    }
    requests = [(("", str(i)), context, answer) for i, (context, answer) in enumerate(pairs)]
    ours = [found.logprob for found in generator.logprobs(pairs)]
    theirs = [value for value, _ in peers[f"lm-eval, batches of {BATCH}"]._loglikelihood_tokens(requests, True)]
    worst = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    if not worst <= 1e-4:
        raise AssertionError(f"log-likelihoods differ from lm-eval's by {worst:.1e}")
    return compare_costs(
        f"log-likelihoods of {len(pairs)} answers",
        lambda: generator.logprobs(pairs),
        {name: lambda peer=peer: peer._loglikelihood_tokens(requests, True) for name, peer in peers.items()},
        parity=f"within {worst:.0e}",
        repeats=repeats,
        goal=1.0,
    )
