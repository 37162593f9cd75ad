"""Which instruction each task gives each side: data, read from a table, never guessed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from unified_lm.files import closest_names
from unified_lm.inference.embedder import Side

TABLES_FOLDER = Path(__file__).parent
ANY_TASK = "*"
"""Stands in a table for every task that it does not name."""

QUERY_INSTRUCTION = "{instruction}"
"""Stands in a table for the instruction that a query brings along (instruction-following retrieval)."""


@dataclass(frozen=True, kw_only=True)
class Instructions:
    """Task -> {"query": ..., "document": ...}. Documents get none unless the table says so.

    Tasks without sides (similarity, pairs, classification, clustering) use the query's. An empty query instruction is
    written out as "": a task that the table does not know is an error, not an empty instruction. The task "*"
    stands for all that the table does not name.
    """

    name: str
    tasks: Mapping[str, Mapping[str, Any]]

    def __post_init__(self) -> None:
        for task, sides in self.tasks.items():
            if "query" not in sides or not set(sides) <= {"query", "document"}:
                raise ValueError(
                    f"instructions {self.name!r}, task {task!r}: give `query` and, if documents get one, `document`; "
                    f"found {sorted(sides)}"
                )
            if not all(isinstance(text, str) for text in sides.values()):
                raise ValueError(f'instructions {self.name!r}, task {task!r}: an instruction is text; none is ""')

    def instruction_for(self, task: str, side: Side) -> str:
        """Raises ValueError for a task that the table does not know."""
        sides = self.tasks.get(task, self.tasks.get(ANY_TASK))
        if sides is None:
            near = closest_names(task, self.tasks)
            raise ValueError(
                f"the instructions {self.name!r} do not know the task {task!r}"
                + (f" (nearest: {near[0]!r})" if near else "")
                + ': add it to the table, with query: "" if it shall have none'
            )
        return sides.get(side, "")


def describe_instructions(query: str, document: str) -> str:
    """One line for the record: what queries got and, where there is any, what documents got."""
    return f"{query} | document: {document}" if document else query


def read_instructions(table: str) -> Instructions:
    """The committed table of that name, or the yaml file at that path. Raises ValueError naming what is wrong."""
    path = TABLES_FOLDER / f"{table}.yaml" if not table.endswith((".yaml", ".yml")) else Path(table)
    if not path.is_file():
        known = sorted(file.stem for file in TABLES_FOLDER.glob("*.yaml"))
        raise ValueError(f"no instruction table {path}: use one of {known} or the path of a yaml file")
    content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not all(isinstance(sides, dict) for sides in content.values()):
        raise ValueError(f"{path}: an instruction table maps each task to query: and, where needed, document:")
    return Instructions(name=path.stem, tasks=content)
