"""One command line becomes one resolved configuration. Imports neither torch nor a benchmark library."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict

from experiments.config.errors import UsageError
from experiments.config.hydra_errors import HYDRA_ERRORS, explain_hydra_error
from experiments.config.paths import CONF
from experiments.config.schema import SECTION_CLASSES, class_fields
from experiments.rehearsal.cut import SCALE, cut
from unified_lm.data.hub import generator_split

SECTIONS = ("runtime", "lengths", "slots", "scoring", "logging", "revisions")  # of settings, not chosen from files
INHERITED = ("backbone", "scale")  # with the seed and where data is found, all that a parent takes from its child

OmegaConf.register_new_resolver("generator_split", generator_split, replace=True)


@dataclass(frozen=True, kw_only=True)
class Composition:
    """A composed command line: `config` without Hydra's own node, the option chosen in each group, the overrides."""

    config: DictConfig
    choices: Mapping[str, Any]
    overrides: tuple[str, ...]

    def with_seed(self, seed: int) -> "Composition":
        """The same job at another seed; what interpolates the seed follows."""
        config = self.config.copy()
        config.seed = seed
        overrides = (*(o for o in self.overrides if not o.startswith("seed=")), f"seed={seed}")
        return replace(self, config=config, overrides=overrides)

    @property
    def command(self) -> str:
        """What a user types to make this run."""
        return " ".join(["python -m experiments.run", *map(shlex.quote, self.overrides)])

    @property
    def resolved(self) -> dict[str, Any]:
        """Plain values, interpolations resolved.

        Raises `UsageError` for a value that is still missing.
        """
        try:
            return OmegaConf.to_container(self.config, resolve=True, throw_on_missing=True)
        except HYDRA_ERRORS as error:
            raise explain_hydra_error(error, lambda: iterate_setting_names(self.config)) from error


def compose(overrides: Sequence[str]) -> Composition:
    """The configuration of a command line.

    Raises `UsageError`, in one line with the nearest name, for a name, an option or a value that does not exist.
    """
    for override in overrides:
        refuse_hydra_settings(*override.split("=", 1) if "=" in override else (override, ""))
    try:
        config = compose_declared(overrides)
    except HYDRA_ERRORS as error:
        raise explain_hydra_error(error, lambda: list_settings(overrides)) from error
    except ValueError as error:  # a group that is given a number
        raise UsageError(f"{error}: {' '.join(overrides)}") from error
    choices = {group: choice for group, choice in config.hydra.runtime.choices.items() if "hydra/" not in group}
    with open_dict(config):
        del config["hydra"]
    if not isinstance(config.seed, int) or isinstance(config.seed, bool):
        raise UsageError(f"seed={config.seed} is no whole number")
    for override in overrides:
        name = override_name(override)
        if name in SECTIONS and not OmegaConf.is_dict(config.get(name)):
            raise UsageError(f"{override} would replace a whole section; set one of its values: {name}.<name>=…")
    if choices.get("scale") == SCALE:
        cut(config, [override_name(override) for override in overrides])
    return Composition(config=config, choices=choices, overrides=tuple(overrides))


def compose_declared(overrides: Sequence[str]) -> DictConfig:
    """Hydra's composition; a setting that its class has is set without a `+`, though no file of conf/ may list it."""
    try:
        return compose_with_hydra(overrides)
    except HYDRA_ERRORS as error:
        found = re.search(r"Could not override '([^'@]+)'", str(error))
        if found is None or not is_declared(found.group(1), overrides):
            raise
    return compose_declared([f"+{o}" if o.partition("=")[0] == found.group(1) else o for o in overrides])


def is_declared(name: str, overrides: Sequence[str]) -> bool:
    """Whether the class of a setting's section, as the groups of `overrides` choose it, has a field of this name."""
    section, _, leaf = name.rpartition(".")
    groups = set(list_groups())
    node = OmegaConf.select(compose_with_hydra([o for o in overrides if override_name(o) in groups]), section)
    target = SECTION_CLASSES.get(section) or (node.get("_target_") if OmegaConf.is_dict(node) else None)
    return target is not None and leaf in class_fields(target)


