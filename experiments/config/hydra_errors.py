"""Hydra's and OmegaConf's errors as one line that names the way out."""

import re
from collections.abc import Callable, Sequence

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from experiments.config.errors import UsageError, first_line
from experiments.config.paths import CONF
from experiments.config.suggestions import list_siblings, suggest, suggest_setting

HYDRA_ERRORS = (HydraException, OmegaConfBaseException)


def explain_hydra_error(error: Exception, list_settings: Callable[[], Sequence[str]]) -> UsageError:
    """The one-line `UsageError` for an error of Hydra or OmegaConf; `list_settings` gives the settings that exist."""
    text = str(error)
    if isinstance(error, MissingConfigException):
        return explain_missing_option(error)
    if isinstance(error, OverrideParseException):
        why = first_line(text.removeprefix(f"Error parsing override {error.override!r}"))
        quoting = "write name=value, and quote a value with spaces or commas: \"name='a b'\""
        return UsageError(f"cannot read {error.override!r}: {why}; {quoting}")
    if unknown := re.search(r"Could not (?:override|delete)[^']*'([^']+)'", text):
        name, known = unknown.group(1).split("@")[0], list_settings()
        section = name.rpartition(".")[0]
        more = f"; what its class takes beside these is added: +{name}=…" if f"{section}._target_" in known else ""
        return UsageError(f"unknown setting {name}{suggest_setting(name, known)}; {list_siblings(name, known)}{more}")
    if sweep := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'(?: requires|$)", text, re.M):
        return UsageError(f"{sweep.group(1)} is a sweep: add -m, or quote the value to use it as one text")
    if isinstance(error, MissingMandatoryValue):
        found = re.search(r"full_key: (\S+)", text)
        name = found.group(1) if found else "a setting"
        return UsageError(f"{name} has no value; give one: {name}=…")
    return UsageError(first_line(text))


def explain_missing_option(error: MissingConfigException) -> UsageError:
    """The message for a group's option, or a group, that has no file in conf/."""
    found = re.search(r"'([^']+)/([^'/]+)'", str(error))
    group, option = found.groups() if found else ("the config", str(error.missing_cfg_file))
    group, option = (option.rstrip("/"), "") if not (CONF / group).is_dir() else (group, option)
    known = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    return UsageError(f"{group}={option} does not exist{suggest(option, known)}; {group} is one of: {', '.join(known)}")
