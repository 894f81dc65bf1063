"""An exported checkpoint is a savepoint with the same rows, or there is no savepoint."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import ParquetOptions
from statestore.errors import (
    CorruptionError,
    InvalidArgumentError,
    ParallelismError,
    StateNotFoundError,
    StorageError,
    UnsupportedTypeError,
)
from statestore.format.state import TimeToLive
from statestore.interop.flink import export_savepoint, write
from statestore.interop.flink.exporting import export_keyed
from statestore.interop.flink.exporting.export_keyed import encode_rows
from statestore.interop.flink.options import ExportSelection
from statestore.interop.flink.read import savepoint_files
from statestore.interop.flink.read.keyed_states import SavepointRows
from statestore.interop.flink.read.savepoint import open_savepoint
from statestore.interop.flink.write import SavepointWriter
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange
from statestore.restore.restored import RestoredKeyedState
from statestore.snapshot.state_spec import Changes
from statestore.store import StateStore
from tests.interop.flink.golden_store import TUPLED, write_golden_store
from tests.interop.flink.goldens import Golden
from tests.support.options import grouped

pytestmark = pytest.mark.slow

MOST = 128


@pytest.fixture
def golden(tmp_path: Path) -> StateStore:
    return write_golden_store(str(tmp_path / "store"), Golden("2.3_heap_canonical").rows())


def store_of(folder: Path, rows: pa.Table, **options: Any) -> StateStore:
    """Return a store with a state ``state`` of operator ``uid``."""
    store = StateStore.open(str(folder), layout="ranged", table_format="parquet")
    given: dict[str, Any] = {"key": "key", "max_parallelism": MOST} | options
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("uid", "state", rows, **given)
    return store


def rows_in(place: Path, *, operator: int = 0, name: str = "state") -> Iterator[SavepointRows]:
    yield from open_savepoint(str(place)).operators[operator].rows(name)


@pytest.mark.parametrize(
    "most", [*(pytest.param(most, marks=pytest.mark.long) for most in (128, 720)), 32768]
)
def test_all_rows_are_where_flink_reads_them(golden: StateStore, tmp_path: Path, most: int) -> None:
    done = export_savepoint(
        golden,
        str(tmp_path / "to"),
        target=TUPLED,
        parallelism=5,
        max_parallelism=most,
    )
    made = open_savepoint(done.savepoint)
    assert made.metadata.version == 3
    for operator, said in zip(made.operators, done.operators, strict=True):
        assert operator.metadata.id == said.operator_id
        assert (operator.metadata.parallelism, operator.metadata.max_parallelism) == (5, most)
        sizes = [0] * 5
        shares = KeyGroupAssignment(max_parallelism=most, parallelism=5).ranges()
        for subtask in operator.metadata.subtasks:
            keyed: Any = subtask.keyed
            if keyed is not None:
                assert (keyed.first, len(keyed.offsets)) == (
                    shares[subtask.index].first,
                    len(shares[subtask.index]),
                )
                sizes[subtask.index] += keyed.stream.size
            handle: Any = subtask.operator
            sizes[subtask.index] += 0 if handle is None else len(handle.stream.data)
        assert tuple(sizes) == said.size_bytes
        rows = sum(len(row) for row in operator.rows())  # also compares each row's key group
        assert rows <= sum(said.rows)


def test_types_follow_from_the_columns(tmp_path: Path) -> None:
    when = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901)
    value = {
        "text": "Zürich 🦊",
        "number": None,
        "exact": Decimal("-0.50"),
        "at": when.replace(tzinfo=dt.UTC),
        "there": when,
        "day": when.date(),
        "bytes": b"\0\xff",
        "list": [1, 2],
        "map": [("a", None), ("b", 2.5)],
        "inner": {"x": 1, "y": [True]},
    }
    schema = pa.schema(
        [
            ("key", pa.int64()),
            ("text", pa.string()),
            ("number", pa.int16()),
            ("exact", pa.decimal128(10, 2)),
            ("at", pa.timestamp("us", "UTC")),
            ("there", pa.timestamp("us")),
            ("day", pa.date32()),
            ("bytes", pa.binary()),
            ("list", pa.list_(pa.int32())),
            ("map", pa.map_(pa.string(), pa.float64())),
            ("inner", pa.struct([("x", pa.int8()), ("y", pa.list_(pa.bool_()))])),
        ]
    )
    store = store_of(tmp_path / "store", pa.Table.from_pylist([{"key": 7} | value], schema))
    done = export_savepoint(store, str(tmp_path / "to"))
    (state,) = done.operators[0].states
    assert state.columns == tuple(value)
    assert state.key_type == "Long"
    assert state.value_type == (
        "Row<String, Short, BigDecimal, Instant, LocalDateTime, LocalDate, byte[], List<Integer>, "
        "Map<String, Double>, Row<Byte, List<Boolean>>>"
    )
    (rows,) = rows_in(tmp_path / "to")
    assert rows.key.to_pylist() == [7]
    assert rows.value is not None
    (found,) = rows.value.to_pylist()
    assert (found["f0"], found["f1"], found["f2"]) == ("Zürich 🦊", None, "-0.50")
    assert found["f3"] == found["f4"] == {"second": 1_767_323_045, "nano": 678_901_000}
    assert found["f9"] == {"row_kind": 0, "f0": 1, "f1": [True]}


@pytest.mark.parametrize(
    ("key_type", "column", "flink"),
    [
        ("Integer", pa.array([1, -1]), "Integer"),
        ("Character", pa.array([65, 0xD800]), "Character"),
        ("BigInteger", pa.array([1, -(2**62)]), "BigInteger"),
        ("BigDecimal(10,3)", pa.array([Decimal("1.50"), Decimal("-2.00")]), "BigDecimal"),
        ("Instant", pa.array([1, -1]), "Instant"),
        ("LocalDateTime", pa.array([1, -1]), "LocalDateTime"),
        ("LocalDate", pa.array([1, -1]), "LocalDate"),
        ("LocalTime", pa.array([1, 10**13]), "LocalTime"),
        ("java.sql.Timestamp", pa.array([1, -1]), "SqlTimestamp"),
        ("java.sql.Date", pa.array([1, -1]), "SqlDate"),
        ("java.sql.Time", pa.array([1, -1]), "SqlTime"),
        ("Tuple2<Integer, String>", pa.array([{"a": 1, "b": "x"}]), "Tuple2<Integer, String>"),
        ("Row<Integer, String>", pa.array([{"a": 1, "b": None}]), "Row<Integer, String>"),
        ("List<Short>", pa.array([[1, 2], []]), "List<Short>"),
    ],
)
def test_a_key_has_its_hashed_type(
    key_type: str, column: pa.Array, flink: str, tmp_path: Path
) -> None:
    if flink.endswith(", String>") and "b" in column.type.names:
        kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
        column = pa.array(column.to_pylist(), kind)
    rows = pa.table({"key": column, "value": list(range(len(column)))})
    store = store_of(tmp_path / "store", rows, key_types=key_type)
    done = export_savepoint(store, str(tmp_path / "to"), max_parallelism=1000)
    assert done.operators[0].states[0].key_type == flink
    assert sum(len(one) for one in rows_in(tmp_path / "to")) == len(column)


def test_list_elements_are_counted_from_0(tmp_path: Path) -> None:
    rows = pa.table({"key": [1, 1, 1], "at": [5, -2, 9], "value": ["b", "a", None]})
    store = store_of(tmp_path / "store", rows, kind="list", entry="at")
    export_savepoint(store, str(tmp_path / "to"))
    (found,) = rows_in(tmp_path / "to")
    assert found.value is not None
    assert found.value.to_pylist() == [["a", "b", None]]


def test_a_set_and_a_key_without_value_columns_have_no_values(tmp_path: Path) -> None:
    rows = pa.table({"key": ["a", "a"], "of": [1, 2]})
    store = store_of(tmp_path / "store", rows, kind="map", entry="of")
    done = export_savepoint(store, str(tmp_path / "to"))
    assert done.operators[0].states[0].value_type == "Map<Long, Void>"
    (found,) = rows_in(tmp_path / "to")
    assert found.map_key is not None
    assert found.map_key.to_pylist() == [1, 2]


def test_a_ttl_becomes_the_time_of_last_access(tmp_path: Path) -> None:
    used = dt.datetime(2126, 1, 1, 0, 0, 0, 1999, dt.UTC)
    rows = pa.table({"key": [1], "used": pa.array([used], pa.timestamp("us", "UTC")), "v": [2]})
    ttl = TimeToLive("1000000s", "used")
    store = store_of(tmp_path / "store", rows, ttl=ttl)
    export_savepoint(store, str(tmp_path / "to"))
    (found,) = rows_in(tmp_path / "to")
    assert found.value is not None
    millis = int(used.timestamp()) * 1000 + 1
    assert found.value.to_pylist() == [{"last_access": millis, "value": 2}]


@pytest.mark.long
def test_a_dry_run_reports_the_same_and_writes_nothing(golden: StateStore, tmp_path: Path) -> None:
    place = tmp_path / "to"
    told: list[tuple[float, float]] = []
    options: Mapping[str, Any] = {"target": TUPLED, "parallelism": 3, "max_parallelism": 300}
    plan = export_savepoint(golden, str(place), dry_run=True, **options)
    assert not place.exists()
    done = export_savepoint(golden, str(place), on_progress=lambda *at: told.append(at), **options)
    assert plan.operators == done.operators
    assert (plan.dry_run, done.dry_run) == (True, False)
    assert told[-1][0] == told[-1][1]


def test_selected_operators_and_states(golden: StateStore, tmp_path: Path) -> None:
    done = export_savepoint(
        golden,
        str(tmp_path / "to"),
        selection=ExportSelection(operators=["by_long"], leave_out=[("by_long", "texts")]),
    )
    assert [operator.operator for operator in done.operators] == ["by_long"]
    reasons = {one.state: one.reason for one in done.left_out if one.operator == "by_long"}
    assert reasons == {"texts": "as requested"}
    assert {one.reason for one in done.left_out if one.operator != "by_long"} == {"not selected"}
    with pytest.raises(StateNotFoundError, match="no operator 'nobody'"):
        export_savepoint(
            golden, str(tmp_path / "no"), selection=ExportSelection(operators=["nobody"])
        )
    with pytest.raises(StateNotFoundError, match="'by_long/nothing' cannot be left out"):
        export_savepoint(
            golden,
            str(tmp_path / "no"),
            selection=ExportSelection(leave_out=[("by_long", "nothing")]),
        )


def test_changes_of_a_state_are_exported(tmp_path: Path) -> None:
    rows = pa.table({"key": list(range(100)), "value": [0] * 100})
    store = store_of(tmp_path / "store", rows)
    with store.snapshot(parallelism=2) as checkpoint:
        upserts = pa.table({"key": [1, 200], "value": [7, 8]})
        checkpoint.write_changes(
            "uid", "state", Changes(upserts=upserts, deletes=pa.table({"key": [2]}))
        )
    export_savepoint(store, str(tmp_path / "to"), max_parallelism=77)
    found: dict[int, int] = {}
    for one in rows_in(tmp_path / "to"):
        assert one.value is not None
        found |= dict(zip(one.key.to_pylist(), one.value.to_pylist(), strict=True))
    wanted = dict.fromkeys(range(100), 0) | {1: 7, 200: 8}
    del wanted[2]
    assert found == wanted


scalars = st.sampled_from(
    [
        (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
        (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
        (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=300)),
        (pa.float64(), st.floats()),
        (pa.bool_(), st.booleans()),
        (pa.binary(), st.binary(max_size=20)),
        (pa.decimal128(20, 4), st.decimals(-(10**15), 10**15, places=4)),
        (pa.date32(), st.dates()),
        (pa.timestamp("us"), st.datetimes()),
    ]
)
nested = st.recursive(
    scalars,
    lambda inner: st.one_of(
        inner.map(lambda one: (pa.list_(one[0]), st.lists(one[1], max_size=4))),
        inner.map(
            lambda one: (
                pa.map_(pa.string(), one[0]),
                st.dictionaries(st.text("abc", max_size=3), one[1] | st.none(), max_size=3).map(
                    lambda found: list(found.items())
                ),
            )
        ),
        st.tuples(inner, inner).map(
            lambda two: (
                pa.struct([("x", two[0][0]), ("y", two[1][0])]),
                st.fixed_dictionaries({"x": two[0][1] | st.none(), "y": two[1][1] | st.none()}),
            )
        ),
    ),
    max_leaves=4,
)


@st.composite
def states(draw: st.DrawFn) -> tuple[pa.Table, dict[str, Any]]:
    """Rows of any kind of state, and the state's declaration."""
    keys = {
        "number": st.integers(-50, 50),
        "name": st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    }
    key = draw(st.sampled_from([("number",), ("name",), ("number", "name")]))
    namespace = draw(st.sampled_from([(), ("start", "end"), ("space",)]))
    kind = draw(st.sampled_from(["value", "list", "map", "reducing", "timers"]))
    entry = {"list": ("at",), "map": ("item",), "timers": ("at",)}.get(kind, ())
    roles = keys | {
        "start": st.integers(0, 3),
        "end": st.integers(4, 6),
        "space": st.text("ab", max_size=200),
        "at": st.integers(-5, 5),
        "item": st.text("xyzü", max_size=3),
    }
    names = (*key, *namespace, *entry)
    types = {name: pa.string() for name in ("name", "space", "item")}
    fields = [(name, types.get(name, pa.int64())) for name in names]
    identity = st.tuples(*(roles[name] for name in names))
    rows = draw(st.lists(identity, unique=True, max_size=30))
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    if kind != "timers":
        for at in range(draw(st.integers(0, 2))):
            data_type, values = draw(nested)
            fields.append((f"v{at}", data_type))
            columns[f"v{at}"] = draw(st.lists(values, min_size=len(rows), max_size=len(rows)))
    arrays = [pa.array(columns[name], data_type) for name, data_type in fields]
    options: dict[str, Any] = {"key": key, "namespace": namespace, "kind": kind, "entry": entry}
    if kind == "timers":
        options["time_domain"] = "processing"
    return pa.table(arrays, schema=pa.schema(fields)), options


