"""A conversation in the template of the training rows: how its text reads, and where its answer's turn begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unified_lm.prompts import Format, Template


def answer_header(format: Format) -> tuple[int, ...]:
    """The tokens that open the answer's turn."""
    turn = format.render(format.template.answer, ["a"])[0]
    return tuple(turn.ids[: turn.spans["text"][0]])


def written(template: Template, messages: Sequence[Mapping[str, str]], *, eos: str, open_turn: bool = True) -> str:
    """A conversation as the text of a training row: earlier turns, the query, and the answer's turn begun.

    With `open_turn` false, the last message is an answer already begun, which stays unfinished. Raises `ValueError`
    for a role that the template has no turn for.
    """
    query = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    turns = {"user": template.prompt, "assistant": template.answer} | template.turns
    begun = template.answer.partition("{text}")[0]
    parts = []
    for i, message in enumerate(messages):
        if message["role"] not in turns:
            known = ", ".join(sorted(turns))
            raise ValueError(f"template {template.name} has no turn for role {message['role']!r}; it has: {known}")
        turn = template.prompt if i == query else turns[message["role"]]
        if not open_turn and i == len(messages) - 1:
            turn = begun + "{text}"
        empty = turn.replace("{instruction}", "").replace("{slots}", "").replace("{eos}", eos)
        parts.append(empty.replace("{text}", message["content"]))
    return "".join(parts) + (begun if open_turn else "")
