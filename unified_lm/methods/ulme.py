"""ULME: slots between query and answer are read as embeddings and coupled to the answer that follows.

`q || slots || a` is one causal forward. Slot 0 is the semantic embedding, contrasted with the document's slot (L_sem).
The last slot predicts the pooled states of the answer, through a stopped gradient (L_pred). The answer is generated
(L_gen). L = L_sem + L_gen + 0.3 L_pred.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unified_lm.data.rows import TrainingRow
from unified_lm.losses import info_nce, same_row_mask
from unified_lm.methods.base import (
    ChunkOutput,
    Method,
    Vectors,
    build_vectors,
    contrastive_loss,
    document_sequences,
    read_vectors_by_role,
    sum_token_losses,
)
from unified_lm.methods.generative import answer_sequences, plain_text_sequences, refuse_bidirectional
from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch, Sequence
from unified_lm.prompts.format import Format
from unified_lm.readout import Readout, pool_ranges

TARGETS = ("mean", "length_weighted", "last")


@dataclass(frozen=True, kw_only=True)
class Ulme(Method):
    """The three losses of ULME, each on the rows that have what it needs.

    `slots`: number of slots after a query (0: the last query token is read instead). `target`: pooling of the answer's
    states: "mean", "length_weighted" (a token's weight grows with its position) or "last". `stop_gradient`: L_pred
    trains the slots only, not the answer's states. A weight of 0 leaves the term out.
    `positives_as_answers`: a row without an answer gets its document as one (not a variant of the paper's).
    """

    slots: int
    temperature: float
    semantic_weight: float
    generative_weight: float
    predictive_weight: float
    target: str
    stop_gradient: bool
    positives_as_answers: bool = False
    symmetric: bool = True

    roles = ("query", "document", "negative")
    next_token_term = "generative"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target not in TARGETS:
            raise ValueError(f"method.target={self.target} is unknown; use one of {', '.join(TARGETS)}")
        if self.slots < 0:
            raise ValueError(f"method.slots={self.slots}: use 0 (the last query token) or more")

    @property
    def document_slots(self) -> int:
        return min(1, self.slots)

    @property
    def readout(self) -> str:
        return "slot_0" if self.slots else "last"

    @property
    def reasoning_readout(self) -> str:
        return f"slot_{self.slots - 1}" if self.slots else "last"

    @property
    def weights(self) -> dict[str, float]:
        return {
            "semantic": self.semantic_weight,
            "generative": self.generative_weight,
            "predictive": self.predictive_weight,
        }

    def check_format(self, form: Format) -> None:
        refuse_bidirectional(form)
        if form.plan.embed != form.plan.generate:
            raise ValueError(
                "method ulme reads its vectors and its answer in one forward, so "
                f"attention.embed={form.plan.embed} and attention.generate={form.plan.generate} must agree; "
                "use attention=causal or attention=prefix"
            )

    def sequences(self, rows: list[TrainingRow], form: Format) -> list[Sequence]:
        if self.positives_as_answers:
            rows = [row if row.answer is not None else replace(row, answer=row.positive) for row in rows]
        bare = [i for i, row in enumerate(rows) if row.answer is None and row.positive is not None]
        queries = form.query_sequences([rows[i].query for i in bare], [rows[i].instruction for i in bare])
        queries = [replace(q, row=i) for q, i in zip(queries, bare, strict=True)]
        made = (
            queries + answer_sequences(rows, form) + plain_text_sequences(rows, form) + document_sequences(rows, form)
        )
        return sorted(made, key=lambda sequence: sequence.row)

    def counts(self, batch: PackedBatch) -> dict[str, int]:
        return {"generative": batch.label_count} if self.generative_weight else {}

    def read(self, states: Tensor, batch: PackedBatch, model: UnifiedLM, *, tokens: bool) -> ChunkOutput:
        vectors = read_vectors_by_role(states, batch, dict.fromkeys(self.roles, Readout.from_name(self.readout)))
        which = [i for i, sequence in enumerate(batch.sequences) if "answer" in sequence.spans]
        if which and self.predictive_weight:
            reasons = Readout.from_name(self.reasoning_readout).read_vectors(states, batch, which)
            targets = self.pool_answers(states, batch, which)
            vectors["reason"] = build_vectors(batch, which, reasons)
            vectors["answer"] = build_vectors(
                batch, which, targets.detach() if self.stop_gradient else targets, "answer"
            )
        on = tokens and self.generative_weight and batch.label_count
        return ChunkOutput(
            vectors=vectors, token_sums={"generative": sum_token_losses(states, batch, model)} if on else {}
        )

    def pool_answers(self, states: Tensor, batch: PackedBatch, which: list[int]) -> Tensor:
        """r_qa [n, d]: the pooled states of each answer, from the same forward."""
        spans = torch.tensor([batch.span(i, "answer") for i in which], device=states.device)
        starts = spans[:, 1] - 1 if self.target == "last" else spans[:, 0]
        weighting = "position" if self.target == "length_weighted" else "uniform"
        return pool_ranges(states, starts, spans[:, 1], weighting=weighting)

    def objective(self, vectors: dict[str, Vectors]) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = {}
        if self.semantic_weight:
            loss = contrastive_loss(
                vectors, temperature=self.temperature, symmetric=self.symmetric, similarity=self.similarity
            )
            terms |= {} if loss is None else {"semantic": loss}
        if "answer" in vectors and len(vectors["answer"].rows) > 1:
            terms["predictive"] = self.predictive_loss(vectors["reason"], vectors["answer"])
        return terms

    def predictive_loss(self, reason: Vectors, answer: Vectors) -> Tensor:
        """L_pred: InfoNCE of each row's last slot with the answers of the global batch; repeats are masked out."""
        own = torch.arange(len(reason.rows), device=reason.rows.device)
        return info_nce(
            reason.values,
            answer.values,
            own,
            temperature=self.temperature,
            excluded=same_row_mask(answer.hashes, reason.hashes),
            similarity=self.similarity,
        )
