"""Readers for the record shapes of public data sets; each returns a `Record`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from unified_lm.data.rows import TrainingRow
from unified_lm.data.validity import BadRow, checked_text

ROLES = {
    "system": "system", "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "model": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool",
}  # fmt: skip

AROUND = "\t\n :"  # what GritLM's collator strips from the instruction of an [instruction, text] pair
THOUGHT, SOLUTION = "thought", "solution"


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A record as it was written, with all its positives, turns and instructions; `Records` turns it into rows."""

    query: str = ""
    instruction: str = ""
    positives: tuple[tuple[str, str], ...] = ()  # (instruction, text)
    negatives: tuple[tuple[str, str], ...] = ()
    turns: tuple[tuple[str, str], ...] | None = None  # (role, content)
    field: str = ""  # that the turns come from
    negative_dialogues: tuple[tuple[str, str], ...] = ()  # (question, answer), of other questions
    answer: str | None = None
    text: str | None = None


@dataclass(frozen=True, kw_only=True)
class RecordShape:
    """A shape of records: the fields and types that identify it, and the function that reads it."""

    fields: Mapping[str, type | tuple[type, ...]]
    read: Callable[[Mapping[str, Any]], Record]


def detect_shape(record: Mapping[str, Any]) -> str:
    """Name of the first shape whose fields are all in the record. Raises `BadRow` if there is none."""
    for name, shape in SHAPES.items():
        if all(isinstance(record.get(field), kind) for field, kind in shape.fields.items()):
            return name
    known = "; ".join(" + ".join(shape.fields) for shape in SHAPES.values())
    raise BadRow(
        ", ".join(map(str, record)) or "(none)",
        f"fit no known shape ({known}); say which to read, such as columns={{query: question, answer: reply}}",
    )


