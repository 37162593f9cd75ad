"""A user's mistake, told in one line with the way out."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from experiments.config.paths import CONF
from unified_lm.names import closest

USAGE = 2  # exit code of a command that was refused before any work


class UsageError(ValueError):
    """The command asks for something that does not exist or cannot be; the message is one line."""


def nearest(word: str, options: Iterable[str], *, cutoff: float = 0.6) -> str:
    """ " (did you mean X?)" for the option most like `word`, or nothing where none is alike."""
    close = closest(word, options, cutoff=cutoff)
    return f" (did you mean {close[0]}?)" if close else ""


def explained(error: Exception, settings: Callable[[], Sequence[str]]) -> UsageError:
    """Hydra's and OmegaConf's multi-line errors as one line; `settings` gives the dotted names that exist."""
    text = str(error)
    if isinstance(error, MissingConfigException):
        return no_such_option(error)
    if isinstance(error, OverrideParseException):
        why = first_line(text.removeprefix(f"Error parsing override {error.override!r}"))
        quoting = "write name=value, and quote a value with spaces or commas: \"name='a b'\""
        return UsageError(f"cannot read {error.override!r}: {why}; {quoting}")
    if unknown := re.search(r"Could not (?:override|delete)[^']*'([^']+)'", text):
        name, known = unknown.group(1).split("@")[0], settings()
        section = name.rpartition(".")[0]
        more = f"; what its class takes beside these is added: +{name}=…" if f"{section}._target_" in known else ""
        return UsageError(f"unknown setting {name}{alike(name, known)}; {siblings(name, known)}{more}")
    if sweep := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'(?: requires|$)", text, re.M):
        return UsageError(f"{sweep.group(1)} is a sweep: add -m, or quote the value to use it as one text")
    if isinstance(error, MissingMandatoryValue):
        found = re.search(r"full_key: (\S+)", text)
        name = found.group(1) if found else "a setting"
        return UsageError(f"{name} has no value; give one: {name}=…")
    return UsageError(first_line(text))


def no_such_option(error: MissingConfigException) -> UsageError:
    found = re.search(r"'([^']+)/([^'/]+)'", str(error))
    group, option = found.groups() if found else ("the config", str(error.missing_cfg_file))
    group, option = (option.rstrip("/"), "") if not (CONF / group).is_dir() else (group, option)
    known = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    return UsageError(f"{group}={option} does not exist{nearest(option, known)}; {group} is one of: {', '.join(known)}")


def alike(name: str, settings: Sequence[str]) -> str:
    """The nearest name beside it, else the nearest anywhere."""
    prefix, _, leaf = name.rpartition(".")
    beside = {s.rpartition(".")[2]: s for s in settings if s.rpartition(".")[0] == prefix}
    close = closest(leaf, beside)
    return f" (did you mean {beside[close[0]]}?)" if close else nearest(name, settings, cutoff=0.7)


def first_line(text: str) -> str:
    """The first line that says something, with the next one where it only announces it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def siblings(name: str, settings: Sequence[str]) -> str:
    """What stands at the deepest part of `name` that exists."""
    parent = name.rpartition(".")[0]
    while parent and not any(setting.startswith(parent + ".") for setting in settings):
        parent = parent.rpartition(".")[0]
    prefix = parent + "." if parent else ""
    here = sorted({setting[len(prefix) :].split(".")[0] for setting in settings if setting.startswith(prefix)})
    return f"{parent or 'the config'} has: {', '.join(here)}"


HYDRA_ERRORS = (HydraException, OmegaConfBaseException)


@contextmanager
def opening() -> Iterator[None]:
    """What cannot be built or read of a model that the user names is the user's to mend: one line, and no traceback."""
    try:
        yield
    except ValueError as error:
        raise UsageError(first_line(str(error))) from error


def told(main: Callable[[Sequence[str]], int]) -> Callable[[], int]:
    """A command's `main(argv)` as an entry point: a `UsageError` becomes one line on stderr and exit code 2, and a
    file that cannot be read or written one line and exit code 1."""

    def entry() -> int:
        try:
            return main(sys.argv[1:])
        except UsageError as error:
            print(f"error: {error}", file=sys.stderr)
            return USAGE
        except OSError as error:  # a full disk, a folder that cannot be written
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("stopped; the same command continues from the last checkpoint", file=sys.stderr)
            return 130

    return entry
