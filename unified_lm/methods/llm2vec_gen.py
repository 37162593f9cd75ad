"""LLM2Vec-Gen: a frozen decoder whose trained slots hold what it would answer, without answering.

Two linear maps stand on the slots' states. Through the first they are a soft prompt from which the frozen decoder must
reconstruct its own answer; through both, their mean is the embedding, drawn to a teacher's embedding of that answer.
L = w_a * ||e - t||^2 + w_r * CE(answer | soft prompt).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from unified_lm.data.rows import Row
from unified_lm.methods.base import Reading, Vectors, token_sum
from unified_lm.methods.generative import answers
from unified_lm.model import UnifiedLM
from unified_lm.packing import IGNORED, PackedBatch, Sequence, collate
from unified_lm.prompts import Format
from unified_lm.readout import Readout

RECONSTRUCT, ALIGN = "reconstruct", "align"


@runtime_checkable
class Teacher(Protocol):
    """Vectors of answers, by the hash of their text."""

    def lookup(self, hashes: list[int]) -> np.ndarray: ...


@dataclass(frozen=True, kw_only=True)
class LLM2VecGen:
    """Source: 2603.10913 v2, section 3, and its released code; use with trainable=slots (or lora, its variant).

    `teacher`: vectors of the rows' answers, as wide as the decoder (`unified_lm.data.derived.keep_vectors`); a run
    makes them with the experiment that its `teacher` names.
    `squared_error`: "mean" over a vector's numbers (the code's MSELoss) or "sum" (the paper's squared norm).
    """

    slots: int
    alignment_weight: float
    reconstruction_weight: float
    squared_error: str
    teacher: Teacher | None = None
    similarity: str = "cosine"

    roles = ()
    second_forward = True  # reconstruction, in chunks that hold answers
    readout = f"slots@{RECONSTRUCT}@{ALIGN}"

    def __post_init__(self) -> None:
        if self.slots < 1 or self.squared_error not in ("mean", "sum"):
            raise ValueError(
                f"method.slots={self.slots} must be 1 or more, method.squared_error={self.squared_error} mean or sum"
            )

    @property
    def document_slots(self) -> int:
        return self.slots

    @property
    def weights(self) -> dict[str, float]:
        return {"alignment": self.alignment_weight, "reconstruction": self.reconstruction_weight}

    def heads(self, width: int) -> dict[str, nn.Module]:
        return {RECONSTRUCT: nn.Linear(width, width), ALIGN: nn.Linear(width, width)}

    def require(self, form: Format) -> None:
        if (form.plan.embed, form.plan.generate) != ("causal", "causal"):
            raise ValueError(
                f"method llm2vec_gen reads slots before an answer that they must not see, not with attention "
                f"{form.plan.name}; use attention=causal"
            )

    def sequences(self, rows: list[Row], form: Format) -> list[Sequence]:
        return answers(rows, form)

    def counts(self, batch: PackedBatch) -> dict[str, int]:
        return {"alignment": len(batch.sequences), "reconstruction": batch.labelled}

    def read(self, states: Tensor, batch: PackedBatch, model: UnifiedLM, *, tokens: bool) -> Reading:
        if not tokens:
            return Reading()
        if self.teacher is None:
            raise ValueError("method llm2vec_gen has no teacher; give the run teacher=EXPERIMENT, or method.teacher")
        which = list(range(len(batch.sequences)))
        found = Readout.named(self.readout).vectors(states, batch, which, model.heads)
        wanted = self.teacher.lookup([sequence.hashes["answer"] for sequence in batch.sequences])
        error = (found - torch.as_tensor(wanted).to(found)).square()
        error = error.mean(dim=1) if self.squared_error == "mean" else error.sum(dim=1)
        return Reading(sums={"alignment": error.sum(), "reconstruction": self.reconstruction(states, batch, model)})

    def reconstruction(self, states: Tensor, batch: PackedBatch, model: UnifiedLM) -> Tensor:
        """Summed cross-entropy of the answers behind their soft prompts, in a second forward of the decoder."""
        again = collate([behind_slots(sequence) for sequence in batch.sequences], batch.index).to(states.device)
        head = model.heads[RECONSTRUCT]
        read = torch.cat([torch.arange(*batch.span(i, "slots")) for i in range(len(batch.sequences))])
        put = torch.cat([torch.arange(*again.span(i, "slots")) for i in range(len(again.sequences))])
        soft = head(states[read.to(states.device)].to(head.weight.dtype))
        embeddings = model.embed(again.tokens)
        embeddings = embeddings.index_copy(0, put.to(states.device), soft.to(embeddings.dtype))
        return token_sum(model.hidden(embeddings, again.positions, again.layout), again, model)

    def objective(self, vectors: dict[str, Vectors]) -> dict[str, Tensor]:
        return {}


def behind_slots(sequence: Sequence) -> Sequence:
    """What stands behind a query: its slots and the answer's turn, with the same labels."""
    start, stop = sequence.spans["slots"]
    labels = (IGNORED,) * (stop - start - 1) + sequence.labels[stop - 1 :]
    return replace(sequence, tokens=sequence.tokens[start:], labels=labels, spans={"slots": (0, stop - start)})
