"""A savepoint that is imported into a store which already has one of the same job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import SchemaMismatchError
from statestore.interop.flink_savepoints import import_savepoint
from statestore.interop.flink_savepoints.options import SavepointHints
from statestore.interop.flink_savepoints.types.flink_types import (
    FlinkType,
    ListType,
    PojoField,
    PojoType,
    Scalar,
    TtlType,
    TupleType,
)
from statestore.jobgraph.operators import operator_id
from tests.interop.flink_savepoints.written import written_savepoint

LONG, STRING, DATE = Scalar("Long"), Scalar("String"), Scalar("Date")
PAIR = TupleType("org.apache.flink.api.java.tuple.Tuple2", (LONG, LONG))
KEYS = pa.array(range(4), pa.int64())
HINTS = SavepointHints(uids={operator_id("big"): "big"})


def pojo(**fields: FlinkType) -> PojoType:
    return PojoType("a.B", tuple(PojoField(name, "a.B", kind) for name, kind in fields.items()))


def numbers(kind: FlinkType) -> pa.Array:
    """Return a value of a type for each key, with the key in all of its numbers."""
    return pa.array([number(kind.arrow_type(), key) for key in range(4)], kind.arrow_type())


def number(kind: pa.DataType, key: int) -> Any:
    if pa.types.is_struct(kind):
        return {field.name: number(field.type, key) for field in kind}
    if pa.types.is_list(kind):
        return [number(kind.value_type, key)]
    return str(key) if pa.types.is_string(kind) else key


AB, BC = pojo(a=LONG, b=LONG), pojo(b=LONG, c=LONG)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (AB, BC, "its value was a int64, b int64 and is b int64, c int64"),
        (AB, pojo(b=LONG, a=LONG), "is b int64, a int64"),
        (AB, PAIR, "is f0 int64, f1 int64"),
        (pojo(a=LONG), LONG, "its value was a int64 and is int64"),
        (pojo(inner=AB), pojo(inner=BC), "struct<b: int64, c: int64>"),
        ([AB], [BC], "its value was a int64, b int64 and is b int64, c int64"),
        ([LONG], LONG, "its kind was list and is value"),
        ([LONG], ListType(LONG), "its kind was list and is value"),
        (TtlType(LONG), LONG, "its last_access was int64 and is nothing"),
        (LONG, TtlType(LONG), "its last_access was nothing and is int64"),
        (TtlType(AB), AB, "its last_access was int64 and is nothing"),
        (TtlType(LONG), pojo(last_access=LONG, value=LONG), "its last_access was int64"),
        (LONG, DATE, "its value was int64 and is timestamp"),
        (LONG, STRING, "its value was int64 and is string"),
    ],
)
def test_another_type_is_refused_with_the_difference(
    before: FlinkType | list[FlinkType],
    after: FlinkType | list[FlinkType],
    why: str,
    tmp_path: Path,
) -> None:
    """A list stands for a list state of its element."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    for number_of_savepoint, kind in enumerate((before, after), 1):
        form, value = ("LIST", ListType(*kind)) if isinstance(kind, list) else ("VALUE", kind)
        place = written_savepoint(
            tmp_path / str(number_of_savepoint),
            LONG,
            KEYS,
            numbers(value),
            value_type=value,
            form=form,
            number=number_of_savepoint,
        )
        if number_of_savepoint == 1:
            import_savepoint(str(place), store, hints=HINTS)
    rows = store.restore().keyed("big", "count").to_arrow().to_pylist()
    with pytest.raises(SchemaMismatchError, match=why):
        import_savepoint(str(place), store, hints=HINTS)
    assert store.manifest().checkpoint_id == 1
    assert store.restore().keyed("big", "count").to_arrow().to_pylist() == rows
