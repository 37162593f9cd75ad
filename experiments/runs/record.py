"""record.json: what a run is, how it was made, where it stands, and its scores.

The run directory is the only place that says so: config.yaml (resolved), overrides.txt, metrics.jsonl, checkpoint/,
record.json, worker.log.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from evals.score import Score
from experiments.config.errors import UsageError
from experiments.config.identity import Run, content_digest, fingerprint_sources
from experiments.config.paths import display_path
from experiments.runs.provenance import (
    CodeVersion,
    Commit,
    Hardware,
    code_digest_of_commit,
    package_versions,
    read_commit,
)
from experiments.runs.typed_json import parse_json, parse_object
from unified_lm.files import write_json, write_text

RECORD = "record.json"
VERSION = 2
OLDER_NAMES = {"makers": "code_versions", "ways": "suite_settings"}  # of version 1
Status = Literal["started", "trained", "stopped", "finished", "failed"]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The record of a run, as it stands in record.json.

    `identity`: digest of the run's whole science; `digest`: of its weights (None: not trained to the end); `step`: of
    these weights (None: nothing was trained); `choices`: the option chosen in each group; `code_versions`: code and
    libraries of every worker that had a part in it (None: an older record); `suites`: suite -> key of its scores;
    `suite_settings`: suite -> digest of the settings that it was scored with; `skipped`: suite -> task -> why it has
    no score.

    `status`: started, trained (a checkpoint stands, scores are missing), stopped (on request, to be continued),
    finished, or failed with an `error`.
    """

    run_id: str
    identity: str
    name: str
    seed: int
    parent: str | None = None
    teacher: str | None = None
    choices: dict[str, Any]
    config: dict[str, Any]
    git: Commit | None = None
    versions: dict[str, str] = field(default_factory=dict)
    code_versions: tuple[CodeVersion, ...] | None = None
    hardware: Hardware | None = None
    threads: int | None = None
    wall_s: float | None = None
    device_hours: float | None = None
    digest: str | None
    step: int | None
    losses: dict[str, float | None] = field(default_factory=dict)
    data_fingerprints: dict[str, str] = field(default_factory=dict)
    corpus_fingerprints: dict[str, Any] = field(default_factory=dict)
    streams: dict[str, Any] = field(default_factory=dict)
    trainable: dict[str, Any] | None = None
    wandb_id: str | None = None
    suites: dict[str, str]
    suite_settings: dict[str, str] = field(default_factory=dict)
    scores: tuple[Score, ...]
    skipped: dict[str, dict[str, str]] = field(default_factory=dict)
    status: Status
    error: str | None = None

    @classmethod
    def new(cls, run: Run) -> "RunRecord":
        """The record of a run that begins."""
        return cls(
            run_id=run.run_id,
            identity=run.identity,
            name=run.config["name"],
            seed=run.config["seed"],
            parent=None if run.parent is None else run.parent.run_id,
            teacher=None if run.teacher is None else run.teacher.run_id,
            choices=dict(run.job.choices),
            config=run.config,
            git=read_commit(),
            versions=package_versions(),
            code_versions=(),
            digest=None,
            step=None,
            data_fingerprints=list_data_fingerprints(run.config["data"]),
            suites={},
            scores=(),
            status="started",
        )

    @classmethod
    def from_json(cls, content: Any) -> "RunRecord":
        """The record of a parsed record.json, of this version or an older one.

        Raises `ValueError` that names the field for content of another shape, and for a config that was changed.
        """
        given = parse_json(dict[str, Any], content, "")
        version = parse_json(int, given.get("version", 1), "version")
        if not 1 <= version <= VERSION:
            raise ValueError(f"version is {version}, and this code reads 1 to {VERSION}")
        config = parse_json(dict[str, Any], given.get("config"), "config")
        digest = given.get("config_digest")
        if (digest is not None or version > 1) and digest != content_digest(config):
            raise ValueError("config is not what config_digest was made of: one of them was changed")
        for section in ("evals", "scoring"):
            parse_json(dict[str, Any], config.get(section), f"config.{section}")
        parse_json(dict[str, dict[str, Any]], config["evals"], "config.evals")
        named = {name: config[name] for name in ("name", "seed") if name in config}
        return parse_object(cls, named | {OLDER_NAMES.get(name, name): value for name, value in given.items()}, "")

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self), "config_digest": content_digest(self.config)}

    def without_suites(self, names: Iterable[str]) -> "RunRecord":
        """The record without the scores of these suites."""
        left_out = set(names)
        return replace(self, scores=tuple(score for score in self.scores if score.suite not in left_out))

    def list_code_versions(self) -> tuple[CodeVersion, ...]:
        """Code and libraries of every worker that had a part in the run, each once.

        A record that names none has its commit, from which the code is known unless files differed from it.
        """
        if self.code_versions is not None:
            return self.code_versions
        commit = self.git or Commit(commit=None, dirty=False)
        known = None if commit.dirty or not commit.commit else code_digest_of_commit(commit.commit)
        version = CodeVersion(commit=commit.commit, dirty=commit.dirty, code=known, versions=self.versions)
        return (version,) if self.hardware else ()


