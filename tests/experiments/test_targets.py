"""A config makes the objects that conf/ names and nothing else: what somebody else's run folder says is data."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.config.build import from_config, instantiate_node
from experiments.config.compose import compose
from experiments.config.errors import UsageError
from experiments.config.identity import fingerprint_sources
from experiments.config.paths import ROOT
from experiments.config.targets import allowed_targets, import_target, instantiate

FOREIGN = [
    "pandas.read_pickle",
    "torch.load",
    "joblib.load",
    "os.system",
    "subprocess.run",
    "builtins.exec",
    "builtins.eval",
    "hydra.utils.instantiate",
    "hydra.utils.get_method",
    "lying_here.Backbone",
    "unified_lm.backbones.base.torch.load",
    "unified_lm.backbones.Hub.__init__",
    "experiments.config.paths.os.system",
    "evals.generation.sandbox.trial.answer_of_child",
    "evals.instructions.yaml.unsafe_load",
    "Hub",
    "",
    ".",
]
CONFIG = compose(["experiment=t4_ulme", "scale=tiny"]).resolved


@pytest.fixture
def lying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a module in the working folder makes when it is imported."""
    made = tmp_path / "imported"
    (tmp_path / "lying_here.py").write_text(f"open({str(made)!r}, 'w')\nclass Backbone: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return made


def places(node: Any, at: tuple = ()) -> list[tuple]:
    """Where a `_target_` stands, and where a mapping or a list has a value that could become one."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [(*at, key) for key, _ in items] + [place for key, value in items for place in places(value, (*at, key))]


def replaced(node: Any, place: tuple, value: Any) -> Any:
    copy = json.loads(json.dumps(node))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return copy


@pytest.mark.parametrize("target", FOREIGN)
def test_a_name_that_no_file_of_conf_has_is_refused_before_anything_is_imported(target: str, lying: Path) -> None:
    node = {"_target_": target, "path": "x"}
    for make in (
        lambda: import_target(target),
        lambda: instantiate(node),
        lambda: instantiate({"a": [node]}),
        lambda: instantiate_node(node, "backbone"),
        lambda: fingerprint_sources({"streams": [node]}),
    ):
        with pytest.raises(UsageError, match="_target_") as refused:
            make()
        assert "\n" not in str(refused.value)
    assert not lying.exists()


@pytest.mark.parametrize("part", ["method", "backbone", "attention", "trainable", "template", "data", "optim", "evals"])
def test_every_part_of_a_runs_config_is_data(part: str, lying: Path) -> None:
    """A foreign `_target_` in the place of every value of the part, and of the part."""
    node = {"_target_": "lying_here.Backbone"}
    for place in [(part,), *places(CONFIG[part], (part,))]:
        if place == ("evals",):
            continue
        with pytest.raises(ValueError):
            from_config(replaced(CONFIG, place, "lying_here.Backbone" if place[-1] == "_target_" else node))
        assert not lying.exists(), place


@pytest.mark.parametrize("kind", ["_partial_", "_args_", "_recursive_", "_convert_"])
def test_what_hydra_would_read_as_its_own_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=kind):
        instantiate_node({"_target_": "unified_lm.backbones.Tiny", kind: True}, "backbone")
    with pytest.raises(ValueError, match=kind):
        instantiate({"_target_": "evals.instructions.read_instructions", kind: True})


def test_a_reference_in_a_runs_config_is_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "1234")
    for text in ("${oc.env:SECRET}", "${method}", "${", "a\\${b}"):
        assert instantiate({"name": text}) == {"name": text}


def test_every_name_in_the_table_is_defined_by_this_project() -> None:
    assert len(allowed_targets()) > 40
    for target in allowed_targets():
        made = import_target(target)
        assert callable(made)
        assert made.__module__.split(".")[0] in ("unified_lm", "evals"), target


def test_every_target_of_conf_is_in_the_table() -> None:
    def targets(node: Any) -> set[str]:
        if isinstance(node, dict):
            return {value for key, value in node.items() if key == "_target_"}.union(*map(targets, node.values()))
        return set().union(*map(targets, node)) if isinstance(node, list) else set()

    named = set().union(*(targets(yaml.safe_load(path.read_text())) for path in (ROOT / "conf").rglob("*.yaml")))
    assert named <= allowed_targets()


def test_no_other_code_turns_a_name_into_an_object() -> None:
    """Hydra's and the standard library's ways of doing so stand in one module, and where names are constants."""
    ways = {"import_module", "__import__", "get_class", "get_object", "get_method", "get_static_method", "locate"}
    imported = {(module, name) for module in ("hydra.utils", "importlib", "pydoc") for name in (*ways, "instantiate")}
    found = set()
    for path in (path for package in ("unified_lm", "evals", "experiments") for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {(node.module, alias.name) for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
            name = node.func if isinstance(node, ast.Call) else None
            called = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
            if called in ways or names & imported:
                found.add(path.relative_to(ROOT).as_posix())
    assert found == {"experiments/config/targets.py", "experiments/bench/__main__.py", "unified_lm/attention/varlen.py"}
