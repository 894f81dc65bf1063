"""Keys of every type with a known hash get Flink's key groups in the store, and other keys are
bytes.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import (
    DamagedFileError,
    DuplicateKeyError,
    SchemaMismatchError,
    StateStoreError,
    UnsupportedTypeError,
)
from statestore.interop.flink import (
    ImportedSavepoint,
    export_savepoint,
    import_savepoint,
    open_savepoint,
)
from statestore.interop.flink.columns.state_columns import FLINK_KEY_GROUP, EntryForm
from statestore.interop.flink.options import SavepointHints
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.java_types import EnumType, ListType, RowType, Scalar, TupleType
from statestore.interop.flink.types.kryo import KryoType
from statestore.interop.flink.types.pojos import PojoField, PojoType
from statestore.jobgraph.operators import operator_id
from statestore.keys.hashing import key_group_of
from tests.interop.flink.written import written_savepoint

TUPLE = "org.apache.flink.api.java.tuple.Tuple"
INT, LONG, STRING = Scalar("Integer"), Scalar("Long"), Scalar("String")
DAY = 86_400_000


def instant(second: int, nano: int) -> dict[str, int]:
    return {"second": second, "nano": nano}


def stored(
    folder: Path, key: FlinkType, keys: list[Any], store: StateStore | None = None, **options: Any
) -> tuple[StateStore, ImportedSavepoint]:
    array = pa.array(keys, key.arrow_type())
    place = written_savepoint(folder / "s", key, array, list(range(len(keys))), **options)
    store = store or StateStore.open(str(folder / "store"), table_format="parquet")
    return store, import_savepoint(
        str(place), store, hints=SavepointHints(uids={operator_id("big"): "big"})
    )


@pytest.mark.parametrize(
    ("key", "keys", "columns"),
    [
        (STRING, ["", "a", "ü\0", "\U0001f600", "x" * 300], ("key",)),
        (LONG, [0, -1, 2**63 - 1, -(2**63)], ("key",)),
        (INT, [0, -1, 2**31 - 1], ("key",)),
        (Scalar("Short"), [0, -1, 300], ("key",)),
        (Scalar("Byte"), [0, -128, 127], ("key",)),
        (Scalar("Boolean"), [True, False], ("key",)),
        (Scalar("Character"), [0, 65, 0xD800, 0xFFFF], ("key",)),
        (Scalar("Float"), [0.0, -0.5, 1e30], ("key",)),
        (Scalar("Double"), [0.0, -0.5, 1e300], ("key",)),
        (Scalar("BigInteger"), ["0", "-7", "10", str(2**200)], ("key",)),
        (Scalar("Date"), [0, -1, 9 * DAY, 250 * 10**12], ("key",)),
        (Scalar("SqlDate"), [0, DAY], ("key",)),
        (Scalar("LocalDate"), [date(1, 1, 1), date(2026, 2, 28)], ("key",)),
        (Scalar("LocalTime"), [0, 1, DAY * 10**6 - 1], ("key",)),
        (Scalar("BigDecimal"), ["1.50", "1.5", "-0.001", "0E-10", "1E+3", "9" * 50], ("key",)),
        (Scalar("Instant"), [instant(0, 0), instant(-1, 999_999_999), instant(2**33, 1)], ("key",)),
        (Scalar("LocalDateTime"), [instant(0, 0), instant(-(2**33), 7)], ("key",)),
        (ListType(LONG), [[], [1], [1, 2], [2, 1]], ("key",)),
        (ListType(STRING), [["a", ""], ["ü"]], ("key",)),
        (
            TupleType(f"{TUPLE}2", (Scalar("Instant"), Scalar("BigDecimal"))),
            [(instant(1, 2), "1.0"), (instant(-5, 0), "1")],
            ("key_f0", "key_f1"),
        ),
        (
            TupleType(f"{TUPLE}1", (TupleType(f"{TUPLE}2", (Scalar("Instant"), STRING)),)),
            [((instant(1, 2), "a"),)],
            ("key_f0",),
        ),
        (RowType((Scalar("LocalDateTime"), INT)), [(0, instant(3, 4), 1), (0, None, 2)], ("key",)),
        (TupleType(f"{TUPLE}1", (LONG,)), [(1,), (-1,)], ("key_f0",)),
        (TupleType(f"{TUPLE}2", (STRING, INT)), [("a", 1), ("b", -1)], ("key_f0", "key_f1")),
        (
            TupleType(f"{TUPLE}2", (TupleType(f"{TUPLE}2", (LONG, STRING)), Scalar("Date"))),
            [((1, "a"), 5), ((2, "b"), DAY)],
            ("key_f0", "key_f1"),
        ),
        (RowType((STRING, INT)), [(0, "a", 1), (0, None, 2)], ("key",)),
        (RowType((LONG,), False), [(1,), (None,)], ("key",)),
    ],
    ids=str,
)
def test_key_groups_equal_flinks(
    key: FlinkType, keys: list[Any], columns: tuple[str, ...], tmp_path: Path
) -> None:
    kind = key.arrow_type()
    if isinstance(keys[0], tuple):
        keys = [structs(one, kind) for one in keys]
    store, done = stored(tmp_path, key, keys)
    (one,) = done.record.states
    assert (one.form, one.rows, one.names["key"]) == (EntryForm.COLUMNS, len(keys), columns)
    restored = store.restore(parallelism=3)
    found: dict[int, Any] = {}
    for subtask in range(3):
        table = restored.keyed("big", "count").to_arrow(subtask)
        groups = np.asarray(table.column("key_group"))
        for group in np.unique(groups).tolist():
            rows, _ = one.columns(128).rows(table.filter(pa.array(groups == group)))
            assert rows.value is not None
            pairs = zip(rows.value.to_pylist(), rows.key.to_pylist(), strict=True)
            found |= dict(pairs)
    assert found == dict(enumerate(pa.array(keys, kind).to_pylist()))
    assert store.maintenance.verify(deep=True).is_intact


def structs(values: Any, kind: pa.StructType) -> dict[str, Any]:
    """Name the fields of nested tuples."""
    return {
        field.name: structs(value, field.type) if isinstance(value, tuple) else value
        for field, value in zip(kind, values, strict=True)
    }


NO_CLASSES = 3 * bytes.fromhex("000004f2c69a3d70 00000000")
SQL_TIMESTAMP = Scalar("SqlTimestamp")
TIMESTAMPS = [{"second": 1, "nano": 5}, {"second": 2, "nano": 0}]
POJO = PojoType("a.Key", (PojoField("id", "a.Key", LONG),))


@pytest.mark.parametrize(
    ("key", "keys", "groups", "stored_keys"),
    [
        (EnumType("a.Color", ("RED", "BLUE")), ["RED", "BLUE"], [5, 99], [("RED",), ("BLUE",)]),
        (POJO, [{"id": 1}, {"id": 2}], [5, 99], [(1,), (2,)]),
        (
            SQL_TIMESTAMP,
            TIMESTAMPS,
            [key_group_of(at, max_parallelism=128) for at in (1000, 2000)],
            [(1_000_000_005,), (2_000_000_000,)],
        ),
    ],
    ids=["enum", "pojo", "sql_timestamp"],
)
def test_keys_that_no_column_type_hashes_have_flink_s_key_group(
    key: FlinkType,
    keys: list[Any],
    groups: list[int],
    stored_keys: list[tuple[Any, ...]],
    tmp_path: Path,
) -> None:
    array = pa.array(keys, key.arrow_type())
    place = written_savepoint(tmp_path / "s", key, array, [1, 2], groups=groups)
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with pytest.raises(UnsupportedTypeError, match="state 'count' of operator big"):
        import_savepoint(
            str(place), store, strict=True, hints=SavepointHints(uids={operator_id("big"): "big"})
        )
    done = import_savepoint(
        str(place), store, hints=SavepointHints(uids={operator_id("big"): "big"})
    )
    (one,) = done.record.states
    assert one.form is EntryForm.KEY_COLUMNS
    assert one.why is not None
    assert "no column type is hashed like keys of" in one.why
    state = store.restore(parallelism=1).keyed("big", "count")
    assert state.entry.state.hash_scheme == "flink-sql"
    rows = state.to_arrow(0)
    columns = [rows.column(name).to_pylist() for name in one.names["key"]]
    assert sorted(zip(*columns, strict=True)) == sorted(stored_keys)
    values = rows.column("value").to_pylist()
    stored_groups = rows.column(FLINK_KEY_GROUP).to_pylist()
    assert dict(zip(stored_groups, values, strict=True)) == dict(zip(groups, [1, 2], strict=True))


@pytest.mark.parametrize(
    "value_type", [LONG, KryoType("a.B", NO_CLASSES)], ids=["columns", "bytes"]
)
def test_a_state_with_keys_of_the_job_s_own_class_is_changed_and_exported(
    value_type: FlinkType, tmp_path: Path
) -> None:
    """A POJO's key group is that of the savepoint, because only the job has its hash."""
    array = pa.array([{"id": 1}, {"id": 2}], POJO.arrow_type())
    first, second = b"\x09\2", b"\x09\4"
    is_long = value_type == LONG
    values = [1, 2] if is_long else pa.array([first, b"\x63"])  # whose end is unknown
    place = written_savepoint(
        tmp_path / "s", POJO, array, values, value_type=value_type, groups=[5, 99]
    )
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    hints = SavepointHints(
        uids={operator_id("big"): "big"}, columns={operator_id("big"): {"key": "customer"}}
    )
    done = import_savepoint(str(place), store, hints=hints)
    (one,) = done.record.states
    form = EntryForm.KEY_COLUMNS if is_long else EntryForm.KEY_COLUMNS_VALUE_BYTES
    assert (one.form, one.names["key"]) == (form, ("customer",))
    state = store.restore(parallelism=1).keyed("big", "count")
    (row,) = state.get(2)
    (value,) = one.names["value"]
    assert row[value] == (2 if is_long else b"\x63")
    changed = pa.Table.from_pylist(
        [row | {value: 7 if is_long else second}], state.to_arrow(0).schema
    ).drop_columns(["key_group"])
    with store.snapshot(parallelism=1) as snapshot:
        snapshot.write_changes("big", "count", changed)
        snapshot.carry_rest()
    export_savepoint(store, str(tmp_path / "to"))
    (operator,) = open_savepoint(str(tmp_path / "to")).operators
    found = {
        (part.key_group, key, value)
        for part in operator.entries()
        for key, value in zip(
            part.keys.arrow().to_pylist(), part.values.arrow().to_pylist(), strict=True
        )
    }
    keys = [
        bytes([group]) + key + b"\0"
        for group, key in zip([5, 99], POJO.write(array).to_pylist(), strict=True)
    ]
    old, new = ((1).to_bytes(8, "big"), (7).to_bytes(8, "big")) if is_long else (first, second)
    assert found == {(5, keys[0], old), (99, keys[1], new)}
    with pytest.raises(UnsupportedTypeError, match="their hash depends on the job's own class"):
        export_savepoint(store, str(tmp_path / "more"), max_parallelism=256)
    assert not (tmp_path / "more" / "_metadata").exists()


