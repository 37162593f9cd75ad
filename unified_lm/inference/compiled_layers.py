"""Decoder layers compiled for static shapes: packs are filled up to a few sizes, each compiled once.

Attention stays outside the graphs (see `attention.function`), because its shapes vary with the sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager

import torch

from unified_lm.model import UnifiedLM
from unified_lm.packing import FILLER_ROLE, Sequence

PARTS = 4


def pack_sizes(budget: int) -> list[int]:
    """Return the sizes of packs: a quarter, a half, three quarters and all of the budget."""
    return [-(-budget * part // PARTS) for part in range(1, PARTS + 1)]


def build_filler(sequences: Many[Sequence], shared: int, budget: int) -> list[Sequence]:
    """Build the sequence that fills a pack of these sequences, which share `shared` first tokens, up to the next size.

    Returns an empty list for a pack of such a size, and for a pack beyond the budget, which is not compiled.
    """
    tokens = sum(len(sequence) - shared for sequence in sequences)
    room = next((size - tokens for size in pack_sizes(budget) if size >= tokens), 0)
    if not room:
        return []
    first = sequences[0]
    mode = first.mode if first.mode == "bidirectional" else "causal"
    return [Sequence(tokens=first.tokens[:shared] + (0,) * room, role=FILLER_ROLE, mode=mode)]


class CompiledLayers:
    """The layers of a decoder, compiled for static shapes; used only inside `enable(True)`."""

    def __init__(self, model: UnifiedLM) -> None:
        self._layers = list(model.backbone.base_model.layers)
        self._forwards = [torch.compile(layer.forward, dynamic=False) for layer in self._layers]

    @contextmanager
    def enable(self, on: bool) -> Iterator[None]:
        """Run the model's forwards through the compiled layers inside the block, if `on`."""
        for layer, forward in zip(self._layers, self._forwards, strict=True):
            if on:
                layer.forward = forward
        try:
            yield
        finally:
            for layer in self._layers if on else ():
                del layer.forward
