"""No method: the backbone as it comes, for a table's baseline rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Untrained:
    """Says only how the backbone's vectors are read when it is scored."""

    readout: str
    similarity: str = "cosine"

    slots = 0
    document_slots = 0