def test_a_new_key_of_the_job_s_own_class_has_no_key_group(tmp_path: Path) -> None:
    array = pa.array([{"id": 1}], POJO.arrow_type())
    place = written_savepoint(tmp_path / "s", POJO, array, [1], groups=[5])
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    hints = SavepointHints(uids={operator_id("big"): "big"})
    import_savepoint(str(place), store, hints=hints)
    state = store.restore(parallelism=1).keyed("big", "count")
    new = pa.Table.from_pylist([{"key_id": 3, "value": 3}], state.to_arrow(0).schema)
    with store.snapshot(parallelism=1) as snapshot:
        snapshot.write_changes("big", "count", new.drop_columns(["key_group"]))
        snapshot.carry_rest()
    with pytest.raises(UnsupportedTypeError, match="1 rows without flink_key_group: only the job"):
        export_savepoint(store, str(tmp_path / "to"))


def test_max_parallelism_of_keys_with_a_sql_timestamp_changes(tmp_path: Path) -> None:
    """Java's hash of a Tuple2 is 31 times the hash of its first field, plus the second's."""
    key = TupleType(f"{TUPLE}2", (SQL_TIMESTAMP, INT))
    keys = pa.array([{"f0": at, "f1": 7} for at in TIMESTAMPS], key.arrow_type())
    hashes = (31 * 1000 + 7, 31 * 2000 + 7)
    groups = [key_group_of(code, max_parallelism=128) for code in hashes]
    place = written_savepoint(tmp_path / "s", key, keys, [1, 2], groups=groups)
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    import_savepoint(str(place), store)
    export_savepoint(store, str(tmp_path / "to"), max_parallelism=720)
    (operator,) = open_savepoint(str(tmp_path / "to")).operators
    found = sorted(part.key_group for part in operator.entries() if len(part.keys))
    assert found == sorted(key_group_of(code, max_parallelism=720) for code in hashes)


