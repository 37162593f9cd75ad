"""The bench on a GPU: random decoders in the shapes of real ones, so that no weights are needed.

The peak of the products is measured first and every utilization is given against it and against the maker's number.
Every part also runs on a CPU at a tiny shape, which is how it is tested; on a GPU it has not been run yet.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config

from experiments.bench.material import CAUSAL
from experiments.errors import UsageError
from experiments.files import write, write_json
from experiments.places import outputs, shown
from experiments.provenance import git, hardware, versions
from unified_lm.attention.kernels import KERNELS
from unified_lm.attention.layout import MODES, Bound, Layout
from unified_lm.backbones.tiny import tiny_tokenizer
from unified_lm.flops import PEAKS, forward_flops, training_flops
from unified_lm.losses import head_cross_entropy, info_nce
from unified_lm.methods.contrastive import Contrastive
from unified_lm.model import UnifiedLM
from unified_lm.packing import Sequence as Row
from unified_lm.packing import pack
from unified_lm.readout import Readout
from unified_lm.selfcheck import check_attention
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import Randomness, Reader, accumulate


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Qwen3 decoder: its widths, and how many tokens of each length set are encoded or trained on."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    groups: int
    head: int = 128
    vocab: int = 151_936
    tied: bool = True
    tokens: int = 2**18
    budget: int = 2**14
    trained: bool = True


SHAPES = (
    Shape(name="0.6B", hidden=1024, inner=3072, layers=28, heads=16, groups=8),
    Shape(name="1.7B", hidden=2048, inner=6144, layers=28, heads=16, groups=8),
    Shape(name="8B", hidden=4096, inner=12_288, layers=36, heads=32, groups=8, tied=False, trained=False),
)
SETS = {"queries": (12, 0.5), "passages": (141, 0.8), "long": (4096, 0.4)}  # mean tokens, sigma of their logarithm
ENCODE_GOALS = {"0.6B": 0.40, "1.7B": 0.50, "8B": 0.57}  # share of the maker's peak, passages


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One number of the plan: seconds (median), real tokens a second, shares of both peaks, peak GiB."""

    what: str
    seconds: float
    tokens_per_s: float | None = None
    mfu: float | None = None
    of_measured_peak: float | None = None
    peak_gib: float | None = None
    goal: float | None = None


def main(repeats: int) -> int:
    if not torch.cuda.is_available():
        raise UsageError("device=cuda needs a GPU and torch sees none (make doctor says why); use device=cpu")
    device = torch.device("cuda")
    found = []
    for line in plan(device, torch.bfloat16, SHAPES, repeats):
        found.append(line)
        print(told(line), flush=True)
    facts = {"hardware": hardware(), "versions": versions(), "git": git(), "repeats": repeats}
    place = outputs() / "bench" / "cuda"
    write_json(place.with_suffix(".json"), facts | {"lines": [asdict(line) for line in found]})
    write(place.with_suffix(".md"), "\n".join(f"- {told(line)}" for line in found) + "\n")
    print(f"written: {shown(place)}.json, .md", file=sys.stderr)
    return 0


def told(line: Measured) -> str:
    parts = [f"{line.what}: {line.seconds * 1e3:.2f} ms"]
    parts += [f"{line.tokens_per_s / 1e3:.1f}k tokens/s"] if line.tokens_per_s else []
    parts += [f"MFU {line.mfu:.1%}"] if line.mfu else []
    parts += [f"{line.of_measured_peak:.1%} of the measured peak"] if line.of_measured_peak else []
    parts += [f"{line.peak_gib:.1f} GiB"] if line.peak_gib else []
    parts += [f"goal {line.goal:.0%}"] if line.goal else []
    return ", ".join(parts)


def plan(device: torch.device, dtype: torch.dtype, shapes: Sequence[Shape], repeats: int) -> Iterator[Measured]:
    """Everything, the cheapest first."""
    for shape in shapes:
        peak, taken = product_peak(shape, device, dtype, repeats)
        yield Measured(what=f"{shape.name} one product, {peak / 1e12:.1f} TFLOP/s", seconds=taken)
        model = decoder(shape, device, dtype)
        check_attention(model, CAUSAL)
        yield from encoding(shape, model, peak, repeats)
        if shape.trained:
            yield from training(shape, model, peak, repeats)
        del model
    yield from kernels(shapes[0], device, dtype, repeats)
    yield from losses(shapes[0], device, dtype, repeats)


