"""Counts and examples of the rows that a command changes, and which rows a subject can have."""

from __future__ import annotations

import pyarrow as pa
import pytest

from statestore.format.names import KEY_GROUP
from statestore.format.schema import Field, Schema
from statestore.format.state import KeyedState, StateKind
from statestore.maintenance.edit_keys import RowChanges
from statestore.maintenance.erase_subject import applies

STATE = KeyedState(
    uid="u",
    name="s",
    kind=StateKind.VALUE,
    schema=Schema((Field("k", "long"), Field("v", "long"))),
    key=("k",),
    key_types=("Long",),
    max_parallelism=4,
    hash_scheme="java",
)


def rows(*values: tuple[int, int]) -> pa.Table:
    schema = pa.schema([(KEY_GROUP, pa.int32()), ("k", pa.int64()), ("v", pa.int64())])
    return pa.Table.from_pylist([{KEY_GROUP: 3, "k": k, "v": v} for k, v in values], schema)


def test_changes_are_counted_and_shown_up_to_a_limit() -> None:
    changes = RowChanges(STATE, limit=5)
    for _ in range(2):
        changes.add(rows((1, 1), (2, 2), (3, 3)), rows((1, 1), (2, 7), (4, 4), (5, 5)))
    assert (changes.added, changes.removed, changes.changed) == (4, 2, 2)
    shown = [(one.change, one.identity["k"], one.key_group) for one in changes.examples]
    assert shown == [
        ("changed", 2, 3),
        ("removed", 3, 3),
        ("added", 4, 3),
        ("added", 5, 3),
        ("changed", 2, 3),
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([Field("k", "integer"), Field("v", "string")], True),
        ([Field("k", "string")], False),
        ([Field("v", "long")], False),
    ],
)
def test_a_selection_needs_its_columns_in_comparable_types(
    fields: list[Field], expected: bool
) -> None:
    selection = pa.record_batch({"k": pa.array([1])})
    assert applies(selection, Schema(tuple(fields))) is expected
