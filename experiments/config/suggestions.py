"""Did-you-mean hints for misspelt names and options."""

from collections.abc import Iterable, Sequence

from unified_lm.names import closest


def suggest(word: str, options: Iterable[str], *, cutoff: float = 0.6) -> str:
    """ " (did you mean X?)" with the option most like `word`; empty where no option is close."""
    close = closest(word, options, cutoff=cutoff)
    return f" (did you mean {close[0]}?)" if close else ""


def suggest_setting(name: str, settings: Sequence[str]) -> str:
    """A hint for a misspelt dotted setting: the closest name in the same section, else the closest anywhere."""
    prefix, _, leaf = name.rpartition(".")
    section = {s.rpartition(".")[2]: s for s in settings if s.rpartition(".")[0] == prefix}
    close = closest(leaf, section)
    return f" (did you mean {section[close[0]]}?)" if close else suggest(name, settings, cutoff=0.7)


def list_siblings(name: str, settings: Sequence[str]) -> str:
    """ "SECTION has: a, b, c" for the deepest section of `name` that exists."""
    parent = name.rpartition(".")[0]
    while parent and not any(setting.startswith(parent + ".") for setting in settings):
        parent = parent.rpartition(".")[0]
    prefix = parent + "." if parent else ""
    here = sorted({setting[len(prefix) :].split(".")[0] for setting in settings if setting.startswith(prefix)})
    return f"{parent or 'the config'} has: {', '.join(here)}"
