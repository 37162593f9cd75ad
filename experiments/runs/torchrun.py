"""torchrun, told to be brief:
`python -m experiments.runs.torchrun --nproc-per-node=2 -m experiments.runs.worker RUN_DIR`.

By itself torchrun ends in a traceback of its own insides after a request to stop or a failed rank, which rank 0 told.
"""

import logging
import sys
from collections.abc import Sequence

from unified_lm.training.watchdog import REQUEUE


def main(arguments: Sequence[str]) -> int:
    """Run the ranks; 75 after a request to stop, else the exit code of the first rank that failed, or 0."""
    logging.disable(logging.ERROR)  # in this process alone: beside each word of torchrun's there is a better one
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(list(arguments)))
    except SignalException:
        return REQUEUE
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        if failure.exitcode != REQUEUE:
            print(f"error: rank {rank} ended with exit code {failure.exitcode}", file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
