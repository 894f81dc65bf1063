"""Values that a type of Flink cannot hold are refused by name when a savepoint is exported."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink_savepoints import export_savepoint, import_savepoint
from statestore.interop.flink_savepoints.types.arrow_types import INSTANT
from statestore.interop.flink_savepoints.types.families.avro_parts import AvroMapType
from statestore.interop.flink_savepoints.types.flink_types import (
    EnumType,
    FlinkType,
    ListType,
    MapType,
    RowType,
    Scalar,
)
from statestore.interop.flink_savepoints.types.part_columns import part_columns
from statestore.store import StateStore
from tests.interop.flink_savepoints.goldens import Golden

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
    part = replace(part_columns(flink_type), names=("v",))
    batch = pa.RecordBatch.from_arrays([pa.array([other, other, value], part.stored[0])], ["v"])
    with pytest.raises(InvalidArgumentError, match="the column 'v' has the value") as caught:
        part.array(batch)
    assert str(batch.column(0)[2]) in str(caught.value)
    assert len(part.array(batch.slice(0, 2))) == 2


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
            "a map has the key 'a' twice, .*: give the key once in",
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
        AvroMapType(Scalar("Long")).write(maps.cast(pa.map_(pa.string(), pa.int64())))


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
