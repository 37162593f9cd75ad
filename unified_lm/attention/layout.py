"""Who sees whom in a pack: host-side bounds for per-sequence kernels, device-side offsets for varlen kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

COMMON_MODES = ("causal", "bidirectional", "prefix")  # that every kernel has
ALL_MODES = (*COMMON_MODES, "bottleneck")  # that the kernels with free masks have

PrefixCache = dict[int, tuple[Float[Tensor, "one g P e"], Float[Tensor, "one g P e"]]]  # keys and values, by layer


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One sequence of a pack: tokens [start, stop) and its mode.

    `prefix`: how many leading tokens see each other both ways in mode "prefix". In mode "bottleneck" they are what
    stands before the `slots`: what follows the slots sees them and not the prefix, and they do not see each other.
    """

    start: int
    stop: int
    mode: str = "causal"
    prefix: int = 0
    slots: int = 0

    def __post_init__(self) -> None:
        if self.mode not in ALL_MODES:
            raise ValueError(f"attention mode {self.mode!r} is unknown; use one of {', '.join(ALL_MODES)}")
        if self.mode == "bottleneck" and not 0 < self.slots <= self.stop - self.start - self.prefix:
            raise ValueError(
                f"a bottleneck of {self.slots} slots behind {self.prefix} tokens does not fit a sequence of "
                f"{self.stop - self.start}; use attention=causal for a text without slots"
            )
        if self.mode == "prefix" and not 0 < self.prefix <= self.stop - self.start:
            raise ValueError(
                f"a prefix of {self.prefix} tokens does not fit a sequence of {self.stop - self.start}; "
                "give 1 to the sequence's length"
            )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The one keyword that travels through a decoder's layers.

    `bounds` on the host (per-sequence kernels), `cu_seqlens` [n + 1] int32 on the device (varlen kernels), `longest`
    in tokens, and the name of the `kernel` that computes it.

    `ahead`: how many tokens without rows of their own every sequence, which must be causal, sees before its own. Their
    keys and values are in `held`; a layout that has none ahead leaves those of its own tokens there (None: nowhere).
    """

    segments: tuple[Segment, ...]
    cu_seqlens: Int[Tensor, " n1"]
    longest: int
    kernel: str = "sdpa"
    prefix_length: int = 0
    prefix_cache: PrefixCache | None = field(default=None, compare=False, repr=False)
    derived: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        modes = {bound.mode for bound in self.segments}
        if self.prefix_length and modes != {"causal"}:
            raise ValueError(
                f"tokens ahead of a pack are seen by causal sequences alone, not by {', '.join(sorted(modes))} ones"
            )

    @classmethod
    def from_segments(cls, bounds: Sequence[Segment], ahead: int = 0) -> Layout:
        edges = torch.tensor([0, *(bound.stop for bound in bounds)], dtype=torch.int32)
        longest = max(b.stop - b.start for b in bounds)
        return cls(segments=tuple(bounds), cu_seqlens=edges, longest=longest, prefix_length=ahead)

    def derive_once(self, name: str, make: Callable[[Layout], Any]) -> Any:
        """What a kernel derives from the layout (indices, a block mask), made by the first layer that asks."""
        if name not in self.derived:
            self.derived[name] = make(self)
        return self.derived[name]

    def to(self, device: torch.device | str) -> Layout:
        return replace(self, cu_seqlens=self.cu_seqlens.to(device, non_blocking=True), derived={})


def segment_mask(
    segment: Segment, device: torch.device | str, window: int | None = None, prefix_length: int = 0
) -> Bool[Tensor, "l s"]:
    """The definition of a mode: entry (i, j) says whether token i of the sequence may look at token j.

    The first `ahead` columns are tokens that stand before a causal sequence. A sliding `window` w keeps i - w < j (and,
    looking forward, j < i + w), as transformers' own masks do.
    """
    seen = torch.arange(prefix_length + segment.stop - segment.start, device=device)
    position = seen[prefix_length:]
    distance = position[:, None] - seen[None]
    causal = distance >= 0
    if segment.mode == "causal":
        mask = causal
    elif segment.mode == "bidirectional":
        mask = torch.ones_like(causal)
    elif segment.mode == "bottleneck":
        end = segment.prefix + segment.slots
        before, slot = position < segment.prefix, (position >= segment.prefix) & (position < end)
        beyond = (position >= end)[:, None] & before[None]
        mask = causal & ~beyond & ~(slot[:, None] & slot[None] & (distance > 0))
    else:
        mask = causal | ((position[:, None] < segment.prefix) & (position[None] < segment.prefix))
    return mask if window is None else mask & (distance.abs() < window)
