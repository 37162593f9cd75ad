"""A real, if simple, embedder: texts are near where they share words. It remembers what it was given to read."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np


class Lexical:
    """Words hashed into counts; `longest` is its maximum length in words, `weights` names its seed."""

    width = 2048

    def __init__(self, *, weights: str = "a", longest: int = 1000, similarity: str = "cosine") -> None:
        self.weights, self.longest, self.similarity = weights, longest, similarity
        self.readout, self.attention = "mean", "bidirectional"
        self.read: list[tuple[str, str, str]] = []  # side, instruction, text

    @property
    def identity(self) -> dict:
        return {"kind": "lexical", "weights": self.weights, "longest": self.longest, "similarity": self.similarity}

    def encode(self, texts: Sequence[str], *, side: str, instruction: str = "") -> np.ndarray:
        self.read += [(side, instruction, text) for text in texts]
        vectors = np.zeros((len(texts), self.width), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"[a-z]+", f"{instruction} {text}".lower())[: self.longest]:
                vectors[row, int(hashlib.sha256(f"{self.weights}{word}".encode()).hexdigest(), 16) % self.width] += 1
        return vectors


class Constant(Lexical):
    """Every text is the same to it: whatever it scores beyond chance comes from how ties are broken."""

    def encode(self, texts: Sequence[str], *, side: str, instruction: str = "") -> np.ndarray:
        return np.ones((len(texts), 4), dtype=np.float32)


ANIMALS = {
    "d1": ("Cats", "a cat sleeps on the warm mat"),
    "d2": ("Dogs", "a dog runs after the red ball"),
    "d3": (None, "a horse eats fresh grass in the field"),
    "d4": ("Fish", "a fish swims in the cold river"),
}
QUESTIONS = {"q1": "where does the cat sleep", "q2": "what does the dog run after", "q3": "the horse in the field"}
RELEVANT = {"q1": "d1", "q2": "d2", "q3": "d3"}


def beir_folder(
    folder: Path,
    *,
    corpus: dict[str, tuple[str | None, str]] = ANIMALS,
    queries: dict[str, str] = QUESTIONS,
    relevant: dict[str, str] = RELEVANT,
    excluded: dict[str, list] | None = None,
) -> str:
    """Writes a folder in BEIR's layout and returns its path."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    documents = [{"_id": name, "title": title, "text": text} for name, (title, text) in corpus.items()]
    left_out = excluded or {}
    asked = [{"_id": name, "text": text, "excluded_ids": left_out.get(name, [])} for name, text in queries.items()]
    for name, rows in (("corpus", documents), ("queries", asked)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["query-id\tcorpus-id\tscore", *(f"{query}\t{document}\t1" for query, document in relevant.items())]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return str(folder)


def sts_file(path: Path) -> str:
    """Writes four scored pairs as a tsv file and returns its path."""
    path.write_text(
        "sentence1\tsentence2\tscore\n"
        "a cat sleeps\ta cat sleeps\t5\n"
        "a cat sleeps\ta cat sleeps now\t4\n"
        "a dog runs\ta dog sleeps\t2.5\n"
        "the red ball\tgreen grass\t0\n"
    )
    return str(path)
