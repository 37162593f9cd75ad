"""The run directory: the truth about a run, with nothing of it anywhere else.

config.yaml (resolved), overrides.txt, metrics.jsonl, checkpoint/, record.json, worker.log. `status` of a record:
started, trained (a checkpoint stands, scores are missing), stopped (on request, to be continued), finished, failed.
"""

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from evals import instructions
from evals.score import PROTOCOL_VERSIONS
from experiments.config.errors import UsageError
from experiments.config.identity import Run, content_digest, fingerprint_sources, strip_modules
from experiments.config.paths import display_path
from experiments.runs.files import write_json, write_text
from experiments.runs.provenance import SCORING_PACKAGES, code_digest_of_commit, package_versions, read_commit
from unified_lm.files import files_below

RECORD = "record.json"
REQUIRED_FIELDS = ("run_id", "identity", "config", "choices", "digest", "step", "suites", "scores", "status")
"""What every record has, whichever version wrote it."""


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of a run directory, or None where there is none.

    Raises `UsageError` for a file that is no record.
    """
    path = folder / RECORD
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        _ = [record[name] for name in REQUIRED_FIELDS]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no record ({error!r}); move it away and run again") from error
    return record


def begin_record(run: Run) -> dict[str, Any]:
    """Open the directory of a run, new or to be continued, and write down what is about to be run.

    Raises `UsageError` where the directory belongs to something else: nothing of another identity is overwritten.
    """
    record = read_record(run.folder)
    if record is None:
        strangers = [path.name for path in run.folder.glob("[!.]*")] if run.folder.exists() else []
        if strangers:
            raise UsageError(f"{display_path(run.folder)} holds {strangers[0]} but no {RECORD}: move it away")
        record = new_record(run)
    if record.get("identity") != run.identity:
        raise UsageError(
            f"{display_path(run.folder)} holds a run of another identity, which is never overwritten: move it away"
        )
    if record["status"] in ("stopped", "failed"):  # how the last attempt ended says nothing about this one
        record |= {"status": "started" if record["digest"] is None else "trained", "error": None}
    record |= {"config": run.config}
    write_json(run.folder / RECORD, record)
    write_text(run.folder / "config.yaml", yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True))
    write_text(run.folder / "overrides.txt", "".join(f"{override}\n" for override in run.job.overrides))
    return record


def new_record(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "identity": run.identity,
        "name": run.config["name"],
        "seed": run.config["seed"],
        "parent": None if run.parent is None else run.parent.run_id,
        "teacher": None if run.teacher is None else run.teacher.run_id,
        "choices": dict(run.job.choices),
        "config": run.config,
        "git": read_commit(),
        "versions": package_versions(),
        "makers": [],
        "hardware": None,
        "threads": None,
        "wall_s": None,
        "device_hours": None,
        "digest": None,
        "step": None,
        "losses": {},
        "data_fingerprints": list_data_fingerprints(run),
        "corpus_fingerprints": {},
        "streams": {},
        "trainable": None,
        "wandb_id": None,
        "suites": {},
        "ways": {},
        "scores": [],
        "skipped": {},
        "status": "started",
        "error": None,
    }


def list_data_fingerprints(run: Run) -> dict[str, str]:
    """Dotted place in the config -> fingerprint of the data source there."""

    def found(node: Any, place: str) -> Iterator[tuple[str, str]]:
        children: Iterable[tuple[Any, Any]] = ()
        if isinstance(node, dict):
            if "fingerprint" in node:
                yield place, node["fingerprint"]
            children = node.items()
        elif isinstance(node, list):
            children = enumerate(node)
        for key, value in children:
            yield from found(value, f"{place}.{key}")

    return dict(found(fingerprint_sources(run.config["data"]), "data"))


def change_record(folder: Path, **fields: Any) -> dict[str, Any]:
    """Replace fields of a record that is there."""
    record = read_record(folder)
    if record is None:
        raise UsageError(f"{display_path(folder)} has no {RECORD}")
    record |= fields
    write_json(folder / RECORD, record)
    return record


def list_code_versions(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Code and libraries of every worker that had a part in a run, each once.

    A record that names none has its commit, from which the code is known unless files differed from it.
    """
    if "makers" in record:
        return record["makers"]
    commit = record["git"] or {"commit": None, "dirty": False}
    known = None if commit["dirty"] or not commit["commit"] else code_digest_of_commit(commit["commit"])
    return [{**commit, "code": known, "versions": record["versions"]}] if record["hardware"] else []


def suite_keys(config: Mapping[str, Any], checkpoint: str | None) -> dict[str, str]:
    """Suite -> digest of all that decides its scores: settings, libraries, checkpoint, and how the model is scored."""
    libraries = package_versions(SCORING_PACKAGES)
    decided = [libraries, dict(PROTOCOL_VERSIONS), checkpoint, config["scoring"]]
    return {
        name: content_digest([resolve_references(strip_modules(suite)), *decided])[:16]
        for name, suite in config["evals"].items()
    }


