"""Tasks from the documentation of packages that no training text comes from, in mteb's own task classes.

Every installation has this text, so these tasks need no hub. They share texts on purpose: retrieval and reranking rank
the same code, and pairs are made of the texts that are retrieved, so that a suite which remembers vectors reads each
text once. There is no similarity task: nobody has graded the likeness of these texts.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTask, AbsTaskClassification, AbsTaskClustering, AbsTaskPairClassification, AbsTaskRetrieval
from mteb.types import PromptType

from evals.embedding.own_tasks import make_task, opaque_id, retrieval_data
from unified_lm.data.packaged.source import DocumentedObject, held_out_objects

PATH = "unified_lm/packaged"
"""Stands as the data set's name in mteb's metadata."""


@dataclass(frozen=True, kw_only=True)
class CodeRetrieval:
    """From a one-sentence description to the body of the function, among bodies of the same and of other modules.

    The corpus is `groups` groups of `group` functions of one module each; `queries` of a group are asked for.
    """

    groups: int
    group: int
    queries: int
    name: str = "PackagedCodeRetrieval"

    def build(self) -> AbsTask:
        return _retrieval_task(self.name, code, self.groups, self.group, self.queries)


@dataclass(frozen=True, kw_only=True)
class ExplanationRetrieval:
    """From a one-sentence description to the paragraph that explains the same function or class."""

    groups: int
    group: int
    queries: int
    name: str = "PackagedExplanationRetrieval"

    def build(self) -> AbsTask:
        return _retrieval_task(self.name, explanation, self.groups, self.group, self.queries)


@dataclass(frozen=True, kw_only=True)
class CodeReranking:
    """The one described function among `group` functions of its module (chance: 0.408 for six)."""

    groups: int
    group: int
    queries: int
    name: str = "PackagedCodeReranking"

    def build(self) -> AbsTask:
        return _retrieval_task(self.name, code, self.groups, self.group, self.queries, within_group=True)


@dataclass(frozen=True, kw_only=True)
class ExplanationPairs:
    """Does the paragraph explain the described function, or another one of the same module? (chance: 0.5)"""

    groups: int
    group: int
    queries: int
    name: str = "PackagedExplanationPairs"

    def build(self) -> AbsTask:
        rows = []
        for members in group_by_module(held_out_objects(), explanation, self.group, self.groups):
            for i in range(self.queries):
                asked, other = members[i], members[(i + 1) % len(members)]
                rows.append({"sentence1": asked.description, "sentence2": explanation(asked), "labels": 1})
                rows.append({"sentence1": asked.description, "sentence2": explanation(other), "labels": 0})
        return make_task(
            AbsTaskPairClassification,
            name=self.name,
            type_="PairClassification",
            description="Does a paragraph explain the function that a sentence describes?",
            main_score="similarity_ap",
            path=PATH,
            revision=rows_digest(rows),
            data=partial(_dataset_splits, test=_shuffle_rows(rows)),
            input1_prompt_type=PromptType.query,
            input2_prompt_type=PromptType.document,
        )


@dataclass(frozen=True, kw_only=True)
class SubpackageClassification:
    """Which subpackage of scipy does a description come from? `train` and `test` texts of each subpackage."""

    subpackages: Sequence[str]
    train: int
    test: int
    name: str = "PackagedSubpackageClassification"

    def build(self) -> AbsTask:
        labelled = descriptions_by_subpackage(held_out_objects(), self.subpackages, self.train + self.test)
        rows = {
            split: [
                {"text": text, "label": label} for label, texts in enumerate(labelled.values()) for text in texts[part]
            ]
            for split, part in (("train", slice(self.train)), ("test", slice(self.train, None)))
        }
        return make_task(
            AbsTaskClassification,
            name=self.name,
            type_="Classification",
            description="Which subpackage of scipy does a description come from?",
            main_score="accuracy",
            path=PATH,
            revision=rows_digest(rows),
            data=partial(_dataset_splits, train=_shuffle_rows(rows["train"]), test=_shuffle_rows(rows["test"])),
        )


@dataclass(frozen=True, kw_only=True)
class SubpackageClustering:
    """Do descriptions of one subpackage of scipy lie together? `texts` of each subpackage."""

    subpackages: Sequence[str]
    texts: int
    name: str = "PackagedSubpackageClustering"

    def build(self) -> AbsTask:
        labelled = descriptions_by_subpackage(held_out_objects(), self.subpackages, self.texts)
        rows = [{"sentences": text, "labels": label} for label, texts in labelled.items() for text in texts]
        return make_task(
            AbsTaskClustering,
            name=self.name,
            type_="Clustering",
            description="Do descriptions of one subpackage of scipy lie together?",
            main_score="v_measure",
            path=PATH,
            revision=rows_digest(rows),
            data=partial(_dataset_splits, test=_shuffle_rows(rows)),
            max_fraction_of_documents_to_embed=None,
            max_documents_per_cluster=len(rows),
        )


def code(found: DocumentedObject) -> str | None:
    return found.code


def explanation(found: DocumentedObject) -> str | None:
    return found.explanation


def rows_digest(rows: Any) -> str:
    """Digest of the rows that a task really uses: its revision."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def group_by_module(
    objects: Sequence[DocumentedObject], text: Callable[[DocumentedObject], str | None], size: int, count: int
) -> list[list[DocumentedObject]]:
    """`count` groups of `size` objects of one module that have the text, no description and no text occurring twice.

    Which ones depends on what they say, not on the order they come in. Raises ValueError where there are too few.
    """
    modules: dict[str, list[DocumentedObject]] = defaultdict(list)
    seen: set[str] = set()
    for found in sorted(objects, key=lambda found: opaque_id(f"{found.module} {found.description} {text(found)}")):
        said = {found.description, text(found)}
        if None not in said and not said & seen:
            seen |= said
            modules[found.module].append(found)
    groups = [members[start : start + size] for members in modules.values() for start in range(0, len(members), size)]
    whole = sorted((group for group in groups if len(group) == size), key=lambda group: opaque_id(group[0].description))
    if len(whole) < count:
        raise ValueError(f"the packaged text has {len(whole)} groups of {size} in one module, fewer than {count}")
    return whole[:count]


