"""Documented objects for training and for scoring, from different packages.

Every installation has these texts, so training and scoring need no hub. The scored texts depend on the versions of
scipy and pandas alone: a training text that nearly repeats a scored one is left out of training.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import re
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from unified_lm.data.packaged.documentation import (
    EXTRACTOR,
    STDLIB,
    DocumentedObject,
    extract_objects,
    object_from_json,
    package_version,
)
from unified_lm.data.packaged.near_duplicates import find_near_duplicates
from unified_lm.data.packaged.prose import is_prose, mask_names, without_markup
from unified_lm.files import cache_dir, create_once, strings_digest

TRAINING_PACKAGES = (STDLIB, "numpy", "torch", "transformers")
HELD_OUT_PACKAGES = ("scipy", "pandas")
SHORTEST_PASSAGE, LONGEST_PASSAGE = 30, 150  # words of a passage of the language reference


def held_out_objects() -> list[DocumentedObject]:
    """Documented functions and classes of scipy and pandas, for scoring only, without copies, in a stable mixed order.

    The first call reads the packages' sources, which takes seconds; later calls read a cached file.
    """
    return list(_load_objects("held_out"))


def training_objects() -> list[DocumentedObject]:
    """Documented functions and classes of the standard library, numpy, torch and transformers, for training only."""
    return list(_load_objects("train"))


def corpus_versions(split: str) -> dict[str, str]:
    """Everything that decides the texts of a split: the version of the extractor and of each package."""
    packages = HELD_OUT_PACKAGES if split == "held_out" else (*HELD_OUT_PACKAGES, *TRAINING_PACKAGES)
    return {"extractor": EXTRACTOR, **{package: package_version(package) for package in packages}}


def _load_objects(split: str) -> tuple[DocumentedObject, ...]:
    key = strings_digest(*(f"{name} {number}" for name, number in corpus_versions(split).items()))
    path = cache_dir() / "documentation" / f"{split}-{key}.jsonl.gz"
    make = _write_held_out if split == "held_out" else _write_training
    return _read_objects(create_once(path, make))


@cache
def _read_objects(path: Path) -> tuple[DocumentedObject, ...]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return tuple(object_from_json(json.loads(line)) for line in file)


def _write_held_out(path: Path) -> None:
    _write_objects(path, drop_repeated_objects(extract_objects(HELD_OUT_PACKAGES)))


def _write_training(path: Path) -> None:
    _write_objects(
        path, drop_near_duplicates(drop_repeated_objects(extract_objects(TRAINING_PACKAGES)), held_out_objects())
    )


def _write_objects(path: Path, objects: Iterable[DocumentedObject]) -> None:
    """Write one object a line in the order of a hash of its name, so that the first n are a sample of all packages."""
    ordered = sorted(objects, key=lambda found: hashlib.sha256(found.name.encode()).digest())
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=6) as file:
        file.writelines(json.dumps(asdict(found)) + "\n" for found in ordered)


def drop_repeated_objects(objects: Iterable[DocumentedObject]) -> list[DocumentedObject]:
    """Drop objects whose description repeats an earlier one's, names aside, and repeated code and paragraphs.

    Model libraries copy code: without this, most in-batch negatives of a row would repeat its positive.
    """
    seen: set[str] = set()

    def is_new(text: str) -> bool:
        known = text in seen
        seen.add(text)
        return not known

    return [
        replace(
            found,
            paragraphs=tuple(text for text in found.paragraphs if is_new(f"paragraph {mask_names(text)}")),
            code=found.code if found.code is not None and is_new(f"code {' '.join(found.code.split())}") else None,
        )
        for found in objects
        if is_new(f"description {mask_names(found.description)}")
    ]


def object_texts(found: DocumentedObject) -> list[str]:
    """All texts of an object that a row or a task may use."""
    return [text for text in (found.description, *found.paragraphs, found.code) if text]


def drop_near_duplicates(
    training: Iterable[DocumentedObject], scored: Iterable[DocumentedObject]
) -> list[DocumentedObject]:
    """Drop training objects that have a text which nearly repeats a text of a scored object."""
    owned = [(found, text) for found in training for text in object_texts(found)]
    pairs = find_near_duplicates(
        [text for found in scored for text in object_texts(found)], (text for _, text in owned)
    )
    repeated = {id(owned[pair.training][0]) for pair in pairs}
    return list({id(found): found for found, _ in owned if id(found) not in repeated}.values())


def language_reference() -> Iterator[tuple[str, str]]:
    """(topic, passage of 30 to 150 words) of Python's language reference, as `help()` shows it."""
    file = Path(sysconfig.get_paths()["stdlib"]) / "pydoc_data" / "topics.py"
    (statement,) = (node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign))
    for topic, text in ast.literal_eval(statement.value).items():
        passage: list[str] = []
        for block in [*re.split(r"\n\s*\n", text), ""]:
            paragraph = "" if block.startswith((" ", "..", "*", "-")) else without_markup(block)
            if not is_prose(paragraph, shortest=6):
                paragraph = ""
            words = sum(len(part.split()) for part in passage)
            if not paragraph or words + len(paragraph.split()) > LONGEST_PASSAGE:
                if words >= SHORTEST_PASSAGE:
                    yield topic, " ".join(passage)
                passage = []
            if paragraph:
                passage.append(paragraph)
