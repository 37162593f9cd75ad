"""Encoding on a GPU: packs by every kernel, the same rows padded, and texts beside sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from experiments.bench.cuda.shapes import (
    ENCODE_GOALS,
    SETS,
    Measured,
    Shape,
    peer,
    rows,
    same_vectors,
    seconds,
    shares,
    texts,
)
from experiments.bench.material import CAUSAL, PLAIN
from unified_lm.attention.kernels import KERNELS
from unified_lm.flops import forward_flops
from unified_lm.inference.encode import Encoder
from unified_lm.model import UnifiedLM
from unified_lm.packing import Sequence as Row
from unified_lm.packing import pack
from unified_lm.prompts.format import Format
from unified_lm.readout import Readout

BATCHES = (32, 128, 512)  # of sentence-transformers
LONGEST = 2**15


def lines(shape: Shape, model: UnifiedLM, peak: float, repeats: int) -> Iterator[Measured]:
    yield from forwards(shape, model, peak, repeats)
    yield from beside(shape, model, repeats)


def forwards(shape: Shape, model: UnifiedLM, peak: float, repeats: int) -> Iterator[Measured]:
    """Packs to vectors by every kernel that this device has, and the same rows padded, 32 at a time, as peers do."""
    readout = Readout.from_name("mean")
    chosen = model.kernel
    for kind in SETS:
        drawn = rows(shape, kind)
        packs = [batch.to(model.device) for batch in pack(drawn, shape.budget)]
        tokens, flops = sum(map(len, packs)), sum(forward_flops(model, batch) for batch in packs)

        def ours(packs=packs) -> None:
            with torch.inference_mode():
                for batch in packs:
                    readout.read_vectors(model.hidden_states(batch), batch, list(range(len(batch.sequences))))

        for name in usable(model.device, ("causal",)):
            model.kernel = name
            taken, memory = seconds(ours, model.device, repeats)
            yield Measured(
                what=f"{shape.name} encode {kind}, kernel {name}{' (auto)' if name == chosen else ''}",
                seconds=taken,
                tokens_per_s=tokens / taken,
                peak_gib=memory,
                goal=ENCODE_GOALS.get(shape.name) if kind == "passages" and name == chosen else None,
                **shares(flops, taken, peak, model.device),
            )
        model.kernel = chosen
        taken, memory = seconds(lambda drawn=drawn: padded(model, drawn), model.device, repeats)
        yield Measured(
            what=f"{shape.name} encode {kind}, padded by 32 in transformers' sdpa",
            seconds=taken,
            tokens_per_s=tokens / taken,
            peak_gib=memory,
            **shares(flops, taken, peak, model.device),
        )


def beside(shape: Shape, model: UnifiedLM, repeats: int) -> Iterator[Measured]:
    """Texts to vectors on the host, tokenizing and all, against sentence-transformers' `encode` in its best setting."""
    form = Format(template=PLAIN, tokenizer=model.tokenizer, plan=CAUSAL, query_length=LONGEST, document_length=LONGEST)
    encoder = Encoder(model=model, format=form, readout="mean", budget=shape.budget)
    other, how = peer(model)
    for kind in SETS:
        given = texts(shape, kind)
        tokens = sum(map(len, encoder.build_sequences(given, "document")))

        def ours(given=given):
            return encoder.encode(given, side="document")

        def theirs(size: int, given=given):
            return other.encode(given, batch_size=size, show_progress_bar=False)

        parity = same_vectors(ours(), theirs(BATCHES[0]), model.backbone.dtype == torch.float32)
        taken, memory = seconds(ours, model.device, repeats)
        yield Measured(
            what=f"{shape.name} texts of {kind}", seconds=taken, tokens_per_s=tokens / taken, peak_gib=memory,
            parity=parity,
        )  # fmt: skip
        for size in BATCHES:
            taken, memory = seconds(lambda size=size, theirs=theirs: theirs(size), model.device, repeats)
            yield Measured(
                what=f"{shape.name} texts of {kind}, sentence-transformers ({how}), batches of {size}",
                seconds=taken,
                tokens_per_s=tokens / taken,
                peak_gib=memory,
            )


@torch.inference_mode()
def padded(model: UnifiedLM, drawn: list[Row]) -> None:
    """What peers without packing do with sorted rows."""
    model.backbone.set_attn_implementation("sdpa")
    for start in range(0, len(drawn), 32):
        part = [torch.tensor(row.tokens) for row in drawn[start : start + 32]]
        ids = torch.nn.utils.rnn.pad_sequence(part, batch_first=True).to(model.device)
        lengths = torch.tensor([len(row) for row in part], device=model.device)
        mask = (torch.arange(ids.shape[1], device=model.device)[None] < lengths[:, None]).long()
        states = model.backbone.base_model(ids, attention_mask=mask, use_cache=False).last_hidden_state
        (states * mask[..., None]).sum(1)
    model.backbone.set_attn_implementation("unified")


def usable(device: torch.device, modes: Sequence[str]) -> list[str]:
    """Kernels that this device has for these modes, the oracle aside."""
    return [
        kernel.name
        for kernel in KERNELS.values()
        if kernel.name != "dense" and kernel.explain_refusal(frozenset(modes), device.type, False, True, False) is None
    ]
