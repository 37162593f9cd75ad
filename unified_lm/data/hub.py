"""Rows of a data set on the Hugging Face hub, at a pinned revision, or of a local mirror of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unified_lm.cache import folder_digest
from unified_lm.data.records import Records


@dataclass(frozen=True, kw_only=True)
class HubDataset(Records):
    """A hub data set. `revision` is a full commit hash: a branch name could mean other rows tomorrow.

    With `data_mirror`, `<data_mirror>/<id>` is read instead of the hub and its bytes become the identity.
    No code of the data set is ever run.
    """

    id: str
    revision: str
    split: str  # "train", or a slice such as "train[:1000]"
    config: str | None = None
    data_mirror: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[0-9a-f]{40}", self.revision):
            raise ValueError(
                f"revision={self.revision} of {self.id} is not a commit: pin all 40 hexadecimal digits of it"
            )
        if not self.name:
            object.__setattr__(self, "name", "-".join(filter(None, (self.id.rpartition("/")[2], self.config))))

    def origin(self) -> str:
        """Pinned revision, or digest of the mirror, with configuration, split and name."""
        folder = self._mirror()
        identity = self.revision if folder is None else f"mirror-{folder_digest(folder)}"
        return f"{self.id}@{identity}/{self.config or 'default'}/{self.split}/{self.name}"

    def data_sets(self) -> Iterator[tuple[str, Iterator[tuple[str, Any]]]]:
        yield self.name, self._records()

    def _mirror(self) -> Path | None:
        if self.data_mirror is None:
            return None
        folder = Path(self.data_mirror).expanduser() / self.id
        if not folder.is_dir():
            raise ValueError(
                f"data_mirror={self.data_mirror} has no folder {self.id}; leave data_mirror out to use the hub"
            )
        return folder

    def _records(self) -> Iterator[tuple[str, Any]]:
        import datasets  # here: it takes a second, and composing a configuration must not

        folder = self._mirror()
        where = {"path": self.id, "revision": self.revision} if folder is None else {"path": str(folder)}
        try:
            table = datasets.load_dataset(**where, name=self.config, split=self.split)
        except (OSError, datasets.exceptions.DatasetNotFoundError) as error:
            raise ValueError(
                f"cannot read {self.id}@{self.revision} (config {self.config}, split {self.split}): {error}; "
                "without a network, point data_mirror at a folder that holds it"
            ) from error
        for number, record in enumerate(table):
            yield f"{self.id}, split {self.split}, row {number}", record