@given(
    state=states(),
    most=st.sampled_from([1, 100, 128, 129, 720, 32768]),
    parallelism=st.integers(1, 4),
)
def test_any_state_is_read_back(
    state: tuple[pa.Table, dict[str, Any]],
    most: int,
    parallelism: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The export compares the rows that it reads back. Here the counts are compared with
    the store.
    """
    folder = tmp_path_factory.mktemp("any")
    rows, options = state
    store = store_of(folder / "store", rows, **options)
    share = min(parallelism, most)
    done = export_savepoint(store, str(folder / "to"), max_parallelism=most, parallelism=share)
    assert sum(done.operators[0].rows) == len(rows)
    found = sum(
        sum(map(len, one.value))
        if options["kind"] == "list" and one.value is not None
        else len(one)
        for one in rows_in(folder / "to", name=done.operators[0].states[0].flink_name)
    )
    assert found == len(rows)


def refused(store: StateStore, folder: Path, **options: Any) -> UnsupportedTypeError:
    with pytest.raises(UnsupportedTypeError) as caught:
        export_savepoint(store, str(folder / "to"), **grouped(options, selection=ExportSelection))
    assert not any((folder / "to").glob("*"))
    return caught.value


def test_state_that_flink_cannot_have_is_refused_by_name(tmp_path: Path) -> None:
    null = pa.table({"key": [1, 2], "value": [1, None]})
    error = refused(store_of(tmp_path / "null", null), tmp_path)
    assert "state 'state' of operator 'uid': the column value cannot be written as Long" in str(
        error
    )
    times = pa.table({"key": [1], "value": pa.array([0], pa.timestamp("us"))})
    python = store_of(tmp_path / "python", times, hash_scheme="pyflink")
    error = refused(python, tmp_path)
    assert "'value': PyFlink has no coder for values of type LocalDateTime" in str(error)
    windows = pa.table({"key": [1], "start": [0], "end": [5], "value": [1]})
    options = {"namespace": ["start", "end"], "hash_scheme": "pyflink"}
    error = refused(store_of(tmp_path / "windows", windows, **options), tmp_path)
    assert "PyFlink windows cannot be written" in str(error)
    uuid = pa.table({"key": ["123e4567-e89b-12d3-a456-426614174000"], "value": [1]})
    error = refused(store_of(tmp_path / "uuid", uuid, key_types="UUID"), tmp_path)
    assert "the column 'key': a key that is hashed as UUID is written by Kryo" in str(error)
    timers = pa.table({"key": [1], "at": [5], "why": ["x"]})
    options = {"kind": "timers", "entry": "at", "time_domain": "event"}
    error = refused(store_of(tmp_path / "timers", timers, **options), tmp_path)
    assert "timers with the value column 'why'" in str(error)


def test_states_that_cannot_share_an_operator_are_refused(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), layout="ranged")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("uid", "a", pa.table({"key": [1]}), key="key", max_parallelism=MOST)
        checkpoint.write_keyed(
            "uid", "b", pa.table({"key": ["x"]}), key="key", max_parallelism=MOST
        )
        for name in ("c", "d"):
            rows = pa.table({"key": [1], "at": [5]})
            checkpoint.write_keyed(
                "timers",
                name,
                rows,
                kind="timers",
                key="key",
                entry="at",
                time_domain="event",
                max_parallelism=MOST,
            )
        offsets = [{"topic": "t", "partition": 0, "offset": 1}]
        checkpoint.write_split("source", "offsets", [offsets, []])
    error = refused(store, tmp_path, operators=["uid"])
    assert "keys of type String" in str(error)
    assert "_timer_state/event_user-timers" in str(refused(store, tmp_path, operators=["timers"]))
    error = refused(store, tmp_path, operators=["source"])
    assert "state 'offsets' of operator 'source' has Kafka offsets" in str(error)
    left = [("uid", "a"), ("timers", "c"), ("source", "offsets")]
    done = export_savepoint(store, str(tmp_path / "to"), selection=ExportSelection(leave_out=left))
    assert [operator.operator for operator in done.operators] == ["timers", "uid"]


def test_an_invalid_target_is_refused(golden: StateStore, tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "note").write_text("mine")
    with pytest.raises(InvalidArgumentError, match="is not empty"):
        export_savepoint(golden, str(used), target=TUPLED)
    assert [one.name for one in used.iterdir()] == ["note"]
    with pytest.raises(InvalidArgumentError, match="is inside"):
        export_savepoint(golden, str(tmp_path / "store" / "savepoint"))
    with pytest.raises(ParallelismError):
        export_savepoint(golden, str(tmp_path / "to"), parallelism=5, max_parallelism=4)
    with pytest.raises(InvalidArgumentError, match="no state is left"):
        export_savepoint(golden, str(tmp_path / "to"), selection=ExportSelection(operators=[]))
    wrong: list[dict[str, Any]] = [
        {"parallelism": 0},
        {"max_parallelism": 0},
        {"max_parallelism": 32769},
    ]
    for numbers in wrong:
        with pytest.raises(InvalidArgumentError, match=r"parallelism must be in 1\.\.32768, not"):
            export_savepoint(golden, str(tmp_path / "to"), **numbers)


def test_a_crash_leaves_no_savepoint(
    golden: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any number of written files, a folder without ``_metadata`` is not a savepoint."""
    real, files = SavepointWriter.write_file, [0]

    def crash(*_: Any) -> None:
        raise StorageError("the disk is gone")

    for survived in range(4):

        def file(writer: SavepointWriter, data: Any, survived: int = survived) -> Any:
            files[0] += 1
            return crash() if files[0] > survived else real(writer, data)

        files[0] = 0
        place = tmp_path / f"crash-{survived}"
        monkeypatch.setattr(SavepointWriter, "write_file", file)
        monkeypatch.setattr(SavepointWriter, "discard", lambda _: None)  # like a killed process
        with pytest.raises(StorageError):
            export_savepoint(golden, str(place), target=TUPLED)
        assert len(list(place.glob("*"))) == survived
        with pytest.raises(InvalidArgumentError, match="is not a Flink savepoint"):
            open_savepoint(str(place))


def test_an_export_that_fails_verification_is_deleted(
    golden: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = encode_rows

    def wrong(rows: pa.Table, *others: Any) -> Any:
        return real(rows.slice(1), *others)

    monkeypatch.setattr(export_keyed, "encode_rows", wrong)
    with pytest.raises(CorruptionError, match="rows were read back"):
        export_savepoint(golden, str(tmp_path / "to"), target=TUPLED)
    assert not any((tmp_path / "to").iterdir())


def test_rows_that_differ_from_the_stored_ones_are_not_written(
    golden: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RestoredKeyedState.key_groups

    def lose_rows(state: RestoredKeyedState, key_groups: KeyGroupRange) -> pa.RecordBatchReader:
        reader = real(state, key_groups)
        return pa.RecordBatchReader.from_batches(reader.schema, ())

    monkeypatch.setattr(RestoredKeyedState, "key_groups", lose_rows)
    with pytest.raises(CorruptionError, match="0 rows were read"):
        export_savepoint(golden, str(tmp_path / "to"), target=TUPLED)
    assert not any((tmp_path / "to").iterdir())


def entries_in(place: str) -> Counter[tuple[str, bytes, bytes]]:
    """Return all entries of keyed state in a savepoint."""
    return Counter(
        (f"{operator.title}/{entry.state.name}", key, value)
        for operator in open_savepoint(place).operators
        for entry in operator.entries()
        for key, value in zip(
            entry.keys.arrow().to_pylist(), entry.values.arrow().to_pylist(), strict=True
        )
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("most", "size"),
    [
        (128, 500),
        (300, 10_000),
        (128, 10_000),
        (300, 500),
    ],
)
def test_the_size_of_pieces_does_not_matter(
    golden: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, most: int
) -> None:
    whole = export_savepoint(
        golden,
        str(tmp_path / "whole"),
        target=TUPLED,
        max_parallelism=most,
        parallelism=3,
    )
    for module in (export_keyed, write):
        monkeypatch.setattr(module, "PIECE_BYTES", size)
    monkeypatch.setattr(export_keyed, "CHUNK_BYTES", size)
    monkeypatch.setattr(savepoint_files, "BLOCK_BYTES", max(size, 10))
    store = StateStore.open(golden.url, parquet=ParquetOptions(memory_bytes=2**16))
    done = export_savepoint(
        store,
        str(tmp_path / "pieces"),
        target=TUPLED,
        max_parallelism=most,
        parallelism=3,
    )
    assert done.operators == whole.operators
    assert entries_in(done.savepoint) == entries_in(whole.savepoint)
    states = [state for operator in done.operators for state in operator.states]
    copies = sum(one.rows for one in states if one.kind == "broadcast") * 2
    assert sum(sum(operator.rows) for operator in done.operators) == copies + sum(
        one.rows for one in states
    )
