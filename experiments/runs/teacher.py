"""What a run learns from another one: the vectors that its teacher gives to the answers it will read."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from experiments.config.paths import runs_folder
from experiments.runs.open_run import open_run
from unified_lm.data.model_made import write_teacher_vectors
from unified_lm.data.rows import TrainingRow
from unified_lm.methods.base import Method


def add_teacher_vectors(method: Method, teacher: str | None, rows: Iterable[TrainingRow], folder: Path) -> Method:
    """The method with the vectors of all answers in `rows`, kept under `folder`; as it is where it has no teacher.

    The teacher is a finished run; its vectors are not normalised. What a stopped run made of them is not made again.
    Raises `ValueError` where the method reads no teacher.
    """
    if teacher is None:
        return method
    if not method.reads_teacher:
        raise ValueError(f"teacher={teacher}: method {type(method).__name__} reads none; leave it out")
    encoder = replace(open_run(runs_folder() / teacher).subject.embedder, similarity="dot")
    answers = [
        answer
        for row in rows
        if row.answer is not None
        for answer in (row.answer, *(said for _, said in row.negative_dialogues))
    ]
    return replace(
        method, teacher=write_teacher_vectors(folder, answers, lambda texts: encoder.encode(texts, side="document"))
    )