def test_a_key_that_stays_bytes_in_the_wrong_key_group_is_damage(tmp_path: Path) -> None:
    array = pa.array(TIMESTAMPS, SQL_TIMESTAMP.arrow_type())
    place = written_savepoint(tmp_path / "s", SQL_TIMESTAMP, array, [1, 2], groups=[5, 99])
    with pytest.raises(DamagedFileError, match="1 of 1 keys in key group 5 that belong elsewhere"):
        import_savepoint(str(place), StateStore.open(str(tmp_path / "store")))


@pytest.mark.parametrize("kind", ["Instant", "LocalDateTime"])
def test_times_outside_the_range_of_nanoseconds_are_bytes(kind: str, tmp_path: Path) -> None:
    store, done = stored(tmp_path, Scalar(kind), [instant(2**34, 0), instant(0, 0)])
    (one,) = done.record.states
    assert (one.form, one.rows) == (EntryForm.KEY_BYTES, 2)
    assert one.why == "a key is a timestamp more than 292 years away from 1970"
    assert store.maintenance.verify(deep=True).is_intact


def test_a_key_in_the_wrong_key_group_is_damage(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match="are in the wrong key group"):
        stored(tmp_path, LONG, [1, 2, 3], groups=[0, 0, 100])
    assert not list(tmp_path.glob("store/checkpoints/*.json"))
    assert not list(tmp_path.glob("store/operators/**/*.parquet"))


