"""What `scale=rehearsal` changes of a composed paper-scale configuration, after Hydra has composed it.

Everything else stays as the recipe has it: method and losses, template, attention, adapters, lengths, schedule, shape
of the data, suites and columns, kind of launch.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from experiments.config.errors import UsageError

SCALE = "rehearsal"
STEPS = 2
AT_MOST = {
    "data.streams.*.rows_per_step": 8,
    "launch.processes": 2,
    "method.max_new_tokens": 8,  # HyDE's answers
    "method.ramp_start": 1,  # the step from which GEM's contrastive term counts, so that two steps have it
    "method.mixed_rows": 4,  # GritLM's sub-batches
    "evals.*.budget": 8,  # new tokens of an answer
}
"""Settings and the most that they may be. Those that a user gives are left as they are."""


def cut(config: DictConfig, given: Sequence[str]) -> None:
    """Exchange backbone and data, and lower what would keep a CPU busy. `given`: names of settings that a user gave."""
    from experiments.rehearsal.mirror import make_mirror
    from experiments.rehearsal.twin import make_twin

    with open_dict(config):
        if config.data_mirror is None:
            config.data_mirror = str(make_mirror())
            for _, node in find_all(config, "data.streams.*.sources.*"):
                if "expected_rows" in node:
                    node.expected_rows = None
        if config.backbone.get("revision") is not None:
            try:
                config.backbone.id = str(make_twin(config.backbone.id))
            except ValueError as error:
                raise UsageError(str(error)) from error
            config.backbone.revision = None
        config.name = f"{SCALE}_{config.name}"
        lower(config, "optim.stop_after", min(STEPS, config.optim.steps), given)
        for pattern, most in AT_MOST.items():
            place, _, leaf = pattern.rpartition(".")
            for name, node in find_all(config, place):
                if node.get(leaf) is not None:
                    lower(config, f"{name}.{leaf}", min(node[leaf], most), given)


def lower(config: DictConfig, name: str, value: int, given: Sequence[str]) -> None:
    if name not in given:
        OmegaConf.update(config, name, value)


def find_all(config: DictConfig, pattern: str) -> Iterator[tuple[str, Any]]:
    """Name and content of the sections at a place, where * stands for every key there."""
    found = [("", config)]
    for part in pattern.split("."):
        inner = [(name, node, key) for name, node in found for key in (list(node) if part == "*" else [part])]
        found = [
            (f"{name}.{key}".lstrip("."), node[key]) for name, node, key in inner if OmegaConf.is_dict(node.get(key))
        ]
    yield from found
