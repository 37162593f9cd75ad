"""Generative tuning: next-token prediction on answers, and on plain text for rows that have nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from unified_lm.data.rows import TrainingRow
from unified_lm.methods.base import ChunkOutput, Method, sum_token_losses
from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch, Sequence
from unified_lm.prompts.format import Format


@dataclass(frozen=True, kw_only=True)
class Generative(Method):
    """Mean cross-entropy over the labelled tokens of the *global* batch; `readout` is used when it is scored."""

    readout: str

    next_token_term = "generative"

    @property
    def weights(self) -> dict[str, float]:
        return {"generative": 1.0}

    def check_format(self, form: Format) -> None:
        refuse_bidirectional(form)

    def sequences(self, rows: list[TrainingRow], form: Format) -> list[Sequence]:
        return sorted(
            answer_sequences(rows, form) + plain_text_sequences(rows, form), key=lambda sequence: sequence.row
        )

    def counts(self, batch: PackedBatch) -> dict[str, int]:
        return {"generative": batch.label_count}

    def read(self, states: Tensor, batch: PackedBatch, model: UnifiedLM, *, tokens: bool) -> ChunkOutput:
        return ChunkOutput(
            token_sums={"generative": sum_token_losses(states, batch, model)} if tokens and batch.label_count else {}
        )


def answer_sequences(rows: list[TrainingRow], form: Format) -> list[Sequence]:
    """Sequences of prompt and answer, one for every row with an answer."""
    numbers = [i for i, row in enumerate(rows) if row.answer is not None]
    chosen = [rows[i] for i in numbers]
    made = form.answer_sequences(
        [row.query for row in chosen],
        [row.answer for row in chosen],
        [row.instruction for row in chosen],
        [row.history for row in chosen],
    )
    return [replace(sequence, row=i) for sequence, i in zip(made, numbers, strict=True)]


def plain_text_sequences(rows: list[TrainingRow], form: Format) -> list[Sequence]:
    """Sequences of plain text, one for every row that has some."""
    return [replace(form.plain_sequence(row.text), row=i) for i, row in enumerate(rows) if row.text is not None]


def refuse_bidirectional(form: Format) -> None:
    """Raises `ValueError` for bidirectional attention: next-token prediction would learn to copy."""
    if form.plan.generate == "bidirectional":
        raise ValueError(
            "attention.generate=bidirectional lets every token see its own target, so a next-token loss learns to "
            "copy; use attention=causal, gritlm or prefix"
        )
