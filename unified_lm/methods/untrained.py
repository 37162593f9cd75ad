"""No training: the backbone as it comes, for a table's baseline rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from unified_lm.data.rows import TrainingRow
from unified_lm.methods.base import ChunkOutput, Method
from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch, Sequence
from unified_lm.prompts.format import Format


@dataclass(frozen=True, kw_only=True)
class Untrained(Method):
    """A method without terms; it says only how the backbone's vectors are read when it is scored."""

    readout: str

    trains = False

    @property
    def weights(self) -> dict[str, float]:
        return {}

    def sequences(self, rows: list[TrainingRow], form: Format) -> list[Sequence]:
        return []

    def read(self, states: Tensor, batch: PackedBatch, model: UnifiedLM, *, tokens: bool) -> ChunkOutput:
        return ChunkOutput()
