"""Documented functions and classes of installed packages, read from their source with `ast` and never imported."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.version import Version
from tqdm import tqdm

from unified_lm.data.packaged.prose import parse_docstring

STDLIB = "stdlib"
EXTRACTOR = "1"  # part of every fingerprint: raise it whenever other objects or other text come out
SHORTEST_BODY, LONGEST_BODY = 2, 60  # lines of code of a function that can be retrieved by its description
PROCESSES = 2
FILES_A_PROCESS = 120

_NOT_DOCUMENTATION = frozenset(
    {"test", "tests", "testing", "site-packages", "dist-packages", "idlelib", "lib2to3", "turtledemo", "ensurepip",
     "_vendor", "_vendored", "vendored", "_numpy", "array_api_compat", "array_api_extra", "pydoc_data",
     "conftest"}
)  # fmt: skip
_ATTACHED = frozenset({"add_docstr", "_add_docstr", "add_newdoc"})  # calls that give documentation to compiled code


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentedObject:
    """A public function or class and what its documentation says about it."""

    package: str  # "stdlib", "numpy", ...
    module: str  # where it is defined: "scipy.stats._morestats"
    qualname: str  # "Series.mean"
    kind: str  # "function" or "class"
    signature: str  # "mean(self, axis=None)"; empty for classes and compiled code
    description: str  # first sentence of the docstring
    paragraphs: tuple[str, ...]  # the prose that follows the first paragraph
    code: str | None  # body of a function without `def` line and docstrings; None where it is no passage to retrieve

    @property
    def explanation(self) -> str | None:
        """The second prose paragraph of the docstring."""
        return self.paragraphs[0] if self.paragraphs else None

    @property
    def name(self) -> str:
        """Dotted name: where the object is defined."""
        return f"{self.module}.{self.qualname}"


def package_version(package: str) -> str:
    """Version of an installed package without build labels such as "+cpu"; Python's for the standard library."""
    if package == STDLIB:
        return platform.python_version()
    return Version(importlib.metadata.version(package)).public


def source_files(package: str) -> list[tuple[str, Path]]:
    """(module name, file) of every Python file of a package that may hold documentation, in a stable order.

    Raises ValueError for a package that is not installed.
    """
    if package == STDLIB:
        root, prefix = Path(sysconfig.get_paths()["stdlib"]), ()
    else:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(f"the documentation of {package!r} is needed: pip install {package}")
        root, prefix = Path(spec.submodule_search_locations[0]), (package,)
    found = []
    for file in root.rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        if not _NOT_DOCUMENTATION.intersection(parts):
            found.append((".".join((*prefix, *parts)).removesuffix(".__init__"), file))
    return sorted(found)


