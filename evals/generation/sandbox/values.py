"""Plain values as bytes, for two processes of which one trusts the other with nothing.

Bytes become numbers, texts and containers of them, never code and no object with methods of its own.
"""

import os
import struct

TYPING = False
if TYPING:  # as typing.TYPE_CHECKING, whose module takes longer to import than a program takes to run
    from collections.abc import Sequence

LARGEST = 2**26
"""Most bytes of one message."""

CONTAINERS = {list: b"l", tuple: b"t", set: b"S", frozenset: b"z"}
MAKERS = {tag: kind for kind, tag in CONTAINERS.items()} | {b"I": iter, b"r": lambda three: range(*three)}
SIMPLE = {b"N": None, b"T": True, b"F": False}


class Unreadable(ValueError):
    """A message that is cut, too large or no message."""


def encode(value: object) -> bytes:
    """A value as bytes. A subclass of a plain class counts as that class; whatever else iterates, as an iterator.

    Raises TypeError for a value that is not plain.
    """
    parts: list[bytes] = []
    _encode(value, parts)
    return b"".join(parts)


def _encode(value: object, parts: list[bytes]) -> None:
    if value is None or isinstance(value, bool):
        parts.append(b"N" if value is None else b"T" if value else b"F")
    elif isinstance(value, int):
        _sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True), parts)
    elif isinstance(value, float):
        parts.append(b"f" + struct.pack("<d", value))
    elif isinstance(value, complex):
        parts.append(b"c" + struct.pack("<dd", value.real, value.imag))
    elif isinstance(value, str):
        _sized(b"s", value.encode("utf-8", "surrogatepass"), parts)
    elif isinstance(value, bytes | bytearray):
        _sized(b"b", bytes(value), parts)
    elif isinstance(value, dict):
        _many(b"d", [one for pair in value.items() for one in pair], parts)
    elif isinstance(value, range):
        _many(b"r", [value.start, value.stop, value.step], parts)
    elif kind := next((kind for kind in CONTAINERS if isinstance(value, kind)), None):
        _many(CONTAINERS[kind], list(value), parts)
    elif type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        numbers = value.tolist()
        if isinstance(numbers, list):
            parts.append(b"a")
        _encode(numbers, parts)
    elif type(value).__module__ in ("decimal", "fractions"):
        _sized(b"D" if type(value).__name__ == "Decimal" else b"Q", str(value).encode(), parts)
    elif hasattr(value, "__iter__"):
        _many(b"I", list(value), parts)
    else:
        raise TypeError(f"a value of {type(value).__name__} is not plain, so that no test can judge it")


def _sized(tag: bytes, content: bytes, parts: list[bytes]) -> None:
    parts.append(tag + struct.pack("<I", len(content)) + content)


def _many(tag: bytes, values: "Sequence[object]", parts: list[bytes]) -> None:
    parts.append(tag + struct.pack("<I", len(values)))
    for value in values:
        _encode(value, parts)


def decode(content: bytes) -> object:
    """The value of bytes that anybody may have written. Raises `Unreadable`."""
    try:
        value, end = _decode(content, 0)
    except (struct.error, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise Unreadable(f"no plain value: {error}") from None
    if end != len(content):
        raise Unreadable("no plain value: something follows it")
    return value


def _decode(content: bytes, at: int) -> tuple[object, int]:
    tag, at = content[at : at + 1], at + 1
    if tag in SIMPLE:
        return SIMPLE[tag], at
    if tag == b"f":
        return struct.unpack_from("<d", content, at)[0], at + 8
    if tag == b"c":
        return complex(*struct.unpack_from("<dd", content, at)), at + 16
    if tag == b"a":
        import numpy as np

        numbers, at = _decode(content, at)
        return np.array(numbers), at
    (size,) = struct.unpack_from("<I", content, at)
    at += 4
    if tag in (b"i", b"s", b"b", b"D", b"Q"):
        if at + size > len(content):
            raise ValueError("it is cut")
        return _simple(tag, content[at : at + size]), at + size
    if tag not in MAKERS and tag != b"d":
        raise ValueError("unknown kind")
    values = []
    for _ in range(size):
        value, at = _decode(content, at)
        values.append(value)
    return dict(zip(values[::2], values[1::2], strict=True)) if tag == b"d" else MAKERS[tag](values), at


def _simple(tag: bytes, content: bytes) -> object:
    if tag == b"i":
        return int.from_bytes(content, "little", signed=True)
    if tag == b"s":
        return content.decode("utf-8", "surrogatepass")
    if tag == b"b":
        return content
    if tag == b"D":
        from decimal import Decimal

        return Decimal(content.decode())
    from fractions import Fraction

    return Fraction(content.decode())


def message(value: object) -> bytes:
    """A value with its length in front. Raises `Unreadable` where it is too large."""
    content = encode(value)
    if len(content) > LARGEST:
        raise Unreadable(f"{len(content)} bytes are more than {LARGEST}")
    return struct.pack("<I", len(content)) + content


def send(to: int, value: object) -> None:
    """Writes a value to a file descriptor."""
    rest = memoryview(message(value))
    while rest:
        rest = rest[os.write(to, rest) :]


def receive(source: int) -> object:
    """Reads a value from a file descriptor.

    Raises EOFError where the other side has ended, and `Unreadable` for what is no value of at most `LARGEST` bytes.
    """
    (size,) = struct.unpack("<I", _read(source, 4))
    if size > LARGEST:
        raise Unreadable(f"{size} bytes are more than {LARGEST}")
    return decode(_read(source, size))


def _read(source: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.read(source, min(size, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