def _parse_passages(field: str, value: Any) -> tuple[tuple[str, str], ...]:
    """Documents as (instruction, text) pairs; given as a text, an [instruction, text] pair, a mapping, or a list."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        return (_parse_passage(field, value),)
    return tuple(_parse_passage(f"{field}[{number}]", item) for number, item in enumerate(value))


def _parse_passage(field: str, value: Any) -> tuple[str, str]:
    if isinstance(value, Mapping):
        title = value.get("title") or ""
        return "", f"{title} {checked_text(f'{field}.text', value.get('text'))}".strip()
    if isinstance(value, list | tuple):
        if len(value) != 2 or not all(isinstance(part, str) for part in value):
            raise BadRow(field, "is a list, but not an [instruction, text] pair")
        return value[0].strip(AROUND), checked_text(f"{field}[1]", value[1])
    return "", checked_text(field, value)


def _pair_reader(query: str, positive: str, negative: str) -> Callable[[Mapping[str, Any]], Record]:
    def read(record: Mapping[str, Any]) -> Record:
        instruction, text = _parse_passage(query, record.get(query))
        positives = _parse_passages(positive, record.get(positive))
        if not positives:
            raise BadRow(positive, "is missing" if record.get(positive) is None else "is empty")
        own = record.get("prompt") or record.get("instruction") or ""
        if own and not isinstance(own, str):
            raise BadRow("prompt" if record.get("prompt") else "instruction", "is not text")
        return Record(
            query=text,
            instruction=instruction or own,
            positives=positives,
            negatives=_parse_passages(negative, record.get(negative)),
        )

    return read


def _chat_reader(field: str) -> Callable[[Mapping[str, Any]], Record]:
    def read(record: Mapping[str, Any]) -> Record:
        turns = record.get(field)
        if not isinstance(turns, list | tuple):
            raise BadRow(field, "is missing" if turns is None else "is not a list of turns")
        return Record(
            turns=tuple(_parse_turn(f"{field}[{number}]", turn) for number, turn in enumerate(turns)), field=field
        )

    return read


def _parse_turn(field: str, turn: Any) -> tuple[str, str]:
    """OpenAI's {"role", "content"} or ShareGPT's {"from", "value"}."""
    if not isinstance(turn, Mapping):
        raise BadRow(field, "is not a mapping with a role and its content")
    role, content = ("from", "value") if "from" in turn else ("role", "content")
    said_by = turn.get(role)
    if not isinstance(said_by, str) or said_by not in ROLES:
        raise BadRow(f"{field}.{role}", f"is {said_by!r}, which is none of {', '.join(ROLES)}")
    return ROLES[said_by], checked_text(f"{field}.{content}", turn.get(content))


def _exchange_reader(
    question: str, reply: str, *, material: str = "", negative: tuple[str, str] | None = None
) -> Callable[[Mapping[str, Any]], Record]:
    def read(record: Mapping[str, Any]) -> Record:
        asked = checked_text(question, record.get(question))
        if material and record.get(material):
            asked = f"{asked}\n\n{checked_text(material, record[material])}"
        system = (("system", checked_text("system", record["system"])),) if record.get("system") else ()
        answer = checked_text(reply, record.get(reply))
        dialogues = ()
        if negative and any(record.get(field) is not None for field in negative):
            asked_else, answered_else = (checked_text(field, record.get(field)) for field in negative)
            dialogues = ((asked_else, answered_else),)
        return Record(
            turns=(*system, ("user", asked), ("assistant", answer)), field=question, negative_dialogues=dialogues
        )

    return read


def _read_instances(record: Mapping[str, Any]) -> Record:
    """Self-Instruct: one instruction with a list of (input, output) instances, of which the first is read."""
    instances = record.get("instances")
    if not isinstance(instances, list | tuple) or not instances or not isinstance(instances[0], Mapping):
        raise BadRow("instances", "is not a list of mappings with 'input' and 'output'")
    return _exchange_reader("instruction", "output", material="input")(
        {**instances[0], "instruction": record.get("instruction")}
    )


def _read_alternating(record: Mapping[str, Any]) -> Record:
    """GritLM's generative rows: a list of texts, by the user and the assistant in turn."""
    turns = record.get("text")
    if not isinstance(turns, list | tuple):
        raise BadRow("text", "is missing" if turns is None else "is not a list in which user and assistant take turns")
    roles = ("user", "assistant")
    return Record(
        turns=tuple((roles[number % 2], checked_text(f"text[{number}]", turn)) for number, turn in enumerate(turns)),
        field="text",
    )


def _reasoning_reader(target: str) -> Callable[[Mapping[str, Any]], Record]:
    """Reader of OpenThoughts: its system turn asks for a thought and a solution, and answers mark both by tags.

    `target`: "thought" keeps the whole answer; "solution" keeps the text in its solution tags, and drops the system
    turn, because it asks for a thought too.
    """

    def read(record: Mapping[str, Any]) -> Record:
        said = _chat_reader("conversations")(record)
        if target == THOUGHT:
            system = checked_text("system", record.get("system"))
            return replace(said, turns=(("system", system), *said.turns))
        turns = tuple((role, _extract_solution(number, text) if role == "assistant" else text)
                      for number, (role, text) in enumerate(said.turns))  # fmt: skip
        return replace(said, turns=turns)

    return read


def _extract_solution(number: int, text: str) -> str:
    field = f"conversations[{number}]"
    for part in (THOUGHT, SOLUTION):
        _, begun, rest = text.partition(f"<|begin_of_{part}|>")
        inside, ended, text = rest.partition(f"<|end_of_{part}|>")
        if not begun or not ended:
            raise BadRow(field, f"lacks <|{'end' if begun else 'begin'}_of_{part}|>")
    return checked_text(field, inside.strip())


def _read_plain(record: Mapping[str, Any]) -> Record:
    return Record(text=checked_text("text", record.get("text")))


