"""JSON into typed objects: a value of the wrong kind is refused by the name of its field."""

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal

KINDS = {
    str: (str, "a text"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    bool: (bool, "true or false"),
    dict: (dict, "an object"),
    list: (list, "a list"),
    type(None): (type(None), "null"),
}


def parse_json(kind: Any, value: Any, field: str) -> Any:
    """A value read from JSON as a `kind`: a dataclass, `X | None`, a `Literal`, `dict[str, X]`, `tuple[X, ...]`, a
    plain type, or `Any`.

    Raises `ValueError` that begins with the name of the field whose value is of another kind. Unknown fields of an
    object are left out.
    """
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        (other,) = (option for option in options if option is not type(None))
        return None if value is None else parse_json(other, value, field)
    if origin is Literal:
        if value not in options:
            raise ValueError(f"{field} is {value!r}, and not one of {', '.join(map(str, options))}")
        return value
    if origin is dict:
        named = check_kind(dict, value, field).items()
        return {name: parse_json(options[1], one, f"{field}.{name}" if field else name) for name, one in named}
    if origin is tuple:
        values = check_kind(list, value, field)
        return tuple(parse_json(options[0], one, f"{field}.{number}") for number, one in enumerate(values))
    if is_dataclass(kind):
        return parse_object(kind, value, field)
    return check_kind(kind, value, field)


def parse_object(kind: Any, value: Any, field: str) -> Any:
    """The dataclass `kind` of a JSON object; a field with a default may be absent."""
    given = check_kind(dict, value, field)
    hints, prefix = typing.get_type_hints(kind), f"{field}." if field else ""
    parsed = {}
    for one in fields(kind):
        if one.name in given:
            parsed[one.name] = parse_json(hints[one.name], given[one.name], f"{prefix}{one.name}")
        elif one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(f"{prefix}{one.name} is missing")
    try:
        return kind(**parsed)
    except ValueError as error:
        raise ValueError(f"{field}: {error}" if field else str(error)) from error


def check_kind(kind: type, value: Any, field: str) -> Any:
    """The value, where it is of this kind.

    Raises `ValueError` for another kind; true and false are no numbers.
    """
    classes, wanted = KINDS[kind]
    if not isinstance(value, classes) or isinstance(value, bool) != (kind is bool):
        raise ValueError(f"{field or 'the file'} is {describe_kind(value)}, not {wanted}")
    return float(value) if kind is float else value


def describe_kind(value: Any) -> str:
    """The kind of a JSON value in words."""
    return next(words for kind, (_, words) in KINDS.items() if type(value) is kind)
