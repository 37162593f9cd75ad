"""The prose of docstrings: reST, numpydoc and Markdown markup is removed, and only sentences are kept."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

SHORTEST_DESCRIPTION, LONGEST_DESCRIPTION = 5, 60  # words
SHORTEST_PARAGRAPH = 6  # words

_SECTION = re.compile(
    r"^\s*(?:(?:other |keyword )?(?:parameters?|params|args|arguments?)|kwargs|returns?|yields?|receives|raises?|warns?"
    r"|warnings?|examples?|example usage|notes?|see also|references?|attributes?|methods?|usage|inputs?|outputs?"
    r"|shapes?|tips?|todo|requires|side effects|call signatures?|supported \w+|history|authors?|credits?|copyright)"
    r"\s*:{0,2}$",
    re.IGNORECASE,
)
_UNDERLINE = re.compile(r"^\s*([-=~^*#])\1{2,}\s*$")
_FIELD = re.compile(r"^\s*(?::\w+[^:]*:(?!`)|@\w+\b|#{1,6} )")  # ":param x: ...", "@param x", "## Heading"
_SIGNATURE = re.compile(r"^[\w.\[\], ]*\(.*\)?\s*(?:->.*)?$", re.DOTALL)
_ROLE = re.compile(r":[a-zA-Z][\w:+.-]*:`([^`]+)`")
_UNINFORMATIVE = re.compile(
    r"\b(?:deprecated|alias(?:es)? (?:for|of|to)|obsolete|not implemented)\b"
    r"|^(?:see|same as|like|(?:in|out)puts? shape)\b",
    re.IGNORECASE,
)
_MARKUP = (
    (re.compile(r"\[(`?[^\]\[]+`?)\]\((?:[^()]|\([^()]*\))*\)"), r"\1"),  # [text](url)
    (re.compile(r"\[(`[^`\]]+`)\]"), r"\1"),  # [`Name`]
    (re.compile(r"`([^`<]+?)\s*<[^`>]+>`_{0,2}"), r"\1"),  # `text <url>`_
    (re.compile(r"``([^`]+)``"), r"`\1`"),
    (re.compile(r"`([^`]+)`__?(?!\w)"), r"\1"),  # `text`_
    (re.compile(r"\s*\[(?:\d+|[A-Z]\w*\d{2,4}\w?)\]_"), ""),  # [1]_
    (re.compile(r"\s*<?https?://[^\s<>)]*[^\s<>).,;:]>?"), ""),
    (re.compile(r"(?<!\w)`([^`'\s]+)'"), r"'\1'"),  # `name' of older texts
    (re.compile(r"\*\*([^*\s][^*]*)\*\*"), r"\1"),
    (re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])"), r"\1"),
    (re.compile(r"<[|/]?\w+[^<>]{0,40}>"), ""),  # <Tip>, </Tip>
    (re.compile(r"\|(\w+)\|"), r"\1"),
)
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|etc|al|resp|approx|Eq|Sec|Fig|No|Dr|Mr|St|[A-Z])|\.\.)\.$")
_SENTENCE_END = re.compile(r"[.!?][)`'\"]*(?=\s+[A-Z`\"'(\[])")
_NAME = re.compile(r"`[^`]*`|\b\w*[a-z]\w*[A-Z]\w*\b|\b[A-Z]{2,}\w*\b|\b\w+(?:[._]\w+)+\b|\b\w*\d\w*\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prose:
    """What a docstring says in sentences."""

    description: str  # the first sentence
    paragraphs: tuple[str, ...]  # what follows the first paragraph, up to the first section


def without_markup(text: str) -> str:
    """One line of plain text; names of code keep single backticks."""
    text = _ROLE.sub(lambda role: f"`{_role_text(role.group(1))}`", text)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return re.sub(r"\s+", " ", text.replace("\\", "")).strip()


def _role_text(content: str) -> str:
    """The visible part of a reST role: `text <target>` shows text, `~a.b.c` shows c."""
    visible = content.partition("<")[0].strip() or content
    return visible.rpartition(".")[2] if visible.startswith("~") else visible.lstrip("!")


def first_sentence(paragraph: str) -> str:
    """The paragraph up to its first full stop that ends a sentence; all of it where there is none."""
    for end in _SENTENCE_END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph[: end.start() + 1]):
            return paragraph[: end.end()]
    return paragraph


def mask_names(text: str) -> str:
    """The text without names, digits, case and punctuation: copies that differ only in a name become equal."""
    return " ".join(re.findall(r"[a-z_]+", _NAME.sub(" _ ", text).lower()))


def is_prose(text: str, shortest: int) -> bool:
    """Whether a cleaned paragraph is made of sentences: no list, table, formula, template or announcement of one."""
    letters = sum(character.isalpha() or character.isspace() for character in text)
    return (
        len(text.split()) >= shortest
        and re.match(r"[A-Za-z`\"'(]", text) is not None
        and not text.endswith((":", ",", ";"))
        and letters >= 0.75 * len(text)
        and not re.search(r"\{\w*\}|>>>| - .* - |={2,}|\s\|\s|:\w+:", text)
    )


def _docstring_blocks(docstring: str) -> list[list[str]]:
    """Runs of non-blank lines before the first section, field list or doctest."""
    blocks: list[list[str]] = [[]]
    lines = inspect.cleandoc(docstring).splitlines()
    for number, line in enumerate(lines):
        underlined = number + 1 < len(lines) and _UNDERLINE.match(lines[number + 1]) is not None
        if underlined or _SECTION.match(line) or _FIELD.match(line) or line.lstrip().startswith((">>>", "```")):
            break
        if line.strip():
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


def _clean_block(block: list[str]) -> str:
    """A block as one cleaned line; nothing for directives, indented blocks and lists."""
    listed = any(re.match(r"\s*(?:[-*•+]|\d+[.)])\s", line) for line in block)
    if listed or block[0].startswith((" ", "\t", "..", "|", "+-")):
        return ""
    return without_markup(" ".join(line.strip() for line in block))


def parse_docstring(docstring: str) -> Prose | None:
    """The description and the explaining paragraphs of a docstring; None where its first sentence says too little.

    Refused: fewer than 5 or more than 60 words, sections and signatures, deprecated names, aliases and references.
    """
    texts = [_clean_block(block) for block in _docstring_blocks(docstring)]
    while texts and _SIGNATURE.match(texts[0]):
        texts = texts[1:]
    if not texts:
        return None
    description = first_sentence(texts[0])
    if (
        not is_prose(description, SHORTEST_DESCRIPTION)
        or len(description.split()) > LONGEST_DESCRIPTION
        or _UNINFORMATIVE.search(description)
    ):
        return None
    return Prose(
        description=description,
        paragraphs=tuple(text for text in texts[1:] if is_prose(text, SHORTEST_PARAGRAPH) and "deprecated" not in text),
    )
