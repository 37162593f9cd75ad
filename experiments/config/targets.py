"""What a config may make: the names that stand behind a `_target_` in conf/, and nothing else.

A config may come from somebody else: a run's folder is opened on other machines than its own. So it is data. A name
that is not in the table is refused before anything is imported, and texts in `${...}` are texts.
"""

import importlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from experiments.config.errors import UsageError
from experiments.config.paths import CONF, display_path
from experiments.config.suggestions import suggest

BESIDE = frozenset({"unified_lm.data.model_made.TeacherVectors"})
"""What a user may name on the command line and no file of conf/ names."""

RESERVED = re.compile(r"_[a-z]+_")
"""What Hydra would read as its own settings of an object: `_partial_`, `_args_`, which no config here has."""


@cache
def allowed_targets() -> frozenset[str]:
    """Names of classes and functions. A class of one's own is made known by a file in conf/ that names it."""
    texts = (path.read_text(encoding="utf-8") for path in CONF.rglob("*.yaml"))
    return BESIDE.union(*(re.findall(r"_target_:\s*[\"']?([\w.]+)", text) for text in texts))


def import_target(target: Any) -> Callable[..., Any]:
    """The class or function behind a `_target_`. Raises `UsageError` for one that conf/ does not name."""
    if not isinstance(target, str) or target not in allowed_targets():
        near = suggest(str(target), sorted(allowed_targets()))
        raise UsageError(
            f"_target_: {target!r} is not made by a config{near}; only what a file in {display_path(CONF)} names is: "
            "add one there for a class of your own"
        )
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"_target_: {target} cannot be imported: {error}") from error


def instantiate(node: Any) -> Any:
    """The objects of a node of plain values: each mapping with a `_target_` becomes what that makes of the rest.

    Raises `UsageError` for a `_target_` that conf/ does not name, and whatever the classes raise.
    """
    if isinstance(node, Mapping):
        made = {key: instantiate(value) for key, value in node.items() if key != "_target_"}
        if "_target_" not in node:
            return made
        make = import_target(node["_target_"])
        if odd := [key for key in made if RESERVED.fullmatch(str(key))]:
            raise UsageError(f"{node['_target_']} has no setting {odd[0]}")
        return make(**made)
    return [instantiate(value) for value in node] if isinstance(node, list | tuple) else node
