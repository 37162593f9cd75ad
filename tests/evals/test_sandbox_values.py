"""Plain values pass between a program and its judge as they are, and nothing else does."""

import contextlib
from collections import Counter, OrderedDict, deque, namedtuple
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.generation.sandbox.values import Unreadable, decode, encode

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text() | st.binary()
    | st.text(st.characters(categories=["Cs"])) | st.integers().map(lambda n: n << 2000)
    | st.decimals() | st.fractions()
)  # fmt: skip
HASHABLE = st.recursive(
    SCALARS.filter(lambda value: "nan" not in repr(value).lower()),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
VALUES = st.recursive(
    SCALARS | HASHABLE,
    lambda inner: st.lists(inner) | st.tuples(inner) | st.sets(HASHABLE) | st.dictionaries(HASHABLE, inner),
    max_leaves=20,
)


@given(VALUES)
def test_a_plain_value_comes_out_as_it_went_in(value: Any) -> None:
    assert same(decode(encode(value)), value)


def same(one: Any, other: Any) -> bool:
    """Equality under which NaN equals itself, and 1 is neither 1.0 nor True."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other) if isinstance(one, float | complex | Decimal) else one == other


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Point(1, 2), (1, 2)),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (np.float64(0.1), 0.1),
        (np.int32(7), 7),
        (np.bool_(True), True),
        (bytearray(b"x"), b"x"),
        (range(1, 9, 2), range(1, 9, 2)),
    ],
)
def test_a_value_of_a_class_of_its_own_becomes_the_plain_one(value: Any, wanted: Any) -> None:
    found = decode(encode(value))
    assert (type(found), found) == (type(wanted), wanted)


@pytest.mark.parametrize(
    "value", [map(abs, [1, 2]), (i for i in [1, 2]), {1: 0, 2: 0}.keys(), deque([1, 2]), iter([1, 2])]
)
def test_what_iterates_can_be_iterated_and_equals_no_list(value: Any) -> None:
    found = decode(encode(value))
    assert found != [1, 2] and list(found) == [1, 2]


def test_an_array_stays_an_array() -> None:
    found = decode(encode(np.array([[1.5, 2], [3, 4]])))
    assert isinstance(found, np.ndarray) and found.tolist() == [[1.5, 2], [3, 4]]


@pytest.mark.parametrize("value", [object(), print, int, [object()], {"a": open}, ValueError("x")])
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="not plain"):
        encode(value)


PIECES = [*(bytes([tag]) for tag in b"ltSzdrIaisbDQNTFfc1/"), *(bytes([count, 0, 0, 0]) for count in range(3))]


@given(st.binary() | st.lists(st.sampled_from(PIECES)).map(b"".join))
def test_any_bytes_are_a_value_or_unreadable(content: bytes) -> None:
    with contextlib.suppress(Unreadable):
        decode(content)


@pytest.mark.parametrize(
    "content", [encode([1, "x", {2.0: b"y"}])[:-1], encode(1) + b"N", b"l\1\0\0\0" * 10**5, b"", b"?"]
)
def test_a_cut_or_endless_message_is_unreadable(content: bytes) -> None:
    with pytest.raises(Unreadable):
        decode(content)