def lenient(override: str) -> str:
    """`+name=value` also where the setting exists: every setting of ours does, so nobody needs to know."""
    return f"+{override}" if re.match(r"\+[\w/]+\.", override) else override


def override_name(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def compose_with_hydra(overrides: Sequence[str]) -> DictConfig:
    """Hydra's composition, also from within a Hydra job, whose global state it leaves as it was."""
    state = GlobalHydra.instance()
    outer, state.hydra = state.hydra, None
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return hydra_compose("config", overrides=[lenient(o) for o in overrides], return_hydra_config=True)
    finally:
        GlobalHydra.instance().hydra = outer


def compose_parent(job: Composition) -> Composition | None:
    """The stage that this job starts from: its own experiment at the child's seed, scale and backbone."""
    return compose_stage(job, "parent")


def compose_teacher(job: Composition) -> Composition | None:
    """The run whose vectors this job learns from: its own experiment at this one's seed, scale and backbone."""
    return compose_stage(job, "teacher")


def compose_stage(job: Composition, kind: str) -> Composition | None:
    """Another experiment at a job's seed, scale and backbone, with its further overrides; nothing is scored of it.

    Raises `UsageError` for overrides of a stage that the job does not have.
    """
    name, given = job.config[kind], list(job.config[f"{kind}_overrides"])
    if name is None and given:
        raise UsageError(f"{kind}_overrides={given} has no {kind} to change; add {kind}=<experiment>")
    if name is None:
        return None
    inherited = [f"{group}={job.choices[group]}" for group in INHERITED]
    found_at = [
        override for override in job.overrides if override_name(override).startswith(("data_mirror", "revisions."))
    ]
    older = compose([f"experiment={name}", *inherited, *found_at, f"seed={job.config.seed}", "evals=[]", *given])
    if not any(o.lstrip("+~").startswith("backbone") for o in given):
        older.config.backbone = job.config.backbone
    return older


def list_options(group: str) -> list[str]:
    """The files of a group of conf/."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def list_groups() -> list[str]:
    """The config groups of conf/, such as method and recipe/mini."""
    folders = {path.parent.relative_to(CONF).as_posix() for path in CONF.rglob("*.yaml")}
    return sorted(folders - {".", "table"})


def list_settings(overrides: Sequence[str]) -> tuple[str, ...]:
    """Every name that an override may have beside the group choices of `overrides`, where these compose."""
    choices = [override for override in overrides if override_name(override) in list_groups()]
    try:
        config = compose_with_hydra(choices)
    except HYDRA_ERRORS:
        config = compose_with_hydra([])
    with open_dict(config):
        del config["hydra"]
    return (*list_groups(), *iterate_setting_names(config))


def iterate_setting_names(node: Any, prefix: str = "") -> Iterator[str]:
    """The dotted names of a config's nodes."""
    if OmegaConf.is_dict(node):
        for key in node:
            yield f"{prefix}{key}"
            if not OmegaConf.is_missing(node, key):
                yield from iterate_setting_names(node._get_node(key), f"{prefix}{key}.")


def refuse_hydra_settings(group: str, choice: str) -> None:
    """Hydra reads launcher and sweeper before it reads an experiment, so setting them there would do nothing."""
    path = CONF / group / f"{choice}.yaml"
    if group.partition("/")[0] not in ("experiment", "scale", "recipe") or not path.is_file():
        return
    raw = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    entries = [key for entry in raw.get("defaults", []) if isinstance(entry, dict) for key in entry]
    inside = [key.removeprefix("override").strip().lstrip("/") for key in entries if "hydra/" in key]
    if inside or "hydra" in raw:
        what = inside[0] if inside else f"hydra.{next(iter(raw['hydra']))}"
        where = f"conf/{group}/{choice}.yaml"
        raise UsageError(f"{where} sets {what}, which Hydra ignores there; give it on the command line: {what}=…")
