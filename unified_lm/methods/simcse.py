"""Unsupervised SimCSE: a text that is encoded twice with different dropout masks is its own positive.

This is LLM2Vec's second stage. The other texts of the global batch are the negatives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from unified_lm.data.rows import TrainingRow
from unified_lm.methods.base import ChunkOutput, Method, Vectors, contrastive_loss, read_vectors_by_role, text_of_row
from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch, Sequence
from unified_lm.prompts.format import Format
from unified_lm.readout import Readout


@dataclass(frozen=True, kw_only=True)
class SimCSE(Method):
    """Source: Gao et al. 2021; as a stage of LLM2Vec, BehnamGhader et al. 2024.

    `attention_dropout` replaces the decoder's own rate, which is 0 for today's decoders (None keeps it: then
    trainable.dropout of adapters must be above 0). The two passes are two sequences, so they share no dropout mask.
    """

    temperature: float
    attention_dropout: float | None
    readout: str

    roles = ("query", "document")

    @property
    def weights(self) -> dict[str, float]:
        return {"contrastive": 1.0}

    def check_format(self, form: Format) -> None:
        if Readout.from_name(self.readout).kind == "slot":
            raise ValueError(f"method simcse has no slot for method.readout={self.readout}; use mean or last")

    def sequences(self, rows: list[TrainingRow], form: Format) -> list[Sequence]:
        texts = {i: text for i, row in enumerate(rows) if (text := text_of_row(row)) is not None}
        made = form.document_sequences(list(texts.values()))
        return [replace(s, row=i, role=role) for i, s in zip(texts, made, strict=True) for role in self.roles]

    def read(self, states: Tensor, batch: PackedBatch, model: UnifiedLM, *, tokens: bool) -> ChunkOutput:
        if model.backbone.training:
            refuse_without_dropout(model)
        return ChunkOutput(
            vectors=read_vectors_by_role(states, batch, dict.fromkeys(self.roles, Readout.from_name(self.readout)))
        )

    def objective(self, vectors: dict[str, Vectors]) -> dict[str, Tensor]:
        loss = contrastive_loss(vectors, temperature=self.temperature, symmetric=False, similarity=self.similarity)
        return {} if loss is None else {"contrastive": loss}


def refuse_without_dropout(model: UnifiedLM) -> None:
    """Raises `ValueError` for a training model without dropout: both passes of a text would be equal."""
    rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    rates += [getattr(module, "attention_dropout", 0.0) for module in model.backbone.modules()]
    if not any(rates):
        raise ValueError(
            "two passes of a text differ by dropout alone, and nothing in this model drops out; set "
            "method.attention_dropout=0.3, or trainable=lora with trainable.dropout above 0"
        )
