"""Stores that were written without Flink, with Flink SQL keys: rows of the hashed types."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink import export_savepoint, open_savepoint
from statestore.interop.flink.columns.store_types import sql_key
from statestore.interop.flink.metadata.java_binary import i32
from statestore.interop.flink.metadata.logical_types import key_logical_type
from statestore.store import StateStore
from tests.interop.flink.goldens import serializers
from tests.servers.flink import VERSIONS, Flink

EPOCH = datetime(1970, 1, 1)
COLUMNS = pa.schema(
    {
        "name": pa.string(),
        "id": pa.int64(),
        "small": pa.int32(),
        "price": pa.decimal128(10, 2),
        "exact": pa.decimal128(38, 10),
        "day": pa.date32(),
        "clock": pa.int64(),
        "at": pa.timestamp("us"),
        "local": pa.timestamp("us"),
        "instant": pa.timestamp("us", "UTC"),
        "flag": pa.bool_(),
        "raw": pa.binary(),
    }
)
TYPES = {"clock": "TIME(3)", "at": "TIMESTAMP(3)"}


def key(n: int) -> dict[str, object]:
    is_null = n % 10 == 0
    return {
        "name": None if is_null else f"key {n}",
        "id": n,
        "small": None if is_null else -n,
        "price": Decimal(n).scaleb(-2),
        "exact": Decimal(-n).scaleb(-10),
        "day": date(1970, 1, 1) + timedelta(n * 100),
        "clock": n * 10**9,
        "at": EPOCH + timedelta(milliseconds=n),
        "local": EPOCH + timedelta(milliseconds=n, microseconds=1),
        "instant": (EPOCH + timedelta(milliseconds=-n, microseconds=2)).replace(tzinfo=UTC),
        "flag": None if is_null else n % 2 == 0,
        "raw": None if is_null else f"bytes {n}".encode(),
    }


def store_of(folder: Path) -> StateStore:
    store = StateStore.open(str(folder / "store"), layout="ranged")
    totals = [key(n) | {"total": n * n} for n in range(100)]
    texts = [key(n) | {"at_place": at, "text": f"{n}-{at}"} for n in range(100) for at in range(2)]
    schema = COLUMNS.append(pa.field("total", pa.int64()))
    listed = COLUMNS.append(pa.field("at_place", pa.int32())).append(pa.field("text", pa.string()))
    options: dict[str, Any] = {
        "key": COLUMNS.names,
        "max_parallelism": 128,
        "hash_scheme": "flink-sql",
        "key_types": [TYPES.get(name) for name in COLUMNS.names],
    }
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("keyed", "total", pa.Table.from_pylist(totals, schema), **options)
        checkpoint.write_keyed(
            "keyed",
            "texts",
            pa.Table.from_pylist(texts, listed),
            kind="list",
            entry=["at_place"],
            **options,
        )
    return store


@pytest.mark.slow
def test_keys_are_rows_in_flinks_key_groups(tmp_path: Path) -> None:
    """The export has verified its own rows. Here each key's hash is compared as well."""
    done = export_savepoint(store_of(tmp_path), str(tmp_path / "to"), max_parallelism=720)
    operator = open_savepoint(done.savepoint).operator("keyed")
    found: dict[int, int] = {}
    for rows in operator.rows("total"):
        assert rows.value is not None
        ids = rows.key.field("f1").to_pylist()
        found |= dict(zip(ids, rows.value.to_pylist(), strict=True))
    assert found == {n: n * n for n in range(100)}


@pytest.mark.parametrize(
    "about",
    [
        one
        for one in serializers()[VERSIONS[0]]
        if re.fullmatch(r"row_data [A-Z]+(\([0-9, ]+\))?( WITH LOCAL TIME ZONE)?", one["name"])
    ],
    ids=lambda one: one["name"],
)
def test_types_equal_those_that_java_serializes(about: dict[str, str]) -> None:
    name = about["name"].removeprefix("row_data ")
    if name.endswith(" WITH LOCAL TIME ZONE"):
        name = name.split()[0].replace("TIMESTAMP", "TIMESTAMP_LTZ")
    kind = sql_key(["key"], [pa.int64()], [name]).flink_type
    assert i32(2) + kind.snapshot() == bytes.fromhex(about["snapshot"])


def test_type_names_of_unbounded_texts() -> None:
    assert key_logical_type("STRING").text == "STRING"
    assert key_logical_type("BYTES").java == key_logical_type("VARBINARY(2147483647)").java
    with pytest.raises(UnsupportedTypeError):
        key_logical_type("ARRAY<INT>")


@pytest.mark.parametrize(
    ("stored", "sql", "value"),
    [
        (pa.timestamp("us"), "TIMESTAMP(9)", datetime(2026, 2, 28, 1, 2, 3, 456789)),
        (pa.int64(), "TIMESTAMP(9)", 1_789_123_456_789_012_345),
        (pa.int64(), "TIMESTAMP_LTZ(6)", -1_000),
        (pa.int64(), "TIME(3)", 86_399_999_000_000),
        (pa.time64("us"), "TIME(0)", time(23, 59, 59)),
        (pa.int64(), "DATE", -7),
        (pa.int64(), "DECIMAL(30, 5)", 10**18),
        (pa.decimal128(10, 2), "DECIMAL(38, 4)", Decimal("-1.25")),
        (pa.int64(), "TINYINT", -128),
        (pa.string(), "CHAR(3)", "abc"),
    ],
    ids=str,
)
def test_a_key_is_read_back_as_it_is_stored(stored: pa.DataType, sql: str, value: object) -> None:
    key = sql_key(["key"], [stored], [sql])
    rows = pa.table([pa.array([value, None], stored)], ["key"])
    assert key.columns(key.values(rows))["key"].equals(rows["key"].chunk(0))


@pytest.mark.long
@pytest.mark.flink
@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[1]])
def test_flink_finds_each_key(version: str, tmp_path: Path) -> None:
    done = export_savepoint(
        store_of(tmp_path), str(tmp_path / "to"), parallelism=3, max_parallelism=720
    )
    found = tmp_path / "found"
    Flink(version).java("golden.SqlKeys", [done.savepoint, str(found), "2", "720"])
    assert sorted(found.read_text().splitlines()) == sorted(
        f"{n} {n * n} {n}-0,{n}-1" for n in range(100)
    )
