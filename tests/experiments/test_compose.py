"""A command line becomes a configuration, or one line that says what is wrong."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.utils import get_class

from experiments import run
from experiments.config import compose as composing
from experiments.config.build import check_config
from experiments.config.compose import compose
from experiments.config.errors import UsageError
from experiments.config.paths import ROOT
from experiments.config.schema import SECTION_CLASSES, class_fields
from experiments.runs.worker_process import launch_command

WRONG = {
    "optim.learing_rate=1": "did you mean optim.learning_rate",
    "optim.steps.x=1": "unknown setting optim.steps.x",
    "bakbone=tiny": "did you mean backbone",
    "optim.lr=1": "did you mean optim.learning_rate",
    "method.temp=1": "did you mean method.temperature",
    "optim.wd=1": "did you mean optim.weight_decay",
    "lr=1": "did you mean optim.learning_rate",
    "epochs=1": "did you mean optim.steps",
    "~optim.stepss": "did you mean optim.steps",
    "method=ulm": "did you mean ulme",
    "experiment=t15_ulm": "did you mean t15_ulme",
    "backbone=smollm2_135": "did you mean smollm2_135m",
    "evals=[mteb_ofline]": "did you mean mteb_offline",
    "seed=0,1": "add -m",
    "experiment=glob(t15_*)": "add -m",
    "seed=zero": "no whole number",
    "name": "write name=value",
    "name={a": "write name=value",
    "optim.steps=???": "has no value",
    "optim=3": "optim=3",
    "runtime=3": "would replace a whole section",
    "scale=": "scale is one of: mini",
    "optim.learning_rate=${optim.stps}": "optim.stps",
    "method=ULMe": "did you mean ulme",
    "Optim.Steps=3": "did you mean optim.steps",
    "optim.STEPS=3": "did you mean optim.steps",
}


@pytest.mark.parametrize("override", WRONG)
def test_a_mistake_is_told_in_one_line_with_the_way_out(override: str) -> None:
    with pytest.raises(UsageError) as refused:
        assert compose([override]).resolved
    assert "\n" not in str(refused.value)
    assert WRONG[override] in str(refused.value)


def command(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )


def test_the_command_says_it_on_one_line_and_exits_with_two() -> None:
    for module in ("experiments.run", "experiments.run -m"):
        done = command(*module.split(), "optim.learing_rate=1")
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "optim.learning_rate" in done.stderr
        assert not done.stdout


def test_a_folder_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-m", "experiments.run", "scale=tiny"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"UNIFIED_LM_OUTPUTS": str(tmp_path / "file")},
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "file") in done.stderr


def test_a_job_of_no_processes_is_refused() -> None:
    with pytest.raises(UsageError, match=r"launch\.processes=0"):
        launch_command(compose(["launch.processes=0"]).resolved)


def test_values_with_spaces_and_quotes_survive() -> None:
    assert compose(["logging.group='a sweep, mine'"]).config.logging.group == "a sweep, mine"


def test_help_and_composing_take_under_a_second_of_processor_time() -> None:
    for arguments in (("experiments.run", "--help"), ("experiments.run", "--cfg", "experiment=t15_ulme", "scale=mini")):
        before = os.times()
        assert command(*arguments).returncode == 0
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        assert spent < 1.0


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("optim.steps=many", "not a whole number"),
        ("method.target=men", "method.target=men is unknown"),
        ("lengths.query=0", "lengths.query=0"),
        ("+evals.mteb_offline.nothing=3", "nothing"),
    ],
)
def test_a_configuration_that_cannot_be_run_is_not_printed(
    override: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        run.main(["--cfg", "experiment=t15_ulme", "scale=mini", "lengths.answer=16", override])
    assert "\n" not in str(refused.value)
    assert capsys.readouterr().out == ""


def test_a_configuration_for_another_machine_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--cfg", "experiment=t15_ulme", "scale=paper", "kernel=flash", "optim.steps=7"]) == 0
    assert "steps: 7" in capsys.readouterr().out


def test_composing_works_from_any_folder(tmp_path: Path) -> None:
    here = command("experiments.run", "--cfg", "experiment=t15_ulme", "scale=mini")
    there = command("experiments.run", "--cfg", "experiment=t15_ulme", "scale=mini", cwd=tmp_path)
    assert here.stdout == there.stdout
    assert not list(tmp_path.rglob("*.yaml"))


@pytest.fixture
def own_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of conf/ to which a test may add."""
    folder = tmp_path / "conf"
    folder.mkdir()
    for path in (ROOT / "conf").rglob("*.yaml"):
        target = folder / path.relative_to(ROOT / "conf")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(composing, "CONF", folder)
    return folder


