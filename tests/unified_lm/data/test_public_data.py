"""Public data sets in a folder that the user names with UNIFIED_LM_TEST_DATA; skipped where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unified_lm.data.files import Files
from unified_lm.data.streams import Stream, Streams

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def public_data() -> Path:
    folder = os.environ.get("UNIFIED_LM_TEST_DATA")
    if not folder:
        pytest.skip("UNIFIED_LM_TEST_DATA names no folder of public data sets")
    return Path(folder)


def source(folder: Path, name: str, pattern: str = "") -> Files:
    if not (folder / name).is_dir():
        pytest.skip(f"{folder} has no {name}")
    return Files(path=str(folder / name / pattern))


def test_bge_training_files_are_read_whole(public_data: Path) -> None:
    rows = source(public_data, "bge-finetune-examples").rows()
    assert len(rows) == 80 and len(set(rows.source_names)) == 8
    assert all(row.instruction and row.positive and row.negatives for row in rows)


def test_gritlm_embedding_and_generative_rows_are_read(public_data: Path) -> None:
    embedding = source(public_data, "gritlm-toy", "*embedding.jsonl").rows()
    assert all(row.positive and row.negatives for row in embedding)
    assert {row.instruction for row in embedding if row.source.startswith("instruct")} == {"Represent this text"}
    assert all(row.answer for row in source(public_data, "gritlm-toy", "instruct*generative.jsonl").rows())
    assert all(row.text for row in source(public_data, "gritlm-toy", "toy*generative.jsonl").rows())


def test_self_instruct_tasks_are_questions_with_answers(public_data: Path) -> None:
    rows = source(public_data, "self-instruct").rows()
    assert len(rows) == 427 and all(row.query and row.answer for row in rows)


def test_batches_of_public_data_are_of_one_data_set(public_data: Path) -> None:
    stream = Stream(sources={"bge": source(public_data, "bge-finetune-examples")}, rows_per_step=5, homogeneous=1.0)
    batches = Streams(streams={"embedding": stream}, data_seed=0).load()
    assert all(len({row.source for row in batches.batch(step)}) == 1 for step in range(16))
    assert len({row.query for step in range(16) for row in batches.batch(step)}) >= 75
