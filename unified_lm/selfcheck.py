"""Self-check of attention before a run: does the loaded model attend as its plan says?

The check changes tokens of a pack one at a time and compares which hidden states change with the definition of the
modes. It stops the run with one sentence if a library update makes a mask ineffective, a kernel ignores the layout, or
packed sequences see each other.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unified_lm.attention.layout import Layout, segment_mask
from unified_lm.attention.modes import Plan
from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch, Sequence, collate

PROBE_LENGTHS = (5, 4)
CHANGED_POSITIONS = (
    0,
    2,
    4,
    5,
    8,
)  # every kind of place in the first sequence, both ends of the second: one forward each


class AttentionCheckError(ValueError):
    """The model's attention differs from its plan."""

    def __init__(self, model: UnifiedLM, mode: str, what: str) -> None:
        super().__init__(
            f"the self-check of attention failed: mode {mode} through kernel={model.kernel}: {what}; run "
            "`make doctor`, try another kernel=..., and check the installed transformers against constraints.txt"
        )


@torch.no_grad()
def check_attention(model: UnifiedLM, plan: Plan) -> None:
    """Compare which token changes which hidden state with the plan's modes, through the kernel that the run uses.

    Raises `Wrong` if a token changes a state that must not see it, or does not change one that
    must. (A wrong sliding window shows only where every layer has one: a layer without a window reaches all tokens.)
    """
    training = model.training
    model.eval()
    try:
        for mode in dict.fromkeys((plan.embed, plan.generate)):
            batch = build_probe(model, mode).to(model.device)
            moved, seen = (
                measure_influence(model, batch),
                reachable_tokens(batch.layout, layer_windows(model))[list(CHANGED_POSITIONS)],
            )
            for wrong, what in ((moved & ~seen, "moves"), (seen & ~moved, "does not move")):
                if bool(wrong.any()):
                    j, i = wrong.nonzero()[0].tolist()
                    raise AttentionCheckError(
                        model, mode, f"token {CHANGED_POSITIONS[j]} of a pack {what} the state of token {i}"
                    )
    finally:
        model.train(training)


def build_probe(model: UnifiedLM, mode: str) -> PackedBatch:
    """Build a pack of two sequences of distinct tokens; prefixes end in the middle, slots follow it."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randperm(model.vocabulary_size, generator=draw)[: sum(PROBE_LENGTHS)].tolist()
    sequences, at = [], 0
    for length in PROBE_LENGTHS:
        sequences.append(
            Sequence(
                tokens=tuple(ids[at : at + length]),
                mode=mode,
                prefix=length // 2 if mode in ("prefix", "bottleneck") else 0,
                spans={"slots": (length // 2, length // 2 + 2)},
            )
        )
        at += length
    return collate(sequences)


def measure_influence(model: UnifiedLM, batch: PackedBatch) -> Bool[Tensor, "c T"]:
    """Entry (j, i): whether another token at position CHANGED_POSITIONS[j] changes the last state of position i."""
    before = model.hidden_states(batch).float()
    embeddings = model.embed_tokens(batch.tokens)
    rows = []
    for j in CHANGED_POSITIONS:
        changed = embeddings.clone()
        changed[j] = embeddings[j - 1]
        rows.append(find_changed_states(model.run_decoder(changed, batch.positions, batch.layout).float(), before))
    return torch.stack(rows).cpu()


def find_changed_states(after: Float[Tensor, "T d"], before: Float[Tensor, "T d"]) -> Bool[Tensor, " T"]:
    """Find the states that changed. Kernels are deterministic on equal shapes, so an unseen token changes no bit."""
    return (after != before).any(dim=1)


def layer_windows(model: UnifiedLM) -> list[int | None]:
    """Return each layer's sliding window from the decoder's configuration (None: the layer has none)."""
    config = model.backbone.config.get_text_config()
    width = getattr(config, "sliding_window", None)
    if not getattr(config, "use_sliding_window", True):
        width = None
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return [width if kind == "sliding_attention" else None for kind in kinds]


def reachable_tokens(layout: Layout, windows: list[int | None]) -> Bool[Tensor, "T T"]:
    """Entry (j, i): whether token j reaches the state of token i through layers with these windows."""
    size = layout.segments[-1].stop
    paths = torch.eye(size)
    for window in windows:
        sees = torch.block_diag(*[segment_mask(bound, "cpu", window).float() for bound in layout.segments])
        paths = ((sees + torch.eye(size)) @ paths).clamp(max=1)
    return paths.T.bool()
