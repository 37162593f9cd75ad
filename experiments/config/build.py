"""The one place where a config becomes objects. Beyond it nobody reads `config[...]` to decide the science."""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from evals.score import check_suite
from experiments.config.errors import UsageError, first_line
from experiments.config.suggestions import suggest
from experiments.config.targets import import_target, instantiate
from unified_lm.attention import Plan
from unified_lm.attention.kernels import choose_kernel
from unified_lm.backbones import Backbone
from unified_lm.methods.base import Method
from unified_lm.prompts.template import Template
from unified_lm.readout import Readout
from unified_lm.training.fsdp import Launch
from unified_lm.training.loop import Runtime
from unified_lm.training.optimizer import Optim

PARTS = ("method", "backbone", "attention", "trainable", "template", "data", "optim")
AUTOCAST = (None, "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Most tokens of each kind of text; the text gives way, its template never does."""

    query: int
    document: int
    answer: int

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"lengths.{field.name}={getattr(self, field.name)} leaves no text; use 1 or more")


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How a model is put to its suites.

    `slots`: whether they stand before the answer when the model generates; `readouts`: scored beside the method's own;
    `steps`: checkpoints along the way that are scored beside the last.
    """

    slots: bool
    readouts: Sequence[str]
    steps: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All parts of a run. Constructing it refuses what cannot work, naming both options and the way out."""

    name: str
    seed: int
    method: Method
    backbone: Any
    attention: Plan
    trainable: Any
    template: Template
    lengths: Lengths
    data: Any
    optim: Optim
    autocast: str | None
    slots_start: str
    evals: Mapping[str, Any]
    scoring: Scoring
    runtime: Runtime
    device: str
    kernel: str
    launch: Launch
    chained: bool

    def __post_init__(self) -> None:
        if self.autocast not in AUTOCAST:
            raise ValueError(
                f"autocast={self.autocast} is unknown; use bfloat16, float16 or null (the weights' own dtype)"
            )
        for name in (self.method.readout, *self.scoring.readouts):
            readout = Readout.from_name(name)
            if readout.kind in ("slot", "slots") and readout.slot >= self.method.slots:
                raise ValueError(
                    f"read-out {name} asks for a slot that is not there: method.slots={self.method.slots}; "
                    "use more slots, or a read-out such as last"
                )
        choose_kernel(self.kernel, frozenset({self.attention.embed, self.attention.generate}), self.device)
        if self.is_decoder:
            self.check_instruction_placeholders()
        if not self.is_decoder and (self.trains or self.chained):
            what = "a parent" if self.chained else f"method {type(self.method).__name__}"
            raise ValueError(
                f"backbone {type(self.backbone).__name__} is scored as it comes and {what} would train it; "
                "use method=none without a parent, or a decoder as backbone"
            )

    def check_instruction_placeholders(self) -> None:
        """Raises `ValueError` for a suite with an instruction that the template has no place for."""
        own = self.method.instruction_sides  # that the method's own prompt puts the instruction into
        places = {"query": self.template.query, "document": self.template.document}
        lacking = [side for side, text in places.items() if "{instruction}" not in text and side not in own]
        for name, suite in self.evals.items():
            for task in suite.tasks if hasattr(suite, "instructions") else ():
                if without := [side for side in lacking if suite.instructions.instruction_for(task, side)]:
                    raise ValueError(
                        f"evals.{name} gives each {without[0]} of {task} an instruction, but template "
                        f"{self.template.name} has no {{instruction}} there; use evals.{name}.instructions=none or "
                        "another table, or a template such as llm2vec"
                    )

    @property
    def trains(self) -> bool:
        return self.method.trains

    @property
    def is_decoder(self) -> bool:
        """Whether the backbone is a decoder that becomes a `UnifiedLM`, not a model or a search that is only scored."""
        return isinstance(self.backbone, Backbone)


def from_config(config: Mapping[str, Any], *, chained: bool = False) -> Experiment:
    """The experiment of a resolved config; `chained`: it starts from a parent's checkpoint.

    Raises `ValueError` for a wrong name, a wrong value or a combination that cannot work.
    """
    runtime = dict(config["runtime"])
    wanted = runtime.pop("device")
    return Experiment(
        **{name: instantiate_node(config[name], name) for name in PARTS},
        name=config["name"],
        seed=config["seed"],
        lengths=build_dataclass(Lengths, config["lengths"], "lengths"),
        autocast=config["autocast"],
        slots_start=config["slots"]["start"],
        evals={name: instantiate_node(suite, f"evals.{name}") for name, suite in config["evals"].items()},
        scoring=build_dataclass(Scoring, config["scoring"], "scoring"),
        runtime=build_dataclass(Runtime, runtime, "runtime"),
        device=resolve_device(wanted),
        kernel=config["kernel"],
        launch=build_dataclass(Launch, config["launch"], "launch"),
        chained=chained,
    )


