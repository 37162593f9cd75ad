"""What was run decides where it is; time, place and machine never do."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.config.compose import Composition, compose_parent, compose_teacher
from experiments.config.errors import UsageError, first_line
from experiments.config.paths import runs_folder
from experiments.config.targets import import_target, instantiate
from unified_lm.files import folder_digest

NOT_SCIENCE = ("runtime", "launch", "kernel", "logging", "evals", "scoring", "instructions", "data_mirror", "revisions")
PRECISION = ("param_dtype", "reduce_dtype")  # of `launch`, where all else is how: they round what is trained
STAGES = ("parent", "parent_overrides", "teacher", "teacher_overrides")  # they count by their run ids
NAMES = ("name", *STAGES)
PATH_KEYS = frozenset({"path", "folder", "file", "data_dir", "data_mirror", "mirror"})  # content tells what they hold


class UnknownData(UsageError):
    """Data that has no fingerprint: its commit is not known to us, or it is not there."""


# Settings that came later than published runs. With these values they change nothing, so the identity leaves them out.
COSINE = {"similarity": "cosine"}
NEUTRAL: dict[str, dict[str, Any]] = {
    "Contrastive": COSINE | {"slots": 0, "latents": 0, "latent_residual": True},
    "Gem": COSINE | {"cut_seed": 0},
    "Generative": COSINE,
    "GritLM": COSINE | {"symmetric": False},
    "Hyde": COSINE,
    "LLM2VecGen": COSINE | {"teacher": None},
    "LlmJepa": COSINE | {"symmetric": True},
    "MaskedNext": COSINE | {"mask_seed": 0},
    "Untrained": COSINE,
    "SimCSE": COSINE,
    "Ulme": COSINE | {"symmetric": True, "positives_as_answers": False},
    "Optim": {"states": "float32", "paper_emulation_world_size": 1},
    "Lora": {"rslora": False, "embed_only": False},
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A job that knows who it is. `identity` is the whole digest of its science, `run_id` the readable name of it."""

    job: Composition
    config: dict[str, Any]
    identity: str
    parent: "Run | None"
    teacher: "Run | None" = None

    @property
    def run_id(self) -> str:
        return f"{self.config['name']}-s{self.config['seed']}-{self.identity[:10]}"

    @property
    def folder(self) -> Path:
        return runs_folder() / self.run_id

    @property
    def request_digest(self) -> str:
        """What two runs share that are one and the same: the science, the suites, and how a model is put to them."""
        return content_digest([self.identity, self.config["evals"], self.config["scoring"]])

    @property
    def command(self) -> str:
        """What a user types to make this run."""
        return self.job.command


def identify(job: Composition, *, above: tuple[str, ...] = ()) -> Run:
    """The run of a job, its parents identified first. Reads no data and imports no torch.

    Raises `UsageError` for a chain of parents that comes back to where it began, and for data that is not there.
    """
    name = str(job.choices.get("experiment") or job.config.name)
    if name in above:
        raise UsageError(f"parents form a circle: {' -> '.join([*above, name])}; one of them must have parent=null")
    older = compose_parent(job)
    parent = None if older is None else identify(older, above=(*above, name))
    other = compose_teacher(job)
    teacher = None if other is None else identify(other, above=(*above, name))
    config = make_paths_absolute(job.resolved)
    if not re.fullmatch(r"[\w.+-]+", str(config["name"])):
        raise UsageError(f"name={config['name']!r} becomes a folder: use letters, digits and . _ + - only")
    stages = {"parent": parent, "teacher": teacher}
    content = scientific_content(config) | {kind: run.run_id for kind, run in stages.items() if run is not None}
    return Run(job=job, config=config, identity=content_digest(content), **stages)


