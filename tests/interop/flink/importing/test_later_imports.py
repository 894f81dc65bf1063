"""A savepoint that is imported into a store which already has one of the same job."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import (
    InvalidArgumentError,
    LeftOutStateError,
    SchemaMismatchError,
    StateNotFoundError,
    UnsupportedTypeError,
)
from statestore.format.state import TimeToLive
from statestore.interop.flink import ImportedSavepoint, import_savepoint
from statestore.interop.flink.options import SavepointAccess, SavepointHints
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.internal_types import TtlType
from statestore.interop.flink.types.java_types import ListType, Scalar, TupleType
from statestore.interop.flink.types.kryo import KryoType
from statestore.interop.flink.types.pojos import PojoField, PojoType
from statestore.jobgraph.operators import operator_id
from statestore.keys.hashing import key_group_of
from tests.interop.flink.read.test_places import named
from tests.interop.flink.written import written_savepoint
from tests.support.options import grouped

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
        form, value = ("LIST", ListType(kind[0])) if isinstance(kind, list) else ("VALUE", kind)
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
    assert store.checkpoint().checkpoint_id == 1
    assert store.restore().keyed("big", "count").to_arrow().to_pylist() == rows


def imported(place: Path, store: StateStore, **options: Any) -> ImportedSavepoint:
    arguments = grouped({"hints": HINTS, **options}, hints=SavepointHints)
    return import_savepoint(str(place), store, **arguments)


def counts(store: StateStore, state: str = "count") -> list[Any]:
    rows = store.restore().keyed("big", state).to_arrow().to_pylist()
    return [row["value"] for row in sorted(rows, key=lambda row: row["key"])]


def test_the_same_import_is_found(tmp_path: Path, store: StateStore) -> None:
    place = written_savepoint(tmp_path / "a", LONG, KEYS, [1, 2, 3, 4])
    imported(place, store)
    again = imported(place, store, operators=["big"], threads=2, hints=SavepointHints())
    assert (again.found, again.checkpoint_id, store.checkpoints()) == (True, 1, (1,))
    copy = shutil.copytree(place, tmp_path / "copy")
    assert imported(copy, store).found


@pytest.mark.parametrize(
    ("kind", "values", "error"),
    [(LONG, [5, 2, 3, 4], None), (DATE, [1, 2, 3, 4], SchemaMismatchError)],
)
def test_another_savepoint_with_equal_metadata_is_another_one(
    kind: FlinkType, values: list[int], error: Any, tmp_path: Path, store: StateStore
) -> None:
    """Number, file names and lengths are equal, but not the content of the files."""
    first = written_savepoint(tmp_path / "a", LONG, KEYS, [1, 2, 3, 4])
    column = pa.array(values, pa.int64()).cast(kind.arrow_type())
    second = written_savepoint(tmp_path / "b", LONG, KEYS, column, value_type=kind)
    assert (first / "_metadata").read_bytes() == (second / "_metadata").read_bytes()
    imported(first, store)
    if error is not None:
        with pytest.raises(error, match="its value was int64 and is timestamp"):
            imported(second, store)
        return
    assert (imported(second, store).checkpoint_id, counts(store)) == (2, values)
    assert imported(second, store).found


def elsewhere(place: Path) -> Path:
    """Move the state of the first subtask to another folder, which the savepoint names."""
    folder = place.parent / "else"
    folder.mkdir()
    (place / "state-0").rename(folder / "state-0")
    named(place, f"{folder}/state-0")
    return folder


def test_an_import_with_more_access_adds_what_was_missing(
    tmp_path: Path, store: StateStore
) -> None:
    place = written_savepoint(tmp_path / "a", LONG, KEYS, [1, 2, 3, 4])
    folder = elsewhere(place)
    assert imported(place, store).not_read
    assert imported(place, store).found
    access = SavepointAccess(moved={str(folder): str(folder)})
    done = imported(place, store, access=access)
    assert (done.found, done.not_read, counts(store)) == (False, (), [1, 2, 3, 4])
    assert imported(place, store, access=access).found
    with pytest.raises(LeftOutStateError, match="--allow OLD=NEW"):
        imported(place, store)


def test_a_ttl_can_be_added_and_changed(tmp_path: Path, store: StateStore) -> None:
    kind = TtlType(LONG)
    rows = [{"last_access": 10**13, "value": key} for key in range(4)]
    values = pa.array(rows, kind.arrow_type())
    place = written_savepoint(tmp_path / "a", LONG, KEYS, values, value_type=kind)
    imported(place, store)
    for days, number in (("7d", 2), ("8d", 3)):
        done = imported(place, store, ttl={"count": days})
        assert (done.found, done.checkpoint_id) == (False, number)
        ttl = store.restore().keyed("big", "count").entry.state.ttl
        assert ttl == TimeToLive(days, "last_access")
        assert counts(store) == [0, 1, 2, 3]
        assert imported(place, store, ttl={"big/count": days}).found
        assert imported(place, store).found


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"columns": {"big": {"key": "user"}}}, r"has the key \('key',\).*change to \('user',\)"),
        (
            {"columns": {"big": {"states": {"count": {"value": "n"}}}}},
            r"has the value \('value',\)",
        ),
        ({"columns": {"big": {"states": {"count": {"map_key": "n"}}}}}, r"has the map_key \(\)"),
        ({"columns": {"big": {"states": {"count": {"type": "ValueState<LONG>"}}}}}, "the type ''"),
        ({"uids": {operator_id("large"): "large"}}, "no operator with the id"),
        ({"uids": {operator_id("big"): "other"}}, "is 'big' in the store"),
        ({"ttl": {"count": "7d"}}, "no state 'count' has last-access times"),
        ({"key_hash": {"big": "record(x)"}}, "whose hash is known"),
        ({"drop": ["nothing"]}, "'nothing' cannot be dropped"),
    ],
)
@pytest.mark.parametrize("number_of_savepoint", [1, 2])
def test_options_that_a_later_import_cannot_follow_are_refused(
    options: dict[str, Any],
    why: str,
    number_of_savepoint: int,
    tmp_path: Path,
    store: StateStore,
) -> None:
    imported(written_savepoint(tmp_path / "1", LONG, KEYS, [1, 2, 3, 4]), store)
    place = written_savepoint(
        tmp_path / "again", LONG, KEYS, [1, 2, 3, 4], number=number_of_savepoint
    )
    with pytest.raises((InvalidArgumentError, StateNotFoundError), match=why):
        imported(place, store, **options)
    assert store.checkpoints() == (1,)


def test_a_recipe_cannot_be_changed(tmp_path: Path, store: StateStore) -> None:
    key = PojoType("a.Key", (PojoField("id", "a.Key", LONG),))
    keys = pa.array([{"id": 1}, {"id": 2}], key.arrow_type())
    groups = [key_group_of(number, max_parallelism=128) for number in (1, 2)]
    place = written_savepoint(tmp_path / "a", key, keys, [1, 2], groups=groups)
    imported(place, store)
    with pytest.raises(InvalidArgumentError, match="has the key hash '' in the store"):
        imported(place, store, key_hash={"big": "record(id)"})


def test_strict_refuses_what_an_earlier_import_kept_as_bytes(
    tmp_path: Path, store: StateStore
) -> None:
    kryo = KryoType("a.B", 3 * bytes.fromhex("000004f2c69a3d70 00000000"))
    place = written_savepoint(tmp_path / "a", LONG, KEYS, pa.array([b"\0"] * 4), value_type=kryo)
    imported(place, store)
    with pytest.raises(UnsupportedTypeError, match="--strict"):
        imported(place, store, strict=True)


def test_a_changed_state_is_not_reverted_by_the_same_savepoint(
    tmp_path: Path, store: StateStore
) -> None:
    kind = TtlType(LONG)
    rows = [{"last_access": 10**13, "value": key} for key in range(4)]
    values = pa.array(rows, kind.arrow_type())
    place = written_savepoint(tmp_path / "a", LONG, KEYS, values, value_type=kind)
    imported(place, store)
    store.maintenance.edit("big", "count", delete=[3])
    assert imported(place, store).found
    with pytest.raises(InvalidArgumentError, match="state 'count' of operator big was changed"):
        imported(place, store, ttl={"count": "7d"})
    assert counts(store) == [0, 1, 2]


def test_an_operator_keeps_the_name_that_it_got_first(tmp_path: Path, store: StateStore) -> None:
    for number_of_savepoint, hints in ((1, HINTS), (2, SavepointHints())):
        values = [1, 2, 3, number_of_savepoint]
        place = written_savepoint(
            tmp_path / f"{number_of_savepoint}", LONG, KEYS, values, number=number_of_savepoint
        )
        imported(place, store, hints=hints)
    assert (store.checkpoints(), counts(store)) == ((1, 2), [1, 2, 3, 2])
