"""Data that a model makes from a data set: its own answers, and a teacher's vectors.

Both are written in parts. A part is written whole and its name has a digest of its texts, so an interrupted command
resumes where it stopped, and parts of other texts are never mixed in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from unified_lm.data.rows import TrainingRow
from unified_lm.files import folder_digest, strings_digest, text_hash, write_atomically

ROWS = "rows.jsonl"


def part_files(folder: Path, texts: Sequence[str], size: int, suffix: str) -> Iterator[tuple[Path, slice]]:
    """Yield the file of each part of `texts` and the slice of `texts` that it holds.

    Raises `ValueError` for a folder that holds parts of other texts.
    """
    cuts = [slice(start, min(start + size, len(texts))) for start in range(0, len(texts), size)]
    names = [f"part-{number:05d}-{strings_digest(*texts[cut])}{suffix}" for number, cut in enumerate(cuts)]
    foreign = {path.name for path in folder.glob(f"part-*{suffix}")} - set(names)
    if foreign:
        raise ValueError(
            f"{folder} holds {min(foreign)}, which was made from other texts; use another folder, or empty it"
        )
    yield from ((folder / name, cut) for name, cut in zip(names, cuts, strict=True))


def write_teacher_vectors(
    folder: Path, texts: Sequence[str], encode: Callable[[list[str]], np.ndarray], *, size: int = 1000
) -> TeacherVectors:
    """Encode each distinct text with `encode` and write the vectors, `size` texts a part; existing parts are kept."""
    unique = list(dict.fromkeys(texts))
    for path, cut in part_files(folder, unique, size, ".npy"):
        if not path.exists():
            vectors = np.asarray(encode(unique[cut]), dtype=np.float32)
            hashes = np.array([text_hash(text) for text in unique[cut]], dtype=np.int64)  # two columns, bit by bit
            with write_atomically(path) as partial, partial.open("wb") as file:
                np.save(file, np.concatenate([hashes.view(np.float32).reshape(-1, 2), vectors], axis=1))
    return TeacherVectors(folder=str(folder))


@dataclass(frozen=True, kw_only=True)
class TeacherVectors:
    """Vectors of texts by their `text_hash`, memory-mapped from the folder that `write_teacher_vectors` wrote."""

    folder: str

    def fingerprint(self) -> str:
        """Digest of the files, each read once.

        Raises `ValueError` for a folder that is not there.
        """
        if not Path(self.folder).is_dir():
            raise ValueError(
                f"there are no teacher vectors at {self.folder}; make them first, with write_teacher_vectors"
            )
        return f"vectors-{folder_digest(Path(self.folder))}"

    @cached_property
    def _part_arrays(self) -> list[np.ndarray]:
        return [np.load(path, mmap_mode="r") for path in sorted(Path(self.folder).glob("part-*.npy"))]

    @cached_property
    def _location_by_hash(self) -> dict[int, tuple[int, int]]:
        hashes = [np.ascontiguousarray(part[:, :2]).view(np.int64)[:, 0] for part in self._part_arrays]
        return {int(h): (n, i) for n, found in enumerate(hashes) for i, h in enumerate(found)}

    def lookup(self, hashes: Sequence[int]) -> np.ndarray:
        """Vectors [n, d] float32 of the texts with these hashes.

        Raises `ValueError` where one is missing.
        """
        missing = sum(h not in self._location_by_hash for h in hashes)
        if missing:
            raise ValueError(
                f"{self.folder} lacks the vectors of {missing} of {len(hashes)} texts; make them from this data"
            )
        return np.stack([self._part_arrays[n][i, 2:] for n, i in (self._location_by_hash[h] for h in hashes)])


def write_own_answers(
    folder: Path,
    rows: Sequence[TrainingRow],
    answer: Callable[[list[TrainingRow]], list[str]],
    *,
    size: int = 100,
    done: Callable[[int], object] = lambda count: None,
) -> Path:
    """Write the rows with new answers as a file of messages that `unified_lm.data.files.Files` reads.

    Rows are answered `size` at a time; existing parts are not answered again. A row with an empty answer is dropped,
    and `instruction` is not written. The file is written when all parts exist. `done` is called with the number of rows
    of each part, whether it existed or not.
    """
    asked = [json.dumps([row.history, row.query]) for row in rows]
    found = list(part_files(folder / "parts", asked, size, ".json"))
    for path, cut in found:
        if not path.exists():
            answers = answer(list(rows[cut]))
            with write_atomically(path) as partial:
                partial.write_text(json.dumps(answers), encoding="utf-8")
        done(cut.stop - cut.start)
    answers = [one for path, _ in found for one in json.loads(path.read_text(encoding="utf-8"))]
    with write_atomically(folder / ROWS) as partial, partial.open("w", encoding="utf-8") as file:
        for row, text in zip(rows, answers, strict=True):
            if text.strip():
                turns = [*row.history, ("user", row.query), ("assistant", text)]
                file.write(json.dumps({"messages": [{"role": role, "content": said} for role, said in turns]}) + "\n")
    return folder / ROWS