def seconds(run: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, float | None]:
    """Median seconds after two calls that are not counted, and the peak of allocated GiB."""
    cuda = device.type == "cuda"
    settle = torch.cuda.synchronize if cuda else lambda: None
    run()
    run()
    settle()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    taken = []
    for _ in range(max(3, repeats)):
        start = time.perf_counter()
        run()
        settle()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken), torch.cuda.max_memory_allocated() / 2**30 if cuda else None


def product_peak(shape: Shape, device: torch.device, dtype: torch.dtype, repeats: int) -> tuple[float, float]:
    """FLOP/s and seconds of the largest product of a layer, [budget, hidden] x [hidden, inner]."""
    a = torch.randn(shape.budget, shape.hidden, device=device, dtype=dtype)
    b = torch.randn(shape.hidden, shape.inner, device=device, dtype=dtype)
    taken, _ = seconds(lambda: a @ b, device, repeats)
    return 2 * shape.budget * shape.hidden * shape.inner / taken, taken


def decoder(shape: Shape, device: torch.device, dtype: torch.dtype) -> UnifiedLM:
    """Random weights in that shape, made on the device; the tokenizer is a small one, since ids are drawn."""
    tokenizer: PreTrainedTokenizerFast = tiny_tokenizer(512)
    config = Qwen3Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
        head_dim=shape.head,
        tie_word_embeddings=shape.tied,
        pad_token_id=None,
    )
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return UnifiedLM(model, tokenizer)


