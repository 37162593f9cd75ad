"""Rows of a data set on the Hugging Face hub, at a pinned revision, or of a local mirror of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from unified_lm.data.records import Records
from unified_lm.files import cache_dir, folder_digest


@dataclass(frozen=True, kw_only=True)
class HubDataset(Records):
    """A data set on the hub, at a commit. A branch name is refused: it could mean other rows tomorrow.

    `revision`: the commit's hash, or its first 7 or more digits, which are completed from the hub's list of commits.
    `data_mirror`: read `<data_mirror>/<id>` instead of the hub; the identity is then the digest of its bytes, and
    `revision` may be None. `files`: names or patterns of files, each a data set named by its stem; without them the
    configuration's split is one data set. Nothing is read where a column of `expected_columns` is missing or the number
    of rows is not `expected_rows`. No code of the data set is ever run.
    """

    id: str
    revision: str | None
    split: str = "train"  # or a slice, such as "train[:1000]"
    config: str | None = None
    files: Sequence[str] = ()
    expected_rows: int | None = None
    expected_columns: Sequence[str] = ()
    data_mirror: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.revision is None and self.data_mirror is None:
            raise ValueError(
                f"the commit of {self.id} is not known to us: give the one that you read, revisions.NAME=COMMIT with "
                "all 40 digits (conf/config.yaml has the names), or data_mirror=DIR"
            )
        if self.revision is not None and not re.fullmatch(r"[0-9a-f]{7,40}", str(self.revision)):
            raise ValueError(
                f"revision={self.revision} of {self.id} is not a commit: pin it by its 40 hexadecimal digits"
            )
        if not self.name:
            object.__setattr__(self, "name", "-".join(filter(None, (self.id.rpartition("/")[2], self.config))))

    def records_fingerprint(self) -> str:
        """The pinned revision or the mirror's digest, with configuration, files, split and name."""
        folder = self._mirror_folder()
        identity = self.revision if folder is None else f"mirror-{folder_digest(folder)}"
        part = ",".join(self.files) or self.config or "default"
        return f"{self.id}@{identity}/{part}/{self.split}/{self.name}"

    def data_sets(self) -> Iterator[tuple[str, Iterator[tuple[str, Any]]]]:
        for name, table in self.open_tables().items():
            yield name, self._table_records(name, table)

    def open_tables(self) -> dict[str, Any]:
        """Open the data sets and compare them with `expected_columns` and `expected_rows`.

        Raises `ValueError` for data that cannot be read and for columns or a number of rows that differ.
        """
        tables = {name: self._load_table(file) for name, file in self._files_by_data_set().items()}
        for name, table in tables.items():
            if missing := [column for column in self.expected_columns if column not in table.column_names]:
                wanted, found = (", ".join(names) for names in (self.expected_columns, table.column_names))
                raise ValueError(f"{self.id}, {name}: no column {missing[0]!r}; expected {wanted}, found {found}")
        rows = sum(table.num_rows for table in tables.values())
        if self.expected_rows not in (None, rows):
            raise ValueError(f"{self.id}, split {self.split}: expected {self.expected_rows} rows, found {rows}")
        return tables

    def _mirror_folder(self) -> Path | None:
        if self.data_mirror is None:
            return None
        folder = Path(self.data_mirror).expanduser() / self.id
        if not folder.is_dir():
            raise ValueError(
                f"data_mirror={self.data_mirror} has no folder {self.id}; leave data_mirror out to use the hub"
            )
        return folder

    def _files_by_data_set(self) -> dict[str, str | None]:
        """Name of each data set and its file, in the order of `files`; each pattern must fit at least one file."""
        if not self.files:
            return {self.name: None}
        folder = self._mirror_folder()
        if folder is not None:
            there = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        else:
            from huggingface_hub import list_repo_files

            with self._explain_read_errors():
                there = sorted(
                    list_repo_files(self.id, revision=full_commit(self.id, self.revision), repo_type="dataset")
                )
        found: dict[str, str | None] = {}
        for wanted in self.files:
            if not (fitting := [file for file in there if fnmatch(file, wanted)]):
                raise ValueError(f"{self.id} has no file {wanted}; it holds {', '.join(there[:20]) or 'none'}")
            for file in fitting:
                name = file.rpartition("/")[2].partition(".")[0]
                if found.setdefault(name, file) != file:
                    raise ValueError(f"{self.id} has two files named {name!r}: {found[name]} and {file}")
        return found

    @contextmanager
    def _explain_read_errors(self) -> Iterator[None]:
        import datasets  # here: it takes a second, and composing a configuration must not
        from huggingface_hub.errors import HfHubHTTPError  # its base is that of all errors of the HTTP client

        try:
            yield
        except (OSError, ValueError, *HfHubHTTPError.__bases__, datasets.exceptions.DatasetsError) as error:
            raise ValueError(
                f"cannot read {self.id}@{self.revision} (config {self.config}, split {self.split}): {error}; "
                "without a network, point data_mirror at a folder that holds it"
            ) from error

    def _load_table(self, file: str | None) -> Any:
        """Load one data set. A mirror's cache is named by its content; `datasets` would name it by its folder."""
        import datasets

        folder = self._mirror_folder()
        what = {"name": self.config} if file is None else {"data_files": {"train": file}}
        with self._explain_read_errors():
            if folder is None:
                where = {"path": self.id, "revision": full_commit(self.id, self.revision)}
            else:
                where = {"path": str(folder), "cache_dir": str(cache_dir() / "mirrored" / folder_digest(folder))}
            return datasets.load_dataset(**where, **what, split=self.split)

    def _table_records(self, name: str, table: Any) -> Iterator[tuple[str, Any]]:
        data_set = ", ".join([self.id, name] if self.files else [self.id])
        for number, record in enumerate(table):
            yield f"{data_set}, split {self.split}, row {number}", record


@cache
def full_commit(id: str, revision: str) -> str:
    """All 40 digits of a commit of a data set; the hub is asked where `revision` has fewer.

    Raises `ValueError` unless exactly one commit begins with them.
    """
    if len(revision) == 40:
        return revision
    from huggingface_hub import list_repo_commits

    there = [one.commit_id for one in list_repo_commits(id, repo_type="dataset")]
    found = [one for one in there if one.startswith(revision)]
    if len(found) != 1:
        raise ValueError(f"{len(found)} of the {len(there)} commits of {id} begin with {revision}; give all 40 digits")
    return found[0]


def generator_split(model: str) -> str:
    """The split of McGill-NLP/llm2vec-gen-tulu that a model wrote ("Qwen/Qwen3-1.7B" -> "Qwen3_17B").

    Source: `safe_split_name` of the released llm2vec-gen.
    """
    return re.sub(r"[^a-zA-Z0-9_.]", "_", model.rpartition("/")[2]).replace(".", "").strip("_")
