"""Attention layout of a pack: its segments and modes on the host, `cu_seqlens` on the device for varlen kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

COMMON_MODES = ("causal", "bidirectional", "prefix")  # every kernel has them
ALL_MODES = (*COMMON_MODES, "bottleneck")  # kernels with arbitrary masks have them

PrefixCache = dict[int, tuple[Float[Tensor, "one g P e"], Float[Tensor, "one g P e"]]]
"""Layer -> (keys, values) of the P tokens of a shared prefix."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One sequence of a pack: its tokens [start, stop) and its attention mode.

    `prefix`: in mode "prefix", the number of leading tokens with bidirectional attention among themselves. In mode
    "bottleneck", the number of tokens before the `slots`: tokens after the slots see the slots but not these tokens,
    and the slots do not see each other.
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
    """Attention layout of a pack; the decoder passes it as a keyword to every layer.

    `segments`: on the host, for per-sequence kernels. `cu_seqlens`: [n + 1] int32 on the device, for varlen kernels.
    `longest`: length of the longest segment, in tokens. `kernel`: name of the kernel that computes the attention.

    `prefix_length`: number of shared prefix tokens in front of every (causal) sequence. `prefix_cache`: their keys and
    values by layer; with `prefix_length=0` the forward writes its own keys and values into it (None: nowhere).
    `derived`: what kernels computed from the layout. `observe`: called by every layer with its queries [1, h, T, d]
    and keys [1, g, T, d] and with `scale`, `window` and `softcap`, before it computes its attention (None: by none).
    """

    segments: tuple[Segment, ...]
    cu_seqlens: Int[Tensor, " n1"]
    longest: int
    kernel: str = "sdpa"
    prefix_length: int = 0
    prefix_cache: PrefixCache | None = field(default=None, compare=False, repr=False)
    derived: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    observe: Callable[..., None] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        modes = {segment.mode for segment in self.segments}
        if self.prefix_length and modes != {"causal"}:
            raise ValueError(
                f"a shared prefix needs causal sequences, not {', '.join(sorted(modes))} ones; encode without sharing"
            )

    @classmethod
    def from_segments(cls, segments: Sequence[Segment], prefix_length: int = 0) -> Layout:
        """Build the layout of consecutive segments."""
        edges = torch.tensor([0, *(segment.stop for segment in segments)], dtype=torch.int32)
        longest = max(segment.stop - segment.start for segment in segments)
        return cls(segments=tuple(segments), cu_seqlens=edges, longest=longest, prefix_length=prefix_length)

    def derive_once(self, name: str, make: Callable[[Layout], Any]) -> Any:
        """Return what a kernel derives from the layout (indices, a block mask), computed by the first layer only."""
        if name not in self.derived:
            self.derived[name] = make(self)
        return self.derived[name]

    def to(self, device: torch.device | str) -> Layout:
        return replace(self, cu_seqlens=self.cu_seqlens.to(device, non_blocking=True), derived={})


def segment_mask(
    segment: Segment, device: torch.device | str, window: int | None = None, prefix_length: int = 0
) -> Bool[Tensor, "l s"]:
    """Return the attention mask that defines a segment's mode: entry (i, j) is true where token i sees token j.

    The first `prefix_length` columns are the tokens of the shared prefix. A sliding `window` w keeps i - w < j (and,
    looking forward, j < i + w), as the masks of transformers do.
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
