"""Retrieval and similarity tasks over files that the user names, as real mteb tasks.

Every error names the file and the line.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.sts import AbsTaskSTS

from evals.embedding.own_tasks import make_task, opaque_id, retrieval_data
from evals.embedding.suite import MtebSuite
from evals.embedding.tasks import TaskSource
from evals.instructions import Instructions
from unified_lm.files import file_digest, strings_digest

NONE_EXCLUDED = "N/A"
"""BRIGHT's way to write that a query excludes no document."""


@dataclass(frozen=True, kw_only=True)
class BeirFolder:
    """A folder in BEIR's layout: corpus.jsonl (_id, title, text), queries.jsonl (_id, text), qrels/<split>.tsv.

    A query may list `excluded_ids`: documents that must not be retrieved for it, as in BRIGHT. Ids are replaced by
    digests of themselves, for mteb breaks ties by id, and a name such as "pos-1" would then decide a score.
    """

    folder: str
    name: str = "LocalBeir"
    split: str = "test"
    ignore_identical_ids: bool = False

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """Corpus, queries and relevance."""
        root = Path(self.folder)
        return root / "corpus.jsonl", root / "queries.jsonl", root / "qrels" / f"{self.split}.tsv"

    def check(self) -> None:
        """Raises ValueError for a file that is missing."""
        for path in self.files:
            if not path.is_file():
                raise ValueError(
                    f"{path} is missing: a BEIR folder holds corpus.jsonl, queries.jsonl, qrels/{self.split}.tsv"
                )

    def build(self) -> AbsTask:
        """Raises ValueError for a file that is missing, a line that is malformed or an id that nobody has."""
        self.check()
        corpus, queries, qrels = self.files
        return make_task(
            AbsTaskRetrieval,
            name=self.name,
            type_="Retrieval",
            description=f"Retrieval over the BEIR folder {Path(self.folder).name}, split {self.split}",
            main_score="ndcg_at_10",
            path=Path(self.folder).name,
            revision=strings_digest(*(file_digest(path) for path in self.files)),
            data=lambda: _load_beir(corpus, queries, qrels),
            ignore_identical_ids=self.ignore_identical_ids,
        )


@dataclass(frozen=True, kw_only=True)
class StsFile:
    """Sentence pairs with a human score: a tsv or csv file with the columns sentence1, sentence2 and score, or the
    STS benchmark's own csv (tabs, no header: genre, file, year, id, score, sentence1, sentence2)."""

    file: str
    name: str = "LocalSts"

    def check(self) -> None:
        """Raises ValueError for a missing file."""
        if not Path(self.file).is_file():
            raise ValueError(f"{self.file} is missing: name a tsv or csv file with sentence1, sentence2 and score")

    def build(self) -> AbsTask:
        """Raises ValueError for a missing file or column, an empty sentence or a score that is no number."""
        self.check()
        path = Path(self.file)
        return make_task(
            AbsTaskSTS,
            name=self.name,
            type_="STS",
            description=f"Semantic textual similarity of the pairs in {path.name}",
            main_score="cosine_spearman",
            path=path.name,
            revision=file_digest(path),
            data=lambda: DatasetDict({"test": Dataset.from_list(_read_pairs(path))}),
        )


def retrieval_suite(
    *, folder: str, name: str = "local_beir", split: str = "test", instruction: str = "", metrics: Sequence[str] = ()
) -> MtebSuite:
    """One BEIR folder as a suite; `instruction` is the queries'."""
    source = BeirFolder(folder=folder, split=split)
    return _one_task_suite(name, source, instruction, metrics)


def similarity_suite(
    *, file: str, name: str = "local_sts", instruction: str = "", metrics: Sequence[str] = ()
) -> MtebSuite:
    """One file of sentence pairs as a suite; both sentences get the `instruction`."""
    return _one_task_suite(name, StsFile(file=file), instruction, metrics)


def _one_task_suite(name: str, source: TaskSource, instruction: str, metrics: Sequence[str]) -> MtebSuite:
    table = Instructions(name=name, tasks={source.name: {"query": instruction}})
    return MtebSuite(name=name, sources=[source], instructions=table, metrics=metrics)