def make_paths_absolute(node: Any) -> Any:
    """Paths made absolute once, here, so that no later process depends on its working directory."""
    if isinstance(node, list):
        return [make_paths_absolute(value) for value in node]
    if not isinstance(node, dict):
        return node
    return {
        key: str(Path(value).expanduser().absolute())
        if key in PATH_KEYS and isinstance(value, str)
        else make_paths_absolute(value)
        for key, value in node.items()
    } | {key: node[key] for key in ("tasks",) if key in node}  # lm-eval's own files, relative to its package


def scientific_content(config: Mapping[str, Any]) -> dict[str, Any]:
    """The scientific content of a resolved config, with the data (and what a method reads) named by fingerprints."""
    rest = (*NOT_SCIENCE, *NAMES, "data", "backbone", "method")
    content = {key: strip_modules(value) for key, value in config.items() if key not in rest}
    method = strip_modules(config["method"]) | {
        k: fingerprint_sources(v) for k, v in config["method"].items() if isinstance(v, dict)
    }
    content |= {
        "data": fingerprint_sources(config["data"]),
        "backbone": fingerprint_weights(config["backbone"]),
        "method": method,
    }
    reduced = {name: config["launch"][name] for name in PRECISION if config["launch"].get(name) is not None}
    return content | ({"precision": reduced} if reduced else {})


def strip_modules(node: Any) -> Any:
    """Class names without their modules, so that moving a file orphans no result; 1.0 and 1 are one number.

    Neutral settings are left out.
    """
    if isinstance(node, Mapping):
        neutral = NEUTRAL.get(str(node.get("_target_")).rpartition(".")[2], {})
        return {
            key: value.rpartition(".")[2] if key == "_target_" else strip_modules(value)
            for key, value in node.items()
            if key not in neutral or value != neutral[key]
        }
    if isinstance(node, list | tuple):
        return [strip_modules(value) for value in node]
    return int(node) if isinstance(node, float) and node.is_integer() else node


def fingerprint_sources(node: Any) -> Any:
    """`what`, with the fingerprint of each data source in place of the path it lies at."""
    if isinstance(node, list):
        return [fingerprint_sources(value) for value in node]
    if not isinstance(node, dict):
        return strip_modules(node)
    if not is_data_source(node):
        return {
            key: value.rpartition(".")[2] if key == "_target_" else fingerprint_sources(value)
            for key, value in node.items()
        }
    try:
        fingerprint = instantiate(node).fingerprint()
    except UsageError:
        raise
    except (OSError, TypeError, ValueError) as error:
        raise UnknownData(f"data: {first_line(str(error))}") from error
    return strip_modules({key: value for key, value in node.items() if key not in PATH_KEYS}) | {
        "fingerprint": fingerprint
    }


def is_data_source(node: Mapping[str, Any]) -> bool:
    """Whether a node is one data set: it knows its fingerprint and is made of no other objects."""
    return (
        "_target_" in node
        and "_target_" not in str(list(node.values()))
        and hasattr(import_target(node["_target_"]), "fingerprint")
    )


def fingerprint_weights(node: Any) -> Any:
    """`what`, with the content of each local folder in place of its path, also inside a backbone that wraps another."""
    if isinstance(node, list):
        return [fingerprint_weights(value) for value in node]
    if not isinstance(node, Mapping):
        return strip_modules(node)
    known = strip_modules(node)  # without neutral settings
    return {
        key: folder_digest(Path(value).expanduser()) if is_weights_folder(key, value) else fingerprint_weights(value)
        for key, value in node.items()
        if key in known and key != "_target_"
    } | {key: known[key] for key in ("_target_",) if key in known}


def is_weights_folder(key: str, value: Any) -> bool:
    return key in ("id", "model") and isinstance(value, str) and Path(value).expanduser().is_dir()


def content_digest(content: Any) -> str:
    """sha256 of JSON with sorted keys.

    Raises `UsageError` for NaN or infinity, which are equal to nothing.
    """
    try:
        return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
    except ValueError as error:
        raise UsageError(f"a setting is not a finite number or a text: {error}") from error
