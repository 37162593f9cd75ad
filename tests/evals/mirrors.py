"""Data mirrors in the hub's layout, for tasks of mteb's and of lm-eval's own."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mteb

from tests.evals.lexical import ANIMALS, QUESTIONS, RELEVANT

Tables = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
"""(config, split) -> rows."""


def publish(mirror: Path, dataset: str, tables: Tables) -> Path:
    """Writes the folder that `hf download` leaves for a data set: jsonl files, and a README.md that names them."""
    folder = mirror / dataset
    folder.mkdir(parents=True, exist_ok=True)
    configs: dict[str, str] = {}
    for (config, split), rows in tables.items():
        name = f"{config}-{split}.jsonl"
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        configs[config] = configs.get(config, "") + f"  - split: {split}\n    path: {name}\n"
    listed = "".join(f"- config_name: {config}\n  data_files:\n{files}" for config, files in configs.items())
    (folder / "README.md").write_text(f"---\nconfigs:\n{listed}---\n", encoding="utf-8")
    return folder


def of(task: str) -> str:
    """The data set that a task of mteb's reads."""
    return mteb.get_task(task).metadata.dataset["path"]


def revision(task: str) -> str:
    return mteb.get_task(task).metadata.dataset["revision"]


def beir(splits: Sequence[str] = ("test",), *, single: bool = True) -> Tables:
    """The animals as BEIR's tables; `single`: one corpus and one list of queries for all splits."""
    tables: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for split in splits:
        corpus = [{"_id": name, "title": title or "", "text": text} for name, (title, text) in ANIMALS.items()]
        queries = [{"_id": name, "text": text} for name, text in QUESTIONS.items()]
        qrels = [{"query-id": query, "corpus-id": document, "score": 1} for query, document in RELEVANT.items()]
        tables |= {
            ("corpus", "corpus" if single else split): corpus,
            ("queries", "queries" if single else split): queries,
            ("default", split): qrels,
        }
    return tables


def similarity() -> Tables:
    pairs = [("a cat", "a cat", 5.0), ("a cat", "cats and a cat", 4.0), ("a dog", "a red ball", 1.0), ("x", "y", 0.0)]
    rows = [{"sentence1": one, "sentence2": other, "score": score} for one, other, score in pairs]
    return {("default", "test"): rows}


def sums(train: int = 3, test: int = 2) -> Tables:
    """GSM8K with easy questions."""
    rows = [{"question": f"What is {a} plus {a}?", "answer": f"Add.\n#### {2 * a}"} for a in range(train + test)]
    return {("main", "train"): rows[:train], ("main", "test"): rows[train:]}


def cups() -> Tables:
    """WinoGrande about cups."""
    said = (("large", "1"), ("small", "2"), ("red", "1"), ("flat", "2"), ("round", "1"), ("full", "2"))
    rows = [
        {"sentence": f"The cup did not fit: the _ was {how}.", "option1": "cup", "option2": "box", "answer": answer}
        for how, answer in said
    ]
    return {("winogrande_xl", split): rows for split in ("train", "validation")}
