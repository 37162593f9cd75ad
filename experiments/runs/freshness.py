"""Which suites of a run must be scored again: a suite's scores stand as long as its key does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals import instructions
from evals.score import PROTOCOL_VERSIONS, Score
from experiments.config.identity import content_digest, strip_modules
from experiments.runs.provenance import SCORING_PACKAGES, package_versions
from experiments.runs.record import RunRecord
from unified_lm.files import list_files

LOCAL_DATA = ("mirror", "folder", "file")
"""Settings of a suite that are paths of local data."""


def suite_keys(config: Mapping[str, Any], weights_digest: str | None) -> dict[str, str]:
    """Suite -> digest of all that decides its scores: settings, libraries, weights, and how the model is scored."""
    decided = [package_versions(SCORING_PACKAGES), dict(PROTOCOL_VERSIONS), weights_digest, config["scoring"]]
    return {name: digest_suite(suite, *decided) for name, suite in config["evals"].items()}


def suite_settings_digests(config: Mapping[str, Any]) -> dict[str, str]:
    """Suite -> digest of its settings alone: a `suite_key` without versions, weights and the state of local data."""
    return {
        name: digest_suite(suite, config["scoring"], include_local_data=False)
        for name, suite in config["evals"].items()
    }


def digest_suite(suite: Mapping[str, Any], *more: Any, include_local_data: bool = True) -> str:
    resolved = resolve_references(strip_modules(suite), include_local_data=include_local_data)
    return content_digest([resolved, *more])[:16]


def resolve_references(suite: Mapping[str, Any], *, include_local_data: bool = True) -> dict[str, Any]:
    """A suite's settings with instruction tables replaced by their content, and paths by the state of their files.

    The state is names, sizes and times: cheap, and it only decides whether the suite is scored again; a score itself
    is named by the content that it read. Without `include_local_data` paths count as null.
    """
    paths = [key for key in LOCAL_DATA if suite.get(key)]
    tables = [key for key in ("instructions",) if suite.get(key)]
    return (
        dict(suite)
        | {key: list_file_states(Path(suite[key])) if include_local_data else None for key in paths}
        | {key: read_instruction_table(suite[key]) for key in tables}
    )


def read_instruction_table(named: str | Mapping[str, Any]) -> Any:
    """The instructions of a table, given by its name or by what reads it; as given where they are written out, and
    where there is no such table, which is refused where it is used."""
    name = named.get("table") if isinstance(named, Mapping) else named
    if name is None:
        return named
    try:
        return {task: dict(sides) for task, sides in instructions.read_instructions(name).tasks.items()}
    except ValueError:
        return named


def list_file_states(path: Path) -> list[list[Any]]:
    """Name, size and modification time of every file below a folder, or of the one file."""
    files = list_files(path) if path.is_dir() else [path]
    states = [(file.relative_to(path).as_posix(), file.stat()) for file in files if file.exists()]
    return [[name, state.st_size, state.st_mtime_ns] for name, state in states]


def is_complete(record: RunRecord, config: Mapping[str, Any]) -> bool:
    """Whether a run is trained and every suite that the config asks for is scored."""
    wanted = suite_keys(config, record.digest)
    return record.status == "finished" and all(record.suites.get(name) == key for name, key in wanted.items())


def list_stale_suites(record: RunRecord, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The suites that the run was scored on with other settings than the config asks for."""
    asked = suite_settings_digests(config)
    return tuple(name for name, digest in asked.items() if record.suite_settings.get(name, digest) != digest)


def replace_suite_scores(
    record: RunRecord, name: str, key: str, scores: list[Score], skipped: Mapping[str, str]
) -> dict[str, Any]:
    """The fields of a record that change when the suite `name` is scored: its older scores give way.

    `key`: the suite's key, or "" where it must be scored again; `skipped`: task -> why it has no score at all.
    """
    replaced, settings = {score.suite for score in scores}, suite_settings_digests(record.config)[name]
    if record.suite_settings.get(name, settings) != settings:  # its older scores are stale, whatever it gave now
        replaced.add(name)
    scored = {score.task for score in scores}
    return {
        "scores": (*(score for score in record.scores if score.suite not in replaced), *scores),
        "suites": {**record.suites, name: key},
        "suite_settings": {**record.suite_settings, name: settings},
        "skipped": {
            **record.skipped,
            name: {task: reason for task, reason in skipped.items() if task not in scored},
        },
    }
