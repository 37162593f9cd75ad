"""Preserve the global random state: benchmark libraries seed it, and scoring must not change the run around it."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def preserve_random_state() -> Iterator[None]:
    """Leaves the global generators of Python, numpy and torch (CPU and GPUs) as they were found."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)
