"""Score any model that exists: `python -m experiments.score model=RUN_ID 'evals=[mteb_offline]' data_mirror=DIR`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments import record
from experiments.compose import compose
from experiments.errors import UsageError, told
from experiments.execute import ensure, work
from experiments.files import write
from experiments.identity import settled
from experiments.named import foreign_run, run_folder, split
from experiments.places import shown

USAGE = (
    "usage: python -m experiments.score model=RUN_ID|FOLDER|ORG/NAME 'evals=[a,b]' [data_mirror=DIR] [name=value ...]"
)


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    own, overrides = split(arguments, ["model"], USAGE)
    if "model" not in own or not any(override.startswith("evals=") for override in overrides):
        raise UsageError(USAGE)
    folder = run_folder(own["model"])
    if folder is None:
        run = foreign_run(own["model"], overrides)
        code, folder = ensure(run), run.folder
    else:
        code = rescored(folder, settled(compose([*overrides, "scale=none"]).resolved["evals"]))
    tell(folder)
    return code


def rescored(folder: Path, evals: Mapping[str, Any]) -> int:
    """Score a finished run with other suites; what it has stays."""
    with record.held(folder):
        entry = record.read(folder)
        if entry is None or entry["digest"] is None:
            raise UsageError(f"{shown(folder)} has not been trained to its end: run it again")
        config = entry["config"] | {"evals": dict(evals)}
        if record.complete(entry, config):
            print(f"already there: {shown(folder)}")
            return 0
        record.change(folder, config=config)
        write(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        return work(folder, config)


def tell(folder: Path) -> None:
    """The scores of a record, one a line."""
    entry = record.read(folder)
    for score in entry["scores"] if entry else ():
        where = "/".join(part for part in (score["suite"], score["task"], score["subset"]) if part)
        value = f"{score['metric']} {score['value']:.4f} {score['unit']}"
        print(f"{where}: {value} (n={score['n']}, read-out {score['readout'] or 'none'})")
    print(f"record: {shown(folder / record.RECORD)}")


if __name__ == "__main__":
    sys.exit(told(main)())
