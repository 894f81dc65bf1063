"""Rows of two states are aligned by the identity columns that both sort in the same way."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from statestore.format.schema import Field, Schema
from statestore.format.state import KeyedState, StateKind
from statestore.layers import key_group_contents
from statestore.layers.intact_key_groups import Groups
from statestore.layers.key_group_contents import aligned_groups

STATE = KeyedState(
    uid="u",
    name="s",
    kind=StateKind.MAP,
    schema=Schema((Field("k", "long"), Field("m", "long"))),
    key=("k",),
    entry=("m",),
    key_types=("Long",),
    max_parallelism=4,
    hash_scheme="java",
)
TYPES = {"long": pa.int64(), "integer": pa.int32(), "string": pa.string()}


@pytest.mark.parametrize(
    ("other", "pieces"), [("long", [1, 2]), ("integer", [1, 2]), ("string", [3])]
)
def test_entries_of_another_type_are_compared_only_if_both_are_integers(
    monkeypatch: pytest.MonkeyPatch, other: str, pieces: list[int]
) -> None:
    """Otherwise all entries of a key are in one piece."""
    monkeypatch.setattr(key_group_contents, "RUN_BYTES", 1)

    def rows(kind: str) -> Groups:
        for number in range(3):
            m = pa.array([number]).cast(TYPES[kind])
            yield 0, pa.record_batch({"k": pa.array([7]), "m": m})

    changed = replace(STATE, schema=Schema((Field("k", "long"), Field("m", other))))
    found = [*aligned_groups((STATE, rows("long")), (changed, rows(other)))]
    assert [(group, len(old), len(new)) for group, old, new in found] == [
        (0, number, number) for number in pieces
    ]
