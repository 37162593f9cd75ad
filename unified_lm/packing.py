"""Sequences of tokens and the packs they travel in: one flat row of tokens, no padding.

Everything a step or an encoding needs (queries, slots, answers, documents) is a `Sequence`; `pack` fills
`PackedBatch`es up to a token budget. Letters in shapes: T tokens of a pack, n sequences of a pack.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int
from torch import Tensor

from unified_lm.attention.layout import Layout, Segment

IGNORED = -100
FILLER_ROLE = "filler"  # of a sequence whose result nobody reads


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequence:
    """One tokenized text; it attends to nothing outside itself.

    `tokens`: vocabulary ids; slot k is written -(k + 1). `labels[i]` is the token predicted *from* position i
    (`IGNORED` where none is), so nothing is shifted later. `spans` names half-open ranges ("text", "slots", "answer");
    `hashes` holds the hashes of their texts, so that every rank knows which texts are equal. `prefix` is the number of
    leading tokens with bidirectional attention when `mode` is "prefix", and of those before the slots when it is
    "bottleneck". `weight` is the weight of its labels in a weighted token loss.
    """

    tokens: tuple[int, ...]
    row: int = 0
    role: str = "text"
    mode: str = "causal"
    prefix: int = 0
    labels: tuple[int, ...] | None = None
    weight: float = 1.0
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    hashes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError(f"row {self.row} ({self.role}) has no tokens")
        if self.labels is not None and len(self.labels) != len(self.tokens):
            raise ValueError(f"row {self.row} ({self.role}): {len(self.labels)} labels for {len(self.tokens)} tokens")

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """A pack: one flat row of tokens with everything that a forward needs.

    `tokens`, `positions`, `labels`: [T]; `layout`: the attention; `starts[i]`: where `sequences[i]` begins.
    `shared_prefix`: first tokens of all sequences, without rows here (a sequence's start then lies that far before its
    first row). `index` names the pack within its global batch and keys the randomness of its forward.
    """

    tokens: Int[Tensor, " T"]
    positions: Int[Tensor, " T"]
    labels: Int[Tensor, " T"]
    layout: Layout
    sequences: tuple[Sequence, ...]
    starts: tuple[int, ...]
    shared_prefix: tuple[int, ...] = ()
    index: str = "0"

    def __len__(self) -> int:
        return self.tokens.numel()

    @property
    def label_count(self) -> int:
        """Number of positions that carry a label."""
        return sum(label != IGNORED for sequence in self.sequences for label in sequence.labels or ())

    def span(self, i: int, name: str) -> tuple[int, int]:
        """Return the half-open range of a named span of sequence i in the flat row."""
        start, stop = self.sequences[i].spans[name]
        return self.starts[i] + start, self.starts[i] + stop

    def to(self, device: torch.device | str) -> PackedBatch:
        if self.tokens.device == torch.device(device):
            return self
        move = {name: getattr(self, name).to(device, non_blocking=True) for name in ("tokens", "positions", "labels")}
        return replace(self, **move, layout=self.layout.to(device))


def collate(sequences: Iterable[Sequence], index: str = "0", *, prefix_length: int = 0) -> PackedBatch:
    """Lay sequences end to end in one pack, in the given order.

    The first `prefix_length` tokens must be the same in all sequences and get no rows: their keys and values are
    computed once, see `UnifiedLM.hidden_states`. Raises `ValueError` if they differ or leave a sequence no row.
    """
    sequences = tuple(sequences)
    first = sequences[0].tokens[:prefix_length]
    if any(len(sequence) <= prefix_length or sequence.tokens[:prefix_length] != first for sequence in sequences):
        raise ValueError(f"the sequences do not begin with the same {prefix_length} tokens and more of their own")
    tokens: list[int] = []
    positions: list[int] = []
    labels: list[int] = []
    starts: list[int] = []
    segments: list[Segment] = []
    for sequence in sequences:
        start, length = len(tokens), len(sequence) - prefix_length
        starts.append(start - prefix_length)
        tokens.extend(sequence.tokens[prefix_length:])
        positions.extend(range(prefix_length, len(sequence)))
        labels.extend(sequence.labels[prefix_length:] if sequence.labels is not None else [IGNORED] * length)
        slots = sequence.spans["slots"] if sequence.mode == "bottleneck" else (0, 0)
        segments.append(
            Segment(
                start=start,
                stop=start + length,
                mode=sequence.mode,
                prefix=sequence.prefix,
                slots=slots[1] - slots[0],
            )
        )
    return PackedBatch(
        tokens=torch.tensor(tokens, dtype=torch.long),
        positions=torch.tensor(positions, dtype=torch.long),
        labels=torch.tensor(labels, dtype=torch.long),
        layout=Layout.from_segments(segments, prefix_length),
        sequences=sequences,
        starts=tuple(starts),
        shared_prefix=first,
        index=index,
    )


def pack(sequences: Iterable[Sequence], budget: int) -> list[PackedBatch]:
    """Fill packs of at most `budget` tokens in the given order; a longer sequence gets a pack of its own.

    The order of sequences and the numbering of packs depend on nothing but the arguments, so that every rank and
    every resumed run cuts a global batch alike.
    """
    if budget < 1:
        raise ValueError(f"a pack needs a budget of at least one token, not {budget}; set runtime.chunk_tokens")
    groups: list[list[Sequence]] = []
    room = 0
    for sequence in sequences:
        if not groups or len(sequence) > room:
            groups.append([])
            room = budget
        groups[-1].append(sequence)
        room -= len(sequence)
    return [collate(group, str(index)) for index, group in enumerate(groups)]


def halve_chunk(chunk: PackedBatch) -> list[PackedBatch]:
    """Split a chunk in two, between the sequences nearest to its middle.

    Raises `ValueError` for a chunk of one sequence, which cannot be split.
    """
    if len(chunk.sequences) == 1:
        raise ValueError(
            f"one sequence of {len(chunk)} tokens does not fit the device's memory; lower lengths.*, use "
            "launch.checkpointing=true, or shard with launch=fsdp_8"
        )
    cut = min(range(1, len(chunk.sequences)), key=lambda i: abs(chunk.starts[i] - len(chunk) / 2))
    parts = chunk.sequences[:cut], chunk.sequences[cut:]
    return [collate(part, f"{chunk.index}.{n}").to(chunk.tokens.device) for n, part in enumerate(parts)]
