"""How far a run is, as the log of its worker tells it."""

import sys
from pathlib import Path

import pytest
from tqdm import tqdm

from experiments.runs import progress

MARKS = ("", "a warning | of something 1/2\n", "2026-01-01 00:00:00,000 INFO experiments: pid 1: run\n")


@pytest.mark.parametrize("before", MARKS)
@pytest.mark.parametrize("after", MARKS)
def test_the_last_word_of_every_kind_of_progress_is_news_once(
    before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "worker.log"
    log.write_text("train 9/9 |of an earlier attempt|\n")
    follower = progress.LogFollower(log)
    assert follower.latest_progress() is None
    with log.open("a", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stderr", file)
        file.write(before)
        bar, advance = progress.training_progress(4)
        advance({"step": 3, "loss": 1.5, "tokens_per_s": 80.0})
        bar.close()
        file.write(after)
        file.flush()
        assert follower.latest_progress().startswith("train 3/4 |") and "loss 1.500, 80 tokens/s" in log.read_text()
        for _ in tqdm(range(2), desc="reading", file=file):
            pass
        file.flush()
        assert follower.latest_progress().startswith("reading: 100%|")
        progress.scoring_progress("suite")("Task", 2, 6)
        assert follower.latest_progress() == "score suite: task 2 of 6, Task"
    assert follower.latest_progress() is None
