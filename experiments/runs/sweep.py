"""A sweep through Hydra's launchers: every job runs, each leaves its own log, and the failed ones are listed."""

import contextlib
import datetime
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig

from experiments.config.compose import compose, compose_with_hydra, list_settings
from experiments.config.errors import UsageError, first_line
from experiments.config.hydra_errors import HYDRA_ERRORS, explain_hydra_error
from experiments.config.identity import identify
from experiments.config.paths import CONF, display_path, outputs_folder, runs_folder
from experiments.runs.execute import ensure_run
from experiments.runs.preflight import require_device

JOBS = "jobs.jsonl"


def run_sweep(overrides: Sequence[str]) -> int:
    """Run every combination; returns 0 only if all of them succeeded.

    Raises `UsageError` before any work where a combination does not compose.
    """
    for combination in list_combinations(overrides):
        asked = compose(combination)
        require_device(asked)
        identify(asked)
    now = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    folder = outputs_folder() / "multirun" / now
    folder.mkdir(parents=True)  # told in one line where it cannot be
    place = QuotedString(text=str(folder), quote=Quote.single).with_quotes()
    sys.argv = ["experiments.run", "-m", *overrides, f"hydra.sweep.dir={place}", "hydra.sweep.subdir=."]
    with contextlib.suppress(SystemExit):  # Hydra ends the process where a launcher itself fails; it has said why
        hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(run_job)()
    return print_summary(folder)


def list_combinations(overrides: Sequence[str]) -> list[list[str]]:
    """The command line of each job of Hydra's own sweeper; empty where another sweeper draws them as it goes."""
    loader = ConfigLoaderImpl(config_search_path=create_config_search_path(str(CONF)))
    try:
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(overrides))
        fixed = [o.input_line for o in parsed if not o.is_sweep_override()]
        if not compose_with_hydra(fixed).hydra.sweeper._target_.endswith("BasicSweeper"):
            return []
        jobs = BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]
    except HYDRA_ERRORS as error:
        raise explain_hydra_error(error, lambda: list_settings(overrides)) from error
    if not jobs:
        raise UsageError(f"{' '.join(overrides)} matches nothing to run")
    return jobs


def run_job(config: DictConfig) -> int:
    """One job, in whatever process the launcher chose. It never raises: the others must go on."""
    hydra_config = HydraConfig.get()
    overrides = list(hydra_config.overrides.task)
    outcome: dict[str, Any] = {"overrides": overrides, "run_id": None, "code": 1, "said": ""}
    try:
        run = identify(compose(overrides))
        outcome["run_id"] = run.run_id
        outcome["code"] = ensure_run(run)
    except UsageError as error:
        outcome |= {"code": 2, "said": str(error)}
        print(f"error: {error}", file=sys.stderr)
    except Exception as error:
        outcome["said"] = f"{type(error).__name__}: {first_line(str(error))}"
        traceback.print_exc()
    with (Path(hydra_config.sweep.dir) / JOBS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(outcome) + "\n")
    return outcome["code"]


def print_summary(folder: Path) -> int:
    """Print how the jobs ended."""
    path = folder / JOBS
    jobs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    failed = [one for one in jobs if one["code"]]
    print(
        f"{len(jobs) - len(failed)} of {len(jobs)} jobs done, {len(failed)} failed ({display_path(path)})", flush=True
    )
    for one in failed:
        log = runs_folder() / str(one["run_id"]) / "worker.log"
        where = f", see {display_path(log)}" if log.exists() else ""  # a run that was refused has none
        print(f"  failed: {' '.join(one['overrides'])}{': ' + one['said'] if one['said'] else ''}{where}", flush=True)
    return 0 if jobs and not failed else 1