def drawn(shape: Shape, kind: str, role: str = "document") -> list[Row]:
    """Sequences of random ids whose lengths follow a log-normal law, about `shape.tokens` in all, by length."""
    mean, sigma = SETS[kind]
    draw = torch.Generator().manual_seed(0)
    lengths = torch.empty(max(2, shape.tokens // mean)).log_normal_(0, sigma, generator=draw)
    lengths = (lengths * mean / lengths.mean()).round().clamp(2, 4 * mean).int().tolist()
    rows = []
    for number, length in enumerate(sorted(lengths, reverse=True)):
        ids = tuple(torch.randint(0, shape.vocab, (length,), generator=draw).tolist())
        spans = {"text": (0, length), "prompt": (0, length), "slots": (0, 0)}
        rows.append(Row(tokens=ids, row=number, role=role, spans=spans, hashes={"text": hash(ids)}))
    return rows


def shares(flops: float, taken: float, peak: float, device: torch.device) -> dict[str, float | None]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    makers = [value for key, value in PEAKS.items() if key in name]
    rate = flops / taken
    return {"mfu": rate / makers[0] if makers else None, "of_measured_peak": rate / peak}


def encoding(shape: Shape, model: UnifiedLM, peak: float, repeats: int) -> Iterator[Measured]:
    """Packs to vectors by every kernel that this device has, and the same rows padded, 32 at a time, as peers do."""
    readout = Readout.named("mean")
    chosen = model.kernel
    for kind in SETS:
        rows = drawn(shape, kind)
        packs = [batch.to(model.device) for batch in pack(rows, shape.budget)]
        tokens, flops = sum(map(len, packs)), sum(forward_flops(model, batch) for batch in packs)

        def ours(packs=packs) -> None:
            with torch.inference_mode():
                for batch in packs:
                    readout.vectors(model.states(batch), batch, list(range(len(batch.sequences))))

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
        taken, memory = seconds(lambda rows=rows: padded(model, rows), model.device, repeats)
        yield Measured(
            what=f"{shape.name} encode {kind}, padded by 32 in transformers' sdpa",
            seconds=taken,
            tokens_per_s=tokens / taken,
            peak_gib=memory,
            **shares(flops, taken, peak, model.device),
        )


@torch.inference_mode()
def padded(model: UnifiedLM, rows: list[Row]) -> None:
    """What peers without packing do with sorted rows."""
    model.backbone.set_attn_implementation("sdpa")
    for start in range(0, len(rows), 32):
        part = [torch.tensor(row.tokens) for row in rows[start : start + 32]]
        ids = torch.nn.utils.rnn.pad_sequence(part, batch_first=True).to(model.device)
        lengths = torch.tensor([len(row) for row in part], device=model.device)
        mask = (torch.arange(ids.shape[1], device=model.device)[None] < lengths[:, None]).long()
        states = model.backbone.base_model(ids, attention_mask=mask, use_cache=False).last_hidden_state
        (states * mask[..., None]).sum(1)
    model.backbone.set_attn_implementation("unified")


def usable(device: torch.device, modes: Sequence[str]) -> list[str]:
    return [
        kernel.name
        for kernel in KERNELS.values()
        if kernel.name != "dense" and kernel.cannot(frozenset(modes), device.type, False, True, False) is None
    ]


def training(shape: Shape, model: UnifiedLM, peak: float, repeats: int) -> Iterator[Measured]:
    """Contrastive steps with all graphs kept, and cached with one chunk's."""
    method = Contrastive(temperature=0.05, symmetric=False, readout="mean")
    documents = drawn(replace(shape, tokens=shape.tokens // 4), "passages")
    queries = drawn(replace(shape, tokens=shape.tokens), "queries", "query")[: len(documents)]
    rows = sorted([*documents, *queries], key=lambda row: row.row)
    for name, keep in (("plain", 10**9), ("cached", 1)):

        def step(keep=keep) -> None:
            model.zero_grad(set_to_none=True)
            chunks = [chunk.to(model.device) for chunk in pack(rows, shape.budget)]
            accumulate(
                Reader(model, method),
                chunks,
                ranks=Ranks(),
                randomness=Randomness(seed=0, step=0),
                keep_chunks=keep,
            )

        batches = pack(rows, shape.budget)
        taken, memory = seconds(step, model.device, repeats)
        yield Measured(
            what=f"{shape.name} contrastive step, {name}",
            seconds=taken,
            tokens_per_s=sum(map(len, batches)) / taken,
            peak_gib=memory,
            goal={"plain": 0.35, "cached": 0.28}[name] if shape.name == "0.6B" else None,
            **shares(training_flops(model, batches), taken, peak, model.device),
        )
    model.zero_grad(set_to_none=True)


def kernels(shape: Shape, device: torch.device, dtype: torch.dtype, repeats: int) -> Iterator[Measured]:
    """Every kernel in every mode, forward and backward, on one pack of passages."""
    lengths = [len(row) for row in drawn(replace(shape, tokens=shape.budget), "passages")]
    for mode in MODES:
        at, bounds = 0, []
        for length in lengths:
            bounds.append(Bound(start=at, stop=at + length, mode=mode, prefix=length // 2 if mode == "prefix" else 0))
            at += length
        layout = Layout.of(bounds).to(device)
        q, k, v = (
            torch.randn(1, heads, at, shape.head, device=device, dtype=dtype, requires_grad=True)
            for heads in (shape.heads, shape.groups, shape.groups)
        )
        for name in usable(device, (mode,)):
            run = KERNELS[name].run

            def both(run=run, q=q, k=k, v=v, layout=layout) -> None:
                torch.autograd.grad(run(q, k, v, layout, scale=None).sum(), (q, k, v))

            taken, memory = seconds(both, device, repeats)
            yield Measured(what=f"kernel {name}, {mode}, forward and backward", seconds=taken, peak_gib=memory)


def losses(shape: Shape, device: torch.device, dtype: torch.dtype, repeats: int) -> Iterator[Measured]:
    """The head on one pack by each way there is, and InfoNCE of 8 rows a candidate block, tiled and whole."""
    states = torch.randn(shape.budget, shape.hidden, device=device, dtype=dtype, requires_grad=True)
    weight = torch.randn(shape.vocab, shape.hidden, device=device, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, shape.vocab, (shape.budget,), device=device)
    for name in ("tiles", "torch", *(["liger"] if liger(device) else [])):

        def head(name=name) -> None:
            loss = head_cross_entropy(states, weight, labels, kernel=name)
            torch.autograd.grad(loss, (states, weight))

        taken, memory = seconds(head, device, repeats)
        yield Measured(what=f"head of {shape.budget} tokens, {name}", seconds=taken, peak_gib=memory)
    queries, candidates = (
        torch.randn(n, shape.hidden, device=device, requires_grad=True) for n in (shape.budget // 2, shape.budget * 4)
    )
    targets = torch.arange(len(queries), device=device)

    def contrast() -> None:
        torch.autograd.grad(info_nce(queries, candidates, targets, temperature=0.05), (queries, candidates))

    taken, memory = seconds(contrast, device, repeats)
    yield Measured(what=f"InfoNCE {len(queries)} x {len(candidates)}, tiled", seconds=taken, peak_gib=memory)


def liger(device: torch.device) -> bool:
    from importlib.util import find_spec

    return device.type == "cuda" and find_spec("liger_kernel") is not None
