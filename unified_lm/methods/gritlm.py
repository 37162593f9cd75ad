"""GritLM: an embedding stream and a generative stream on one set of weights, each in its own attention.

L = lambda_emb * L_emb + lambda_gen * L_gen. Rows with a document are embedded, rows with an answer are generated (a row
with both becomes two sequences). attention=gritlm is the paper's `bbcc`, attention=causal its `cccc`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unified_lm.data.rows import TrainingRow
from unified_lm.methods.base import (
    ChunkOutput,
    Method,
    Vectors,
    contrastive_loss,
    document_sequences,
    read_vectors_by_role,
    sum_token_losses,
)
from unified_lm.methods.generative import answer_sequences, plain_text_sequences, refuse_bidirectional
from unified_lm.model import UnifiedLM
from unified_lm.packing import IGNORED, PackedBatch, Sequence
from unified_lm.prompts.format import Format
from unified_lm.readout import Readout

GENERATIVE_LOSSES = ("mean", "token", "mixed", "sample")


@dataclass(frozen=True, kw_only=True)
class GritLM(Method):
    """Source: Muennighoff et al. 2024, sections 2 and 3.3, and the released code.

    `generative_loss`, always over the *global* batch: "mean" over all labels; "token": the sum over all labels, divided
    by the number of samples; "mixed": the mean over sub-batches of `mixed_rows` samples of each sub-batch's mean over
    its labels (a sub-batch is what one device holds in the released code); "sample": mixed with 1 row.
    """

    temperature: float
    embedding_weight: float
    generative_weight: float
    generative_loss: str
    mixed_rows: int
    readout: str
    symmetric: bool = False

    roles = ("query", "document", "negative")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.generative_loss not in GENERATIVE_LOSSES:
            options = ", ".join(GENERATIVE_LOSSES)
            raise ValueError(f"method.generative_loss={self.generative_loss} is unknown; use one of {options}")
        if self.mixed_rows < 1:
            raise ValueError(f"method.mixed_rows={self.mixed_rows}: a sub-batch has 1 row or more")

    @property
    def weights(self) -> dict[str, float]:
        return {"contrastive": self.embedding_weight, "generative": self.generative_weight}

    @property
    def next_token_term(self) -> str | None:
        return None if self.generative_loss == "token" else "generative"  # a sum of losses may lie above ln V

    def check_format(self, form: Format) -> None:
        refuse_bidirectional(form)

    def sequences(self, rows: list[TrainingRow], form: Format) -> list[Sequence]:
        numbers = [i for i, row in enumerate(rows) if row.positive is not None]
        queries = form.query_sequences([rows[i].query for i in numbers], [rows[i].instruction for i in numbers])
        made = [replace(q, row=i) for q, i in zip(queries, numbers, strict=True)]
        made += document_sequences(rows, form) + self.weight_samples(
            answer_sequences(rows, form) + plain_text_sequences(rows, form)
        )
        return sorted(made, key=lambda sequence: sequence.row)

    def weight_samples(self, samples: list[Sequence]) -> list[Sequence]:
        """Give each generative sample the label weight that `generative_loss` asks for.

        Samples get a role of their own, so that their prompts are not read as queries of the embedding stream.
        """
        samples = sorted((replace(sample, role="sample") for sample in samples), key=lambda sample: sample.row)
        size = {"mixed": self.mixed_rows, "sample": 1}.get(self.generative_loss)
        if size is None:
            return samples
        groups = [samples[i : i + size] for i in range(0, len(samples), size)]
        return [
            replace(sample, weight=1 / max(1, sum(map(count_labels, group)))) for group in groups for sample in group
        ]

    def counts(self, batch: PackedBatch) -> dict[str, float]:
        samples = [sequence for sequence in batch.sequences if sequence.role == "sample"]
        if self.generative_loss == "token":
            return {"generative": float(len(samples))}
        return {"generative": float(sum(sample.weight * count_labels(sample) for sample in samples))}

    def read(self, states: Tensor, batch: PackedBatch, model: UnifiedLM, *, tokens: bool) -> ChunkOutput:
        vectors = read_vectors_by_role(states, batch, dict.fromkeys(self.roles, Readout.from_name(self.readout)))
        parts = sum_losses_by_weight(states, batch, model) if tokens and batch.label_count else []
        return ChunkOutput(vectors=vectors, token_sums={"generative": sum(parts[1:], start=parts[0])} if parts else {})

    def objective(self, vectors: dict[str, Vectors]) -> dict[str, Tensor]:
        loss = contrastive_loss(
            vectors, temperature=self.temperature, symmetric=self.symmetric, similarity=self.similarity
        )
        return {} if loss is None else {"contrastive": loss}


def sum_losses_by_weight(states: Tensor, batch: PackedBatch, model: UnifiedLM) -> list[Tensor]:
    """The weighted cross-entropy sum of the labels of each weight, one sum a weight."""
    lengths = torch.tensor([len(sequence) for sequence in batch.sequences])
    each = torch.tensor([s.weight if s.labels is not None else 0.0 for s in batch.sequences], dtype=torch.float64)
    weights = each.repeat_interleave(lengths).to(batch.labels.device)
    return [
        weight * sum_token_losses(states, replace(batch, labels=batch.labels.where(weights == weight, IGNORED)), model)
        for weight in each.unique().tolist()
        if weight
    ]


def count_labels(sequence: Sequence) -> int:
    """Number of labels of a sequence."""
    return sum(label != IGNORED for label in sequence.labels or ())