def suite_settings_digests(config: Mapping[str, Any]) -> dict[str, str]:
    """Suite -> digest of how the config scores it: what `asked` holds, without versions, weights and state of data."""
    return {
        name: content_digest([resolve_references(strip_modules(suite), include_local_data=False), config["scoring"]])[
            :16
        ]
        for name, suite in config["evals"].items()
    }


def drop_stale_scores(record: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record without the scores of suites that were put to the run in another way; `otherwise` names these."""
    scored = record.get("ways", {})
    otherwise = [name for name, way in suite_settings_digests(config).items() if scored.get(name, way) != way]
    kept = [score for score in record["scores"] if score["suite"] not in otherwise]
    return {**record, "scores": kept, "otherwise": otherwise}


def resolve_references(suite: Any, *, include_local_data: bool = True) -> Any:
    """A suite's settings with what they point at in place of the pointers: the instructions of a table, and the state
    of local data (names, sizes and times of its files); where it is not `placed`, without that data.

    Cheap, and it only decides whether the suite is asked again; a score itself is named by the content that it read.
    """
    if not isinstance(suite, dict):
        return suite
    places = [key for key in ("mirror", "folder", "file") if suite.get(key)]
    found = suite | {key: list_file_states(Path(suite[key])) if include_local_data else None for key in places}
    return found | {key: read_instruction_table(suite[key]) for key in ("instructions",) if suite.get(key)}


def read_instruction_table(named: str | Mapping[str, Any]) -> Any:
    """The instructions of a table, given by its name or by what reads it; as given where there is none, which is
    refused where it is used."""
    name = named["table"] if isinstance(named, Mapping) else named
    try:
        return {task: dict(sides) for task, sides in instructions.read_instructions(name).tasks.items()}
    except ValueError:
        return named


def list_file_states(place: Path) -> list[list[Any]]:
    files = files_below(place) if place.is_dir() else [place]
    found = [(path.relative_to(place).as_posix(), path.stat()) for path in files if path.exists()]
    return [[name, one.st_size, one.st_mtime_ns] for name, one in found]


def is_complete(record: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a run is trained and every suite that its config asks for is scored."""
    wanted = suite_keys(config, record["digest"])
    return record["status"] == "finished" and all(record["suites"].get(name) == key for name, key in wanted.items())


def replace_suite_scores(
    record: Mapping[str, Any], name: str, key: str, scores: list[dict[str, Any]], skipped: Mapping[str, str]
) -> dict[str, Any]:
    """The fields of a record after the suite `name` was scored: its older scores give way.

    `skipped`: task -> the reason for which it has no score at all.
    """
    again, way = {score["suite"] for score in scores}, suite_settings_digests(record["config"])[name]
    if record.get("ways", {}).get(name, way) != way:  # put to the run in another way, whether it gave scores or not
        again.add(name)
    others = [score for score in record["scores"] if score["suite"] not in again]
    scored = {score["task"] for score in scores}
    lacking = {task: reason for task, reason in skipped.items() if task not in scored}
    return {
        "scores": others + scores,
        "suites": {**record["suites"], name: key},
        "ways": {**record.get("ways", {}), name: way},
        "skipped": {**record.get("skipped", {}), name: lacking},
    }


@contextmanager
def lock_run(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """One command at a time works on a run; a second one waits and then finds it made.

    The worker of a command that was killed may still be at work: it is waited for as well. Raises `Timeout` where
    there is one and it should not `wait`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with acquire_lock(folder / ".lock", wait=wait):
        with lock_worker(folder, wait=wait):
            pass
        yield


def lock_worker(folder: Path, *, wait: bool = True) -> AbstractContextManager[None]:
    """What a worker holds while it works on a run."""
    return acquire_lock(folder / ".worker.lock", wait=wait)


@contextmanager
def acquire_lock(path: Path, *, wait: bool) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not wait:
            raise
        print(f"{path.parent.name} is being made by another process: waiting for it", flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class MetricsLog:
    """metrics.jsonl, one JSON object a logged step, flushed at once and continuous over a resume."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"
        self.lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        self.started = time.monotonic()
        self.spent: float | None = None  # seconds that earlier attempts took for the steps that are kept

    def log(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Append a row with its `step`; the first one drops what a killed attempt logged beyond its checkpoint."""
        if self.spent is None:
            kept = list(parse_rows_before(self.lines, row["step"]))
            self.spent = kept[-1]["wall_s"] if kept else 0.0
            write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        row = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
        }
        row["wall_s"] = round(self.spent + time.monotonic() - self.started, 2)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        return row


def parse_rows_before(lines: Iterable[str], step: int) -> Iterator[dict[str, Any]]:
    """The rows of the steps below `step`; a line that a kill cut in two ends them."""
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            return
        if row["step"] < step:
            yield row


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All logged rows of a run."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return list(parse_rows_before(lines, 2**63))
