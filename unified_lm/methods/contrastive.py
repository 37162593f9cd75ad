"""Contrastive tuning: InfoNCE between a query and its document, in-batch and hard negatives."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from unified_lm.data.rows import TrainingRow
from unified_lm.heads import LatentAttention
from unified_lm.methods.base import (
    ChunkOutput,
    Method,
    Vectors,
    contrastive_loss,
    document_sequences,
    read_vectors_by_role,
)
from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch, Sequence
from unified_lm.prompts.format import Format
from unified_lm.readout import Readout


@dataclass(frozen=True, kw_only=True)
class Contrastive(Method):
    """InfoNCE over one vector a text, pooled by `readout`: one-sided or `symmetric`, by cosine or dot product.

    `latents`: number of trained vectors of the head "latent", for readout=mean@latent. Every state attends to them with
    `latent_heads` heads before the mean. `latent_residual` adds the input of the attention, and of the layer after it.
    Source: Karpukhin et al. 2020; mean pooling and instructions as in Muennighoff et al. 2024 (GritLM); latents as in
    Lee et al. 2025 (NV-Embed), whose formula has no residual while the released model has.
    """

    temperature: float
    symmetric: bool
    readout: str
    slots: int = 0
    latents: int = 0
    latent_heads: int = 8
    latent_residual: bool = True

    roles = ("query", "document", "negative")

    @property
    def document_slots(self) -> int:
        return min(1, self.slots)

    @property
    def weights(self) -> dict[str, float]:
        return {"contrastive": 1.0}

    def heads(self, width: int) -> dict[str, nn.Module]:
        if not self.latents:
            return {}
        return {"latent": LatentAttention(width, self.latents, self.latent_heads, residual=self.latent_residual)}

    def check_format(self, form: Format) -> None:
        if ("latent" in Readout.from_name(self.readout).heads) != bool(self.latents):
            raise ValueError(
                f"method.readout={self.readout} and method.latents={self.latents} do not go together; "
                "use readout=mean@latent with latents=512, or latents=0"
            )
        if Readout.from_name(self.readout).kind == "slot" and not self.slots:
            raise ValueError(
                f"method.readout={self.readout} reads a slot but method.slots=0; set method.slots or use readout=last"
            )

    def sequences(self, rows: list[TrainingRow], form: Format) -> list[Sequence]:
        numbers = [i for i, row in enumerate(rows) if row.positive is not None]
        queries = form.query_sequences([rows[i].query for i in numbers], [rows[i].instruction for i in numbers])
        queries = [replace(q, row=i) for q, i in zip(queries, numbers, strict=True)]
        return sorted(queries + document_sequences(rows, form), key=lambda sequence: sequence.row)

    def read(self, states: Tensor, batch: PackedBatch, model: UnifiedLM, *, tokens: bool) -> ChunkOutput:
        readout = Readout.from_name(self.readout)
        return ChunkOutput(vectors=read_vectors_by_role(states, batch, dict.fromkeys(self.roles, readout), model.heads))

    def objective(self, vectors: dict[str, Vectors]) -> dict[str, Tensor]:
        loss = contrastive_loss(
            vectors, temperature=self.temperature, symmetric=self.symmetric, similarity=self.similarity
        )
        return {} if loss is None else {"contrastive": loss}
