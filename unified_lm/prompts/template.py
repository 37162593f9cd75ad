"""Templates: the strings around a text, as data. Their literals may name special tokens; a user's text never can."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

FIELDS = re.compile(r"\{(instruction|again|text|slots|eos)\}")


@dataclass(frozen=True, kw_only=True)
class Template:
    """A template: the strings around a text.

    `query`, `document`: may hold {instruction}, {text}, {slots} (at the end where it is absent), {eos} and {again}, a
    first copy of the text (read-outs pool the second, {text}).
    `prompt`: the query in front of its answer, if it differs from `query`.
    `instruction`: replaces {instruction} if the instruction is not empty.
    `answer`: the generated turn; its {text} and the special token after it are the targets of the next-token loss.
    `turns`: role -> string, for the earlier turns of a dialogue. `bos`: the row starts with exactly one BOS.
    """

    name: str
    query: str
    document: str
    answer: str
    prompt: str = ""
    instruction: str = "{instruction}"
    turns: dict[str, str] = field(default_factory=dict)
    bos: bool = True

    def __post_init__(self) -> None:
        if not self.prompt:
            object.__setattr__(self, "prompt", self.query)
        for part in ("query", "document", "answer", "prompt"):
            text = getattr(self, part)
            unknown = set(re.findall(r"\{(\w*)\}", text)) - {"instruction", "text", "slots", "eos", "again"}
            if unknown or text.count("{text}") != 1 or text.count("{again}") > 1:
                raise ValueError(
                    f"template.{part}={text!r} needs exactly one {{text}} and may hold {{instruction}}, {{slots}}, "
                    "{eos} and one {again}" + (f"; {', '.join(sorted(unknown))} would stay unfilled" if unknown else "")
                )
        written = {"instruction": self.instruction} | {f"turns.{role}": turn for role, turn in self.turns.items()}
        for part, text in written.items():
            field = part.partition(".")[0].replace("turns", "text")
            allowed = {field} | ({"eos"} if field == "text" else set())
            if text.count(f"{{{field}}}") != 1 or set(re.findall(r"\{(\w*)\}", text)) - allowed:
                raise ValueError(f"template.{part}={text!r} needs exactly one {{{field}}} and no other field")
