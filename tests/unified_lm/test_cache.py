from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unified_lm.files import cache_dir, create_once, file_digest, folder_digest, strings_digest, write_atomically


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))


def test_asking_for_the_cache_directory_creates_nothing() -> None:
    assert not cache_dir().exists()


def test_a_digest_tells_where_one_part_ends() -> None:
    assert strings_digest("ab", "c") != strings_digest("a", "bc")


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    with write_atomically(path) as partial:
        partial.write_text("old")
    with pytest.raises(RuntimeError), write_atomically(path) as partial:
        partial.write_text("half of the n")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_of_several_processes_one_makes_a_file_and_all_see_it_whole(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from unified_lm.files import create_once\n"
        "def make(partial):\n"
        "    with open(sys.argv[2], 'a') as made: made.write('x')\n"
        "    partial.write_text('beginning '); time.sleep(0.3); partial.open('a').write('end')\n"
        "print(create_once(Path(sys.argv[1]), make).read_text())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "made"), str(tmp_path / "count")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert {process.communicate()[0] for process in processes} == {"beginning end\n"}
    assert (tmp_path / "count").read_text() == "x"


def test_a_file_that_could_not_be_made_is_made_by_the_next_who_asks(tmp_path: Path) -> None:
    def fail(partial: Path) -> None:
        partial.write_text("half")
        raise ValueError

    def succeed(partial: Path) -> None:
        partial.write_text("whole")

    with pytest.raises(ValueError):
        create_once(tmp_path / "made", fail)
    assert create_once(tmp_path / "made", succeed).read_text() == "whole"


def test_a_new_files_digest_follows_its_content_even_when_size_and_time_stamp_stay(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("aaaa")
    stamp = path.stat().st_mtime_ns
    first = file_digest(path)
    path.write_text("bbbb")
    os.utime(path, ns=(stamp, stamp))
    assert file_digest(path) != first


def test_an_old_file_is_read_once_and_again_when_its_time_stamp_changes(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("content")
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    first = file_digest(path)
    path.write_text("CONTENT")
    os.utime(path, (hour_ago, hour_ago))
    assert file_digest(path) == first  # remembered: nothing tells that it changed
    os.utime(path, (hour_ago + 1, hour_ago + 1))
    assert file_digest(path) != first


def test_a_digest_does_not_change_with_time(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("content")
    first = file_digest(path)
    os.utime(path, (0, 0))
    assert file_digest(path) == first


def test_a_folders_digest_follows_names_and_bytes_but_not_hidden_files(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a").write_text("1")
    first = folder_digest(folder)
    (folder / ".hidden").write_text("2")
    assert folder_digest(folder) == first
    (folder / "inner" / "a").rename(folder / "inner" / "b")
    assert folder_digest(folder) != first


def test_a_folders_digest_follows_links_to_folders_but_not_in_circles(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    for place in (folder, elsewhere):
        place.mkdir()
    (elsewhere / "a").write_text("1")
    (folder / "linked").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder)
    first = folder_digest(folder)
    (elsewhere / "a").write_text("2")
    assert folder_digest(folder) != first
