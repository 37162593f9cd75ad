"""A model by any name a user has for it: a run id, a run directory, a folder of weights, or a hub id."""

import re
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.types import Quote, QuotedString

from experiments.config.compose import compose
from experiments.config.errors import UsageError
from experiments.config.identity import Run, identify
from experiments.config.paths import runs_folder
from experiments.config.suggestions import suggest
from experiments.runs.record import read_record

PACKAGED = "packaged:"
FOREIGN = ("modules.json", "config_sentence_transformers.json")  # what sentence-transformers leaves in a folder


def find_run_folder(model: str) -> Path | None:
    """The run directory that a run id or a path names; None for a model that no run of ours made."""
    for folder in (runs_folder() / model, Path(model).expanduser()):
        if read_record(folder) is not None:
            return folder
    return None


def identify_foreign_model(model: str, overrides: Sequence[str]) -> Run:
    """A run that trains nothing and scores a model as it comes; `overrides` say how (attention=, method.readout=, …).

    `packaged:PACKAGE/FOLDER` is a sentence-transformers model inside an installed package.

    Raises `UsageError` for a name that is neither a folder nor a hub id.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir() and model.count("/") != 1:
        known = [path.name for path in runs_folder().glob("*")]
        raise UsageError(f"model={model} is no run{suggest(model, known)}, no folder and no hub id (ORG/NAME)")
    packaged = model.startswith(PACKAGED)
    asked = "backbone=sentence_transformers" in overrides
    theirs = packaged or asked or any((folder / name).exists() for name in FOREIGN)
    place = str(folder.absolute()) if folder.is_dir() else model
    kind, field = ("sentence_transformers", "model") if theirs else ("hub", "id")
    name = model.removeprefix(PACKAGED).partition("/")[0] if packaged else folder.absolute().name
    name = re.sub(r"[^\w.+-]+", "_", name) or "model"  # the name of a run becomes that of a folder
    chosen = [f"backbone={kind}", f"backbone.{field}={quote(place)}", "method=none", "scale=none",
              f"name={quote(name)}"]  # fmt: skip
    given = {override.partition("=")[0] for override in overrides}
    return identify(compose([*(o for o in chosen if o.partition("=")[0] not in given), *overrides]))


def quote(text: str) -> str:
    """A text as the value of an override: whatever it holds, neither Hydra nor OmegaConf reads anything into it."""
    escaped = re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + r"\${", text)
    return QuotedString(text=escaped, quote=Quote.single).with_quotes()


def split_arguments(arguments: Sequence[str], names: Sequence[str], usage: str) -> tuple[dict[str, str], list[str]]:
    """A command's own `name=value` settings, and the overrides that are left.

    Raises `UsageError` with the usage for anything else.
    """
    odd = [argument for argument in arguments if "=" not in argument]
    if odd:
        raise UsageError(f"cannot read {odd[0]!r}; {usage}")
    own = dict(argument.split("=", 1) for argument in arguments if argument.split("=", 1)[0] in names)
    return own, [argument for argument in arguments if argument.split("=", 1)[0] not in names]