def descriptions_by_subpackage(
    objects: Sequence[DocumentedObject], subpackages: Sequence[str], count: int
) -> dict[str, list[str]]:
    """Subpackage of scipy -> `count` descriptions, none of which occurs twice.

    Raises ValueError for a subpackage with fewer.
    """
    texts: dict[str, list[str]] = {name: [] for name in subpackages}
    seen: set[str] = set()
    for found in sorted(objects, key=lambda found: opaque_id(f"{found.module} {found.description}")):
        package, _, rest = found.module.partition(".")
        label = rest.partition(".")[0]
        if package == "scipy" and label in texts and found.description not in seen:
            seen.add(found.description)
            texts[label].append(found.description)
    few = {label: len(said) for label, said in texts.items() if len(said) < count}
    if few:
        raise ValueError(f"{count} descriptions were asked of each subpackage of scipy, but there are only {few}")
    return {label: said[:count] for label, said in texts.items()}


def _retrieval_task(
    name: str,
    text: Callable[[DocumentedObject], str | None],
    groups: int,
    group: int,
    queries: int,
    within_group: bool = False,
) -> AbsTask:
    """Ids are digests of texts: they say nothing about what is relevant, so ties are broken by chance."""
    corpus, asked, relevant, candidates = [], [], {}, {}
    for members in group_by_module(held_out_objects(), text, group, groups):
        ids = [opaque_id(text(member)) for member in members]
        corpus += [(identity, "", text(member)) for identity, member in zip(ids, members, strict=True)]
        for identity, member in list(zip(ids, members, strict=True))[:queries]:
            query = opaque_id(f"query {member.description}")
            asked.append((query, member.description))
            relevant[query] = {identity: 1}
            candidates[query] = sorted(ids)
    rows = {"corpus": sorted(corpus), "queries": sorted(asked), "relevant": relevant}
    if within_group:
        rows["candidates"] = candidates
    return make_task(
        AbsTaskRetrieval,
        name=name,
        type_="Reranking" if within_group else "Retrieval",
        description=f"From a description to its {text.__name__}",
        main_score="mrr_at_10" if within_group else "ndcg_at_10",
        path=PATH,
        revision=rows_digest(rows),
        data=partial(retrieval_data, **rows),
    )


def _shuffle_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: opaque_id(json.dumps(row, sort_keys=True)))


def _dataset_splits(**splits: list[dict[str, Any]]) -> DatasetDict:
    return DatasetDict({split: Dataset.from_list(rows) for split, rows in splits.items()})
