"""The steps of decoding: hidden states with a key/value cache, logits, likelihoods, sampling, stop strings.

Letters in shapes: b rows, n tokens, k positions with a next token, d width, V vocabulary.
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
HEAD_ROWS = 256  # positions whose logits are in memory at once: a row has one logit a vocabulary entry


class Likelihood(NamedTuple):
    """Summed log-probability of a continuation in nats, and whether greedy decoding would have produced it."""

    logprob: float
    is_greedy: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt that fits the model.

    `prefix`: number of first tokens with bidirectional attention. `dropped`: number of tokens cut on the left.
    """

    ids: tuple[int, ...]
    prefix: int
    dropped: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """A generated answer.

    `tokens`: number of generated tokens, with the end of sequence. `dropped`: number of prompt tokens cut on the left.

    `truncated`: the budget of new tokens ended before an end of sequence or a stop string came.
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
    """Compute the last hidden states of rows of equal length, given the cache `past`, and append them to the cache.

    `real` is 1 for tokens (cached and new) that are not padding (None: there is no padding).
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
    """Return logits in float32 or wider.

    The head runs in its weights' dtype: bfloat16 logits would tie unequal tokens.
    """
    head = model.backbone.get_output_embeddings()
    with torch.autocast(states.device.type, enabled=False):
        logits = head(states.to(head.weight.dtype))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    cap = getattr(model.backbone.config.get_text_config(), "final_logit_softcapping", None)
    return logits if cap is None else cap * (logits / cap).tanh()


def new_cache(model: UnifiedLM) -> DynamicCache:
    """Create an empty key/value cache for the decoder's layers."""
    return DynamicCache(config=model.backbone.config.get_text_config())


def batch_by_length(lengths: Sequence[int], budget: int, tokens: int) -> Iterator[list[int]]:
    """Group row indices into batches of similar length, longest first, each within `tokens` with its answers."""
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
    """Compute each continuation's likelihood from the states that predict its tokens, in float32."""
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
    """Choose each row's next token: the most likely one at temperature 0, else a sample from the row's stream."""
    if not temperature:
        return logits.argmax(dim=-1).tolist()
    chances = (logits / temperature).softmax(dim=-1)
    return [int(torch.multinomial(row, 1, generator=g)) for row, g in zip(chances, streams, strict=True)]


def build_prefix_mask(
    prefix: Int[Tensor, " b"], shape: tuple[int, int], real: Int[Tensor, "b n"] | None
) -> Bool[Tensor, "b 1 n n"]:
    """Build a prefix-LM mask: bidirectional among the tokens before index `prefix`, causal elsewhere.

    `shape` is (b, n). Only padding sees padding, so that no row of the softmax is empty.
    """
    at = torch.arange(shape[1], device=prefix.device)
    inside = at < prefix[:, None]
    seen = (at <= at[:, None]) | (inside[:, :, None] & inside[:, None, :])
    if real is not None:
        seen = seen & real.bool()[:, None, :] | torch.eye(shape[1], dtype=torch.bool, device=prefix.device)
    return seen[:, None]


def find_first_stop(text: str, stop: Sequence[str]) -> int | None:
    """Return the index at which the first stop string begins (None: the text has none)."""
    return min((text.index(end) for end in stop if end and end in text), default=None)


def find_last_occurrence(ids: Ids, part: Ids) -> int | None:
    """Return the index at which `part` begins for the last time (None: it is empty or does not occur)."""
    n = len(part)
    starts = (i for i in range(len(ids) - n, -1, -1) if tuple(ids[i : i + n]) == tuple(part))
    return next(starts, None) if n else None


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Disable gradients and dropout inside the block; afterwards restore every module's own mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def has_sliding_window(config: PretrainedConfig) -> bool:
    """Whether any layer of the decoder has a sliding window."""
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    return bool(getattr(config, "sliding_window", None)) and "sliding_attention" in kinds
