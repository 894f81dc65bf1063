"""Declared types have the serializer snapshots that real Flink makes of the classes, byte for byte.

So a job finds the serializers of a table's state unchanged, and does not migrate the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.interop.flink import export_savepoint, open_savepoint
from statestore.interop.flink.options import FlinkTarget
from tests.interop.flink.boot_tables import ACCOUNT, BASKET, ITEM, PLACE, target_of
from tests.interop.flink.test_real_flink import NEWEST, OLDER
from tests.servers.flink import Flink

pytestmark = [pytest.mark.flink, pytest.mark.long]

CLASSES: Mapping[str, Any] = {
    **(target_of(NEWEST).classes or {}),
    "golden.BootTypes$Arrays": {
        "fields": {
            "boxes": "Long[]",
            "times": "Instant[]",
            "sums": "BigDecimal[]",
            "levels": "golden.Boot$Level[]",
            "halves": "double[]",
            "flags": "boolean[]",
            "pairs": "Tuple2<String, Long>[]",
        }
    },
    "golden.BootTypes$Collections": {
        "fields": {
            "dates": "List<java.util.Date>",
            "levels": "List<golden.Boot$Level>",
            "raws": "List<byte[]>",
            "places": "Set<golden.Boot$Place>",
            "names": "Set<String>",
            "cities": "Map<golden.Boot$Place, String>",
            "ranks": "Map<Integer, golden.Boot$Level>",
            "numbers": "Map<String, long[]>",
        }
    },
}
TIME = pa.timestamp("us", "UTC")
PAIR = [("a", pa.string()), ("b", pa.int64())]
ARRAYS = [
    ("boxes", pa.list_(pa.int64())),
    ("times", pa.list_(TIME)),
    ("sums", pa.list_(pa.decimal128(9, 2))),
    ("levels", pa.list_(pa.string())),
    ("halves", pa.list_(pa.float64())),
    ("flags", pa.list_(pa.bool_())),
    ("pairs", pa.list_(pa.struct(PAIR))),
]
COLLECTIONS = [
    ("dates", pa.list_(TIME)),
    ("levels", pa.list_(pa.string())),
    ("raws", pa.list_(pa.binary())),
    ("places", pa.list_(PLACE)),
    ("names", pa.list_(pa.string())),
    ("cities", pa.map_(PLACE, pa.string())),
    ("ranks", pa.map_(pa.int32(), pa.string())),
    ("numbers", pa.map_(pa.string(), pa.list_(pa.int64()))),
]
TYPES: Mapping[str, tuple[str, list[tuple[str, pa.DataType]]]] = {
    "account": ("golden.Boot$Account", ACCOUNT),
    "arrays": ("golden.BootTypes$Arrays", ARRAYS),
    "spot": ("golden.Boot$Spot", [("name", pa.string()), ("zone", pa.int32())]),
    "row": ("Row<a String, b Long>", PAIR),
    "tuple": (
        "Tuple2<String, golden.Boot$Item>",
        [("a", pa.string()), ("b", pa.struct(ITEM))],
    ),
    "list": ("List<golden.Boot$Item>", [("items", pa.list_(pa.struct(ITEM)))]),
    "map": ("Map<String, LocalDateTime>", [("at", pa.map_(pa.string(), pa.timestamp("us")))]),
    "items": ("golden.Boot$Item[]", [("items", pa.list_(pa.struct(ITEM)))]),
}
FLINK_2: Mapping[str, tuple[str, list[tuple[str, pa.DataType]]]] = {
    "basket": ("golden.Boot$Basket", BASKET),
    "collections": ("golden.BootTypes$Collections", COLLECTIONS),
}


@pytest.mark.parametrize("version", [NEWEST, OLDER])
def test_snapshots_are_those_of_flink(version: str, tmp_path: Path) -> None:
    said = Flink(version).java("golden.BootTypes", [])
    lines = (line.split() for line in said.splitlines() if line.startswith("type "))
    expected = {name: bytes.fromhex(text) for _, name, text in lines}
    types = {**TYPES, **(FLINK_2 if version == NEWEST else {})}
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    for name, (_, columns) in types.items():
        schema = pa.schema([("key", pa.string()), *columns])
        store.bootstrap("types", name, schema.empty_table(), key="key")
    declared = {f"types/{name}": text for name, (text, _) in types.items()}
    target = FlinkTarget(types=declared, classes=CLASSES, version=version)
    export_savepoint(store, str(tmp_path / "to"), target=target)
    (operator,) = open_savepoint(str(tmp_path / "to")).operators
    found = {state.name: state.value.snapshot() for state in operator.states}
    assert found == {name: expected[name] for name in types}
