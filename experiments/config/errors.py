"""`UsageError`: a user's mistake, told in one line with the way out."""

from collections.abc import Iterator
from contextlib import contextmanager

USAGE = 2  # exit code of a command that is refused before any work


class UsageError(ValueError):
    """The command asks for something that does not exist or cannot work; the message is one line."""


@contextmanager
def as_usage_error() -> Iterator[None]:
    """Turn a `ValueError` of the block (a model that cannot be built or read) into a one-line `UsageError`."""
    try:
        yield
    except ValueError as error:
        raise UsageError(first_line(str(error))) from error


def first_line(text: str) -> str:
    """The first line with text in it, joined with the next one where it ends in a colon."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
