"""Digests of content: what a file or a folder says, wherever it lies and whenever it was written."""

import hashlib
from pathlib import Path


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(folder: Path) -> str:
    """sha256 over the relative path and the content of every file below `folder`, hidden files and folders left out.

    Raises ValueError for a folder that is missing or holds no file.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    names = sorted(
        path.relative_to(folder) for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not names:
        raise ValueError(f"the folder {folder} holds no file")
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name.as_posix()}\0{file_digest(folder / name)}\n".encode())
    return digest.hexdigest()