def read_record(folder: Path) -> RunRecord | None:
    """The record of a run directory, or None where there is none.

    Raises `UsageError`, in one line that names file and field, for a file that is no record.
    """
    path = folder / RECORD
    if not path.exists():
        return None
    try:
        return RunRecord.from_json(json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_constant))
    except (ValueError, OSError, RecursionError, OverflowError) as error:
        raise UsageError(f"{path} is no record: {error}; move it away and run again") from error


def refuse_constant(name: str) -> None:
    """Raises `ValueError` for NaN and infinities, which are not JSON."""
    raise ValueError(f"{name} is no number")


def require_record(folder: Path) -> RunRecord:
    """Raises `UsageError` for a folder without a record."""
    record = read_record(folder)
    if record is None:
        raise UsageError(f"{display_path(folder)} is no run directory: it has no {RECORD}")
    return record


def begin_record(run: Run) -> RunRecord:
    """Open the directory of a run, new or to be continued, and write down what is about to be run.

    Raises `UsageError` where the directory belongs to something else: nothing of another identity is overwritten.
    """
    record = check_directory(run) or RunRecord.new(run)
    if record.status in ("stopped", "failed"):  # how the last attempt ended says nothing about this one
        record = replace(record, status="started" if record.digest is None else "trained", error=None)
    record = replace(record, config=run.config)
    write_json(run.folder / RECORD, record.to_json())
    write_text(run.folder / "config.yaml", yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True))
    write_text(run.folder / "overrides.txt", "".join(f"{override}\n" for override in run.job.overrides))
    return record


def read_own_record(run: Run) -> RunRecord | None:
    """The record of a run, or None where it has not begun.

    Raises `UsageError` where its directory holds a run of another identity.
    """
    record = read_record(run.folder)
    if record is not None and record.identity != run.identity:
        raise UsageError(
            f"{display_path(run.folder)} holds a run of another identity, which is never overwritten: move it away"
        )
    return record


def check_directory(run: Run) -> RunRecord | None:
    """The record of a run, or None where its directory is empty or not there. Writes nothing.

    Raises `UsageError` where the directory belongs to something else.
    """
    record = read_own_record(run)
    others = [path.name for path in run.folder.glob("[!.]*")] if record is None and run.folder.exists() else []
    if others:
        raise UsageError(f"{display_path(run.folder)} holds {others[0]} but no {RECORD}: move it away")
    return record


def change_record(folder: Path, **fields: Any) -> RunRecord:
    """Replace fields of the record of a run directory."""
    record = replace(require_record(folder), **fields)
    write_json(folder / RECORD, record.to_json())
    return record


def list_data_fingerprints(data: Mapping[str, Any]) -> dict[str, str]:
    """Dotted name in the config -> fingerprint of the data source there."""

    def iterate(node: Any, name: str) -> Iterator[tuple[str, str]]:
        children: Iterable[tuple[Any, Any]] = ()
        if isinstance(node, dict):
            if "fingerprint" in node:
                yield name, node["fingerprint"]
            children = node.items()
        elif isinstance(node, list):
            children = enumerate(node)
        for key, value in children:
            yield from iterate(value, f"{name}.{key}")

    return dict(iterate(fingerprint_sources(data), "data"))
