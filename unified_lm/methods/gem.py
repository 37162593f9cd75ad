"""GEM (Meta): slots in the middle of a text are the only way from its prefix to its suffix, and so its embedding.

Slots are inserted at a random point of a text. The suffix sees the prefix through them only, and they do not see each
other. The losses are next-token prediction on everything but the slots, and a SimCSE term whose weight grows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from torch import Tensor

from unified_lm.data.rows import TrainingRow
from unified_lm.methods.base import (
    ChunkOutput,
    Method,
    Vectors,
    contrastive_loss,
    read_vectors_by_role,
    sum_token_losses,
    text_of_row,
)
from unified_lm.methods.simcse import refuse_without_dropout
from unified_lm.model import UnifiedLM
from unified_lm.packing import IGNORED, PackedBatch, Sequence
from unified_lm.prompts.format import Format
from unified_lm.readout import Readout


@dataclass(frozen=True, kw_only=True)
class Gem(Method):
    """Source: "GEM" of Meta (2506.04344); it has no public code.

    `plain_share`: share of texts without slots in their next-token view. Whether a text gets slots, and where, depends
    on the text and `cut_seed` alone. The contrastive weight is 0 for `ramp_start` steps, then grows linearly over
    `ramp_steps` to its value (0: at once). `attention_dropout` makes the two passes of the contrastive term differ
    (None: the decoder's own rate).
    """

    slots: int
    temperature: float
    generative_weight: float
    contrastive_weight: float
    plain_share: float
    ramp_start: int
    ramp_steps: int
    attention_dropout: float | None
    readout: str
    cut_seed: int = 0

    roles = ("query", "document")
    next_token_term = "generative"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slots < 1 or not 0 <= self.plain_share < 1:
            raise ValueError(
                f"method.slots={self.slots} must be 1 or more and method.plain_share={self.plain_share} in [0, 1): "
                "without slots in a text there is nothing to learn an embedding from"
            )

    @property
    def document_slots(self) -> int:
        return self.slots

    @property
    def weights(self) -> dict[str, float]:
        return {"generative": self.generative_weight, "contrastive": self.contrastive_weight}

    def weights_at(self, step: int) -> dict[str, float]:
        done = step - self.ramp_start
        alpha = float(done >= 0) if not self.ramp_steps else min(1.0, max(0.0, done / self.ramp_steps))
        return self.weights | {"contrastive": alpha * self.contrastive_weight}

    def check_format(self, form: Format) -> None:
        if form.plan.embed != "bottleneck" or form.plan.generate != "causal":
            raise ValueError(
                f"method gem needs slots that do not see each other, not attention.embed={form.plan.embed} with "
                f"attention.generate={form.plan.generate}; use attention=bottleneck"
            )

    def sequences(self, rows: list[TrainingRow], form: Format) -> list[Sequence]:
        texts = {i: text for i, row in enumerate(rows) if (text := text_of_row(row)) is not None}
        passes = form.document_sequences(list(texts.values()))
        made = [replace(s, row=i, role=role) for i, s in zip(texts, passes, strict=True) for role in self.roles]
        made += [replace(self.insert_slots(form.plain_sequence(text)), row=i) for i, text in texts.items()]
        return sorted(made, key=lambda sequence: sequence.row)

    def insert_slots(self, plain: Sequence) -> Sequence:
        """Insert the slots at a random point of a plain text, or return it unchanged."""
        draw = random.Random(f"{self.cut_seed}/{plain.hashes['text']}")
        if draw.random() < self.plain_share or len(plain) < 2:
            return plain
        at = draw.randrange(1, len(plain))
        tokens = plain.tokens[:at] + tuple(-(k + 1) for k in range(self.slots)) + plain.tokens[at:]
        labels = plain.labels[: at - 1] + (IGNORED,) * self.slots + plain.labels[at - 1 :]
        spans = plain.spans | {"slots": (at, at + self.slots)}
        return replace(plain, tokens=tokens, labels=labels, mode="bottleneck", prefix=at, spans=spans)

    def counts(self, batch: PackedBatch) -> dict[str, int]:
        return {"generative": batch.label_count}

    def read(self, states: Tensor, batch: PackedBatch, model: UnifiedLM, *, tokens: bool) -> ChunkOutput:
        if model.backbone.training:
            refuse_without_dropout(model)
        vectors = read_vectors_by_role(states, batch, dict.fromkeys(self.roles, Readout.from_name(self.readout)))
        on = tokens and batch.label_count
        return ChunkOutput(
            vectors=vectors, token_sums={"generative": sum_token_losses(states, batch, model)} if on else {}
        )

    def objective(self, vectors: dict[str, Vectors]) -> dict[str, Tensor]:
        loss = contrastive_loss(vectors, temperature=self.temperature, symmetric=False, similarity=self.similarity)
        return {} if loss is None else {"contrastive": loss}
