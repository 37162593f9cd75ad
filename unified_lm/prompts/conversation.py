"""Conversations in the template of the training rows: their text, their tokens, and the header of the answer's turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from unified_lm.prompts.format import Format
from unified_lm.prompts.template import Template


def answer_header(format: Format) -> tuple[int, ...]:
    """Return the tokens that open the answer's turn."""
    turn = format.render(format.template.answer, ["a"])[0]
    return tuple(turn.ids[: turn.spans["text"][0]])


def conversation_tokens(format: Format, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Tokenize a conversation before the answer's turn as in training rows: each turn separately.

    In one string, the last character of a turn and the newline of the next could become one token (Qwen's tokenizer).
    Raises `ValueError` for a role that the template has no turn for.
    """
    written = (
        format.render(turn, [message["content"]])[0] for turn, message in assign_turns(format.template, messages)
    )
    return [token for part in written for token in part.ids]


def assign_turns(template: Template, messages: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield every message with its part of the template. Raises `ValueError` for a role without a part."""
    query = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    known = {"user": template.prompt, "assistant": template.answer} | template.turns
    for i, message in enumerate(messages):
        if message["role"] not in known:
            roles = ", ".join(sorted(known))
            raise ValueError(f"template {template.name} has no turn for role {message['role']!r}; it has: {roles}")
        yield template.prompt if i == query else known[message["role"]], message


def render_conversation(
    template: Template, messages: Sequence[Mapping[str, str]], *, eos: str, open_turn: bool = True
) -> str:
    """Write a conversation as the text of a training row: earlier turns, the query, and the start of the answer's turn.

    With `open_turn=False`, the last message is the start of an answer and stays unfinished. Raises `ValueError`
    for a role that the template has no turn for.
    """
    begun = template.answer.partition("{text}")[0]
    parts = []
    for i, (turn, message) in enumerate(assign_turns(template, messages)):
        if not open_turn and i == len(messages) - 1:
            turn = begun + "{text}"
        empty = turn.replace("{instruction}", "").replace("{slots}", "").replace("{eos}", eos)
        parts.append(empty.replace("{text}", message["content"]))
    return "".join(parts) + (begun if open_turn else "")
