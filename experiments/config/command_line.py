"""A command's `main(argv)` as an entry point: errors of a user become one line and an exit code."""

import sys
from collections.abc import Callable, Sequence

from experiments.config.errors import USAGE, UsageError


def cli_entry_point(main: Callable[[Sequence[str]], int]) -> Callable[[], int]:
    """Wrap `main`: a `UsageError` becomes one line on stderr and exit code 2; a file that cannot be read or written
    becomes one line and exit code 1."""

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
