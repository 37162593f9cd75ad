"""The steps of decoding: states behind a cache, logits, likelihoods, choosing a token, finding where an answer stops.

Letters in shapes: b rows, n tokens, k positions whose next token is asked for, d width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import DynamicCache, PretrainedConfig

from unified_lm.model import UnifiedLM

Ids = Sequence[int]
HEAD_ROWS = 256  # positions whose logits are held at once: a row is as wide as the vocabulary


class Likelihood(NamedTuple):
    """Summed log-probability of a continuation in nats, and whether greedy decoding would have produced it."""

    logprob: float
    is_greedy: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """What the model reads before it answers; the first `prefix` tokens see each other both ways."""

    ids: tuple[int, ...]
    prefix: int
    dropped: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """An answer. `tokens` were drawn, the end of sequence included; `dropped` prompt tokens did not fit on the left.

    `truncated`: the budget ran out before an end of sequence or a stop string came.
    """

    text: str
    tokens: int
    truncated: bool
    dropped: int

    @property
    def empty(self) -> bool:
        return not self.text.strip()


def decode_states(
    model: UnifiedLM,
    tokens: Sequence[Ids],
    *,
    real: Int[Tensor, "b seen"] | None = None,
    prefix: int | Sequence[int] = 0,
    past: DynamicCache | None = None,
) -> Float[Tensor, "b n d"]:
    """Last hidden states of equally long rows behind what `past` holds, which then holds these rows as well.

    `real` marks which of the past and present tokens are not padding (None: there is none).
    """
    ids = torch.tensor(tokens, device=model.device)
    b, n = ids.shape
    seen = past.get_seq_length() if past is not None else 0
    positions = torch.arange(seen, seen + n, device=ids.device).expand(b, n)
    if real is not None:
        positions = (real.cumsum(dim=1) - 1).clamp(min=0)[:, seen:]
    prefixes = torch.tensor(prefix).expand(b)
    mask = build_prefix_mask(prefixes.to(ids.device), ids.shape, real) if bool(prefixes.any()) else real
    with model.autocast_context():
        out = model.backbone.base_model(
            inputs_embeds=model.embed_tokens(ids.flatten()).view(b, n, -1),
            position_ids=positions,
            attention_mask=mask,
            cache=past,
            use_cache=past is not None,
        )
    return out.last_hidden_state


def next_token_logits(model: UnifiedLM, states: Float[Tensor, "k d"]) -> Float[Tensor, "k V"]:
    """Logits in float32 or wider. The head runs in its weights' own dtype: bfloat16 logits would tie unequal tokens."""
    head = model.backbone.get_output_embeddings()
    with torch.autocast(states.device.type, enabled=False):
        logits = head(states.to(head.weight.dtype))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    cap = getattr(model.backbone.config.get_text_config(), "final_logit_softcapping", None)
    return logits if cap is None else cap * (logits / cap).tanh()


def new_cache(model: UnifiedLM) -> DynamicCache:
    """A key-value cache in the shape of the decoder's layers."""
    return DynamicCache(config=model.backbone.config.get_text_config())


def batch_by_length(lengths: Sequence[int], budget: int, tokens: int) -> Iterator[list[int]]:
    """Indices of rows in batches of similar length, the longest first, each batch within `tokens` in the end."""
    rows: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if rows and (len(rows) + 1) * (lengths[rows[0]] + budget) > tokens:
            yield rows
            rows = []
        rows.append(i)
    if rows:
        yield rows


def compute_likelihoods(
    model: UnifiedLM, states: Sequence[Float[Tensor, "_ d"]], continuations: Sequence[Ids]
) -> list[Likelihood]:
    """Of each continuation, read from the states that its tokens are predicted from; in float32."""
    rows = torch.cat(list(states))
    targets = torch.tensor([token for continuation in continuations for token in continuation], device=rows.device)
    nats, greedy = [], []
    for few, wanted in zip(rows.split(HEAD_ROWS), targets.split(HEAD_ROWS), strict=True):
        logits = next_token_logits(model, few)
        nats.append(logits.log_softmax(dim=-1).gather(1, wanted[:, None])[:, 0].double())
        greedy.append(logits.argmax(dim=-1) == wanted)
    lengths = [len(continuation) for continuation in continuations]
    parts = zip(torch.cat(nats).split(lengths), torch.cat(greedy).split(lengths), strict=True)
    return [Likelihood(own.sum().item(), bool(same.all())) for own, same in parts]


def choose_tokens(logits: Float[Tensor, "b V"], temperature: float, streams: Sequence[torch.Generator]) -> list[int]:
    """The most likely token of each row at temperature 0, else one drawn from its stream."""
    if not temperature:
        return logits.argmax(dim=-1).tolist()
    chances = (logits / temperature).softmax(dim=-1)
    return [int(torch.multinomial(row, 1, generator=g)) for row, g in zip(chances, streams, strict=True)]


def build_prefix_mask(
    prefix: Int[Tensor, " b"], shape: tuple[int, int], real: Int[Tensor, "b n"] | None
) -> Bool[Tensor, "b 1 n n"]:
    """Who sees whom when the tokens before index `prefix` see each other and all others see only the past.

    `shape` is (b, n). Padding is seen by nobody but itself, so that no row of the softmax is empty.
    """
    at = torch.arange(shape[1], device=prefix.device)
    inside = at < prefix[:, None]
    seen = (at <= at[:, None]) | (inside[:, :, None] & inside[:, None, :])
    if real is not None:
        seen = seen & real.bool()[:, None, :] | torch.eye(shape[1], dtype=torch.bool, device=prefix.device)
    return seen[:, None]


def find_first_stop(text: str, stop: Sequence[str]) -> int | None:
    """Where the first of the stop strings begins in the text; None where none occurs."""
    return min((text.index(end) for end in stop if end and end in text), default=None)


def find_last_occurrence(ids: Ids, part: Ids) -> int | None:
    """Where `part` begins for the last time; None where it does not occur or is empty."""
    n = len(part)
    starts = (i for i in range(len(ids) - n, -1, -1) if tuple(ids[i : i + n]) == tuple(part))
    return next(starts, None) if n else None


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """No gradients and no dropout inside; every module's mode is as before outside."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def has_sliding_window(config: PretrainedConfig) -> bool:
    """Whether any layer of the decoder sees only a window."""
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    return bool(getattr(config, "sliding_window", None)) and "sliding_attention" in kinds
