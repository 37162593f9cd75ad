"""The fields of the classes that conf/ names, read from their source: importing the classes would import torch."""

import ast
from functools import cache

from experiments.config.paths import ROOT

SECTION_CLASSES = {
    "runtime": "unified_lm.training.loop.Runtime",
    "launch": "unified_lm.training.fsdp.Launch",
    "scoring": "experiments.config.build.Scoring",
    "lengths": "experiments.config.build.Lengths",
}


@cache
def class_fields(target: str) -> dict[str, str | None]:
    """Field -> the source text of its default (None: it has none) of a dataclass of this project, inherited ones first.

    Empty for anything else, such as a function or a class of another package.
    """
    module, _, name = target.rpartition(".")
    tree = module_tree(module)
    if tree is None:
        return {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            found: dict[str, str | None] = {}
            for base in reversed(node.bases):
                if isinstance(base, ast.Name):
                    found |= class_fields(f"{module}.{base.id}")
            return found | own_fields(node)
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            return class_fields(f"{node.module}.{original}")
    return {}


def own_fields(node: ast.ClassDef) -> dict[str, str | None]:
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return {}
    return {
        entry.target.id: None if entry.value is None else ast.unparse(entry.value)
        for entry in node.body
        if isinstance(entry, ast.AnnAssign)
        and isinstance(entry.target, ast.Name)
        and "ClassVar" not in ast.unparse(entry.annotation)
        and "init=False" not in ast.unparse(entry)
    }


@cache
def module_tree(module: str) -> ast.Module | None:
    """The syntax tree of a module of this project; None for other modules."""
    path = ROOT.joinpath(*module.split("."))
    files = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
    return ast.parse(files[0].read_text(encoding="utf-8")) if module and files else None
