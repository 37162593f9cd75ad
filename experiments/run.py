"""One experiment, or with -m a sweep: `python -m experiments.run experiment=t15_ulme scale=mini seed=0`."""

import sys
from collections.abc import Sequence

from experiments.config.command_line import cli_entry_point
from experiments.config.compose import Composition, compose, list_groups, list_options, override_name
from experiments.config.describe import describe
from experiments.config.errors import UsageError
from experiments.config.identity import Run, identify
from experiments.runs.execute import ensure_run
from experiments.runs.preflight import missing_device, require_device

USAGE = """\
usage: python -m experiments.run [-m] [--cfg] name=value ...
       python -m experiments.run --help GROUP=OPTION ...

Trains and scores one experiment, its parents first; what is there already is not done again. Every setting of conf/ is
an override, and a group takes the name of one of its files:

{groups}

examples
  python -m experiments.run experiment=t15_ulme scale=mini seed=0
  python -m experiments.run experiment=t15_ulme scale=tiny method.slots=2 optim.learning_rate=1e-5
  python -m experiments.run -m 'experiment=glob(t15_*)' scale=mini seed=0,1,2
  python -m experiments.run -m experiment=t15_ulme seed=0,1 hydra/launcher=joblib

options
  -m, --multirun   every combination of comma-separated values, range(..) and glob(..); Hydra's launchers and sweepers
  --cfg            print the run id and the composed configuration, and stop
  -h, --help       this text; with names the settings of each: --help method=ulme optim=adamw runtime

Results: outputs/runs/<run id>/record.json (UNIFIED_LM_OUTPUTS moves outputs/)."""


def main(arguments: Sequence[str]) -> int:
    flags = [argument for argument in arguments if argument.startswith("-")]
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    if "--cfg" in flags and "job" in overrides:  # as Hydra's own option is written
        overrides.remove("job")
    unknown = set(flags) - {"-m", "--multirun", "-h", "--help", "--cfg"}
    if hydras := unknown & {"--info", "-i", "-c", "--hydra-help", "-sc", "--shell-completion", "--resolve"}:
        raise UsageError(
            f"{min(hydras)} is Hydra's: use --cfg for the composed configuration, --help GROUP=OPTION for settings"
        )
    if unknown:
        raise UsageError(f"unknown option {min(unknown)}; a setting is written name=value, see --help")
    if {"-h", "--help"} & set(flags):
        print(describe(overrides) if overrides else format_help())
        return 0
    if {"-m", "--multirun"} & set(flags):
        from experiments.runs.sweep import run_sweep

        return run_sweep(overrides)
    job = compose(overrides)
    if "--cfg" not in flags:
        require_device(job)
    run = identify(job)
    if said := replaced_by_scale(job):
        print(said, file=sys.stderr)
    if "--cfg" in flags:
        import yaml

        check_values(run)
        print(f"# {run.run_id}\n{yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)}", end="")
        return 0
    return ensure_run(run)


def replaced_by_scale(job: Composition) -> str:
    """One line that says what the default scale replaced of an experiment; empty where the user chose the scale."""
    names = {override_name(override) for override in job.overrides}
    if "scale" in names or "experiment" not in names:
        return ""
    own = compose([*job.overrides, "scale=paper"]).choices
    changed = [
        f"{group} {job.choices[group]} instead of {own[group]}"
        for group in ("backbone", "data", "trainable", "template")
        if group not in names and job.choices[group] != own[group]
    ]
    return (
        f"scale={job.choices['scale']} (the default): {', '.join(changed)}; scale=paper keeps them" if changed else ""
    )


def check_values(run: Run) -> None:
    """Refuse, as the worker would, values that cannot be; a run of chosen files has none of the user's own.

    Suites are left out where none of theirs is set, and what this machine lacks is not the values' fault.
    """
    names = {override_name(override) for override in run.job.overrides} - {*list_groups(), "seed"}
    if not names:
        return
    from experiments.config.build import check_config  # imports torch

    own = any(name.startswith("evals.") for name in names)
    config = run.config | {"evals": run.config["evals"] if own else {}}
    if missing_device(run.job):
        config |= {"kernel": "auto", "runtime": run.config["runtime"] | {"device": "auto"}}
    check_config(config, chained=run.parent is not None)


def format_help() -> str:
    lines = [f"  {group + '=':<12} {', '.join(list_options(group))}" for group in list_groups()]
    return USAGE.format(groups="\n".join(lines))


if __name__ == "__main__":
    sys.exit(cli_entry_point(main)())
