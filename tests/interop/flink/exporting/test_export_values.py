"""Values that a type of Flink cannot hold are refused by name when a savepoint is exported."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink import export_savepoint, import_savepoint
from statestore.interop.flink.columns.part_columns import part_columns
from statestore.interop.flink.metadata.logical_types import INSTANT, LogicalType
from statestore.interop.flink.types.avro import make_map_layout
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.java_types import (
    EnumType,
    ListType,
    MapType,
    RowType,
    Scalar,
    TupleType,
)
from statestore.interop.flink.types.pojos import PojoField, PojoType
from statestore.interop.flink.types.scala_types import CaseClassType, TraversableType
from statestore.interop.flink.types.sql_types import SqlCollection
from statestore.store import StateStore
from tests.interop.flink.goldens import Golden

_FINE = datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)


@pytest.mark.parametrize(
    ("flink_type", "value", "other"),
    [
        (Scalar("Character"), 70_000, 97),
        (Scalar("Character"), -1, 97),
        (Scalar("Date"), _FINE, datetime(2026, 1, 1, tzinfo=UTC)),
        (Scalar("SqlTime"), _FINE, datetime(2026, 1, 1, tzinfo=UTC)),
        (ListType(Scalar("Character")), [97, 70_000], [97]),
    ],
)
def test_a_value_that_does_not_fit_is_named(flink_type: FlinkType, value: Any, other: Any) -> None:
    part = part_columns(flink_type).with_names(("v",))
    batch = pa.RecordBatch.from_arrays([pa.array([other, other, value], part.stored)], ["v"])
    with pytest.raises(InvalidArgumentError, match="the column 'v' has the value") as caught:
        part.values(batch)
    assert str(batch.column(0)[2]) in str(caught.value)
    assert len(part.values(batch.slice(0, 2))) == 2


@pytest.mark.parametrize(
    ("flink_type", "column", "message"),
    [
        (
            Scalar("Instant"),
            pa.array([{"second": 1, "nano": 2_000_000_000}], INSTANT),
            "is 2000000000, but Flink permits 0 to 999999999",
        ),
        (
            Scalar("LocalDateTime"),
            pa.array([{"second": 1, "nano": -5}], INSTANT),
            "is -5, but Flink permits 0 to 999999999",
        ),
        (
            Scalar("LocalTime"),
            pa.array([99_999_999_999_999_999]).cast(pa.time64("ns")),
            "is 99999999999999999, but Flink permits 0 to 86399999999999",
        ),
        (
            EnumType("Color", ("RED", "GREEN")),
            pa.array(["RED", "BLUE"]),
            "no constant 'BLUE'; the constants are RED, GREEN",
        ),
        (
            RowType((Scalar("Long"),)),
            pa.array([{"row_kind": 9, "f0": 1}], RowType((Scalar("Long"),)).arrow_type()),
            "row_kind is 9, but Flink permits 0 to 3",
        ),
        (
            MapType(Scalar("String"), Scalar("Long")),
            pa.array(
                [[("a", 1)], [("a", 2), ("b", 3), ("a", 4)]], pa.map_(pa.string(), pa.int64())
            ),
            "a map has the key 'a' twice, .*: give it once in",
        ),
    ],
)
def test_a_value_that_flink_could_not_read_is_refused(
    flink_type: FlinkType, column: pa.Array, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        flink_type.write(column)


def test_keys_that_java_compares_by_identity_can_be_equal() -> None:
    maps = pa.array([[(b"a", 1), (b"a", 2)]], pa.map_(pa.binary(), pa.int64()))
    map_type = MapType(Scalar("byte[]"), Scalar("Long"))
    assert len(map_type.write(maps)) == 1
    with pytest.raises(InvalidArgumentError, match="has the key 'a' twice"):
        make_map_layout(Scalar("Long")).write(maps.cast(pa.map_(pa.string(), pa.int64())))


LONG, TEXT, DOUBLE, BYTES = (Scalar(name) for name in ("Long", "String", "Double", "byte[]"))
PAIR = TupleType("org.apache.flink.api.java.tuple.Tuple2", (TEXT, DOUBLE))
ONE, TWO = {"f0": "a", "f1": math.nan}, {"f0": "b", "f1": math.nan}
SQL_KEY = LogicalType("DOUBLE", b"", "DOUBLE")
SQL_LONG = LogicalType("BIGINT", b"", "BIGINT")
SQL_ROW = LogicalType("ROW", b"", "ROW", children=(SQL_LONG,))
SQL_MAP = LogicalType("MAP", b"", "MAP", children=(SQL_KEY, SQL_LONG))
SQL_COUNTS = LogicalType("MULTISET", b"", "MULTISET", children=(SQL_ROW,))
SCALA_MAP = "implicitly[scala.collection.generic.CanBuildFrom[scala.collection.immutable.Map[…"


@pytest.mark.parametrize(
    ("flink_type", "repeated", "different"),
    [
        (MapType(PAIR, LONG), [(ONE, 1), (ONE, 2)], [(ONE, 1), (TWO, 2)]),
        (
            MapType(RowType((BYTES,), has_kind=False), LONG),
            [({"f0": b"x"}, 1), ({"f0": b"x"}, 2)],
            [({"f0": b"x"}, 1), ({"f0": b"y"}, 2)],
        ),
        (
            MapType(PojoType("a.Key", (PojoField("n", "a.Key", LONG),)), LONG),
            [({"n": 1}, 1), ({"n": 1}, 2)],
            [({"n": 1}, 1), ({"n": 2}, 2)],
        ),
        (MapType(ListType(Scalar("LocalTime")), LONG), [([5], 1), ([5], 2)], [([5], 1), ([6], 2)]),
        (MapType(ListType(BYTES), LONG), None, [([b"x"], 1), ([b"x"], 2)]),
        (MapType(TupleType("Tuple1", (BYTES,)), LONG), None, [({"f0": b"x"}, 1)] * 2),
        (ListType(PAIR, "Set"), [ONE, ONE], [ONE, TWO]),
        (ListType(PAIR), None, [ONE, ONE]),
        (
            TraversableType(SCALA_MAP, CaseClassType("scala.Tuple2", (DOUBLE, BYTES))),
            [{"f0": 0.0, "f1": b""}, {"f0": 0.0, "f1": b"x"}],
            [{"f0": 0.0, "f1": b""}, {"f0": -0.0, "f1": b""}],
        ),
        (
            TraversableType(SCALA_MAP.replace("Map", "Set"), PAIR),
            [ONE, ONE],
            [ONE, TWO],
        ),
        (
            SqlCollection(SQL_MAP, 0, b""),
            [(math.nan, 1), (math.nan, 2)],
            [(0.0, 1), (-0.0, 2)],
        ),
        (
            SqlCollection(SQL_COUNTS, 0, b""),
            [({"row_kind": 0, "f0": 7}, 1), ({"row_kind": 0, "f0": 7}, 2)],
            [({"row_kind": 0, "f0": 7}, 1), ({"row_kind": 0, "f0": 8}, 1)],
        ),
    ],
)
def test_a_key_or_element_occurs_once_by_the_equals_of_java(
    flink_type: FlinkType, repeated: list[Any] | None, different: list[Any]
) -> None:
    """Also in a map within a list: NaN equals NaN, 0.0 is not -0.0, and arrays are unequal."""
    inside = ListType(flink_type)
    written = pa.array([[different, different], []], inside.arrow_type())
    assert len(inside.write(written)) == 2
    if repeated is not None:
        with pytest.raises(InvalidArgumentError, match="twice, and Flink would keep only one"):
            inside.write(pa.array([[different], [different, repeated]], inside.arrow_type()))


@pytest.mark.slow
def test_an_edited_value_is_refused_with_its_state(tmp_path: Path) -> None:
    source = Golden("2.3_heap_canonical").unpack(tmp_path / "from")
    store = StateStore.open(str(tmp_path / "store"), layout="ranged")
    import_savepoint(str(source), store)
    rows = store.restore().keyed("kinds", "char").to_arrow()
    columns = [name for name in rows.column_names if name in ("key", "char", "value")]
    (row,) = rows.select(columns).slice(0, 1).to_pylist()
    store.maintenance.edit("kinds", "char", put=[row | {columns[-1]: 70_000}])
    with pytest.raises(
        UnsupportedTypeError, match=f"'{columns[-1]}' has the value 70000"
    ) as caught:
        export_savepoint(store, str(tmp_path / "to"))
    assert "kinds" in str(caught.value)
    assert "char" in str(caught.value)
    assert not list((tmp_path / "to").glob("*"))
