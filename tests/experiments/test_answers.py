"""A model's own answers: made once, continued after a kill, and never mixed with another model's."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import answers
from experiments.config.compose import compose
from experiments.config.errors import UsageError
from experiments.config.identity import identify
from experiments.config.paths import ROOT
from experiments.runs.execute import ensure_run
from experiments.runs.open_run import open_run
from experiments.runs.record import read_record

ASKED = ["data=tiny", "scale=tiny", "template=chatml", "part=1"]


def said(path: Path) -> list[list[dict]]:
    return [json.loads(line)["messages"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_killed_command_is_continued_where_it_was_and_writes_what_an_unbroken_one_writes(tmp_path: Path) -> None:
    asked = [*ASKED, "max_new_tokens=150"]
    command = [sys.executable, "-m", "experiments.answers", f"output={tmp_path / 'killed'}", *asked]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    parts = tmp_path / "killed" / "parts"
    while process.poll() is None and len(list(parts.glob("part-*.json"))) < 2:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    made = {path.name: path.stat().st_mtime_ns for path in parts.glob("part-*.json")}
    assert 2 <= len(made) < 8 and not (tmp_path / "killed" / "rows.jsonl").exists()

    assert answers.main([f"output={tmp_path / 'killed'}", *asked]) == 0
    assert len(list(parts.glob("part-*.json"))) == 8
    assert {name: (parts / name).stat().st_mtime_ns for name in made} == made
    assert answers.main([f"output={tmp_path / 'whole'}", *asked]) == 0
    assert said(tmp_path / "killed" / "rows.jsonl") == said(tmp_path / "whole" / "rows.jsonl")


def test_the_backbone_answers_as_it_would_if_it_were_asked_and_a_run_trains_on_what_it_said(
    here: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "own"
    assert answers.main([f"output={folder}", *ASKED, "max_new_tokens=8"]) == 0
    found = dict((turns[0]["content"], turns[1]["content"]) for turns in said(folder / "rows.jsonl"))
    base = identify(compose(["method=none", "scale=tiny", "template=chatml", "name=base"]))
    assert ensure_run(base) == 0
    generator = open_run(base.folder).subject.generator
    form = generator.format
    query = next(iter(found))
    ids = form.tokenizer.encode(f"<|im_start|>user\n{query}<|im_end|>\n<|im_start|>assistant\n")
    (asked,) = generator.generate([form.prepend_bos(ids)], 8)
    assert asked.text == found[query]

    path = f"data.streams.generative.sources.answers.path={folder / 'rows.jsonl'}"
    assert path in capsys.readouterr().out
    run = identify(compose(["experiment=t1_llm2vec_gen", "scale=tiny", "data=answers", path, "logging.wandb=disabled"]))
    assert ensure_run(run) == 0
    assert read_record(run.folder).status == "finished"


def test_a_folder_of_another_models_answers_is_refused_by_what_differs(tmp_path: Path) -> None:
    asked = [f"output={tmp_path}", *ASKED]
    assert answers.main([*asked, "max_new_tokens=2"]) == 0
    with pytest.raises(UsageError, match="begun with another max_new_tokens; use another output"):
        answers.main([*asked, "max_new_tokens=3"])
    with pytest.raises(UsageError, match="another backbone"):
        answers.main([*asked, "max_new_tokens=2", "backbone.architecture=qwen3"])


def test_what_is_no_decoder_and_a_wrong_command_line_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot generate; use a decoder"):
        answers.main([f"output={tmp_path}", "scale=tiny", "backbone=bm25"])
    for wrong in (["scale=tiny"], [f"output={tmp_path}", "max_new_tokens=0"], [f"output={tmp_path}", "part=x"]):
        with pytest.raises(UsageError, match="usage:"):
            answers.main(wrong)