def test_a_duplicate_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DuplicateKeyError):
        stored(tmp_path, LONG, [7, 7])


@pytest.mark.slow
def test_a_later_savepoint_is_a_layer_of_changes(tmp_path: Path) -> None:
    keys = pa.array(range(2000), pa.int64())
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    uids = {operator_id("big"): "big"}
    for number in (1, 2):
        values = [*range(1999), 7 * number]
        place = written_savepoint(tmp_path / f"s{number}", LONG, keys, values, number=number)
        done = import_savepoint(str(place), store, hints=SavepointHints(uids=uids))
    assert (done.is_incremental, done.record.checkpoint) == (True, 2)
    entry = store.restore().keyed("big", "count").entry
    assert [layer.entry.rows for layer in entry.layers] == [1]
    assert store.restore().keyed("big", "count").get(1999)[0]["value"] == 14
    assert store.maintenance.verify(deep=True).is_intact


def test_other_types_are_refused(tmp_path: Path) -> None:
    store, _ = stored(tmp_path, LONG, [1, 2])
    with pytest.raises(SchemaMismatchError, match="state 'count' of operator big has other types"):
        stored(tmp_path / "later", INT, [1, 2], store, number=2)
    assert store.checkpoints() == (1,)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("count", [20, 100])
def test_any_flipped_byte_gives_a_typed_error_or_a_complete_checkpoint(
    tmp_path: Path, count: int
) -> None:
    keys = pa.array([f"user-{number}" for number in range(300)])
    place = written_savepoint(tmp_path / "s", STRING, keys, list(range(300)))
    files = sorted(one for one in place.iterdir() if one.name != "_metadata")
    random = np.random.default_rng(7)
    refused = 0
    for attempt in range(count):
        file = files[attempt % len(files)]
        whole = file.read_bytes()
        data = bytearray(whole)
        data[int(random.integers(len(data)))] ^= 1 << int(random.integers(8))
        file.write_bytes(data)
        target = tmp_path / f"store-{attempt}"
        store = StateStore.open(str(target), table_format="parquet")
        try:
            import_savepoint(
                str(place), store, hints=SavepointHints(uids={operator_id("big"): "big"})
            )
        except StateStoreError:
            refused += 1
            assert not list(target.glob("checkpoints/*.json"))
            assert not list(target.glob("operators/**/*.parquet"))
        else:
            assert store.maintenance.verify(deep=True).is_intact
        file.write_bytes(whole)
    assert refused > count // 3  # other flips change values, for which the file has no checksum


def test_a_text_that_no_column_can_hold_is_bytes(tmp_path: Path) -> None:
    """A key contains half of a surrogate pair, and its entries are kept."""
    place = written_savepoint(tmp_path / "s", STRING, pa.array(["a", "b\uffff"]), [1, 2])
    files = [one for one in place.iterdir() if b"b\xff\xff\x03" in one.read_bytes()]
    (file,) = files
    file.write_bytes(file.read_bytes().replace(b"b\xff\xff\x03", b"b\x81\xb0\x03"))  # U+D801
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    done = import_savepoint(
        str(place), store, hints=SavepointHints(uids={operator_id("big"): "big"})
    )
    (one,) = done.record.states
    assert (one.form, one.rows) == (EntryForm.KEY_BYTES, 2)
    assert one.why is not None
    assert "unpaired surrogate" in one.why
    proof = store.maintenance.verify(deep=True)
    assert (proof.is_intact, proof.strays) == (True, ())
