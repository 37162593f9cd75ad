"""Batched generation and log-likelihoods; a result does not depend on the other requests of its batch.

Likelihoods are computed in packs, without padding; requests that share a long context read it once. Answers are decoded
with a key/value cache in batches padded on the left, and a mask hides the padding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from unified_lm.inference.decoding import (
    Generated,
    Ids,
    Likelihood,
    Prompt,
    batch_by_length,
    choose_tokens,
    compute_likelihoods,
    decode_states,
    evaluation_mode,
    find_first_stop,
    find_last_occurrence,
    has_sliding_window,
    new_cache,
    next_token_logits,
)
from unified_lm.model import UnifiedLM
from unified_lm.packing import Sequence as Row
from unified_lm.packing import pack
from unified_lm.prompts.conversation import answer_header
from unified_lm.prompts.format import Format
from unified_lm.trainable import disable_adapters

MIN_SAVED_TOKENS = 128
"""Fewest tokens that sharing a context must save: small forwards cost more per token than packs."""


class BatchedGenerator:
    """Generates text and scores continuations with a decoder.

    `weights` is the digest of the parameters: with it, `identity` holds everything that decides an answer. `format` is
    the format of the model's training rows. `with_slots` inserts its slots into every prompt where they are in
    training, before the answer's turn. `without_adapters` disables low-rank adapters.
    `batch_tokens` bounds a pack, or a batch (rows times their final length), and changes no answer.

    Raises `ValueError` for slots without a format, and for attention that cannot predict a next token.
    """

    def __init__(
        self,
        model: UnifiedLM,
        format: Format | None = None,
        *,
        weights: str,
        with_slots: bool = False,
        without_adapters: bool = False,
        max_length: int | None = None,
        batch_tokens: int = 8192,
    ) -> None:
        config = model.backbone.config.get_text_config()
        self.model = model
        self.format = format
        self.weights = weights
        self.attention = format.plan.generate if format else "causal"
        self.max_length = max_length or config.max_position_embeddings
        self.batch_tokens = batch_tokens
        self.without_adapters = without_adapters
        self.slots = format.slots if format and with_slots else 0
        self.header = answer_header(format) if format else ()
        if with_slots and not self.slots:
            raise ValueError("with_slots=True needs a format with slots; give it slots > 0 or leave with_slots out")
        if self.attention == "bidirectional":
            raise ValueError("attention.generate=bidirectional sees the token it predicts; use causal or prefix")
        if self.attention == "prefix" and has_sliding_window(config):
            raise ValueError(
                "attention.generate=prefix cannot run on layers with a sliding window; "
                "use causal, or a decoder that attends to everything"
            )

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.model.tokenizer

    @property
    def bos_token_id(self) -> int | None:
        return self.tokenizer.bos_token_id

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that decides an answer, JSON-safe."""
        return {
            "weights": self.weights,
            "dtype": str(self.model.backbone.dtype),
            "autocast": str(self.model.autocast),
            "attention": self.attention,
            "max_length": self.max_length,
            "slots": self.slots,
            "adapters": not self.without_adapters,
            "template": asdict(self.format.template) if self.format else None,
        }

    def count_overflow(self, prompt: int, answer: int) -> int:
        """Count the tokens that a prompt of `prompt` tokens loses so that `answer` more tokens fit after it."""
        return max(0, prompt + self.slots + answer - self.max_length)

    def logprobs(
        self, pairs: Sequence[tuple[Ids, Ids]], *, done: Callable[[int], None] | None = None
    ) -> list[Likelihood]:
        """Score each (context, continuation), in order; `done` is called with the number of finished pairs.

        A context that does not fit loses tokens on the left and keeps its BOS. Raises `ValueError` for an empty
        context or continuation, and for a continuation longer than the model reads.
        """
        groups: dict[Prompt, list[int]] = defaultdict(list)
        for i, (context, continuation) in enumerate(pairs):
            if not continuation:
                raise ValueError(f"pair {i} has an empty continuation, which has no likelihood")
            groups[self.fit_prompt(context, len(continuation) - 1)].append(i)
        results: dict[int, Likelihood] = {}
        with self._inference_context():
            shared = {
                p: members for p, members in groups.items() if len(p.ids) * (len(members) - 1) >= MIN_SAVED_TOKENS
            }
            alone = [(prompt, i) for prompt, members in groups.items() if prompt not in shared for i in members]
            packed = self._likelihoods_in_packs([prompt for prompt, _ in alone], [pairs[i][1] for _, i in alone])
            for (_, i), scored in zip(alone, packed, strict=True):
                results[i] = scored
                if done:
                    done(len(results))
            for prompt, members in shared.items():
                results.update(
                    zip(
                        members,
                        self._likelihoods_of_shared_context(prompt, [pairs[i][1] for i in members]),
                        strict=True,
                    )
                )
                if done:
                    done(len(results))
        return [results[i] for i in range(len(pairs))]

    def generate(
        self,
        prompts: Sequence[Ids],
        max_new_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 0.0,
        *,
        seed: int = 0,
        done: Callable[[int], None] | None = None,
    ) -> list[Generated]:
        """Generate answers of at most `max_new_tokens`, cut before the first stop string; greedy at temperature 0.

        At a higher temperature, answer i draws from its own stream, a function of (seed, i). A prompt that does not
        fit loses tokens on the left and keeps its BOS. Raises `ValueError` for an empty prompt or no budget.
        """
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={max_new_tokens} leaves nothing to generate; give at least one")
        ready = [self.fit_prompt(prompt, max_new_tokens) for prompt in prompts]
        ends = self.find_end_ids(stop)
        streams = [torch.Generator(self.model.device).manual_seed(hash((seed, i)) % 2**63) for i in range(len(ready))]
        results: dict[int, Generated] = {}
        with self._inference_context():
            for rows in batch_by_length([len(prompt.ids) for prompt in ready], max_new_tokens, self.batch_tokens):
                drawing = [(ready[i], streams[i]) for i in rows]
                answers = self._decode_batch(drawing, max_new_tokens, stop, ends, temperature)
                for i, ids in zip(rows, answers, strict=True):
                    results[i] = self._finish_answer(ids, stop, ends, ready[i].dropped)
                if done:
                    done(len(results))
        return [results[i] for i in range(len(ready))]

    def fit_prompt(self, ids: Ids, answer: int) -> Prompt:
        """Insert the slots into a prompt and cut it on the left so that `answer` more tokens fit."""
        if not ids:
            raise ValueError("an empty prompt has no next token; give it at least the beginning of sequence")
        room = self.max_length - answer - self.slots
        if room < 1:
            raise ValueError(
                f"max_length={self.max_length} leaves no room for a prompt in front of {answer} tokens; "
                "raise it or lower the budget of new tokens"
            )
        kept, dropped = tuple(ids), self.count_overflow(len(ids), answer)
        if dropped:
            bos = kept[:1] if kept[0] == self.bos_token_id else ()
            kept = bos + kept[len(kept) - room + len(bos) :]
        at = find_last_occurrence(kept, self.header)
        if at is None and self.slots:
            raise ValueError(
                "slots stand in front of the answer's turn, which this prompt does not have; "
                "use the template of the rows, or generate without slots"
            )
        before = len(kept) if at is None else at
        slots = tuple(-(k + 1) for k in range(self.slots))
        prefix = before + self.slots if self.attention == "prefix" else 0
        return Prompt(ids=kept[:before] + slots + kept[before:], prefix=prefix, dropped=dropped)

    def find_end_ids(self, stop: Sequence[str] = ()) -> frozenset[int]:
        """Find the token ids that end an answer: of tokenizer, model, template, and one-token stop strings."""
        configured = self.model.backbone.generation_config.eos_token_id
        ends = {self.tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])}
        specials = {token.content: i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        ends |= {specials[text] for text in stop if text in specials}
        if self.format:
            turn = self.format.render(self.format.template.answer, ["a"])[0]
            ends |= set(turn.ids[turn.spans["text"][1] :][:1]) & set(specials.values())
        return frozenset(ends - {None})

    @contextmanager
    def _inference_context(self) -> Iterator[None]:
        """Put the model into inference mode. One autocast context for all forwards casts each weight only once."""
        adapters = disable_adapters(self.model) if self.without_adapters else nullcontext()
        with evaluation_mode(self.model), adapters, self.model.autocast_context():
            yield

    def _likelihoods_in_packs(self, prompts: Sequence[Prompt], continuations: Sequence[Ids]) -> Iterator[Likelihood]:
        """Score continuations that have a context each, in packs of at most `batch_tokens` tokens."""
        rows = [
            Row(tokens=(*prompt.ids, *continuation[:-1]), row=i, mode=self.attention, prefix=prompt.prefix)
            for i, (prompt, continuation) in enumerate(zip(prompts, continuations, strict=True))
        ]
        for batch in pack(rows, self.batch_tokens):
            batch = batch.to(self.model.device)
            states = self.model.hidden_states(batch)
            stops = [start + len(row) for row, start in zip(batch.sequences, batch.starts, strict=True)]
            ends = [continuations[row.row] for row in batch.sequences]
            asked = [states[stop - len(end) : stop] for stop, end in zip(stops, ends, strict=True)]
            yield from compute_likelihoods(self.model, asked, ends)

    def _likelihoods_of_shared_context(self, prompt: Prompt, continuations: Sequence[Ids]) -> list[Likelihood]:
        """Score continuations of one context, which is read once; padding is on the right, where no token sees it."""
        past = new_cache(self.model)
        first = decode_states(self.model, [prompt.ids], prefix=prompt.prefix, past=past)[0, -1:]
        asked = {i: first for i, continuation in enumerate(continuations) if len(continuation) == 1}
        rest = {i: continuation[:-1] for i, continuation in enumerate(continuations) if len(continuation) > 1}
        order = list(rest)
        for group in batch_by_length([len(rest[i]) for i in order], len(prompt.ids), self.batch_tokens):
            members = [order[at] for at in group]
            width = max(len(rest[i]) for i in members)
            own = deepcopy(past)
            own.batch_repeat_interleave(len(members))
            states = decode_states(self.model, [[*rest[i], *[0] * (width - len(rest[i]))] for i in members], past=own)
            asked |= {i: torch.cat([first, row[: len(rest[i])]]) for i, row in zip(members, states, strict=True)}
        return compute_likelihoods(self.model, [asked[i] for i in range(len(continuations))], continuations)

    def _decode_batch(
        self,
        drawing: list[tuple[Prompt, torch.Generator]],
        budget: int,
        stop: Sequence[str],
        ends: frozenset[int],
        temperature: float,
    ) -> list[list[int]]:
        """Decode the token ids of each answer, with the end of sequence; a finished row leaves the batch."""
        device = self.model.device
        width = max(len(prompt.ids) for prompt, _ in drawing)
        tail = 4 + max((len(text.encode()) for text in stop), default=0)
        padded = [width - len(p.ids) for p, _ in drawing]
        real = torch.tensor([[0] * n + [1] * (width - n) for n in padded], device=device) if any(padded) else None
        tokens = [(0,) * n + p.ids for n, (p, _) in zip(padded, drawing, strict=True)]
        prefix = [p.prefix and n + p.prefix for n, (p, _) in zip(padded, drawing, strict=True)]
        past = new_cache(self.model)
        answers: list[list[int]] = [[] for _ in drawing]
        live = list(range(len(drawing)))
        states = decode_states(self.model, tokens, real=real, prefix=prefix, past=past)
        while True:
            logits = next_token_logits(self.model, states[:, -1])
            for row, token in zip(live, choose_tokens(logits, temperature, [drawing[i][1] for i in live]), strict=True):
                answers[row].append(token)
            going = [
                at
                for at, row in enumerate(live)
                if len(answers[row]) < budget
                and answers[row][-1] not in ends
                and find_first_stop(self._decode_text(answers[row][-tail:]), stop) is None
            ]
            if not going:
                return answers
            if len(going) < len(live):
                kept = torch.tensor(going, device=device)
                past.batch_select_indices(kept)
                real, live = None if real is None else real[kept], [live[at] for at in going]
            if real is not None:
                real = torch.cat([real, real.new_ones(len(live), 1)], dim=1)
            states = decode_states(self.model, [answers[row][-1:] for row in live], real=real, past=past)

    def _decode_text(self, ids: Ids) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _finish_answer(self, ids: list[int], stop: Sequence[str], ends: frozenset[int], dropped: int) -> Generated:
        ended = ids[-1] in ends
        text = self._decode_text(ids[:-1] if ended else ids)
        at = find_first_stop(text, stop)
        return Generated(text=text[:at], tokens=len(ids), truncated=not ended and at is None, dropped=dropped)
