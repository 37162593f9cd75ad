"""LLM-JEPA: the state of the query predicts the state of the answer, which is encoded as a sequence of its own.

L = gamma * L_gen + lambda * D(predictor, target), with D = 1 - cos by default. The answer's view does not see the
query, both views are read at their last position, and no gradient is stopped. ULME's coupling differs in these points.
`semantic_weight` adds ULME's retrieval loss, so that both methods can be compared on the same data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from unified_lm.data.rows import TrainingRow
from unified_lm.losses import cosine_distance, info_nce
from unified_lm.methods.base import (
    ChunkOutput,
    Method,
    Vectors,
    build_vectors,
    contrastive_loss,
    document_sequences,
    group_by_role,
    read_vectors_by_role,
    sum_token_losses,
)
from unified_lm.methods.generative import answer_sequences, plain_text_sequences, refuse_bidirectional
from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch, Sequence
from unified_lm.prompts.format import Format
from unified_lm.readout import Readout

DISTANCES = ("cosine", "l2", "mse", "info_nce")
LAST = Readout(kind="last")


@dataclass(frozen=True, kw_only=True)
class LlmJepa(Method):
    """Source: Huang et al. 2025 (LLM-JEPA); its released code for what the paper leaves open.

    `slots`: number of predictor tokens after the predicting view, which is read at the last one (0: at its last text
    token). `distance`: "cosine", "l2" (norm of the difference), "mse" or "info_nce" (at `coupling_temperature`, over
    the global batch). `reverse`: the answer predicts the query. `stop_gradient`: no gradient goes to the target.
    `temperature`: of the retrieval loss.
    """

    slots: int
    temperature: float
    semantic_weight: float
    generative_weight: float
    predictive_weight: float
    distance: str
    coupling_temperature: float
    reverse: bool
    stop_gradient: bool
    symmetric: bool = True

    roles = ("query", "document", "negative", "view")
    next_token_term = "generative"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distance not in DISTANCES:
            raise ValueError(f"method.distance={self.distance} is unknown; use one of {', '.join(DISTANCES)}")

    @property
    def document_slots(self) -> int:
        return min(1, self.slots)

    @property
    def readout(self) -> str:
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

    def sequences(self, rows: list[TrainingRow], form: Format) -> list[Sequence]:
        numbers = [i for i, row in enumerate(rows) if row.positive is not None or row.answer is not None]
        queries = form.query_sequences([rows[i].query for i in numbers], [rows[i].instruction for i in numbers])
        answered = [i for i in numbers if rows[i].answer is not None]
        viewed = replace(form, document_slots=self.slots if self.reverse else 0, document_length=form.answer_length)
        views = viewed.document_sequences([rows[i].answer for i in answered])
        made = [replace(q, row=i) for q, i in zip(queries, numbers, strict=True)]
        made += [replace(v, row=i, role="view") for v, i in zip(views, answered, strict=True)]
        if self.generative_weight:  # the next-token view has no predictor tokens
            made += answer_sequences(rows, replace(form, slots=0)) + plain_text_sequences(rows, form)
        return sorted(made + document_sequences(rows, form), key=lambda sequence: sequence.row)

    def counts(self, batch: PackedBatch) -> dict[str, int]:
        return {"generative": batch.label_count} if self.generative_weight else {}

    def read(self, states: Tensor, batch: PackedBatch, model: UnifiedLM, *, tokens: bool) -> ChunkOutput:
        own = Readout.from_name(self.readout)
        bare = {i for i in range(len(batch.sequences)) if "answer" not in batch.sequences[i].spans}
        asked = [i for i in group_by_role(batch, "query").get("query", []) if i in bare]
        vectors = read_vectors_by_role(states, batch, {"document": own, "negative": own})
        if asked:
            vectors["query"] = build_vectors(batch, asked, own.read_vectors(states, batch, asked))
            vectors["asked"] = build_vectors(batch, asked, LAST.read_vectors(states, batch, asked))
        if views := group_by_role(batch, "view").get("view", []):
            read = own if self.reverse else LAST
            vectors["view"] = build_vectors(batch, views, read.read_vectors(states, batch, views))
        on = tokens and self.generative_weight and batch.label_count
        return ChunkOutput(
            vectors=vectors, token_sums={"generative": sum_token_losses(states, batch, model)} if on else {}
        )

    def objective(self, vectors: dict[str, Vectors]) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = {}
        if self.semantic_weight:
            loss = contrastive_loss(
                vectors, temperature=self.temperature, symmetric=self.symmetric, similarity=self.similarity
            )
            terms |= {} if loss is None else {"semantic": loss}
        if "view" in vectors and self.predictive_weight:
            terms["predictive"] = self.predictive_loss(vectors)
        return terms

    def predictive_loss(self, vectors: dict[str, Vectors]) -> Tensor:
        """D(predictor, target) over the rows with an answer."""
        view, query = vectors["view"], vectors["asked" if self.reverse else "query"]
        with_view = torch.isin(query.rows, view.rows)
        query = Vectors(rows=view.rows, hashes=query.hashes[with_view], values=query.values[with_view])
        predictor, target = (view.values, query.values) if self.reverse else (query.values, view.values)
        target = target.detach() if self.stop_gradient else target
        if self.distance == "cosine":
            return cosine_distance(predictor, target)
        if self.distance == "l2":
            return (predictor - target).norm(dim=1).mean()
        if self.distance == "mse":
            return F.mse_loss(predictor, target)
        own = torch.arange(len(target), device=target.device)
        same = (query.hashes[:, None] == query.hashes[None]) | (view.hashes[:, None] == view.hashes[None])
        return info_nce(predictor, target, own, temperature=self.coupling_temperature, excluded=same)
