"""A model's own answers to the questions of its data: `python -m experiments.answers output=DIR experiment=…`.

The backbone of an experiment, as it comes, answers every dialogue of the experiment's data anew; `data=answers` trains
on what it wrote. The same command continues a stopped one.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from experiments.config.command_line import cli_entry_point
from experiments.config.compose import compose
from experiments.config.errors import UsageError
from experiments.config.identity import identify
from experiments.config.paths import display_path
from experiments.runs.preflight import require_device
from experiments.runs.resolve_model import split_arguments
from unified_lm.data.model_made import write_own_answers
from unified_lm.data.rows import TrainingRow
from unified_lm.files import write_json

USAGE = (
    "usage: python -m experiments.answers output=DIR [max_new_tokens=500] [part=100] [experiment=NAME] [scale=SCALE] "
    "[name=value ...]"
)
OWN = ("output", "max_new_tokens", "part")
ABOUT = "about.json"


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    own, overrides = split_arguments(arguments, OWN, USAGE)
    numbers = {name: own.get(name, default) for name, default in (("max_new_tokens", "500"), ("part", "100"))}
    if "output" not in own or not all(number.isdecimal() and int(number) for number in numbers.values()):
        raise UsageError(USAGE)
    job = compose(overrides)
    require_device(job)
    folder = Path(own["output"]).expanduser()
    config = identify(job).config
    rows, answer, about = prepared(config, int(numbers["max_new_tokens"]))
    claim(folder, about | {"part": int(numbers["part"])})
    with tqdm(total=len(rows), desc="answers", unit=" rows") as bar:
        path = write_own_answers(folder, rows, answer, size=int(numbers["part"]), done=bar.update)
    shown = display_path(path)
    print(f"{shown}: train on it with data=answers data.streams.generative.sources.answers.path={shown}")
    return 0


def prepared(
    config: Mapping[str, Any], max_new_tokens: int
) -> tuple[list[TrainingRow], Callable[[list[TrainingRow]], list[str]], dict[str, Any]]:
    """The dialogues of the data, what answers them, and what decides the answers.

    Raises `UsageError` for data without a dialogue, and for a backbone that is no decoder.
    """
    import torch

    from experiments.config.build import Lengths, build_dataclass, instantiate_node, resolve_device
    from unified_lm.attention import Plan
    from unified_lm.backbones import Backbone
    from unified_lm.inference.generate import BatchedGenerator
    from unified_lm.model import UnifiedLM
    from unified_lm.prompts.format import Format

    data, backbone, template = (instantiate_node(config[part], part) for part in ("data", "backbone", "template"))
    if not isinstance(backbone, Backbone):
        raise UsageError(f"backbone {type(backbone).__name__} cannot generate; use a decoder")
    sources = [source for stream in data.streams.values() for source in stream.sources.values()]
    rows = [row for source in sources for row in source.rows() if row.answer is not None]
    if not rows:
        raise UsageError("the data has no row with a question and an answer: there is nothing to answer anew")
    loaded = backbone.load()
    lengths = build_dataclass(Lengths, config["lengths"], "lengths")
    form = Format(
        template=template,
        tokenizer=loaded.tokenizer,
        plan=Plan(embed="causal", generate="causal"),
        query_length=lengths.query,
    )
    model = UnifiedLM(
        loaded.model.to(resolve_device(config["runtime"]["device"])),
        loaded.tokenizer,
        kernel=config["kernel"],
        autocast=None if config["autocast"] is None else getattr(torch, config["autocast"]),
        modes=frozenset({"causal"}),
    )
    generator = BatchedGenerator(model, form, weights=backbone.fingerprint())

    def answer(asked: list[TrainingRow]) -> list[str]:
        return [found.text for found in generator.generate([prompt(form, row) for row in asked], max_new_tokens)]

    about = {
        "backbone": backbone.fingerprint(),
        "autocast": config["autocast"],
        "template": asdict(template),
        "query_length": lengths.query,
        "max_new_tokens": max_new_tokens,
        "data": data.fingerprint(),
    }
    return rows, answer, about


def prompt(form: Any, row: TrainingRow) -> list[int]:
    """The tokens of a dialogue up to where its last answer begins."""
    from unified_lm.prompts.conversation import answer_header

    (part,) = form.render(form.template.prompt, [row.query], limit=form.query_length)
    asked = form.build_sequence(part, row.query, "query", 0, form.history_tokens(row.history))
    return [*asked.tokens, *answer_header(form)]


def claim(folder: Path, about: Mapping[str, Any]) -> None:
    """Answers of one model to one data set fill a folder.

    Raises `UsageError` for a folder that was begun otherwise, naming what differs.
    """
    path = folder / ABOUT
    about = json.loads(json.dumps(about))
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        differing = [name for name in about if before.get(name) != about[name]]
        if differing:
            raise UsageError(
                f"{display_path(folder)} was begun with another {', '.join(differing)}; use another output"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, about)


if __name__ == "__main__":
    sys.exit(cli_entry_point(main)())
