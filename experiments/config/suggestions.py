"""Did-you-mean hints for misspelt names and options."""

from collections.abc import Iterable, Sequence

from unified_lm.files import closest_names

ABBREVIATIONS = {  # what the field writes -> our setting
    "lr": "optim.learning_rate",
    "bs": "rows_per_step",
    "batch_size": "rows_per_step",
    "temp": "method.temperature",
    "tau": "method.temperature",
    "wd": "optim.weight_decay",
    "ga": "runtime.chunk_tokens",
    "gradient_accumulation_steps": "runtime.chunk_tokens",
    "epochs": "optim.steps",
    "max_steps": "optim.steps",
    "warmup_steps": "optim.warmup",
    "warmup_ratio": "optim.warmup",
    "grad_clip": "optim.clip",
    "max_grad_norm": "optim.clip",
    "max_length": "lengths.document",
    "model": "backbone",
    "dataset": "data",
    "pooling": "method.readout",
}


def suggest(word: str, options: Iterable[str], *, cutoff: float = 0.6) -> str:
    """ " (did you mean X?)" with the option most like `word`; empty where no option is close."""
    close = closest_names(word, [option for option in options if option != word], cutoff=cutoff)
    return f" (did you mean {close[0]}?)" if close else ""


def suggest_setting(name: str, settings: Sequence[str]) -> str:
    """A hint for a misspelt dotted setting: the closest name in the same section, else the closest anywhere."""
    prefix, _, leaf = name.rpartition(".")
    if meant := ABBREVIATIONS.get(leaf.lower()):
        field = meant.rpartition(".")[2]
        known = [s for s in (f"{prefix}.{field}", meant, *settings) if s in settings and s.endswith(field)]
        if known:
            return f" (did you mean {known[0]}?)"
    section = {s.rpartition(".")[2]: s for s in settings if s.rpartition(".")[0] == prefix}
    close = closest_names(leaf, [key for key in section if key != leaf])
    return f" (did you mean {section[close[0]]}?)" if close else suggest(name, settings, cutoff=0.7)


def list_siblings(name: str, settings: Sequence[str]) -> str:
    """ "SECTION has: a, b, c" for the deepest section of `name` that exists."""
    parent = name.rpartition(".")[0]
    while parent and not any(setting.startswith(parent + ".") for setting in settings):
        parent = parent.rpartition(".")[0]
    prefix = parent + "." if parent else ""
    here = sorted({setting[len(prefix) :].split(".")[0] for setting in settings if setting.startswith(prefix)})
    return f"{parent or 'the config'} has: {', '.join(here)}"
