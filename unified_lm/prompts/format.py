"""A template bound to a tokenizer: texts become sequences of tokens with slots, spans and labels.

A template's literals may name special tokens; the user's text never can (`<|im_end|>` inside a text is plain
characters). Literals and text between two special tokens are tokenized together, as the papers' code does. The place of
each field is found by character offsets, never by counting the tokens of a re-tokenized prefix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from transformers import PreTrainedTokenizerBase

from unified_lm.attention.modes import Plan
from unified_lm.files import text_hash
from unified_lm.packing import IGNORED, Sequence
from unified_lm.prompts.template import FIELDS, Template
from unified_lm.prompts.token_cache import TokenCache, Tokenized, tokenize_strings


@dataclass(frozen=True, kw_only=True)
class RenderedText:
    """Token ids of one part of a row.

    `spans`: half-open ranges of its fields. `slots`: the index of the slots. `complete`: it was not truncated.
    """

    ids: list[int]
    spans: dict[str, tuple[int, int]]
    slots: int
    complete: bool = True


@dataclass(frozen=True, kw_only=True)
class Format:
    """A template bound to a tokenizer, numbers of slots and lengths.

    Lengths are in tokens; a text is truncated to them, the template never. `slots`: slots after a query;
    `document_slots`: after a document. `plan`: the attention modes. `cache`: cache of tokenized strings (None: none).
    """

    template: Template
    tokenizer: PreTrainedTokenizerBase
    plan: Plan
    slots: int = 0
    document_slots: int = 0
    query_length: int = 512
    document_length: int = 512
    answer_length: int = 512
    cache: TokenCache | None = None

    @cached_property
    def special_token_pattern(self) -> re.Pattern[str]:
        names = sorted({token.content for token in self.tokenizer.added_tokens_decoder.values()}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def split_template(self, template: str) -> list[tuple[str, str]]:
        """Split a template into ("special", token), ("literal", text) and ("field", name)."""
        out: list[tuple[str, str]] = []
        for i, part in enumerate(FIELDS.split(template)):
            if i % 2:
                out.append(("special", self.tokenizer.eos_token) if part == "eos" else ("field", part))
                continue
            at = 0
            for match in self.special_token_pattern.finditer(part):
                out += [("literal", part[at : match.start()]), ("special", match.group())]
                at = match.end()
            out.append(("literal", part[at:]))
        return [piece for piece in out if piece[1]]

    def render(
        self, template: str, texts: Many[str], instructions: str | Many[str] = "", limit: int | None = None
    ) -> list[RenderedText]:
        """Tokenize every text in a template; the text is truncated so that the part has at most `limit` tokens."""
        if not texts:  # a tokenizer refuses an empty batch
            return []
        instructions = [instructions] * len(texts) if isinstance(instructions, str) else instructions
        before, _, after = self.template.instruction.partition("{instruction}")
        values = [
            {"text": text, "again": text, "instruction": before + instruction + after if instruction else ""}
            for text, instruction in zip(texts, instructions, strict=True)
        ]
        runs: list[list[tuple[str, str]] | str | None] = [[]]  # strings to tokenize together | a special token | slots
        for kind, value in self.split_template(template):
            if kind == "special":
                runs += [value, []]
            elif value == "slots" and kind == "field":
                runs += [None, []]
            else:
                runs[-1].append((kind, value))
        results = [RenderedText(ids=[], spans={}, slots=-1) for _ in texts]
        slots_at: list[int | None] = [None] * len(texts)
        for run in runs:
            if run is None:
                slots_at = [len(r.ids) for r in results]
            elif isinstance(run, str):
                token = self.tokenizer.convert_tokens_to_ids(run)
                for r in results:
                    r.ids.append(token)
            elif run:
                self.append_run(results, run, values)
        return [
            self.truncate(r, len(r.ids) if at is None else at, limit, instruction)
            for r, at, instruction in zip(results, slots_at, instructions, strict=True)
        ]

    def append_run(self, results: list[RenderedText], run: list[tuple[str, str]], values: list[dict[str, str]]) -> None:
        """Tokenize one run of literals and fields for every text, and record the token range of each field."""
        strings, ranges = [], []
        for value in values:
            text, places = "", {}
            for kind, name in run:
                part = value[name] if kind == "field" else name
                if kind == "field":
                    places[name] = (len(text), len(text) + len(part))
                text += part
            strings.append(text)
            ranges.append(places)
        for r, string, places, (ids, offsets) in zip(results, strings, ranges, self.tokenize(strings), strict=True):
            if crosses_field_edge(string, offsets, places):
                ids, offsets = self.tokenize_in_pieces(string, places)
            base = len(r.ids)
            r.ids.extend(ids)
            for name, (a, b) in places.items():
                inside = [i for i, (s, e) in enumerate(offsets) if e > a and s < b]
                r.spans[name] = (base + inside[0], base + inside[-1] + 1) if inside else (base, base)

    def tokenize_in_pieces(
        self, string: str, places: dict[str, tuple[int, int]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokenize a run in pieces split at its fields, for strings in which a token would cross a field's edge."""
        edges = sorted({0, len(string), *(edge for place in places.values() for edge in place)})
        ids, offsets = [], []
        for a, b in pairwise(edges):
            ((new, places),) = self.tokenize([string[a:b]])
            ids += new
            offsets += [(a + s, a + e) for s, e in places]
        return ids, offsets

    def tokenize(self, strings: Many[str]) -> list[Tokenized]:
        """Return ids and character offsets of strings, through the cache if there is one."""
        return tokenize_strings(self.tokenizer, strings) if self.cache is None else self.cache(strings)

    def truncate(self, r: RenderedText, slots: int, limit: int | None, instruction: str) -> RenderedText:
        """Truncate the text, and its first copy if there is one, so that the part fits its limit.

        Raises `ValueError` for an empty text, and if template and instruction leave no room for one token of it.
        """
        copies = [r.spans[name] for name in ("again", "text") if name in r.spans]
        start, stop = min(copies, key=lambda span: span[1] - span[0])
        over = 0 if limit is None else -(-max(0, len(r.ids) - limit) // len(copies))
        if stop - start - over < 1:
            what = "the text is empty" if stop == start else f"{limit} tokens leave no room for the text"
            raise ValueError(
                f"{what} (template {self.template.name}, instruction {instruction!r}); drop the row or raise the length"
            )

        def moved(at: int) -> int:
            return at - sum(min(over, max(0, at - (end - over))) for _, end in copies)

        dropped = {at for _, end in copies for at in range(end - over, end)}
        return RenderedText(
            ids=[token for at, token in enumerate(r.ids) if at not in dropped],
            spans={name: (moved(a), moved(b)) for name, (a, b) in r.spans.items()},
            slots=moved(slots),
            complete=not over,
        )

    def query_sequences(self, texts: Many[str], instructions: str | Many[str] = "") -> list[Sequence]:
        """Build the sequences of queries to embed, with slots, in the plan's embedding mode."""
        parts = self.render(self.template.query, texts, instructions, self.query_length)
        return [self.build_sequence(part, text, "query", self.slots) for part, text in zip(parts, texts, strict=True)]

    def document_sequences(self, texts: Many[str], instructions: str | Many[str] = "") -> list[Sequence]:
        """Build the sequences of documents to embed, with slots, in the plan's embedding mode."""
        parts = self.render(self.template.document, texts, instructions, self.document_length)
        return [
            self.build_sequence(part, text, "document", self.document_slots)
            for part, text in zip(parts, texts, strict=True)
        ]

    def answer_sequences(
        self,
        queries: Many[str],
        answers: Many[str],
        instructions: str | Many[str] = "",
        histories: Many[Many[tuple[str, str]]] | None = None,
    ) -> list[Sequence]:
        """Build sequences of queries with slots and their answers, in the plan's generation mode.

        Unless the template has its own `prompt`, the tokens before the answer's turn equal those of `query_sequences`,
        so one encoding serves both uses. Labels: the answer's text and the special token that ends it (without that
        token for a truncated answer, which does not end there).
        """
        parts = self.render(self.template.prompt, queries, instructions, self.query_length)
        turns = self.render(self.template.answer, answers, limit=self.answer_length)
        out = []
        for i, (part, turn) in enumerate(zip(parts, turns, strict=True)):
            earlier = self.history_tokens(histories[i]) if histories else []
            prompt = self.build_sequence(part, queries[i], "query", self.slots, earlier)
            out.append(self.append_answer(prompt, turn, answers[i]))
        return out

    def append_answer(self, prompt: Sequence, turn: RenderedText, answer: str) -> Sequence:
        tokens = prompt.tokens + tuple(turn.ids)
        start, stop = (len(prompt) + at for at in turn.spans["text"])
        ends = turn.complete and stop < len(tokens) and tokens[stop] in self.special_ids
        labels = [IGNORED] * len(tokens)
        labels[start - 1 : stop + ends - 1] = tokens[start : stop + ends]
        mode = self.plan.generate
        return replace(
            prompt,
            tokens=tokens,
            mode=mode,
            prefix=len(prompt) if mode == "prefix" else 0,
            labels=tuple(labels),
            spans=prompt.spans | {"answer": (start, stop)},
            hashes=prompt.hashes | {"answer": text_hash(answer)},
        )

    def plain_sequence(self, text: str) -> Sequence:
        """Build the sequence of a text without template; every token but the first is a next-token target."""
        ((ids, _),) = self.tokenize([text])
        if not ids:
            raise ValueError(f"the plain text {text!r} has no tokens; drop the row")
        tokens = self.prepend_bos(ids)[: self.document_length]
        return Sequence(
            tokens=tuple(tokens),
            mode="causal",
            labels=(*tokens[1:], IGNORED),
            spans={"text": (0, len(tokens)), "prompt": (0, len(tokens)), "slots": (0, 0)},
            hashes={"text": text_hash(text)},
        )

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self.tokenizer.added_tokens_decoder)

    def prepend_bos(self, ids: list[int]) -> list[int]:
        """Put exactly one BOS in front of the ids, if the template asks for one."""
        bos = self.tokenizer.bos_token_id
        return [bos, *ids] if self.template.bos and bos is not None and ids[:1] != [bos] else ids

    def history_tokens(self, history: Many[tuple[str, str]]) -> list[int]:
        """Tokenize the earlier turns of a dialogue; drop the oldest turns while they exceed the query's length."""
        turns = []
        for role, content in history:
            if role not in self.template.turns:
                known = ", ".join(sorted(self.template.turns)) or "none"
                raise ValueError(f"template {self.template.name} has no turn for role {role!r}; it has: {known}")
            turns.append(self.render(self.template.turns[role], [content])[0].ids)
        while turns and sum(map(len, turns)) > self.query_length:
            turns.pop(0)
        return [token for turn in turns for token in turn]

    def build_sequence(self, part: RenderedText, text: str, role: str, slots: int, earlier: Many[int] = ()) -> Sequence:
        """Build a sequence from earlier turns, a rendered part and slots; its span "prompt" ends at the slots."""
        body = self.prepend_bos([*earlier, *part.ids])
        moved = len(body) - len(part.ids)
        at = moved + part.slots
        tokens = body[:at] + [-(k + 1) for k in range(slots)] + body[at:]
        spans = {}
        for name, (a, b) in part.spans.items():
            shift = moved + (slots if a >= part.slots and b > part.slots else 0)
            spans[name] = (a + shift, b + shift)
        mode = self.plan.embed
        return Sequence(
            tokens=tuple(tokens),
            role=role,
            mode=mode,
            prefix={"prefix": len(tokens), "bottleneck": at}.get(mode, 0),
            spans=spans | {"prompt": (0, at if slots else len(tokens)), "slots": (at, at + slots)},
            hashes={"text": text_hash(text)},
        )


def crosses_field_edge(string: str, offsets: Many[tuple[int, int]], places: dict[str, tuple[int, int]]) -> bool:
    """Whether a token has characters of a field and of its neighbour (white space before the field does not count)."""
    edges = [edge for a, b in places.values() if b > a for edge in (a, b)]
    return any(s < edge < e and string[s:edge].strip() for s, e in offsets for edge in edges)
