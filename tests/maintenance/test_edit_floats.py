"""An edit with SQL does not store a float that may have been rounded as an exact number."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import SchemaMismatchError

SCHEMA = pa.schema(
    {
        "k": pa.string(),
        "whole": pa.int64(),
        "amount": pa.decimal128(38, 2),
        "listed": pa.list_(pa.int64()),
        "nested": pa.struct({"a": pa.int64()}),
        "mapped": pa.map_(pa.string(), pa.decimal128(20, 0)),
    }
)
SMALL: dict[str, Any] = {
    "whole": 3,
    "amount": 3,
    "listed": [3],
    "nested": {"a": 3},
    "mapped": [("x", 3)],
}
LARGE = 2**53 + 751


@pytest.mark.parametrize(
    ("name", "sql_type", "value"),
    [
        ("whole", "DOUBLE", LARGE),
        ("amount", "DOUBLE", LARGE),
        ("listed", "DOUBLE[]", [1, LARGE]),
        ("nested", "STRUCT(a DOUBLE)", {"a": LARGE}),
        ("mapped", "MAP(VARCHAR, DOUBLE)", [("x", LARGE)]),
        ("whole", "FLOAT", 2**24 + 1),
    ],
)
def test_a_large_float_is_refused_and_a_small_one_is_stored(
    store: StateStore, name: str, sql_type: str, value: Any
) -> None:
    rows = [{"k": "a", **SMALL}, {"k": "b", **SMALL, name: value}]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", pa.Table.from_pylist(rows, SCHEMA), key="k")
    sql = f"SELECT * REPLACE ({name}::{sql_type} AS {name}) FROM state"
    with pytest.raises(SchemaMismatchError, match=f"'{name}' .*may have been rounded.*BIGINT"):
        store.maintenance.edit("u", "n", sql=sql)
    store.maintenance.edit("u", "n", sql=f"{sql} WHERE k = 'a'")
    assert store.restore().keyed("u", "n").to_arrow().drop(["key_group"]).to_pylist() == rows[:1]
