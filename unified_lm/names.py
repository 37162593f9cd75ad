"""The name that somebody meant."""

import difflib
from collections.abc import Iterable


def closest_names(word: str, options: Iterable[str], *, count: int = 1, cutoff: float = 0.6) -> list[str]:
    """The options most like `word`, best first, in whatever case either is written; those below `cutoff` are none."""
    cased = {option.lower(): option for option in options}
    return [cased[found] for found in difflib.get_close_matches(word.lower(), list(cased), n=count, cutoff=cutoff)]
