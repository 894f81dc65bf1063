"""The digest is a function of the set of rows, and changes with any value."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.format.digest import (
    MapEntries,
    UnscaledDecimal,
    combine,
    digest_text,
    hash_row,
    hash_value,
    mix,
)

NAN = float("nan")
u64 = st.integers(0, 2**64 - 1)
values = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=9) | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=3)
    ),
    max_leaves=5,
)
rows = st.dictionaries(st.text(max_size=3), values, min_size=1, max_size=3)


@pytest.mark.parametrize(
    ("row", "digest"),
    [
        ({"a": None}, "bba5f0a1651215d2"),
        ({"a": 1}, "9b0b9f64af87b020"),
        ({"a": -1}, "888db7f74b693c1c"),
        ({"a": 1.0}, "62f3245572435e1f"),
        ({"a": NAN}, "fd5d3de82c76de5b"),
        ({"a": ""}, "55b118a9716f0c96"),
        ({"a": "12345678"}, "0a789ed5ecf7a6a7"),
        ({"a": "häßlich 😀"}, "7954a8f8b981d027"),
        ({"a": b"\x00"}, "22faacec5881cfae"),
        ({"a": UnscaledDecimal(-125, 2)}, "94162831c05bdfcd"),
        ({"a": [1, None]}, "f022314ca7e0be50"),
        ({"a": MapEntries([("x", 1), ("y", None)])}, "b68cd65d173f56ea"),
        ({"a": {"b": 1, "c": [2]}}, "aef63a6e81b938c2"),
        ({"a": 1, "b": "x"}, "64602b551b8fbe6d"),
    ],
)
def test_digests_never_change(row: dict[str, Any], digest: str) -> None:
    """Stored manifests contain them. A release with other digests would report every store as
    damaged.
    """
    assert digest_text(hash_row(row)) == digest


@given(u64, u64)
def test_mixing_is_injective(left: int, right: int) -> None:
    """No two words have the same result."""
    assert (mix(left) == mix(right)) == (left == right)


@given(rows)
def test_columns_count_by_name_not_by_position(row: dict[str, Any]) -> None:
    """I1: any writer's column order gives the same digest."""
    assert hash_row(dict(reversed(row.items()))) == hash_row(row)


@given(st.lists(rows, max_size=5), st.randoms())
def test_the_order_and_the_files_of_rows_do_not_matter(
    given: list[dict[str, Any]], random: Any
) -> None:
    """I7: the digest of a whole is the sum of its parts' digests."""
    hashes = [hash_row(row) for row in given]
    shuffled = random.sample(hashes, len(hashes))
    cut = random.randint(0, len(hashes))
    whole = combine(hashes)
    assert whole == combine([combine(shuffled[:cut]), combine(shuffled[cut:])])
    assert 0 <= whole < 2**64


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (None, 0),
        (None, ""),
        (None, []),
        (0, 1),
        (0.0, -0.0),
        (math.inf, -math.inf),
        (NAN, math.inf),
        ("", "\0"),
        ("a", "a\0"),
        ("a", "A"),
        ("é", "e\u0301"),
        ("12345678", "123456780"),
        ([], [None]),
        ([None], [None, None]),
        ([1, 2], [2, 1]),
        ([[1], [2]], [[1, 2], []]),
        (["ab", "c"], ["a", "bc"]),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        ({"a": None}, {"b": None}),
        (UnscaledDecimal(10, 1), UnscaledDecimal(10, 2)),
        (UnscaledDecimal(1 << 64, 0), UnscaledDecimal(1, 0)),
        (UnscaledDecimal(-1, 0), UnscaledDecimal(1, 0)),
        (MapEntries([]), MapEntries([(1, None)])),
        (MapEntries([(1, 2)]), MapEntries([(2, 1)])),
        (MapEntries([(1, 2), (3, 4)]), MapEntries([(1, 4), (3, 2)])),
    ],
)
def test_different_values_have_different_hashes(left: Any, right: Any) -> None:
    """This includes values that differ only in a length, a position or a sign."""
    assert hash_value(left) != hash_value(right)


def test_equal_values_have_one_hash() -> None:
    """All NaNs are equal, the entries of a map have no order, and a boolean equals its number."""
    assert hash_value(NAN) == hash_value(-NAN)
    assert hash_value(True) == hash_value(1)
    entries: list[tuple[Any, Any]] = [("a", 1), ("b", 2)]
    assert hash_value(MapEntries(entries)) == hash_value(MapEntries(entries[::-1]))


def test_a_type_without_a_rule_is_refused() -> None:
    """It gets no digest, because another reader could not compute it."""
    with pytest.raises(TypeError, match="no digest is defined for set"):
        hash_value(set())
