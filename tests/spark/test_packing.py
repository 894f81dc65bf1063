"""Rows packed for an exchange: each value belongs to one subtask, and all rows come out again."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statestore.errors import NullKeyError, StateStoreError
from statestore.files.keyed import KeyedTarget
from statestore.format.handles import KeyedStateHandle
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Field, Schema
from statestore.format.state import KeyedState, StateKind
from statestore.keys.arrow import key_groups
from statestore.keys.groups import KeyGroupAssignment
from statestore.spark import write
from statestore.spark.write import PACKED, pack, unpack
from statestore.storage import LocalStorage

STATE = KeyedState(
    uid="totals",
    name="total",
    kind=StateKind.VALUE,
    schema=Schema((Field("user", "string"), Field("total", "long"))),
    key=("user",),
    key_types=("String",),
    hash_scheme="java",
    max_parallelism=128,
)


def owners(max_parallelism: int, parallelism: int) -> KeyGroupAssignment:
    return KeyGroupAssignment(max_parallelism=max_parallelism, parallelism=parallelism)


def rows(count: int) -> list[pa.RecordBatch]:
    table = pa.table(
        {"total": range(count), "user": [f"user-{number:05d}" for number in range(count)]}
    )
    return list(table.to_batches(700))


def as_exchanged(packed: list[pa.RecordBatch], subtask: int) -> list[pa.RecordBatch]:
    """What a task gets: its own values, in order of bundle, those of one bundle in any order."""
    values = [row for batch in packed for row in batch.to_pylist() if row["subtask"] == subtask]
    random.Random(5).shuffle(values)
    values.sort(key=lambda row: int(row["bundle"]))
    table = pa.Table.from_pylist(values, PACKED)
    return list(table.to_batches(3))


@pytest.mark.parametrize(("max_parallelism", "parallelism"), [(1, 1), (128, 3), (5_000, 7)])
def test_every_row_comes_out_in_order_of_key_group_at_its_subtask(
    max_parallelism: int, parallelism: int
) -> None:
    state = replace(STATE, max_parallelism=max_parallelism)
    packed = list(pack(rows(9_001), state, owners(max_parallelism, parallelism), 2_000))
    assert len(packed) == 5
    assignment = owners(max_parallelism, parallelism)
    found = []
    for subtask in range(parallelism):
        batches = list(unpack(as_exchanged(packed, subtask), state))
        table = pa.Table.from_batches(batches) if batches else None
        if table is None:
            continue
        groups = np.asarray(table.column(KEY_GROUP))
        assert (np.diff(groups) >= 0).all()
        assert {int(group) for group in groups} <= set(assignment.range_of(subtask))
        wanted = key_groups([table.column("user")], max_parallelism=max_parallelism)
        assert (groups == wanted).all()
        assert table.column_names == [KEY_GROUP, "user", "total"]
        found += table.select(["user", "total"]).to_pylist()
    assert sorted(found, key=lambda row: int(row["total"])) == [
        {"user": f"user-{number:05d}", "total": number} for number in range(9_001)
    ]


def test_a_value_holds_one_key_group_while_there_are_not_very_many() -> None:
    for value in pack(rows(3_000), STATE, owners(128, 4)):
        for bundle, packed in zip(value.column(1).to_pylist(), value.column(2), strict=True):
            read = pa.ipc.open_stream(packed.as_buffer()).read_all()
            assert set(read.column(KEY_GROUP).to_pylist()) == {bundle}


def test_very_many_key_groups_share_values() -> None:
    state = replace(STATE, max_parallelism=32_768)
    [packed] = pack(rows(5_000), state, owners(32_768, 4))
    assert packed.num_rows <= 1_024 + 3


def test_no_rows_are_no_values() -> None:
    assert list(pack([], STATE, owners(128, 4))) == []
    assert list(unpack([], STATE)) == []


def test_null_keys_are_counted_over_all_rows() -> None:
    batches = [*rows(1_000), pa.record_batch({"user": ["a", None, None], "total": [1, 2, 3]})] * 2
    with pytest.raises(NullKeyError, match="4 rows of") as raised:
        list(pack(batches, STATE, owners(128, 4)))
    assert raised.value.rows == 4


def test_an_error_crosses_in_a_column_of_its_own(tmp_path: Path) -> None:
    target = KeyedTarget(LocalStorage(str(tmp_path)), "t", 1, STATE)
    batches = [*rows(10), pa.record_batch({"user": [None], "total": [1]})]
    [failed] = write._pack(target, owners(128, 4))(batches)
    assert failed.schema == PACKED
    [row] = failed.to_pylist()
    assert (row["subtask"], row["bundle"], row["rows"]) == (0, None, None)
    packed = list(pack(rows(10), STATE, owners(128, 4)))
    assert all(one.column("error").null_count == one.num_rows for one in packed)
    errors: list[StateStoreError] = []
    assert list(write._intact(packed, errors)) == packed
    assert list(write._intact([failed, *packed], errors)) == []
    assert [str(error)[:9] for error in errors] == ["1 row of "]


def test_an_outcome_has_handles_or_errors_and_says_what_was_compared() -> None:
    error = NullKeyError("a null key", 1)

    def fails() -> tuple[KeyedStateHandle, ...]:
        raise error

    [done] = write._outcome(lambda: (), [], 3).to_pylist()
    assert (pickle.loads(done["handles"]), done["errors"], done["compared"]) == ((), None, 3)
    met: list[StateStoreError] = [error]
    for one in (write._outcome(fails, [], 3), write._outcome(lambda: (), met, 3)):
        [failed] = one.to_pylist()
        assert [found.rows for found in pickle.loads(failed["errors"])] == [1]
        assert failed["compared"] is None
