"""Generation tasks from the documentation of packages that no training text comes from, in lm-eval's own task class.

Every installation has this text, so these tasks need no hub. The documents of a task are the first that fit, in the
corpus's stable mixed order.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from datasets import Dataset, DatasetDict

from unified_lm.data.packaged.source import DocumentedObject, held_out_objects
from unified_lm.files import strings_digest

LONGEST_SIGNATURE = 100  # characters
LONGEST_DESCRIPTION = 30  # words
LONGEST_CHOICE = 15  # words

Document = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class DescriptionChoice:
    """Which of four sentences describes the function with this signature? (chance: 0.25)

    Reads as a docstring being begun. The other three describe functions of the same package.
    """

    documents: int

    @cached_property
    def rows(self) -> list[Document]:
        found = [one for one in held_out_objects() if is_short_enough(one, LONGEST_CHOICE)]
        rows = []
        for i, asked in enumerate(found):
            others = [one for one in found[i + 1 :] + found[:i] if one.package == asked.package][:3]
            gold = name_to_number(asked) % 4
            choices = [one.description for one in others]
            choices.insert(gold, asked.description)
            rows.append({"text": f'def {asked.signature}:\n    """', "choices": choices, "gold": gold})
            if len(rows) == self.documents:
                break
        return require_rows(rows, self.documents, "functions with a signature")

    @property
    def revision(self) -> str:
        return packaged_revision(self.rows)

    def config(self) -> dict[str, Any]:
        return {
            "custom_dataset": in_memory_dataset(test=self.rows),
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "text",
            "doc_to_choice": "choices",
            "doc_to_target": "gold",
            "target_delimiter": "",
            "metric_list": [
                {"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in ("acc", "acc_norm")
            ],
        }


@dataclass(frozen=True, kw_only=True)
class ImportStatement:
    """Write the statement that imports a function whose description, signature and module are given.

    `examples` documents, none of them scored, may be shown in the prompt.
    """

    documents: int
    examples: int

    @cached_property
    def rows(self) -> list[Document]:
        rows = [
            {
                "text": f"{one.description}\nSignature: {one.signature}\nModule: {one.module}\nImport:",
                "answer": f"from {one.module} import {one.qualname}",
            }
            for one in held_out_objects()
            if is_short_enough(one) and "." not in one.qualname and len(one.module) + len(one.qualname) <= 50
        ]
        return require_rows(
            rows[: self.documents + self.examples], self.documents + self.examples, "functions of a module"
        )

    @property
    def revision(self) -> str:
        return packaged_revision(self.rows)

    def config(self) -> dict[str, Any]:
        return {
            "custom_dataset": in_memory_dataset(shown=self.rows[: self.examples], test=self.rows[self.examples :]),
            "fewshot_split": "shown",
            "fewshot_config": {"sampler": "first_n"},
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "text",
            "doc_to_target": "answer",
            "generation_kwargs": {"until": ["\n"], "do_sample": False},
            "filter_list": [
                {"name": "stripped", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}
            ],
            "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        }


@dataclass(frozen=True, kw_only=True)
class ExplanationPerplexity:
    """Perplexity of the first `words` words of an explanation as the answer to its description.

    `token_perplexity` is exp(total nats / total tokens) and compares models of one tokenizer; `bits_per_byte` compares
    any. The end of the answer's turn is not scored, since the explanation may have been cut.
    """

    documents: int
    words: int

    @cached_property
    def rows(self) -> list[Document]:
        rows = [
            {"query": one.description, "answer": " ".join(one.explanation.split()[: self.words])}
            for one in held_out_objects()
            if one.explanation and len(one.description.split()) <= LONGEST_DESCRIPTION
        ]
        return require_rows(rows[: self.documents], self.documents, "explained objects")

    @property
    def revision(self) -> str:
        return packaged_revision(self.rows)

    def config(self) -> dict[str, Any]:
        return {
            "custom_dataset": in_memory_dataset(test=self.rows),
            "test_split": "test",
            "output_type": "loglikelihood",
            "doc_to_text": "query",
            "doc_to_target": "answer",
            "process_results": sum_likelihoods,
            "metric_list": [
                {"metric": "token_perplexity", "aggregation": "weighted_perplexity", "higher_is_better": False},
                {"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False},
            ],
        }


def sum_likelihoods(doc: Document, results: Sequence[Any]) -> dict[str, tuple[float, int]]:
    """(nats, tokens) and (nats, bytes) of one answer, for lm-eval's weighted means."""
    (scored,) = results
    return {
        "token_perplexity": (scored.logprob, scored.tokens),
        "bits_per_byte": (scored.logprob, len(doc["answer"].encode())),
    }


def is_short_enough(one: DocumentedObject, words: int = LONGEST_DESCRIPTION) -> bool:
    """Whether signature and description are short enough for a prompt."""
    return 0 < len(one.signature) <= LONGEST_SIGNATURE and len(one.description.split()) <= words


def name_to_number(one: DocumentedObject) -> int:
    """A number that the object's name decides and nothing else."""
    return int.from_bytes(hashlib.sha256(one.name.encode()).digest()[:8], "big")


def require_rows(rows: list[Document], wanted: int, what: str) -> list[Document]:
    """Raises ValueError where the installed packages do not hold the wanted number of documents."""
    if len(rows) < wanted:
        raise ValueError(f"the held-out packages hold {len(rows)} {what}, not {wanted}: ask for fewer documents")
    return rows


def packaged_revision(rows: Sequence[Document]) -> str:
    """The revision of data that no hub knows: the digest of its text."""
    return f"packaged:{strings_digest(json.dumps(rows, sort_keys=True))}"


def in_memory_dataset(**splits: Sequence[Document]) -> Callable[..., DatasetDict]:
    """What lm-eval calls to get a task's data."""

    def data(**ignored: Any) -> DatasetDict:
        return DatasetDict({name: Dataset.from_list(list(rows)) for name, rows in splits.items() if rows})

    return data
