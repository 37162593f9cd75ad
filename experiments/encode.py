"""One vector a line of text: `python -m experiments.encode model=RUN_ID input=texts.txt output=vectors.npy`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.config.command_line import cli_entry_point
from experiments.config.errors import UsageError, as_usage_error
from experiments.config.paths import display_path
from experiments.runs.resolve_model import find_run_folder, identify_foreign_model, split_arguments
from unified_lm.files import write_atomically

USAGE = (
    "usage: python -m experiments.encode model=RUN_ID|FOLDER|ORG/NAME input=FILE output=FILE.npy "
    "[side=query|document] [instruction=TEXT] [name=value ...]"
)
OWN = ("model", "input", "output", "side", "instruction")


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    own, overrides = split_arguments(arguments, OWN, USAGE)
    if not {"model", "input", "output"} <= set(own) or not own["output"].endswith(".npy"):
        raise UsageError(USAGE)
    side = own.get("side", "document")
    if side not in ("query", "document"):
        raise UsageError(f"side={side} is neither query nor document")
    texts = read_texts(Path(own["input"]).expanduser())
    with as_usage_error():
        found = find_embedder(own["model"], overrides)
    vectors = found.encode(texts, side=side, instruction=own.get("instruction", ""))
    import numpy as np

    with write_atomically(Path(own["output"]).expanduser()) as partial, partial.open("wb") as file:
        np.save(file, vectors)
    print(f"{own['output']}: {vectors.shape[0]} vectors of {vectors.shape[1]} numbers, {vectors.dtype}")
    return 0


def read_texts(path: Path) -> list[str]:
    """The texts of a file.

    Raises `UsageError` for a file that is absent or has a line without text, with its number.
    """
    try:
        texts = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # a text may hold U+2028 and its like
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"input={path} cannot be read: {error}") from error
    empty = [number for number, text in enumerate(texts, start=1) if not text.strip()]
    if texts == [""]:
        raise UsageError(f"{path} is empty")
    if empty:
        raise UsageError(f"{path}:{empty[0]}: an empty line has no vector")
    return texts


def find_embedder(model: str, overrides: Sequence[str]):
    """The embedder of a run or of a model that no run made."""
    folder = find_run_folder(model)
    if folder is not None:
        if overrides:
            raise UsageError(f"{display_path(folder)} has its settings; {overrides[0]} cannot change them")
        from experiments.runs.open_run import open_run

        found = open_run(folder).subject
    else:
        run = identify_foreign_model(model, overrides)
        from experiments.config.build import from_config
        from experiments.runs.open_run import build_model, build_subject

        experiment = from_config(run.config)
        found = build_subject(
            experiment, build_model(experiment) if experiment.is_decoder else None, run.identity[:16], None
        )
    if found.embedder is None:
        raise UsageError(f"model={model} gives no vectors")
    return found.embedder


if __name__ == "__main__":
    sys.exit(cli_entry_point(main)())
