"""Every kind of row of tables 1 to 5 runs from its command line to its scores, chains of stages included."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.config.compose import compose
from experiments.config.errors import UsageError
from experiments.config.identity import Run, identify
from experiments.runs.execute import ensure_run
from experiments.runs.open_run import open_run
from experiments.runs.record import read_record
from experiments.tables.definition import Column, Row
from experiments.tables.fill import RowRun, read_run_score
from unified_lm.data.model_made import TeacherVectors
from unified_lm.files import text_hash

ROWS = (
    "t1_echo",
    "t1_e5",
    "t1_nv_embed",
    "t1_gritlm",
    "t1_gem",
    "t4_ulme",
    "t4_ulme_n0",
    "t4_no_gen",
    "t4_documents_as_answers",
    "t4_jepa",
)


def a_run(experiment: str, *more: str) -> Run:
    return identify(compose([f"experiment={experiment}", "scale=tiny", "logging.wandb=disabled", *more]))


@pytest.mark.parametrize("experiment", ROWS)
def test_a_row_runs_to_its_end(here: None, experiment: str) -> None:
    run = a_run(experiment)
    assert ensure_run(run) == 0
    assert open_run(run.folder).subject.embedder.encode(["one text"], side="query").shape == (1, 64)


def test_llm2vec_is_a_chain_whose_adapters_are_merged_in_order(here: None) -> None:
    child = a_run("t1_llm2vec")
    assert ensure_run(child) == 0
    assert child.parent.run_id.startswith("t1_mntp")
    assert read_record(child.folder).parent == child.parent.run_id
    first, second = open_run(child.parent.folder).built.model, open_run(child.folder).built.model
    base, merged = (
        dict(model.backbone.named_parameters())["model.layers.0.mlp.up_proj.base_layer.weight"]
        for model in (first, second)
    )
    layer = first.backbone.model.layers[0].mlp.up_proj
    torch.testing.assert_close(merged, base + layer.get_delta_weight("default"))
    assert not torch.equal(merged, base)


def test_the_dropout_of_a_parents_stage_is_not_its_childs(here: None) -> None:
    run = a_run("t1_llm2vec_unsup")
    assert ensure_run(run) == 0
    made = open_run(run.folder)
    assert made.built.model.backbone.model.layers[0].self_attn.attention_dropout == 0.3
    child = a_run("t1_llm2vec", "parent=t1_llm2vec_unsup", "optim.steps=1")
    assert ensure_run(child) == 0
    assert open_run(child.folder).built.model.backbone.model.layers[0].self_attn.attention_dropout == 0.0


def test_a_retrieval_lora_generates_as_its_base(here: None) -> None:
    run = a_run("t1_lora_off")
    assert ensure_run(run) == 0
    generator = open_run(run.folder).subject.generator
    base = a_run("t1_base")
    assert ensure_run(base) == 0
    plain = open_run(base.folder).subject.generator
    pairs = [([5, 6, 7], [8, 9]), ([9, 8], [4])]
    assert generator.logprobs(pairs) == plain.logprobs(pairs)


def test_hyde_answers_with_the_model_that_it_scores(here: None) -> None:
    run = a_run("t1_hyde", "method.max_new_tokens=3")
    assert ensure_run(run) == 0
    embedder = open_run(run.folder).subject.embedder
    assert embedder.encode(["what is one"], side="query").shape == (1, 64)
    assert embedder.identity["hyde"]["max_new_tokens"] == 3


def test_a_teacher_is_trained_first_and_its_vectors_of_the_answers_are_made_once(here: None) -> None:
    run = a_run("t1_llm2vec_gen")
    assert ensure_run(run) == 0
    assert run.teacher.run_id.startswith("t1_llm2vec_unsup")
    assert read_record(run.folder).teacher == run.teacher.run_id
    assert a_run("t1_llm2vec_gen", "teacher=t1_base").identity != run.identity
    parts = list((run.folder / "teacher").glob("part-*.npy"))
    assert len(parts) == 1
    encoder = replace(open_run(run.teacher.folder).subject.embedder, similarity="dot")
    answers = sorted({row.answer for row in open_run(run.folder).experiment.data.load().batch(0)})
    vectors = TeacherVectors(folder=str(run.folder / "teacher")).lookup([text_hash(answer) for answer in answers])
    np.testing.assert_allclose(vectors, encoder.encode(answers, side="document"), atol=1e-5)
    assert open_run(run.folder).subject.embedder.encode(["one text"], side="query").shape == (1, 64)


def test_the_answers_of_hard_negatives_go_through_the_same_teacher(here: None) -> None:
    rows = ", ".join(
        f"{{query: ask {i}, answer: say {i}, negative_dialogues: [[ask not {i}, say not {i}]]}}" for i in range(8)
    )
    given = f"data.streams.rows.sources.given.examples=[{rows}]"
    run = a_run("t1_llm2vec_gen", "teacher=t1_llm2vec", "method.margin_weight=1.0", given)
    assert ensure_run(run) == 0
    assert run.teacher.run_id.startswith("t1_llm2vec-")
    assert {"alignment", "reconstruction", "negatives", "margin"} <= set(read_record(run.folder).losses)
    encoder = replace(open_run(run.teacher.folder).subject.embedder, similarity="dot")
    answers = [f"say not {row.query.split()[-1]}" for row in open_run(run.folder).experiment.data.load().batch(0)]
    vectors = TeacherVectors(folder=str(run.folder / "teacher")).lookup([text_hash(answer) for answer in answers])
    np.testing.assert_allclose(vectors, encoder.encode(answers, side="document"), atol=1e-5)


REFUSED = {
    "a teacher that the method does not read": (["t4_ulme", "teacher=t1_base"], "method Ulme learns from no teacher"),
    "no teacher for a method that reads one": (["t1_llm2vec_gen", "teacher=null"], "give the run teacher=EXPERIMENT"),
    "a teacher without vectors": (["t1_llm2vec_gen", "teacher=t1_hyde"], "gives no vectors of a decoder"),
    "a checkpoint that is not kept": (["t15_ulme", "optim.steps=4", "scoring.steps=[2]"], "step 2, whose checkpoint"),
    "a child's value": (["t1_llm2vec", "optim.learning_rate=fast"], "learning_rate"),
    "a parent's value": (["t1_llm2vec", "parent_overrides=['optim.learning_rate=fast']"], "t1_mntp.*learning_rate"),
    "several nodes": (["t1_llm2vec", "launch.nodes=2"], "launch.nodes=2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nothing_is_trained_or_written_that_will_be_refused(case: str, outputs: Path) -> None:
    (experiment, *more), message = REFUSED[case]
    with pytest.raises(UsageError, match=message) as told:
        ensure_run(a_run(experiment, *more))
    assert "\n" not in str(told.value)
    assert not outputs.exists()


def test_checkpoints_along_the_way_are_scored_beside_the_last_and_can_be_rows(here: None, tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    pairs = [("one thing", "one thing", 5), ("a cat", "a small cat", 4), ("a cat", "the tax", 1), ("up", "six", 0)]
    file.write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{s}\n" for a, b, s in pairs))
    asked = ["evals=[local_sts]", f"evals.local_sts.file={file}", "optim.steps=4", "optim.learning_rate=1e-2"]
    kept = ["runtime.save_every=1", "runtime.keep_last=9"]
    run = a_run("t15_ulme", *asked, *kept, "scoring.steps=[1,3]")
    assert ensure_run(run) == 0
    found = read_record(run.folder)
    by_step = {s.step: s.value for s in found.scores if s.metric == "cosine_pearson"}
    assert set(by_step) == {1, 3, 4} and len(set(by_step.values())) == 3

    column = Column(
        key="sts", label="STS", suite="local_sts", task="LocalSts", metric="cosine_pearson", better="higher"
    )
    made = RowRun(seed=0, run_id=run.run_id, command="", record=found)
    for step, value in ((None, by_step[4]), (1, by_step[1]), (3, by_step[3])):
        row = Row(key="ulme", label="ULME", experiment="t15_ulme", step=step)
        assert read_run_score(made, row, column).value == value

    with pytest.raises(UsageError, match="no whole checkpoint of step 7; steps that are there: 1, 2, 3, 4"):
        ensure_run(a_run("t15_ulme", *asked, *kept, "scoring.steps=[2,7]"))
