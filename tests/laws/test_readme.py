"""Every command of the README exists and is understood."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.config.compose import compose
from experiments.config.identity import identify
from experiments.runs.sweep import combinations

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [line for block in re.findall(r"```sh\n(.*?)```", README, re.S) for line in block.splitlines() if line]
INLINE = re.findall(r"`((?:make|python -m) [^`]+)`", README)
COMMANDS = list(dict.fromkeys(BLOCKS + INLINE))
SETTINGS = [word for word in re.findall(r"`([a-z_.]+=[a-z_0-9]+)`", README)]
LATER = {
    "score": ("model",),
    "encode": ("model", "input", "output", "side"),
    "export": ("run", "to"),
    "answers": ("output", "max_new_tokens", "part"),
}


def test_the_first_two_commands_are_the_demo_and_the_tests() -> None:
    assert BLOCKS[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make")])
def test_every_make_target_exists_and_its_module_too(command: str) -> None:
    done = subprocess.run(
        ["make", "-n", *shlex.split(command)[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for module in re.findall(r"-m (experiments\.\w+)", done.stdout):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("python")])
def test_every_module_takes_the_arguments_that_the_readme_gives_it(command: str) -> None:
    _, _, module, *arguments = shlex.split(command)
    name = module.removeprefix("experiments.")
    assert (ROOT / "experiments" / f"{name}.py").exists()
    if name == "run" and "--help" not in arguments:
        if "-m" in arguments:
            assert combinations([argument for argument in arguments if argument != "-m"])
        else:
            assert identify(compose(arguments)).run_id
    elif name in LATER:
        own = {argument.partition("=")[0] for argument in arguments}
        overrides = [a for a in arguments if a.partition("=")[0] not in LATER[name]]
        assert set(LATER[name]) & own
        assert compose(overrides)
        helped = subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, check=False)
        assert helped.returncode == 0


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_that_the_readme_names_exists(setting: str) -> None:
    assert compose([setting])
