"""Rows from the documentation of installed packages: real text that needs no hub."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from unified_lm.data.arrow_store import Rows, rows_in_memory
from unified_lm.data.packaged.corpus import (
    HELD_OUT_PACKAGES,
    TRAINING_PACKAGES,
    corpus_versions,
    held_out_objects,
    language_reference,
    training_objects,
)
from unified_lm.data.packaged.documentation import DocumentedObject
from unified_lm.data.rows import TrainingRow
from unified_lm.files import strings_digest

__all__ = ["HELD_OUT_PACKAGES", "TRAINING_PACKAGES", "DocumentedObject", "PackagedText", "held_out_objects"]

SHORTEST_ANSWER, LONGEST_ANSWER = 20, 200  # words beyond the description; whole paragraphs are kept up to the latter
SPLITS = ("train", "held_out")
SHORTEST_TEXT = 40  # words
LONGEST_SIGNATURE = 100  # characters
QUESTIONS = (
    "What does `{name}` do?",
    "Explain `{name}`.",
    "What is `{name}` for?",
    "I found `{signature}` in `{module}`. What does it do?",
    "Describe `{signature}` of `{module}` in a few sentences.",
)


@dataclass(frozen=True, kw_only=True)
class PackagedText:
    """Documentation of installed packages as rows of one kind.

    pairs: a description and the code (or the explanation) of the same function; triples: a description, the code, and
    the explanation as the answer; dialogues: a question about an object and what its documentation says; text: prose of
    docstrings and of Python's language reference. The document of a pair has neither `def` line nor docstring.
    `split` decides by package: nothing in "train" comes from a package of "held_out" or nearly repeats its text.
    """

    kind: str
    split: str  # "train" or "held_out"
    positive: str = "code"  # or "explanation"
    negatives: int = 0  # documents of other objects of the same module, a row
    instruction: str = ""
    every: int = 1  # keep every n-th row,
    limit: int | None = None  # then the first n
    name: str = ""  # of the data set; by default its kind and positive

    def __post_init__(self) -> None:
        for field, allowed in (("kind", tuple(_ROW_MAKERS)), ("split", SPLITS), ("positive", ("code", "explanation"))):
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field}={getattr(self, field)} of PackagedText is not one of {', '.join(allowed)}")
        if self.negatives < 0 or self.every < 1 or (self.limit is not None and self.limit < 1):
            raise ValueError(
                "PackagedText needs negatives of at least 0, every and limit of at least 1 (or no limit); "
                f"got negatives={self.negatives}, every={self.every}, limit={self.limit}"
            )
        if self.kind in ("dialogues", "text") and (self.negatives or self.instruction):
            raise ValueError(f"kind={self.kind} has no documents; negatives and instruction need kind=pairs or triples")
        if self.kind == "triples" and self.positive == "explanation":
            raise ValueError("kind=triples answers with the explanation; use positive=code with it, or kind=pairs")
        if not self.name:
            object.__setattr__(self, "name", f"{self.kind}-{self.positive}" if self.kind == "pairs" else self.kind)

    def fingerprint(self) -> str:
        """Digest of package versions, extractor version and what is asked for; reads no text."""
        asked = (self.kind, self.positive, str(self.negatives), self.instruction, str(self.every), str(self.limit))
        versions = (f"{package} {number}" for package, number in corpus_versions(self.split).items())
        return f"packaged-{self.split}-{self.kind}-{strings_digest(*asked, self.name, *versions)}"

    def rows(self) -> Rows:
        """The rows, in an order in which the first n are a fair sample of all packages."""
        return _make_rows(self, self.fingerprint())


@lru_cache(maxsize=16)
def _make_rows(source: PackagedText, fingerprint: str) -> Rows:
    objects = held_out_objects() if source.split == "held_out" else training_objects()
    made = list(_ROW_MAKERS[source.kind](source, objects))[:: source.every][: source.limit]
    return rows_in_memory(made)


def _pair_rows(source: PackagedText, objects: list[DocumentedObject]) -> Iterator[TrainingRow]:
    """Description and document, with the explanation as the answer where `kind` is triples."""
    triples = source.kind == "triples"
    used = [found for found in objects if _document_text(source, found) and (found.explanation or not triples)]
    unrelated = _negatives_of_same_module(used, source.negatives)
    for number, found in enumerate(used):
        yield TrainingRow(
            query=found.description,
            instruction=source.instruction,
            positive=_document_text(source, found),
            negatives=tuple(str(_document_text(source, used[other])) for other in unrelated[number]),
            answer=found.explanation if triples else None,
            source=source.name,
        )


def _document_text(source: PackagedText, found: DocumentedObject) -> str | None:
    return found.code if source.positive == "code" else found.explanation


def _negatives_of_same_module(objects: list[DocumentedObject], count: int) -> list[list[int]]:
    """For each object, `count` others of its module, or of the next modules where its own has too few."""
    ordered = sorted(range(len(objects)), key=lambda number: objects[number].module)
    modules = [objects[number].module for number in ordered]
    chosen: list[list[int]] = [[] for _ in objects]
    start = 0
    while start < len(ordered):
        stop = start
        while stop < len(ordered) and modules[stop] == modules[start]:
            stop += 1
        block, outside = ordered[start:stop], ordered[stop:] + ordered[:start] if stop - start <= count else []
        for index, number in enumerate(block):
            chosen[number] = (block[index + 1 :] + block[:index] + outside)[:count]
        start = stop
    return chosen


def _dialogue_rows(source: PackagedText, objects: list[DocumentedObject]) -> Iterator[TrainingRow]:
    for found in objects:
        answer = _explanation_text(found)
        if len(answer.split()) - len(found.description.split()) >= SHORTEST_ANSWER:
            yield TrainingRow(query=_question_text(found), answer=answer, source=source.name)


def _explanation_text(found: DocumentedObject) -> str:
    """Description and the paragraphs that follow, whole ones, up to 200 words beyond the description."""
    chosen, words = [found.description], 0
    for paragraph in found.paragraphs:
        words += len(paragraph.split())
        if words > LONGEST_ANSWER:
            break
        chosen.append(paragraph)
    return " ".join(chosen)


def _question_text(found: DocumentedObject) -> str:
    """One of five questions, chosen by the object's name; the last two need a signature that can be read."""
    usable = QUESTIONS if 0 < len(found.signature) <= LONGEST_SIGNATURE else QUESTIONS[:3]
    chosen = usable[hashlib.sha256(found.name.encode()).digest()[0] % len(usable)]
    module = found.name.rpartition(".")[0]
    return chosen.format(name=found.name, signature=found.signature, module=module)


def _plain_text_rows(source: PackagedText, objects: list[DocumentedObject]) -> Iterator[TrainingRow]:
    """Prose of docstrings; in the training split the passages of the language reference stand among it."""
    prose = [_explanation_text(found) for found in objects]
    prose = [text for text in prose if len(text.split()) >= SHORTEST_TEXT]
    if source.split == "train":
        prose += [passage for _, passage in language_reference()]
        prose.sort(key=lambda text: hashlib.sha256(text.encode()).digest())
    for text in dict.fromkeys(prose):
        yield TrainingRow(text=text, source=source.name)


_ROW_MAKERS = {"pairs": _pair_rows, "triples": _pair_rows, "dialogues": _dialogue_rows, "text": _plain_text_rows}