def documented_objects(package: str, module: str, source: str) -> Iterator[DocumentedObject]:
    """The documented public objects of one source file, in their order there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        tree = ast.parse(source)
    yield from _documented_definitions(package, module, tree, source.splitlines(), ())
    for statement in tree.body:
        call = getattr(statement, "value", None)
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in _ATTACHED:
            assigned = isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0])
            yield from _attached_documentation(package, module, call, assigned or None)


def _documented_definitions(
    package: str, module: str, parent: ast.Module | ast.ClassDef, lines: list[str], names: tuple[str, ...]
) -> Iterator[DocumentedObject]:
    """Documented functions and classes of a module's or class's body, methods after their class."""
    for node in parent.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        docstring = parse_docstring(ast.get_docstring(node, clean=False) or "")
        is_class = isinstance(node, ast.ClassDef)
        if docstring is not None and not any("deprecat" in ast.unparse(mark) for mark in node.decorator_list):
            yield DocumentedObject(
                package=package,
                module=module,
                qualname=".".join((*names, node.name)),
                kind="class" if is_class else "function",
                signature="" if is_class else f"{node.name}({ast.unparse(node.args)})",
                description=docstring.description,
                paragraphs=docstring.paragraphs,
                code=None if is_class else _function_body(node, lines, docstring.description),
            )
        if is_class:
            yield from _documented_definitions(package, module, node, lines, (*names, node.name))


def _function_body(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str], description: str) -> str | None:
    """Source lines of a function after its docstring, without the docstrings of what it defines inside.

    None for a body that is too short or too long to be retrieved, or that repeats the description in a comment.
    """
    if len(node.body) < 2:
        return None
    hidden: set[int] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(inner):
            hidden.update(range(inner.body[0].lineno, inner.body[0].end_lineno + 1))
    numbers = range(node.body[0].lineno, node.end_lineno + 1)
    kept = [line for number in numbers if number not in hidden and (line := lines[number - 1]).strip()]
    code = textwrap.dedent("\n".join(line.rstrip() for line in kept))
    repeated = description.rstrip(".").lower() in code.lower()
    return code if SHORTEST_BODY <= len(kept) <= LONGEST_BODY and not repeated else None


def _attached_documentation(
    package: str, module: str, call: ast.Call, assigned: str | None
) -> Iterator[DocumentedObject]:
    """What `add_docstr(torch.abs, "...")`, `fft = _add_docstr(_fft.fft_fft, "...")`, `add_newdoc("erf", "...")` and
    `add_newdoc("numpy", "flatiter", ("base", "..."))` document."""
    if len(call.args) < 2:
        return
    *owners, last = call.args
    if isinstance(last, ast.Tuple) and len(last.elts) == 2:
        owners, last = [*owners, last.elts[0]], last.elts[1]
    text = next((node.value for node in _leftmost_nodes(last) if isinstance(node, ast.Constant)), None)
    docstring = parse_docstring(text) if isinstance(text, str) else None
    names = ".".join(str(owner.value) if isinstance(owner, ast.Constant) else ast.unparse(owner) for owner in owners)
    if assigned or not names.startswith(f"{package}."):
        public_module = ".".join(part for part in module.split(".") if not part.startswith("_"))
        names = f"{public_module}.{assigned or names}"
    owner, _, name = names.rpartition(".")
    if docstring is not None and not name.startswith("_"):
        yield DocumentedObject(
            package=package,
            module=owner,
            qualname=name,
            kind="function",
            signature="",
            description=docstring.description,
            paragraphs=docstring.paragraphs,
            code=None,
        )


def _leftmost_nodes(node: ast.expr) -> Iterator[ast.expr]:
    """Yield an expression, then its leftmost part, and so on: `("a" + b).format(...)` ends at "a"."""
    while True:
        yield node
        match node:
            case ast.BinOp(left=inner) | ast.Attribute(value=inner) | ast.Call(func=inner):
                node = inner
            case ast.JoinedStr(values=[inner, *_]):
                node = inner
            case _:
                return


def extract_objects(packages: Sequence[str]) -> list[DocumentedObject]:
    """Documented objects of whole packages, in package, file and line order. Shows its progress on stderr.

    Files are read in up to two child processes, which import neither the packages nor any tensor library.
    """
    files = [(package, module, str(file)) for package in packages for module, file in source_files(package)]
    chunks = [files[start : start + FILES_A_PROCESS] for start in range(0, len(files), FILES_A_PROCESS)]
    processes = min(PROCESSES, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else PROCESSES)
    label = f"reading the documentation of {', '.join(packages)}"
    often = 0.5 if sys.stderr.isatty() else 5.0  # seconds; a log wants fewer lines than a terminal
    bar = tqdm(total=len(files), unit="file", desc=label, mininterval=often)
    with ThreadPoolExecutor(processes) as pool, bar as progress:
        found: list[DocumentedObject] = []
        for chunk, objects in zip(chunks, pool.map(_extract_in_child, chunks), strict=True):
            found += objects
            progress.update(len(chunk))
    return found


def _extract_in_child(files: list[tuple[str, str, str]]) -> list[DocumentedObject]:
    """Parse one chunk of files in another interpreter; threads of this one would share a core."""
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(files),
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"reading documentation failed in a child process:\n{done.stderr}")
    return [object_from_json(json.loads(line)) for line in done.stdout.splitlines()]


def object_from_json(values: dict) -> DocumentedObject:
    """The inverse of `dataclasses.asdict` after a passage through JSON."""
    return DocumentedObject(**{**values, "paragraphs": tuple(values["paragraphs"])})


def main() -> None:
    """Read [package, module, file] lists from stdin, write one object a line to stdout."""
    for package, module, file in json.load(sys.stdin):
        try:
            source = Path(file).read_text(encoding="utf-8")
            for found in documented_objects(package, module, source):
                print(json.dumps(asdict(found)))
        except (SyntaxError, UnicodeDecodeError):
            continue  # templates and fixtures in other encodings or dialects document nothing


if __name__ == "__main__":
    main()
