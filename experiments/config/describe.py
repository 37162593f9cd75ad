"""`--help GROUP=OPTION`: the settings of a file of conf/ with their values and meanings, from the comments in it."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from experiments.config import compose
from experiments.config.errors import UsageError
from experiments.config.schema import SECTION_CLASSES, class_fields
from experiments.config.suggestions import suggest

SETTING = re.compile(r"^(\s*)([\w.+-]+):(?:\s+(.*?))?(?:\s+#\s*(.*))?$")


def describe(topics: Sequence[str]) -> str:
    """The text of `--help` for each topic: method=ulme (a file), method (a group) or runtime (a section).

    Raises `UsageError` for a topic that is none of these.
    """
    return "\n\n".join("\n".join(describe_topic(topic)) for topic in topics)


def describe_topic(topic: str) -> Iterator[str]:
    group, _, option = topic.partition("=")
    if group in compose.list_groups() and option:
        known = compose.list_options(group)
        if option not in known:
            raise UsageError(f"{topic} does not exist{suggest(option, known)}; {group} is one of: {', '.join(known)}")
        yield from describe_option(group, option)
    elif group in compose.list_groups():
        yield f"{group}: one of these; --help {group}=NAME lists its settings"
        for name in compose.list_options(group):
            about = " ".join(header(read_option(group, name))[:1])
            yield f"  {name:<24} {about}".rstrip()
    elif group in compose.SECTIONS:
        yield from describe_section(group)
    else:
        names = [*compose.list_groups(), *compose.SECTIONS]
        raise UsageError(
            f"--help {topic}: no such group or section{suggest(group, names)}; there are {', '.join(names)}"
        )


def describe_option(group: str, option: str) -> Iterator[str]:
    text = read_option(group, option)
    yield f"{group}={option}"
    yield from (f"  {line}" for line in header(text))
    prefix = "" if "@package _global_" in text else f"{group}."
    shown, target = {}, SECTION_CLASSES.get(group, "")
    for base in [*bases(text), None]:
        for name, value, meaning in settings(text if base is None else read_option(group, base)):
            target = value if name == "_target_" else target
            shown[name] = (value, meaning or shown.get(name, ("", ""))[1])
    shown.pop("_target_", None)
    yield from (line(prefix + name, *entry) for name, entry in shown.items() if not name.endswith("_target_"))
    yield from unlisted(prefix, target, shown)


def describe_section(section: str) -> Iterator[str]:
    text = (compose.CONF / "config.yaml").read_text(encoding="utf-8")
    listed = {
        name.removeprefix(f"{section}."): (value, meaning)
        for name, value, meaning in settings(text)
        if name.startswith(f"{section}.")
    }
    yield f"{section} (conf/config.yaml)"
    yield from (line(f"{section}.{name}", *entry) for name, entry in listed.items())
    yield from unlisted(f"{section}.", SECTION_CLASSES.get(section, ""), listed)


def unlisted(prefix: str, target: str, listed: dict[str, tuple[str, str]]) -> Iterator[str]:
    """Fields of the class that the file leaves at their defaults."""
    for name, default in class_fields(target).items():
        if name not in listed and not any(key.startswith(f"{name}.") for key in listed) and default is not None:
            yield line(prefix + name, default, "the default of its class")


def line(name: str, value: str, meaning: str) -> str:
    return f"  {f'{name}={value}':<44} {meaning}".rstrip()


def settings(text: str) -> Iterator[tuple[str, str, str]]:
    """(dotted name, value, comment) of each leaf of a YAML text, in its order."""
    parents: list[tuple[int, str]] = []
    body = re.sub(r"^defaults:\n(?:[ #].*\n|\n)*", "", text, flags=re.MULTILINE)
    for raw in body.splitlines():
        match = SETTING.match(raw)
        if not match or raw.lstrip().startswith("#"):
            continue
        indent, key, value, meaning = len(match[1]), match[2], match[3] or "", match[4] or ""
        parents = [(depth, name) for depth, name in parents if depth < indent]
        if value and not value.startswith("#"):
            yield ".".join([*(name for _, name in parents), key]), value, meaning
        else:
            parents.append((indent, key))


def header(text: str) -> list[str]:
    """The comment at the top of a file."""
    lines = []
    for raw in text.splitlines():
        if not raw.startswith("#"):
            break
        lines += [] if "@package" in raw else [raw.lstrip("# ").rstrip()]
    return lines


def bases(text: str) -> list[str]:
    """The files of the same group that a file inherits from."""
    return [entry for entry in (yaml.safe_load(text) or {}).get("defaults", []) if isinstance(entry, str)]


def read_option(group: str, option: str) -> str:
    path: Path = compose.CONF / group / f"{option}.yaml"
    return path.read_text(encoding="utf-8") if path.is_file() else ""
