"""Where things are: the configuration beside the code, and the outputs wherever the user wants them."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"


def outputs_folder() -> Path:
    """`UNIFIED_LM_OUTPUTS`, else outputs/ in the project, whatever the working directory is."""
    return Path(os.environ.get("UNIFIED_LM_OUTPUTS") or ROOT / "outputs").expanduser().absolute()


def runs_folder() -> Path:
    return outputs_folder() / "runs"


def display_path(path: Path) -> str:
    """A path as a user would type it: relative where it lies under the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
