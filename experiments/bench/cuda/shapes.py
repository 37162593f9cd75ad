"""Decoders in the shapes of real ones, what they are measured on, and how one measurement is taken."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from unified_lm.backbones.base import without_progress_bars
from unified_lm.backbones.tiny import TOKENIZER_TEXT, train_tiny_tokenizer
from unified_lm.flops import PEAKS
from unified_lm.model import UnifiedLM
from unified_lm.packing import Sequence as Row

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Qwen3 decoder: its widths, and how many tokens are encoded (`tokens`) or trained on (a quarter of them).

    `budget`: tokens of a pack; `chunk`: of a training chunk; `plain`: whether all graphs of a step fit into memory.
    """

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
    chunk: int = 2**14
    plain: bool = True


SHAPES = (
    Shape(name="0.6B", hidden=1024, inner=3072, layers=28, heads=16, groups=8),
    Shape(name="1.7B", hidden=2048, inner=6144, layers=28, heads=16, groups=8),
    Shape(name="8B", hidden=4096, inner=12_288, layers=36, heads=32, groups=8, tied=False, chunk=2**12, plain=False),
)
SETS = {"queries": (12, 0.5), "passages": (141, 0.8), "long": (4096, 0.4)}  # mean tokens, sigma of their logarithm
ENCODE_GOALS = {"0.6B": 0.40, "1.7B": 0.50, "8B": 0.57}  # share of the maker's peak, passages


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One number of the plan: seconds (median), real tokens a second, shares of both peaks, peak GiB.

    `parity`: what was asserted equal before it was timed.
    """

    what: str
    seconds: float
    tokens_per_s: float | None = None
    mfu: float | None = None
    of_measured_peak: float | None = None
    peak_gib: float | None = None
    goal: float | None = None
    parity: str = ""


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


def decoder(shape: Shape, device: torch.device, dtype: torch.dtype, **options: Any) -> UnifiedLM:
    """Random weights in that shape, made on the device; the tokenizer is a small one."""
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
    return UnifiedLM(model, train_tiny_tokenizer(512), **options)


def peer(model: UnifiedLM) -> tuple[SentenceTransformer, str]:
    """sentence-transformers on a copy of the weights, mean pooling, unit vectors; and how it computes.

    Where flash-attn is installed it leaves padding out, which is its best setting; elsewhere it pads on the right.
    """
    from importlib.util import find_spec

    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    tokenizer = train_tiny_tokenizer(512)
    tokenizer.padding_side, tokenizer.chat_template = "right", None
    flash = model.device.type == "cuda" and find_spec("flash_attn") is not None
    attention = "flash_attention_2" if flash else "sdpa"
    with tempfile.TemporaryDirectory(prefix="bench_peer_") as folder, without_progress_bars():
        model.backbone.base_model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        options = {"dtype": model.backbone.dtype, "attn_implementation": attention}
        body = Transformer(folder, max_seq_length=2**15, model_kwargs=options)
    modules = [body, Pooling(model.width, pooling_mode="mean"), Normalize()]
    how = "flash-attn, no padding" if body.can_flatten_inputs else "sdpa, padded"
    return SentenceTransformer(modules=modules, device=str(model.device)), how


def lengths(shape: Shape, kind: str) -> list[int]:
    """Lengths after a log-normal law, the longest first, about `shape.tokens` in all."""
    mean, sigma = SETS[kind]
    draw = torch.Generator().manual_seed(0)
    drawn = torch.empty(max(2, shape.tokens // mean)).log_normal_(0, sigma, generator=draw)
    return sorted((drawn * mean / drawn.mean()).round().clamp(2, 4 * mean).int().tolist(), reverse=True)


def rows(shape: Shape, kind: str, role: str = "document") -> list[Row]:
    """Sequences of random ids."""
    draw = torch.Generator().manual_seed(1)
    made = []
    for number, length in enumerate(lengths(shape, kind)):
        ids = tuple(torch.randint(0, shape.vocab, (length,), generator=draw).tolist())
        spans = {"text": (0, length), "prompt": (0, length), "slots": (0, 0)}
        made.append(Row(tokens=ids, row=number, role=role, spans=spans, hashes={"text": hash(ids)}))
    return made


def texts(shape: Shape, kind: str, seed: int = 2) -> list[str]:
    """Texts of random words of about these lengths in tokens; no two are equal."""
    words, draw = TOKENIZER_TEXT.split(), torch.Generator().manual_seed(seed)
    per_word = 1.6  # tokens of the small tokenizer
    made = []
    for number, length in enumerate(lengths(shape, kind)):
        count = max(1, round(length / per_word) - 1)
        chosen = torch.randint(0, len(words), (count,), generator=draw).tolist()
        made.append(" ".join([str(number), *(words[i] for i in chosen)]))
    return made


def shares(flops: float, taken: float, peak: float, device: torch.device) -> dict[str, float | None]:
    """The work's share of the maker's peak (None where it is not known) and of the measured one."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    makers = [value for key, value in PEAKS.items() if key in name]
    rate = flops / taken
    return {"mfu": rate / makers[0] if makers else None, "of_measured_peak": rate / peak}


def same_vectors(ours: Sequence[Any], theirs: Sequence[Any], exact: bool) -> str:
    """Raises AssertionError where a vector's direction differs: cosine below 0.99999, or 0.999 in half precision."""
    least = float((torch.as_tensor(ours).float() * torch.as_tensor(theirs).float()).sum(1).min())
    if not least >= (0.99999 if exact else 0.999):
        raise AssertionError(f"vectors differ from sentence-transformers' (least cosine {least:.6f})")
    return f"least cosine {least:.6f}"
