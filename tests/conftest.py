"""Session-wide ground: offline, on a CPU, writing nothing outside a temporary folder."""

import os
import tempfile

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # before torch: spinning threads starve every other process of this machine
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
_SCRATCH = tempfile.mkdtemp(prefix="unified_lm_tests_")
for _variable in ("MTEB_CACHE", "WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
    os.environ[_variable] = os.path.join(_SCRATCH, _variable.lower())
    os.makedirs(os.environ[_variable])


import pytest  # noqa: E402

from unified_lm.backbones import Loaded, Tiny  # noqa: E402


@pytest.fixture(scope="session")
def tiny() -> Loaded:
    """A random two-layer Llama. Shared: a test that changes weights loads its own ``Tiny()``."""
    return Tiny().load()
