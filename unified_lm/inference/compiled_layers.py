"""Static shapes: packs filled up to a few sizes, for which a decoder's layers are compiled once each.

Attention stays outside of the graphs (see `attention.function`): its shapes are those of sequences, not of packs.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager

import torch

from unified_lm.model import UnifiedLM
from unified_lm.packing import Sequence

PARTS = 4
FILLER = "filler"


def pack_sizes(budget: int) -> list[int]:
    """The sizes of packs: a quarter of the budget, a half, three quarters, all of it."""
    return [-(-budget * part // PARTS) for part in range(1, PARTS + 1)]


def build_filler(sequences: Many[Sequence], shared: int, budget: int) -> list[Sequence]:
    """The sequence that fills a pack of these, which have `shared` tokens in common, up to the next size.

    None is needed where they have that size; a pack beyond the budget stays as it is, and is not compiled.
    """
    tokens = sum(len(sequence) - shared for sequence in sequences)
    room = next((size - tokens for size in pack_sizes(budget) if size >= tokens), 0)
    if not room:
        return []
    first = sequences[0]
    mode = first.mode if first.mode == "bidirectional" else "causal"
    return [Sequence(tokens=first.tokens[:shared] + (0,) * room, role=FILLER, mode=mode)]


class CompiledLayers:
    """The layers of a decoder, compiled for static shapes; in use only where `used` says so."""

    def __init__(self, model: UnifiedLM) -> None:
        self._layers = list(model.backbone.base_model.layers)
        self._forwards = [torch.compile(layer.forward, dynamic=False) for layer in self._layers]

    @contextmanager
    def enable(self, on: bool) -> Iterator[None]:
        """The model's forwards run through the compiled layers inside; elsewhere, and where not `on`, as they are."""
        for layer, forward in zip(self._layers, self._forwards, strict=True):
            if on:
                layer.forward = forward
        try:
            yield
        finally:
            for layer in self._layers if on else ():
                del layer.forward
