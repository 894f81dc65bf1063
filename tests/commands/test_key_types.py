"""What a key is hashed as can be said, is kept with the state, and stays when it is not said."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore, key_group_of
from statestore.errors import (
    InvalidArgumentError,
    SchemaMismatchError,
    StateStoreError,
    UnsupportedTypeError,
)

SQL: dict[str, Any] = {"hash_scheme": "flink-sql", "max_parallelism": 128}
MOMENTS = [datetime(2026, 1, day, 12, 30, 15, 250_000) for day in range(1, 29)]


def opened(path: Path) -> StateStore:
    return StateStore.open(str(path / "store"), table_format="parquet")


def groups_of(store: StateStore, key_type: Any, **options: Any) -> None:
    """Hold the key group of each stored row against that of its key alone."""
    restored = store.restore(parallelism=1).keyed("u", "n").subtask(0).read_all()
    assert restored.num_rows
    for row in restored.to_pylist():
        assert row["key_group"] == key_group_of(
            row["k"], max_parallelism=128, key_type=key_type, **options
        )


@pytest.mark.parametrize("zone", [None, UTC])
@pytest.mark.parametrize("digits", [0, 1, 3, 6, 9])
def test_a_timestamp_has_the_precision_that_is_said(tmp_path: Path, digits: int, zone: Any) -> None:
    """The key group is Flink's for that precision, and the state can be written and changed on."""
    store = opened(tmp_path)
    moments = [m.replace(tzinfo=zone, microsecond=0) for m in MOMENTS]
    name = f"{'TIMESTAMP' if zone is None else 'TIMESTAMP_LTZ'}({digits})"
    rows = pa.table({"k": moments, "v": range(28)})
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.keyed("u", "n", rows, key="k", key_types=name, **SQL)
    assert store.manifest().keyed_entry("u", "n").state.key_types == (name,)
    groups_of(store, name, hash_scheme="flink-sql")
    again = store.restore(parallelism=1).keyed("u", "n").subtask(0).read_all()
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.keyed("u", "n", again.drop_columns(["key_group"]), key="k")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.keyed("u", "n", key="k").changes(deletes=[{"k": moments[0]}])
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.keyed("u", "n", key="k").changes([{"k": moments[1], "v": 99}])
    state = store.restore(parallelism=3).keyed("u", "n")
    assert (state.get(moments[0]), state.get(moments[1])[0]["v"]) == ([], 99)
    groups_of(store, name, hash_scheme="flink-sql")
    with (
        pytest.raises(SchemaMismatchError, match="key types"),
        store.snapshot(parallelism=2) as checkpoint,
    ):
        checkpoint.keyed("u", "n", rows, key="k", key_types=name.replace(str(digits), "2"))


@pytest.mark.parametrize("asked", ["int", "Integer", ["INTEGER"], {"k": "java.lang.Integer"}])
def test_a_type_has_one_name_however_it_is_said(tmp_path: Path, asked: Any) -> None:
    store = opened(tmp_path)
    with store.snapshot(parallelism=2) as checkpoint:
        rows = pa.table({"k": range(-20, 20), "v": range(40)})
        checkpoint.keyed("u", "n", rows, key="k", key_types=asked, max_parallelism=128)
    assert store.manifest().keyed_entry("u", "n").state.key_types == ("Integer",)
    groups_of(store, "int")


def test_a_type_that_is_no_type_of_the_key_is_refused(tmp_path: Path) -> None:
    """Before anything is written, and with what is wrong."""
    store = opened(tmp_path)
    rows = pa.table({"k": ["a"], "v": [1]})
    for asked, error, match in (
        ("Integer", UnsupportedTypeError, "hashed as String"),
        ({"v": "Integer"}, InvalidArgumentError, "'v', which is no key column"),
        (["String", "String"], InvalidArgumentError, "1 key columns .* and 2 key types"),
        ("Strung", StateStoreError, "Strung"),
    ):
        with pytest.raises(error, match=match), store.snapshot(parallelism=1) as checkpoint:
            checkpoint.keyed("u", "n", rows, key="k", key_types=asked)
    assert list(store.checkpoints()) == []


def test_a_value_that_the_type_cannot_hold_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    rows = pa.table({"k": [datetime(2026, 1, 1, 0, 0, 0, 1)], "v": [1]})
    with (
        pytest.raises(InvalidArgumentError, match="precision 3"),
        store.snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.keyed("u", "n", rows, key="k", key_types="TIMESTAMP(3)", **SQL)
