"""W&B as a mirror of metrics.jsonl and record.json: deleting it loses nothing, its absence blocks nothing."""

import contextlib
import netrc
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from evals.score import Score
from experiments.config.errors import first_line
from experiments.config.paths import outputs_folder
from experiments.runs.provenance import package_versions
from experiments.runs.record import RunRecord

AXES = ("method", "backbone", "attention", "trainable")
HOST = "api.wandb.ai"
TRUTH = "metrics.jsonl and record.json have it all"
OWN_FOLDERS = ("WANDB_CACHE_DIR", "WANDB_DATA_DIR")  # where it would else write into the user's home
MODES = ("auto", "online", "offline", "disabled")


class Tracker(Protocol):
    """Where numbers are mirrored to; `id` is None where they are not."""

    id: str | None

    def log(self, row: Mapping[str, Any]) -> None: ...

    def log_scores(self, scores: Iterable[Score]) -> None: ...

    def finish(self, *, failed: bool) -> None: ...


class NoTracker:
    """No mirror."""

    id = None

    def log(self, row: Mapping[str, Any]) -> None:
        return

    def log_scores(self, scores: Iterable[Score]) -> None:
        return

    def finish(self, *, failed: bool) -> None:
        return


class WandbTracker:
    """One W&B run of one experiment, with our own step numbers.

    A resumed run keeps its id and replays what was logged before, so that a later upload that replaces an earlier one
    loses nothing. What W&B raises later ends the mirror, never the run.
    """

    def __init__(self, run: Any, past: Iterable[Mapping[str, Any]]) -> None:
        self.run = run
        self.id = run.id
        self.broken = False
        for row in past:
            self.log(row)

    def log(self, row: Mapping[str, Any]) -> None:
        told = {key: value for key, value in row.items() if key != "step" and value is not None}
        self.attempt(lambda: self.run.log(told, step=row["step"]))

    def log_scores(self, scores: Iterable[Score]) -> None:
        for score in scores:
            parts = (score.suite, score.task, score.subset, score.metric, score.readout)
            key = "/".join(part for part in parts if part)
            self.attempt(lambda key=key, value=score.value: self.run.summary.update({key: value}))

    def finish(self, *, failed: bool) -> None:
        self.attempt(lambda: self.run.finish(exit_code=int(failed)))

    def attempt(self, send: Callable[[], None]) -> None:
        if self.broken:
            return
        try:
            send()
        except Exception as error:  # wandb's errors have no common class
            self.broken = True
            print(f"W&B mirrors no further: {first_line(str(error))}; {TRUTH}", file=sys.stderr)


def has_api_key() -> bool:
    """Whether W&B could log in without asking."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators(HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def choose_wandb_mode(asked: str) -> str:
    """`asked`, with auto resolved: WANDB_MODE where it is set, else online with a key and offline without one."""
    if asked not in MODES:
        raise ValueError(f"logging.wandb={asked} is unknown; use one of {', '.join(MODES)}")
    if asked != "auto":
        return asked
    return os.environ.get("WANDB_MODE") or ("online" if has_api_key() else "offline")


def start_tracker(record: RunRecord, folder: Path, past: Iterable[Mapping[str, Any]]) -> Tracker:
    """The mirror of a run. Never asks and never waits for a network: what cannot be reached online goes offline."""
    wanted = choose_wandb_mode(record.config["logging"]["wandb"])
    if wanted == "disabled" or "wandb" not in package_versions(("wandb",)):
        return NoTracker()
    for name in OWN_FOLDERS:
        os.environ.setdefault(name, str(outputs_folder() / "wandb"))
    import wandb

    past = list(past)
    for attempt in dict.fromkeys((wanted, "offline")):
        try:
            return WandbTracker(init_wandb(wandb, record, folder, attempt), past)
        except Exception as error:  # wandb's errors have no common class
            print(f"W&B cannot run {attempt}: {first_line(str(error))}; {TRUTH}", file=sys.stderr)
            with contextlib.suppress(Exception):
                wandb.teardown()  # or the run that could not start still holds its id
    return NoTracker()


def init_wandb(wandb: Any, record: RunRecord, folder: Path, mode: str) -> Any:
    logging = record.config["logging"]
    return wandb.init(
        project=logging["project"],
        id=record.run_id,
        name=record.run_id,
        group=logging["group"] or record.name,
        tags=[f"{axis}:{record.choices[axis]}" for axis in AXES],
        config=record.config,
        dir=str(folder),
        mode=mode,
        resume="allow" if mode == "online" else None,
        settings=wandb.Settings(
            console="off", silent=True, init_timeout=15, disable_git=True, disable_code=True, disable_job_creation=True
        ),
    )