def check_config(config: Mapping[str, Any], *, chained: bool = False) -> Experiment:
    """Build every part of a run that needs no weights, so that nothing is trained that would be refused later.

    `chained`: it starts from a parent's checkpoint. Raises `UsageError`, in one line, for a wrong name, a wrong value,
    a combination that cannot work, a suite that could not be scored, or a teacher that the method does not read.
    """
    try:
        experiment = from_config(config, chained=chained)
        for suite in experiment.evals.values():
            check_suite(suite)
    except (ValueError, OSError) as error:
        raise UsageError(first_line(str(error))) from error
    method, teacher = experiment.method, config["teacher"]
    if teacher is not None and not method.reads_teacher:
        raise UsageError(
            f"teacher={teacher}: method {type(method).__name__} learns from no teacher; use teacher=null, "
            "or method=llm2vec_gen"
        )
    return experiment


def resolve_device(wanted: str) -> str:
    """cpu or cuda.

    Raises `ValueError` for a device that is not there.
    """
    import torch

    there = torch.cuda.is_available()
    if wanted == "auto":
        return "cuda" if there else "cpu"
    if wanted not in ("cpu", "cuda"):
        raise ValueError(f"runtime.device={wanted} is unknown; use auto, cpu or cuda")
    if wanted == "cuda" and not there:
        raise ValueError("runtime.device=cuda, but torch sees no CUDA GPU; use runtime.device=cpu or scale=mini")
    return wanted


def instantiate_node(node: Any, place: str) -> Any:
    """The object of a node with `_target_`s, every name and enumerated value checked first."""
    try:
        return instantiate(check_node(node, place))
    except OSError as error:
        raise ValueError(str(error)) from error
    except TypeError as error:  # a setting that is missing
        raise ValueError(f"{place}: {error}") from error


def build_dataclass(cls: type, values: Mapping[str, Any], place: str) -> Any:
    return cls(**check_fields(cls, values, place))


def check_node(node: Any, place: str) -> Any:
    """A node whose fields exist in its dataclass and whose values are of the options and kinds that it states."""
    if isinstance(node, list):
        return [check_node(value, f"{place}.{number}") for number, value in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    inside = {key: check_node(value, f"{place}.{key}") for key, value in node.items()}
    cls = import_target(node["_target_"]) if "_target_" in node else None
    if not (isinstance(cls, type) and is_dataclass(cls)):  # a function has its own checks
        return inside
    own = {key: value for key, value in inside.items() if not key.startswith("_")}
    return inside | check_fields(cls, own, place)


def check_fields(cls: type, values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Raises `ValueError` for an unknown field or value, with the suggest name."""
    known = {field.name: field for field in fields(cls) if field.init}
    types = typing.get_type_hints(cls)
    for name in values:
        if name not in known:
            raise ValueError(f"{place}.{name} does not exist{suggest(name, known)}; it has: {', '.join(known)}")
    return {name: check_value(types[name], value, f"{place}.{name}") for name, value in values.items()}


def check_value(wanted: Any, value: Any, place: str) -> Any:
    """A value of a `Literal`, a number of the kind that is asked for (1 for 1.0); the rest is the class's business."""
    options = typing.get_args(wanted)
    if typing.get_origin(wanted) is Literal and value not in options:
        known = [str(option) for option in options]
        raise ValueError(f"{place}={value} is unknown{suggest(str(value), known)}; use one of {', '.join(known)}")
    logical = isinstance(value, bool)
    if wanted in KINDS and (not isinstance(value, KINDS[wanted][0]) or logical != (wanted is bool)):
        raise ValueError(f"{place}={value!r} is not {KINDS[wanted][1]}")
    whole = isinstance(value, int) and not logical
    return float(value) if whole and (wanted is float or (float in options and int not in options)) else value


KINDS = {int: (int, "a whole number"), float: (int | float, "a number"), bool: (bool, "true or false")}
