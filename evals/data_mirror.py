"""Data sets in a local folder instead of the hub: `<mirror>/<org>/<name>/`, each with its README.md, as
`hf download --repo-type dataset <org>/<name> --revision SHA --local-dir <mirror>/<org>/<name>` writes them.

A local folder has no revision that anything would verify, so the digest of its content takes the revision's place.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import datasets

from unified_lm.files import cache_dir, folder_digest

MIRROR_PREFIX = "mirror:"
"""Begins the revision of a task that is read from a mirror; the digest of its content follows."""


def mirror_folder(mirror: str | Path, path: str, commit: str | None) -> Path:
    """The folder of the data set `path` (`<org>/<name>`).

    Raises ValueError, with the command that fetches it, where there is none.
    """
    folder = Path(mirror) / path
    if not folder.is_dir():
        at = f"--revision {commit} " if commit else ""
        raise ValueError(
            f"the data mirror has no {folder}; fetch it with: hf download --repo-type dataset {path} "
            f"{at}--local-dir {folder}"
        )
    return folder


def mirror_revision(folder: Path) -> str:
    """What stands as the revision of a mirrored data set."""
    return f"{MIRROR_PREFIX}{folder_digest(folder)}"


@contextlib.contextmanager
def cache_datasets_by_content(revision: str) -> Iterator[None]:
    """Keeps what is read from a mirror under the digest of its content, which `revision` names.

    datasets names its own cache of a local folder by the folder and not by what is in it: after a change of the mirror
    it would go on returning the rows that it read first.
    """
    usual = datasets.config.HF_DATASETS_CACHE
    if revision.startswith(MIRROR_PREFIX):
        content = revision.removeprefix(MIRROR_PREFIX).partition(" ")[0]
        datasets.config.HF_DATASETS_CACHE = str(cache_dir() / "mirrored" / content)
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = usual