def _load_beir(corpus: Path, queries: Path, qrels: Path) -> dict[str, Any]:
    documents = {row["_id"]: row for row in _read_jsonl(corpus)}
    asked = {row["_id"]: row for row in _read_jsonl(queries)}
    relevant = _read_qrels(qrels, set(documents), set(asked))
    excluded = {
        query: _read_excluded_ids(row, queries, set(documents)) for query, row in asked.items() if query in relevant
    }
    candidates = None
    if any(excluded.values()):
        candidates = {
            query: [document for document in documents if document not in left_out]
            for query, left_out in excluded.items()
        }
    return retrieval_data(
        corpus=[(opaque_id(document), row["title"], row["text"]) for document, row in documents.items()],
        queries=[(opaque_id(query), row["text"]) for query, row in asked.items() if query in relevant],
        relevant={
            opaque_id(query): {opaque_id(document): grade for document, grade in grades.items()}
            for query, grades in relevant.items()
        },
        candidates=candidates
        and {opaque_id(query): [opaque_id(document) for document in listed] for query, listed in candidates.items()},
    )


def _read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of corpus.jsonl or queries.jsonl, with text ids, and "" for a title that is missing or null."""
    seen: set[str] = set()
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: no JSON object ({error})") from error
            if not isinstance(row, dict) or not isinstance(row.get("_id"), str | int):
                raise ValueError(f"{path}:{number}: needs an object with `_id`, text or a whole number")
            if not isinstance(row.get("text"), str):
                raise ValueError(f"{path}:{number}: `text` must be text, not {row.get('text')!r}")
            if not isinstance(row.get("title") or "", str):
                raise ValueError(f"{path}:{number}: `title` must be text, null or absent, not {row['title']!r}")
            name = str(row["_id"])
            if name in seen:
                raise ValueError(f"{path}:{number}: the id {name!r} occurs twice")
            seen.add(name)
            yield {**row, "_id": name, "title": row.get("title") or ""}


def _read_qrels(path: Path, documents: set[str], queries: set[str]) -> dict[str, dict[str, int]]:
    """Query -> document -> grade, of queries with at least one relevant document. A first line may be a header."""
    relevant: dict[str, dict[str, int]] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            fields = line.rstrip("\r\n").split("\t")
            if fields == [""] or (number == 1 and fields[-1] == "score"):
                continue
            if len(fields) != 3 or not fields[2].lstrip("-").isdigit():
                raise ValueError(f"{path}:{number}: needs query id, document id and a whole number, between tabs")
            query, document, grade = fields
            if query not in queries:
                raise ValueError(f"{path}:{number}: queries.jsonl has no query {query!r}")
            if document not in documents:
                raise ValueError(f"{path}:{number}: corpus.jsonl has no document {document!r}")
            relevant.setdefault(query, {})[document] = int(grade)
    judged = {query: grades for query, grades in relevant.items() if any(grade > 0 for grade in grades.values())}
    if not judged:
        raise ValueError(f"{path}: no query has a relevant document")
    return judged


def _read_excluded_ids(row: Mapping[str, Any], path: Path, documents: set[str]) -> set[str]:
    listed = row.get("excluded_ids") or []
    if not isinstance(listed, list):
        raise ValueError(f"{path}: query {row['_id']!r}: `excluded_ids` must be a list, not {listed!r}")
    names = {str(name) for name in listed} - {NONE_EXCLUDED}
    if not names <= documents:
        raise ValueError(f"{path}: query {row['_id']!r} excludes {sorted(names - documents)}, which the corpus lacks")
    return names


def _read_pairs(path: Path) -> list[dict[str, Any]]:
    pairs = []
    with path.open(encoding="utf-8", newline="") as file:
        first = file.readline()
        file.seek(0)
        tabs = "\t" in first
        quoting = csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL
        reader = csv.reader(file, delimiter="\t" if tabs else ",", quoting=quoting)
        columns: Sequence[int] = (5, 6, 4)  # the STS benchmark's own layout
        for fields in reader:
            where = f"{path}:{reader.line_num}"
            if reader.line_num == 1 and {"sentence1", "sentence2", "score"} <= set(fields):
                columns = [fields.index(name) for name in ("sentence1", "sentence2", "score")]
            elif fields:
                pairs.append(_parse_pair(fields, columns, where))
    if not pairs:
        raise ValueError(f"{path} holds no pairs of sentences")
    return pairs


def _parse_pair(fields: Sequence[str], columns: Sequence[int], where: str) -> dict[str, Any]:
    if len(fields) <= max(columns):
        raise ValueError(
            f"{where}: {len(fields)} fields, too few; a header names sentence1, sentence2 and score, "
            "else the columns are those of the STS benchmark: genre, file, year, id, score, sentence1, sentence2"
        )
    first, second, score = (fields[column].strip() for column in columns)
    if not first or not second:
        raise ValueError(f"{where}: a sentence is empty")
    try:
        return {"sentence1": first, "sentence2": second, "score": float(score)}
    except ValueError as error:
        raise ValueError(f"{where}: the score {score!r} is no number") from error
