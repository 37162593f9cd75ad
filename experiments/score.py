"""Score any model that exists: `python -m experiments.score model=RUN_ID 'evals=[mteb_offline]' data_mirror=DIR`."""

import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from experiments.config.command_line import cli_entry_point
from experiments.config.compose import compose, override_name
from experiments.config.errors import UsageError
from experiments.config.identity import NOT_SCIENCE, PRECISION, content_digest, make_paths_absolute, strip_modules
from experiments.config.paths import display_path, outputs_folder
from experiments.runs.execute import ensure_run
from experiments.runs.freshness import is_complete
from experiments.runs.locks import lock_run
from experiments.runs.record import RECORD, change_record, read_record
from experiments.runs.resolve_model import find_run_folder, identify_foreign_model, split_arguments
from experiments.runs.worker_process import run_worker
from unified_lm.files import write_json, write_text

USAGE = (
    "usage: python -m experiments.score model=RUN_ID|FOLDER|ORG/NAME 'evals=[a,b]' [data_mirror=DIR] [name=value ...]; "
    "any task of a library: evals=mteb 'tasks=[STSBenchmark,SciFact]' or evals=lm_eval 'tasks=[winogrande]'"
)


TASKS = {"mteb": "tasks", "lm_eval": "tasks"}
"""Suites that take any tasks of their library; of any other suite, tasks are a part of it."""


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    own, overrides = split_arguments(arguments, ["model", "evals", "tasks"], USAGE)
    if "model" not in own or "evals" not in own:
        raise UsageError(USAGE)
    overrides = [*suite_overrides(own), *overrides]
    folder = find_run_folder(own["model"])
    if folder is None:
        run = identify_foreign_model(own["model"], overrides)
        code, folder = ensure_run(run), run.folder
    else:
        code = rescore_run(folder, overrides)
    suites = make_paths_absolute(compose([*overrides, "scale=none"]).resolved["evals"])
    print_scores(folder, suites)
    return code


def suite_overrides(own: Mapping[str, str]) -> list[str]:
    """The overrides that choose the suites, and the tasks of the one suite that takes any.

    Raises `UsageError` for tasks without exactly one suite to give them to.
    """
    names = own["evals"].strip("[]").split(",")
    overrides = [f"evals=[{','.join(names)}]"]
    if "tasks" not in own:
        return overrides
    if len(names) != 1:
        raise UsageError(f"tasks={own['tasks']} belong to one suite, but evals={own['evals']} names {len(names)}")
    return [*overrides, f"evals.{names[0]}.{TASKS.get(names[0], 'only')}={own['tasks']}"]


def rescore_run(folder: Path, overrides: Sequence[str]) -> int:
    """Score a finished run with other suites; what it has stays."""
    with lock_run(folder):
        record = read_record(folder)
        if record is None or record.digest is None:
            raise UsageError(f"{display_path(folder)} has not been trained to its end: run it again")
        config = config_for_rescoring(record.config, overrides, folder)
        if is_complete(record, config):
            print(f"already there: {display_path(folder)}")
            return 0
        change_record(folder, config=config)
        write_text(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        return run_worker(folder, config)


def config_for_rescoring(config: Mapping[str, Any], overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """A run's config with other suites, and with the overrides that say how to score and not what was trained.

    Raises `UsageError` for an override that would say otherwise.
    """
    resolved = make_paths_absolute(compose([*overrides, "scale=none"]).resolved)
    changed = deepcopy(dict(config)) | {"evals": resolved["evals"]}
    for override in overrides:
        *sections, leaf = override_name(override).split(".")
        if (sections or [leaf])[0] not in NOT_SCIENCE or leaf in PRECISION:
            raise UsageError(f"{display_path(folder)} has its settings; {override} cannot change them")
        old, new = changed, resolved
        for section in sections:
            old, new = old[section], new[section]
        old[leaf] = new[leaf]
    return changed


def print_scores(folder: Path, suites: Mapping[str, Any]) -> None:
    """The scores of these suites as a table, also written to outputs/scores/<digest>/scores.json."""
    record = read_record(folder)
    if record is None or record.digest is None:
        return
    names = {name for suite in suites for name in names_in_scores(suite)}
    found = [score for score in record.scores if score.suite in names]
    rows = [
        (score.suite, score.task, score.subset, score.metric, f"{score.value:.4f}", str(score.n)) for score in found
    ]
    rows = [("suite", "task", "subset", "metric", "value", "n"), *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    key = content_digest([record.digest, {name: strip_modules(suite) for name, suite in suites.items()}])[:16]
    path = outputs_folder() / "scores" / key / "scores.json"
    write_json(path, [score.to_dict() for score in found])
    print(f"scores: {display_path(path)}")
    print(f"record: {display_path(folder / RECORD)}")


def names_in_scores(suite: str) -> tuple[str, ...]:
    """The names under which a suite's scores may stand: a part of it, or a changed one, bears a mark."""
    return suite, *(f"{suite}{mark}" for mark in (" (subset)", " (changed)", " (changed) (subset)"))


if __name__ == "__main__":
    sys.exit(cli_entry_point(main)())
