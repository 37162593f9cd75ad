from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import datasets
import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError

from unified_lm.data.hub import HubDataset, full_commit
from unified_lm.data.rows import TrainingRow

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def mirror(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    folder = tmp_path / "mirror" / "someone" / "questions"
    folder.mkdir(parents=True)
    rows = [{"query": f"q{number}", "positive": "p", "negative": "n"} for number in range(6)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "test.jsonl").write_text(json.dumps({"query": "t", "positive": "p", "negative": ""}) + "\n")
    return tmp_path / "mirror"


def hub(**options: Any) -> HubDataset:
    return HubDataset(**{"id": "someone/questions", "revision": REVISION, "split": "train", **options})


def test_a_mirror_is_read_like_the_hub(mirror: Path) -> None:
    rows = hub(data_mirror=str(mirror), every=2, limit=2).rows()
    assert list(rows) == [
        TrainingRow(query=f"q{number}", positive="p", negatives=("n",), source="questions") for number in (0, 2)
    ]
    assert len(hub(data_mirror=str(mirror), split="train[:3]").rows()) == 3


def test_a_bad_row_is_refused_with_data_set_split_row_and_field(mirror: Path) -> None:
    with pytest.raises(ValueError, match=r"someone/questions, split test, row 0: field 'negative' is empty"):
        hub(data_mirror=str(mirror), split="test").rows()


def test_a_pinned_revision_is_the_identity_and_needs_no_network() -> None:
    name = hub().fingerprint()
    assert name.startswith(f"someone/questions@{REVISION}/default/train")
    assert hub().fingerprint() == name
    assert len({hub(**change).fingerprint() for change in CHANGES}) == len(CHANGES)


CHANGES: list[dict[str, Any]] = [
    {}, {"revision": REVISION[::-1]}, {"split": "test"}, {"config": "other"}, {"limit": 5}, {"columns": {"text": "t"}},
]  # fmt: skip


def test_a_mirrors_bytes_are_its_identity(mirror: Path) -> None:
    first = hub(data_mirror=str(mirror)).fingerprint()
    assert first != hub().fingerprint()
    with (mirror / "someone" / "questions" / "train.jsonl").open("a") as file:
        file.write(json.dumps({"query": "new", "positive": "p", "negative": "n"}) + "\n")
    assert hub(data_mirror=str(mirror)).fingerprint() != first


def test_a_mirror_that_changed_is_read_again(mirror: Path) -> None:
    assert len(hub(data_mirror=str(mirror)).rows()) == 6
    with (mirror / "someone" / "questions" / "train.jsonl").open("a") as file:
        file.write(json.dumps({"query": "new", "positive": "p", "negative": "n"}) + "\n")
    assert hub(data_mirror=str(mirror)).rows()[6].query == "new"


@pytest.mark.parametrize("revision", ["main", "012345", "", REVISION.upper(), REVISION + "0"])
def test_a_revision_that_can_move_is_refused(revision: str) -> None:
    with pytest.raises(ValueError, match="40 hexadecimal digits"):
        hub(revision=revision)


@contextmanager
def answering(commits: list[str]) -> Iterator[str]:
    """The address of a server that lists commits of any data set as the hub does."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            one = {"title": "Add", "message": "", "date": "2024-05-04T00:00:00.000Z", "authors": []}
            body = json.dumps([one | {"id": commit} for commit in commits]).encode()
            self.send_response(200 if self.path.startswith("/api/datasets/someone/") else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *told: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_the_first_digits_of_a_commit_are_looked_up_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = [f"abcdef0{end:033x}" for end in range(2)]
    with answering([REVISION, *twins]) as address:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", address)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        assert full_commit("someone/questions", REVISION[:7]) == REVISION
        for digits, count in (("abcdef0", 2), ("7654321", 0)):
            with pytest.raises(ValueError, match=f"{count} of the 3 commits of someone/questions begin with {digits}"):
                full_commit("someone/questions", digits)
            with pytest.raises(ValueError, match=r"cannot read someone/questions@.*give all 40 digits"):
                hub(revision=digits).rows()


@pytest.mark.parametrize("revision", [REVISION, REVISION[:7]])
@pytest.mark.parametrize("files", [(), ("train.jsonl",)])
def test_a_hub_that_does_not_answer_is_told_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, revision: str, files: tuple[str, ...]
) -> None:
    def refused(*args: object, **options: object) -> None:
        raise HfHubHTTPError.__bases__[0]("connection refused")

    monkeypatch.setattr(huggingface_hub, "list_repo_commits", refused)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", refused)
    monkeypatch.setattr(datasets, "load_dataset", refused)
    with pytest.raises(ValueError, match=r"connection refused.*point data_mirror at a folder"):
        hub(revision=revision, files=files).rows()


def test_a_commit_with_all_digits_is_not_looked_up() -> None:
    assert full_commit("someone/questions", REVISION) == REVISION


def test_without_hub_and_mirror_the_error_names_the_way_out(mirror: Path) -> None:
    with pytest.raises(ValueError, match="without a network, point data_mirror at a folder"):
        hub().rows()
    with pytest.raises(ValueError, match="has no folder someone/else"):
        hub(id="someone/else", data_mirror=str(mirror)).fingerprint()