LISTS, TEXTS = (list, tuple), (str,)
SHAPES: Mapping[str, RecordShape] = {
    "messages": RecordShape(fields={"messages": LISTS}, read=_chat_reader("messages")),
    "conversations": RecordShape(fields={"conversations": LISTS}, read=_chat_reader("conversations")),
    "open_thoughts": RecordShape(fields={"system": TEXTS, "conversations": LISTS}, read=_reasoning_reader(THOUGHT)),
    "open_thoughts_solution": RecordShape(fields={"conversations": LISTS}, read=_reasoning_reader(SOLUTION)),
    "pos_neg": RecordShape(
        fields={"query": (str, list), "pos": (*LISTS, str)}, read=_pair_reader("query", "pos", "neg")
    ),
    "positive_negative": RecordShape(
        fields={"query": TEXTS, "positive": (*LISTS, str)}, read=_pair_reader("query", "positive", "negative")
    ),
    "anchor": RecordShape(
        fields={"anchor": TEXTS, "positive": (*LISTS, str)}, read=_pair_reader("anchor", "positive", "negative")
    ),
    "passages": RecordShape(
        fields={"query": TEXTS, "positive_passages": LISTS},
        read=_pair_reader("query", "positive_passages", "negative_passages"),
    ),
    "prompt_response": RecordShape(
        fields={"prompt": TEXTS, "response": TEXTS}, read=_exchange_reader("prompt", "response")
    ),
    "prompt_completion": RecordShape(
        fields={"prompt": TEXTS, "completion": TEXTS}, read=_exchange_reader("prompt", "completion")
    ),
    "question_answer": RecordShape(
        fields={"question": TEXTS, "answer": TEXTS},
        read=_exchange_reader("question", "answer", negative=("negative_question", "negative_answer")),
    ),
    "instruction_output": RecordShape(
        fields={"instruction": TEXTS, "output": TEXTS}, read=_exchange_reader("instruction", "output", material="input")
    ),
    "instances": RecordShape(fields={"instruction": TEXTS, "instances": LISTS}, read=_read_instances),
    "alternating": RecordShape(fields={"text": LISTS}, read=_read_alternating),
    "text": RecordShape(fields={"text": TEXTS}, read=_read_plain),
}


def columns_reader(columns: Mapping[str, str]) -> Callable[[Mapping[str, Any]], Record]:
    """Reader of named columns: `{"query": "question"}` takes a row's `query` from the column "question"."""
    allowed = ("query", "instruction", "positive", "negatives", "answer", "text")
    if unknown := sorted(set(columns) - set(allowed)):
        raise ValueError(f"columns maps {unknown[0]!r}, which is none of {', '.join(allowed)}")

    def read(record: Mapping[str, Any]) -> Record:
        def text(field: str) -> str | None:
            return checked_text(columns[field], record.get(columns[field])) if field in columns else None

        def documents(field: str) -> tuple[tuple[str, str], ...]:
            return _parse_passages(columns[field], record.get(columns[field])) if field in columns else ()

        positives = documents("positive")
        if "positive" in columns and not positives:
            raise BadRow(columns["positive"], "is missing or empty")
        return Record(
            query=text("query") or "",
            instruction=(record.get(columns["instruction"]) or "") if "instruction" in columns else "",
            positives=positives,
            negatives=documents("negatives"),
            answer=text("answer"),
            text=text("text"),
        )

    return read


def turns_to_rows(field: str, turns: tuple[tuple[str, str], ...], which: str) -> list[TrainingRow]:
    """Rows of the last assistant turn, or of each one (`which="each"`); the turns before its question are history."""
    answered = [number for number, (role, _) in enumerate(turns) if role == "assistant"]
    if not answered:
        raise BadRow(field, "has no assistant turn: there is nothing to generate")
    rows = []
    for number in answered if which == "each" else answered[-1:]:
        if number == 0 or turns[number - 1][0] not in ("user", "tool"):
            raise BadRow(f"{field}[{number}]", "is an assistant turn that follows no user turn")
        rows.append(TrainingRow(query=turns[number - 1][1], answer=turns[number][1], history=turns[: number - 1]))
    return rows
