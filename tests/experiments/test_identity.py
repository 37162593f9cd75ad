"""What was run decides the run id; where, when and how never do."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.config import compose as composing
from experiments.config.compose import compose
from experiments.config.errors import UsageError
from experiments.config.identity import (
    NEUTRAL,
    PRECISION,
    content_digest,
    fingerprint_weights,
    identify,
    make_paths_absolute,
    scientific_content,
)
from experiments.config.paths import ROOT
from experiments.config.schema import class_fields
from tests.experiments.test_compose import chain, own_conf

__all__ = ["own_conf"]

JOB = ["experiment=t15_ulme", "scale=tiny"]


def leaves(node: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(node, dict):
        return [leaf for key, value in node.items() for leaf in leaves(value, (*place, key))]
    if isinstance(node, list):
        return [leaf for number, value in enumerate(node) for leaf in leaves(value, (*place, number))]
    return [place]


def changed(config: dict[str, Any], place: tuple[Any, ...]) -> dict[str, Any]:
    import copy

    config = copy.deepcopy(config)
    node = config
    for key in place[:-1]:
        node = node[key]
    value = node[place[-1]]
    node[place[-1]] = (value or 0) + 1 if isinstance(value, int | float | None) else f"{value} and more"
    return config


CONFIG = identify(compose(JOB)).config
CHOICES = ("instructions", "revisions")  # what they choose counts, where it was put
HOW = ("runtime", "launch", "kernel", "logging", "evals", "scoring", "data_mirror", "name")
HOW += ("parent_overrides", "teacher_overrides", *CHOICES)
SCIENCE = [
    leaf for leaf in leaves(CONFIG) if leaf[0] not in (*HOW, "parent", "teacher", "data") and leaf[-1] != "_target_"
]


@pytest.mark.parametrize("place", SCIENCE, ids=lambda place: ".".join(map(str, place)))
def test_every_science_leaf_is_part_of_the_identity(place: tuple[Any, ...]) -> None:
    assert content_digest(scientific_content(changed(CONFIG, place))) != content_digest(scientific_content(CONFIG))


@pytest.mark.parametrize(
    "place",
    [leaf for leaf in leaves(CONFIG) if leaf[0] in HOW and leaf[-1] not in PRECISION],
    ids=lambda place: ".".join(place),
)
def test_how_and_where_leave_the_identity_as_it_is(place: tuple[Any, ...]) -> None:
    assert content_digest(scientific_content(changed(CONFIG, place))) == content_digest(scientific_content(CONFIG))


@pytest.mark.parametrize("name", ["param_dtype", "reduce_dtype"])
def test_the_precision_of_a_sharded_run_is_science_and_its_number_of_processes_is_not(name: str) -> None:
    sharded = {**CONFIG, "launch": {**CONFIG["launch"], "sharding": "fsdp", "processes": 2}}
    assert content_digest(scientific_content(sharded)) == content_digest(scientific_content(CONFIG))
    rounded = {**sharded, "launch": {**sharded["launch"], name: "bfloat16"}}
    assert content_digest(scientific_content(rounded)) != content_digest(scientific_content(CONFIG))


def test_the_data_is_part_of_the_identity() -> None:
    stream = next(iter(CONFIG["data"]["streams"]))
    other = compose([*JOB, f"data.streams.{stream}.rows_per_step=5"])
    assert identify(other).identity != identify(compose(JOB)).identity


def test_a_run_id_is_the_same_in_every_process_and_in_every_order_of_keys() -> None:
    code = "from experiments.config.compose import compose; from experiments.config.identity import identify\n"
    code += f"print(identify(compose({JOB!r})).run_id)"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {identify(compose(JOB)).run_id}
    backwards = dict(reversed(CONFIG.items()))
    assert content_digest(scientific_content(backwards)) == content_digest(scientific_content(CONFIG))
    assert identify(compose(list(reversed(JOB)))).run_id == identify(compose(JOB)).run_id


def test_one_and_one_point_zero_are_one_number() -> None:
    assert (
        identify(compose([*JOB, "method.temperature=1"])).run_id
        == identify(compose([*JOB, "method.temperature=1.0"])).run_id
    )


def test_moving_a_class_to_another_module_orphans_no_result() -> None:
    moved = dict(CONFIG, method=CONFIG["method"] | {"_target_": "somewhere.else.Ulme"})
    assert content_digest(scientific_content(moved)) == content_digest(scientific_content(CONFIG))


def test_a_seed_is_another_run_with_the_same_name() -> None:
    ids = {identify(compose([*JOB, f"seed={seed}"])).run_id for seed in range(3)}
    assert len(ids) == 3
    assert {run_id.rpartition("-")[0] for run_id in ids} == {f"t15_ulme-s{seed}" for seed in range(3)}
    assert identify(compose(JOB).with_seed(2)).run_id == identify(compose([*JOB, "seed=2"])).run_id


def test_the_parents_run_is_part_of_the_childs_identity(own_conf: Path) -> None:
    chain(own_conf, "child", "t15_contrastive")
    child = identify(compose(["experiment=child", "scale=tiny"]))
    assert child.parent.run_id == identify(compose(["experiment=t15_contrastive", "scale=tiny"])).run_id
    chain(own_conf, "child", "t15_contrastive", "parent_overrides: [optim.steps=2]")
    assert identify(compose(["experiment=child", "scale=tiny"])).identity != child.identity


def test_parents_in_a_circle_are_refused(own_conf: Path) -> None:
    chain(own_conf, "hen", "egg")
    chain(own_conf, "egg", "hen")
    with pytest.raises(UsageError, match="hen -> egg -> hen"):
        identify(compose(["experiment=hen", "scale=tiny"]))


def test_a_local_model_is_known_by_its_content_not_by_its_place(tmp_path: Path) -> None:
    def named(folder: str, text: str) -> str:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(text, encoding="utf-8")
        return identify(compose(["backbone=hub", f"backbone.id={place}", "scale=none"])).identity

    assert named("here", "a") == named("there", "a")
    assert named("elsewhere", "b") != named("here", "a")


def test_weights_inside_a_backbone_that_wraps_another_are_known_by_their_content(tmp_path: Path) -> None:
    def named(folder: str, text: str, wrap: bool) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "config.json").write_text(text, encoding="utf-8")
        inner = {"_target_": "unified_lm.backbones.Hub", "id": str(tmp_path / folder), "dtype": "float32"}
        outer = {"_target_": "somewhere.Wrapped", "source": inner, "more": [inner]} if wrap else inner
        return content_digest(fingerprint_weights(outer))

    for wrap in (False, True):
        assert named("here", "a", wrap) == named("there", "a", wrap) != named("other", "b", wrap)


def test_a_data_file_is_known_by_its_content_not_by_its_place(tmp_path: Path) -> None:
    def named(folder: str, text: str) -> str:
        path = tmp_path / folder / "rows.jsonl"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        source = f"{{_target_: unified_lm.data.files.Files, path: {path}, name: mine}}"
        stream = f"{{_target_: unified_lm.data.streams.Stream, rows_per_step: 1, sources: {{mine: {source}}}}}"
        data = f"{{_target_: unified_lm.data.streams.Streams, data_seed: 0, streams: {{only: {stream}}}}}"
        return identify(compose([*JOB, "~data", f"+data={data}"])).identity

    row = '{"text": "a row"}\n'
    assert named("a", row) == named("b", row)
    assert named("c", row) != named("d", row + row)


def test_a_missing_data_file_is_told_in_one_line(tmp_path: Path) -> None:
    source = f"{{_target_: unified_lm.data.files.Files, path: {tmp_path / 'none.jsonl'}, name: mine}}"
    with pytest.raises(UsageError, match=r"none\.jsonl"):
        identify(compose([*JOB, f"+data.streams.more={source}"]))


def test_paths_are_made_absolute_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_paths_absolute({"a": [{"path": "x/y", "task": "x/y"}]}) == {
        "a": [{"path": str(tmp_path / "x/y"), "task": "x/y"}]
    }


def test_nan_names_no_run() -> None:
    with pytest.raises(UsageError, match="finite"):
        identify(compose([*JOB, "method.temperature=nan"]))


@pytest.mark.parametrize("name", ["a/b", "a b", ".."])
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    if name == "..":
        assert identify(compose([*JOB, f"name='{name}'"])).folder.name.startswith("..-s0-")
        return
    with pytest.raises(UsageError, match="folder"):
        identify(compose([*JOB, f"name='{name}'"]))


def test_composing_inside_a_hydra_job_leaves_its_state() -> None:
    from hydra.core.global_hydra import GlobalHydra

    before = GlobalHydra.instance().hydra
    composing.compose(JOB)
    assert GlobalHydra.instance().hydra is before


def test_vectors_that_a_method_reads_count_by_their_content_not_by_their_place(tmp_path: Path) -> None:
    for name, value in (("here", b"a"), ("there", b"a"), ("other", b"b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part-00000-x.npy").write_bytes(value)

    def given(folder: Path) -> str:
        return f"+method.teacher={{_target_: unified_lm.data.model_made.TeacherVectors, folder: {folder}}}"

    job = ["method=llm2vec_gen", "trainable=slots", "scale=tiny", "name=gen"]
    here, there, other = (identify(compose([*job, given(tmp_path / name)])) for name in ("here", "there", "other"))
    assert here.identity == there.identity != other.identity
    with pytest.raises(UsageError, match="make them first"):
        identify(compose([*job, given(tmp_path / "nowhere")]))


def test_what_is_left_out_as_neutral_is_the_default_of_its_class() -> None:
    nodes = [compose([f"{group}={option}", "scale=none"]).resolved[group]
             for group in ("method", "optim", "trainable") for option in composing.list_options(group)]  # fmt: skip
    targets = {node["_target_"].rpartition(".")[2]: node["_target_"] for node in nodes}
    for name, values in NEUTRAL.items():
        defaults = class_fields(targets[name])
        assert {field: repr(value) for field, value in values.items()} == {field: defaults[field] for field in values}


def test_the_task_files_of_lm_eval_stay_relative_to_its_package() -> None:
    evals = identify(compose(["scale=tiny", "evals=[lm_gsm8k]"])).config["evals"]
    assert evals["lm_gsm8k"]["tasks"]["gsm8k"]["file"] == "gsm8k/gsm8k.yaml"
