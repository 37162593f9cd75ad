"""A conversation in the template of the training rows: how its text reads, and where its answer's turn begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from unified_lm.prompts.format import Format
from unified_lm.prompts.template import Template


def answer_header(format: Format) -> tuple[int, ...]:
    """The tokens that open the answer's turn."""
    turn = format.render(format.template.answer, ["a"])[0]
    return tuple(turn.ids[: turn.spans["text"][0]])


def conversation_tokens(format: Format, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """The tokens of a conversation before the answer's turn, as a training row has them: each turn on its own.

    Tokenized as one string, the last sign of a turn and the newline that opens the next could be one token (Qwen's).
    Raises `ValueError` for a role that the template has no turn for.
    """
    written = (
        format.render(turn, [message["content"]])[0] for turn, message in assign_turns(format.template, messages)
    )
    return [token for part in written for token in part.ids]


def assign_turns(template: Template, messages: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Every message with the part of the template that writes it."""
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
    """A conversation as the text of a training row: earlier turns, the query, and the answer's turn begun.

    With `open_turn` false, the last message is an answer already begun, which stays unfinished. Raises `ValueError`
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
