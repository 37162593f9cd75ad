"""Read-outs: how the hidden states of a text are pooled to one vector. Sums and norms are in float32 or wider."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unified_lm.packing import PackedBatch, Sequence


def pool_ranges(
    states: Float[Tensor, "T d"], starts: Int[Tensor, " n"], stops: Int[Tensor, " n"], *, weighting: str = "uniform"
) -> Float[Tensor, "n d"]:
    """Average states[start:stop] for each range; "position" weights the i-th token of a range by i.

    Raises `ValueError` for an empty range. Source of the weights: Muennighoff 2022 (SGPT), weighted mean pooling.
    """
    lengths = stops - starts
    if not bool((lengths > 0).all()):
        raise ValueError(f"a read-out over no tokens: range {int((lengths <= 0).nonzero()[0])} of {len(lengths)}")
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=states.device), lengths)
    first = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    rank = torch.arange(owner.numel(), device=states.device) - first
    states = states[starts[owner] + rank].to(torch.promote_types(states.dtype, torch.float32))
    weight = (torch.ones_like(rank) if weighting == "uniform" else rank + 1).to(states.dtype)
    total = weight.new_zeros(len(lengths)).index_add(0, owner, weight)
    rows = states * (weight / total[owner])[:, None]
    return rows.new_zeros(len(lengths), rows.shape[1]).index_add(0, owner, rows)


@dataclass(frozen=True, kw_only=True)
class Readout:
    """Which hidden states of a sequence are pooled, and how.

    `kind`: "mean" or "weighted_mean" over the text (with `instruction=True` over everything before slots and answer),
    "last" (the last token before slots and answer, such as the template's EOS), "slot" (slot number `slot`; a document
    with fewer slots than the query uses its last one), or "slots" (the mean over all slots). `heads`: modules of the
    model that each state passes through before pooling, in this order.
    """

    kind: str
    instruction: bool = False
    slot: int = 0
    heads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("mean", "weighted_mean", "last", "slot", "slots"):
            raise ValueError(f"readout={self.kind} is unknown; use mean, weighted_mean, last, slot or slots")

    @classmethod
    def from_name(cls, name: str) -> Readout:
        """Parse the short name of a read-out: mean, mean+instruction, weighted_mean, last, slot_0, slots, mean@HEAD."""
        name, *heads = name.split("@")
        kind, _, slot = name.partition("slot_")
        if slot.isdigit():
            return cls(kind="slot", slot=int(slot), heads=tuple(heads))
        kind, _, more = kind.partition("+")
        if more not in ("", "instruction"):
            raise ValueError(
                f"readout={name} is unknown; use mean, mean+instruction, weighted_mean, last, slot_K or slots"
            )
        return cls(kind=kind, instruction=bool(more), heads=tuple(heads))

    @property
    def name(self) -> str:
        kind = f"slot_{self.slot}" if self.kind == "slot" else self.kind
        return "@".join([f"{kind}+instruction" if self.instruction else kind, *self.heads])

    def token_range(self, sequence: Sequence) -> tuple[int, int]:
        """Return the half-open range of a sequence's tokens that is pooled.

        Raises `ValueError` for a slot of a sequence without slots.
        """
        spans = sequence.spans
        if self.kind in ("slot", "slots"):
            start, stop = spans.get("slots", (0, 0))
            if start == stop:
                raise ValueError(f"read-out {self.name} of a sequence without slots; use slots >= 1 or readout=last")
            at = min(start + self.slot, stop - 1)
            return (start, stop) if self.kind == "slots" else (at, at + 1)
        start, stop = spans["prompt"]
        if self.kind == "last":
            return stop - 1, stop
        return (start, stop) if self.instruction else spans["text"]

    def read_vectors(
        self,
        states: Float[Tensor, "T d"],
        batch: PackedBatch,
        which: list[int],
        heads: nn.ModuleDict | None = None,
    ) -> Float[Tensor, "n e"]:
        """Return one float32 vector for each sequence in `which`, not normalized; e is d unless a head changes it.

        Raises `ValueError` for a head that the model does not have.
        """
        for name in self.heads:
            if heads is None or name not in heads:
                raise ValueError(f"read-out {self.name} needs the head {name!r}: use a method with it, or no @{name}")
            states = heads[name](states.to(next(heads[name].parameters()).dtype))
        spans = torch.tensor([self.token_range(batch.sequences[i]) for i in which]).reshape(-1, 2)
        spans = (spans + torch.tensor([batch.starts[i] for i in which])[:, None]).to(states.device)
        weighting = "position" if self.kind == "weighted_mean" else "uniform"
        return pool_ranges(states, spans[:, 0], spans[:, 1], weighting=weighting)


def normalize_vectors(vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Scale vectors to unit length, in float32 or wider."""
    return F.normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=-1)
