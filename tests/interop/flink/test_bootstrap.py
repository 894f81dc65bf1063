"""A table becomes a Flink savepoint: bootstrap, then export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.interop.flink import export_savepoint, open_savepoint
from statestore.keys.hashing import key_group_of


@pytest.mark.parametrize(
    ("options", "columns", "kind"),
    [
        ({}, {}, "value"),
        ({"kind": "list", "entry": "at"}, {"at": [0, 1, 0]}, "list"),
        ({"kind": "map", "entry": "shop"}, {"shop": ["x", "y", "x"]}, "map"),
    ],
    ids=["value", "list", "map"],
)
def test_a_table_becomes_a_savepoint(
    options: dict[str, Any], columns: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    users = ["ann", "bob", "cid"] if kind == "value" else ["ann", "ann", "bob"]
    rows = pa.table({"user": users, **columns, "total": [7, 3, 5]})
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    store.bootstrap("totals", "by-user", rows, key="user", **options)
    export_savepoint(store, str(tmp_path / "savepoint"))
    operator = open_savepoint(str(tmp_path / "savepoint")).operator("totals")
    (state,) = operator.states
    assert (state.name, state.kind, state.key.java_name) == ("by-user", kind, "String")
    found: dict[str, list[int]] = {}
    for part in operator.rows("by-user"):
        assert part.value is not None
        for key, value in zip(part.key.to_pylist(), part.value.to_pylist(), strict=True):
            assert key_group_of(key, max_parallelism=128) == part.key_group
            found.setdefault(key, []).extend(value if kind == "list" else [value])
    expected: dict[str, list[int]] = {}
    for user, total in zip(users, rows["total"].to_pylist(), strict=True):
        expected.setdefault(user, []).append(total)
    assert {key: sorted(values) for key, values in found.items()} == {
        key: sorted(values) for key, values in expected.items()
    }