@pytest.mark.parametrize(
    "content",
    [
        "# @package _global_\ndefaults:\n  - override /hydra/launcher: joblib\nname: mine\n",
        "# @package _global_\nname: mine\nhydra:\n  launcher:\n    n_jobs: 2\n",
    ],
)
def test_a_launcher_inside_an_experiment_is_refused_with_a_hint(own_conf: Path, content: str) -> None:
    (own_conf / "experiment" / "mine.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=r"hydra.launcher.*command line"):
        compose(["experiment=mine"])


def chain(folder: Path, name: str, parent: str, *more: str) -> None:
    lines = ["# @package _global_", f"name: {name}", f"parent: {parent}", *more]
    (folder / "experiment" / f"{name}.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_a_parent_gets_the_childs_seed_scale_and_backbone_and_nothing_else(own_conf: Path) -> None:
    chain(own_conf, "child", "t15_ulme")
    job = compose(["experiment=child", "scale=tiny", "seed=3", "+backbone.layers=3", "optim.learning_rate=0.5"])
    parent = composing.compose_parent(job)
    alone = compose(["experiment=t15_ulme", "scale=tiny", "seed=3", "+backbone.layers=3"])
    assert parent.resolved == alone.resolved


@pytest.mark.parametrize("kind", ["parent", "teacher"])
def test_overrides_of_a_stage_are_the_only_other_way(kind: str) -> None:
    given = f"{kind}_overrides=['optim.steps=2','+backbone.layers=4']"
    stage = getattr(composing, f"compose_{kind}")(compose(["scale=tiny", f"{kind}=t15_ulme", given]))
    assert stage.config.optim.steps == 2
    assert stage.config.backbone.layers == 4
    with pytest.raises(UsageError, match=rf"{kind}_overrides.*{kind}=<experiment>"):
        getattr(composing, f"compose_{kind}")(compose(["scale=tiny", given]))


@pytest.mark.parametrize("kind", ["parent", "teacher"])
def test_a_stage_is_not_scored_unless_its_overrides_ask_for_it(kind: str) -> None:
    stage_of = getattr(composing, f"compose_{kind}")
    asked = ["scale=mini", f"{kind}=t1_mntp", "evals=[mteb_offline]"]
    assert stage_of(compose(asked)).config.evals == {}
    assert list(stage_of(compose([*asked, f"{kind}_overrides=['evals=[lm_offline]']"])).config.evals) == ["lm_offline"]


def test_a_teacher_that_the_method_does_not_read_is_refused_without_weights() -> None:
    config = compose(["experiment=t15_ulme", "scale=tiny", "teacher=t15_contrastive"]).resolved
    with pytest.raises(UsageError, match="Ulme learns from no teacher"):
        check_config(config)
    assert check_config(config | {"teacher": None}).method.slots == 4


def test_a_setting_that_only_its_class_has_needs_no_plus() -> None:
    for plus in ("", "+"):
        assert compose([f"{plus}optim.paper_emulation_world_size=8"]).config.optim.paper_emulation_world_size == 8
    assert compose(["+optim.steps=7"]).config.optim.steps == 7
    with pytest.raises(UsageError, match=r"did you mean optim\.steps"):
        compose(["optim.stepz=8"])


def test_help_of_every_option_lists_the_fields_of_its_class(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ("method", "optim", "trainable", "backbone", "launch"):
        for option in composing.list_options(group):
            assert run.main(["--help", f"{group}={option}"]) == 0
            said = capsys.readouterr().out
            node = compose([f"{group}={option}", "scale=none"]).config[group]
            target = node.get("_target_") or SECTION_CLASSES[group]
            missing = [name for name in class_fields(target) if f"{group}.{name}" not in said]
            assert not missing, f"{group}={option}: {missing}"


def test_the_fields_that_are_read_from_a_source_are_those_of_the_class() -> None:
    for option in composing.list_options("method"):
        target = compose([f"method={option}", "scale=none"]).config.method["_target_"]
        assert set(class_fields(target)) == {
            field.name for field in dataclasses.fields(get_class(target)) if field.init
        }
