"""Savepoints become checkpoints of a store: every row of real Flink is in its key group there."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statestore import OperatorKey, StateStore
from statestore.errors import (
    DamagedFileError,
    InvalidArgumentError,
    StateNotFoundError,
    StateStoreError,
    UnsupportedTypeError,
)
from statestore.format.state import StateKind
from statestore.interop.flink import ImportedSavepoint, import_savepoint, open_savepoint
from statestore.interop.flink.columns.state_columns import EntryForm
from statestore.interop.flink.importing.import_operators import element_columns
from statestore.interop.flink.importing.import_record import ImportedState, SavepointRecord
from statestore.interop.flink.options import SavepointAccess, SavepointHints
from statestore.interop.flink.read.keyed_states import SavepointRows
from statestore.interop.flink.types.java_types import TupleType
from statestore.jobgraph.operators import operator_id
from statestore.restore.restored import RestoredCheckpoint
from tests.interop.flink.goldens import GOLDENS, Golden, few
from tests.interop.flink.read.test_goldens import shown_rows
from tests.interop.flink.shown import as_text, shown
from tests.support.options import grouped

pytestmark = pytest.mark.slow

JOBS = [one for one in GOLDENS if "sql" not in one.name and "kafka" not in one.name]
QUERIES = [one for one in GOLDENS if "sql" in one.name]
UIDS = ("numbers", "kinds", "by_long", "by_tuple", "parts", "sums", "lists", "sessions")
CANONICAL = Golden("2.3_heap_canonical")
# The reader's own tests cover more of them in each run.
IN_EACH_RUN = ("2.3_heap_native", "1.20_rescaled", "2.3_sql")


def imported(
    golden: Golden, folder: Path, store: StateStore | None = None, **options: Any
) -> tuple[StateStore, ImportedSavepoint]:
    """Import a golden, with the uids of its operators, into a store."""
    place = golden.unpack(folder / golden.name)
    store = store or StateStore.open(str(folder / "store"), table_format="parquet")
    known = {operator.metadata.id for operator in open_savepoint(str(place)).operators}
    uids = {operator_id(uid): uid for uid in UIDS if operator_id(uid) in known}
    moved = {golden.about["written_at"]: str(folder / golden.name)}
    hints = SavepointHints(uids=uids)
    arguments = grouped({"hints": hints, **options}, hints=SavepointHints)
    done = import_savepoint(str(place), store, access=SavepointAccess(moved=moved), **arguments)
    return store, done


def rows_by_group(
    restored: RestoredCheckpoint, record: SavepointRecord, one: ImportedState
) -> Iterator[SavepointRows]:
    """Yield the rows of a stored state in the form in which they were read from the savepoint."""
    (operator,) = (each for each in record.operators if each.operator == one.operator)
    columns = one.columns(operator.max_parallelism)
    state = restored.keyed(one.operator, one.state)
    for subtask in range(restored.parallelism_of(one.operator)):
        table = state.to_arrow(subtask)
        groups = np.asarray(table.column("key_group"))
        for group in np.unique(groups).tolist():
            rows, _ = columns.rows(table.filter(pa.array(groups == group)))
            yield replace(rows, key_group=group)


def words(rows: SavepointRows) -> list[dict[str, Any]]:
    """Return rows in the form of the goldens, with structs where the goldens have them."""
    name = rows.state.name
    found = list(shown_rows(replace(rows, state=replace(rows.state, name="-"))))
    event = "event" if "event" in name else "processing"
    return [one | {"timer": event} if "timer" in one else one | {"state": name} for one in found]


@pytest.mark.long_cases("1.20_rescaled")
@pytest.mark.parametrize("golden", few(JOBS, IN_EACH_RUN))
def test_every_row_of_keyed_state_is_in_the_store(golden: Golden, tmp_path: Path) -> None:
    store, done = imported(golden, tmp_path)
    restored = store.restore()
    record = SavepointRecord.of(restored)
    assert record == done.record
    wanted: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in golden.rows():
        if ("state" in row or "timer" in row) and "mode" not in row:
            wanted[row["operator"], row.get("state") or row["timer"]][as_text(row)] += 1
    problems = {one.operator: one.problem for one in record.operators if one.problem is not None}
    assert [*problems] == (["kinds"] if "heap_native" in golden.name else [])
    assert all("so its end is unknown" in problem for problem in problems.values())
    assert problems.keys().isdisjoint({state.operator for state in record.states})
    as_bytes = set()
    for state in record.states:
        if not state.is_keyed or state.name == "merging-window-set":
            continue
        found: Counter[str] = Counter()
        if state.form is EntryForm.COLUMNS:
            found = rows_in_words(restored, record, state)
        else:
            as_bytes.add(state.name)
        timer = "event" if "event" in state.name else "processing"
        name = timer if state.kind == "timers" else state.name
        rows = wanted.pop((state.operator, name), Counter())
        if state.form is EntryForm.COLUMNS:
            assert found == rows, state.name
        else:
            assert state.rows == sum(rows.values())
    assert {operator for operator, _ in wanted} == problems.keys()
    assert as_bytes <= {"opaque", "person"}


def rows_in_words(
    restored: RestoredCheckpoint, record: SavepointRecord, one: ImportedState
) -> Counter[str]:
    found: Counter[str] = Counter()
    maps: dict[str, dict[str, Any]] = {}
    for rows in rows_by_group(restored, record, one):
        for row in words(rows):
            row = {"operator": one.operator} | row
            if one.kind != "map":
                found[as_text(in_order(row))] += 1
                continue
            place = as_text({**row, "value": None})
            if place in maps:
                maps[place]["value"] += row["value"]
            else:
                maps[place] = row
    for row in maps.values():
        row["value"].sort(key=as_text)
        found[as_text(in_order(row))] += 1
    return found


def in_order(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its parts in the order of the golden."""
    order = ("operator", "state", "timer", "group", "key", "namespace", "value", "time")
    return {name: row[name] for name in order if name in row}


@pytest.mark.parametrize("golden", few(JOBS, IN_EACH_RUN))
def test_every_element_of_operator_state_is_in_the_store(golden: Golden, tmp_path: Path) -> None:
    store, done = imported(golden, tmp_path, operators=["parts", "numbers"])
    restored = store.restore()
    by_name = {(one.operator, one.name): one for one in done.record.states}
    for row in golden.rows():
        if "mode" not in row or row["operator"] != "parts":
            continue
        one = by_name[row["operator"], row["state"]]
        assert one.sort == row["mode"]
        key = one.info.serializers.get("KEY_SERIALIZER")
        value = one.info.serializers["VALUE_SERIALIZER"].flink_type
        columns = element_columns(value, None if key is None else key.flink_type, dict(one.names))
        state = restored.operator_state("parts", one.state)
        elements = state.per_old_subtask()
        at = {"broadcast": 0}.get(one.sort, row["subtask"])
        of = [element for some in elements for element in some]
        of = elements[at] if one.sort != "union" else of
        schema = pa.schema(
            [
                pa.field(name, kind)
                for part in columns.values()
                for name, kind in zip(part.names, part.types, strict=True)
            ]
        )
        batch = pa.RecordBatch.from_pylist(of, schema)
        arrays = {part: some.values(batch) for part, some in columns.items()}
        if key is None:
            values = shown(arrays["value"], value)
        else:
            pairs = pa.StructArray.from_arrays([*arrays.values()], ["f0", "f1"])
            values = sorted(shown(pairs, TupleType("", (key.flink_type, value))), key=as_text)
        if one.sort == "union":
            assert sorted({*map(as_text, values)}) == sorted(map(as_text, row["values"]))
        else:
            assert values == row["values"]


@pytest.mark.long
@pytest.mark.parametrize("golden", few(QUERIES))
def test_state_of_sql_is_in_the_store(golden: Golden, tmp_path: Path) -> None:
    """Its rows equal the reader's, and each is in its key group."""
    store, done = imported(golden, tmp_path)
    restored = store.restore()
    moved = {golden.about["written_at"]: str(tmp_path / golden.name)}
    savepoint = open_savepoint(done.place, access=SavepointAccess(moved=moved))
    ids = {one.operator: one.id for one in done.record.operators}
    in_bytes = []
    for state in done.record.states:
        if not state.is_keyed:
            continue
        operator = savepoint.operator(ids[state.operator])
        if state.form is not EntryForm.COLUMNS:
            in_bytes.append(state.name)
            continue
        wanted = Counter(
            as_text((rows.key_group, row))
            for rows in operator.rows(state.name)
            for row in plain(rows)
        )
        found = Counter(
            as_text((rows.key_group, row))
            for rows in rows_by_group(restored, done.record, state)
            for row in plain(rows)
        )
        assert found == wanted, state.name
    assert in_bytes == ["accState"] * len(in_bytes)
    assert len(in_bytes) <= 2
    assert store.maintenance.verify(deep=True).is_intact


def plain(rows: SavepointRows) -> list[Any]:
    columns = [rows.key, rows.namespace, rows.map_key, rows.value, rows.time]
    some = [column.to_pylist() for column in columns if column is not None]
    return [str(row) for row in zip(*some, strict=True)]


def test_splits_of_kafka_have_offsets(tmp_path: Path) -> None:
    store, done = imported(Golden("2.3_kafka"), tmp_path)
    (one,) = done.record.states
    restored = store.restore()
    splits = restored.operator_state(one.operator, one.state).per_old_subtask()
    offsets = restored.operator_state(one.operator, "offsets").subtask(0)
    assert sum(map(len, splits)) == 3
    found = {(offset["topic"], offset["partition"], offset["offset"]) for offset in offsets}
    # The third partition was not read yet, and its split contains "earliest".
    assert found == {("orders", 0, 50), ("orders", 1, 30)}
    (operator,) = (each for each in done.record.operators if each.operator == one.operator)
    assert operator.coordinator is not None


@pytest.mark.long
def test_an_imported_store_supports_all_operations(tmp_path: Path) -> None:
    store, done = imported(CANONICAL, tmp_path)
    assert (done.checkpoint_id, done.found, done.is_incremental) == (1, False, False)
    assert store.maintenance.verify(deep=True).is_intact
    rows = store.restore().keyed("by_tuple", "last").to_arrow(0).to_pylist()
    wanted = {key: rows[0][key] for key in ("key_f0", "key_f1")}
    for parallelism in (1, 5, 77):
        restored = store.restore(parallelism=parallelism)
        state = restored.keyed("by_tuple", "last")
        parts = [state.to_arrow(subtask) for subtask in range(parallelism)]
        assert sum(part.num_rows for part in parts) == 122
        assert [one["value"] for one in state.get(wanted)] == [rows[0]["value"]]
    kinds = {one.state: one.kind for one in done.record.states if one.operator == "kinds"}
    assert kinds["reducing"] == StateKind.REDUCING
    assert kinds["aggregating"] == StateKind.AGGREGATING
    query = 'select count(*) as n, sum(value) as total from "by_long"."last"'
    assert store.query(query).read_all().to_pylist()[0]["n"] == 109
    windows = store.restore().keyed("sums", "window-contents").entry.state
    assert windows.namespace == ("window_start", "window_end")


@pytest.mark.long
def test_a_key_is_purged(tmp_path: Path) -> None:
    store, _ = imported(CANONICAL, tmp_path)
    (row, *_) = store.restore().keyed("by_long", "last").to_arrow(0).to_pylist()
    store.maintenance.forget(OperatorKey("by_long", row["key"]), search=False)
    assert store.restore().keyed("by_long", "last").get(row["key"]) == []


@pytest.mark.long
def test_names_and_ttls_can_be_declared(tmp_path: Path) -> None:
    columns = {
        "by_tuple": {"key": ["user", "item"], "states": {"last": {"value": "amount"}}},
        "kinds": {"states": {"tuple": {"value": ["a", "A2", "b"]}}},
    }
    lifetime = timedelta(milliseconds=10**15)
    store, done = imported(
        CANONICAL, tmp_path, columns=columns, ttl={"ttl_value": lifetime, "kinds/ttl_map": lifetime}
    )
    restored = store.restore()
    last = restored.keyed("by_tuple", "last").entry.state
    assert (last.key, last.values) == (("user", "item"), ("amount",))
    assert restored.keyed("by_tuple", "texts").entry.state.key == ("user", "item")
    assert restored.keyed("kinds", "tuple").entry.state.values == ("a", "A2", "b")
    ttl = restored.keyed("kinds", "ttl_value").entry.state.ttl
    assert ttl is not None
    assert (ttl.duration_ms, ttl.column) == (10**15, "last_access")
    assert restored.keyed("kinds", "ttl_list").entry.state.ttl is None
    assert "last_access" in restored.keyed("kinds", "ttl_list").entry.state.values
    assert done.record == SavepointRecord.of(restored)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"by_tuple": {"key": ["user"]}}, "1 names for the key, but it has 2 columns"),
        ({"by_tuple": {"key": ["user", "USER"]}}, "occurs twice"),
        ({"by_tuple": {"key": ["user", "Key_Group"]}}, "reserved for the store"),
        ({"by_tuple": {"value": 7}}, "value = 7"),
        ({"by_tuple": {"states": {"nothing": {}}}}, "no keyed state 'nothing'"),
        ({"nobody": {}}, "no operator 'nobody'"),
    ],
)
def test_invalid_names_are_refused(columns: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidArgumentError, StateNotFoundError), match=why):
        imported(CANONICAL, tmp_path, columns=columns)
    assert not (tmp_path / "store").exists()


def test_strict_refuses_bytes_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTypeError, match=r"state 'opaque' of operator kinds: .*Kryo"):
        imported(CANONICAL, tmp_path, strict=True)
    assert not (tmp_path / "store").exists()
    _, done = imported(CANONICAL, tmp_path, strict=True, operators=["by_long", "by_tuple"])
    assert {state.operator for state in done.record.states} == {"by_long", "by_tuple"}


def test_strict_refuses_values_found_to_be_bytes_while_reading(tmp_path: Path) -> None:
    """No header describes the subclass, so the reader finds it among the rows."""
    golden = CANONICAL
    place = golden.unpack(tmp_path / "s")
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with pytest.raises(UnsupportedTypeError):
        import_savepoint(str(place), store, strict=True, operators=["kinds"])
    assert not list(tmp_path.glob("store/checkpoints/*"))


def test_an_unreadable_operator_is_an_error_if_it_is_requested(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTypeError, match="cannot read operator kinds"):
        imported(Golden("2.3_heap_native"), tmp_path, operators=["kinds"])


def test_ttls_of_unknown_states_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StateNotFoundError, match="kinds/ttl_value"):
        imported(CANONICAL, tmp_path, ttl={"long": "5ms"})


@pytest.mark.parametrize(
    "operators",
    [["by_long", "by_tuple", "parts"], pytest.param([], id="all", marks=pytest.mark.long)],
)
def test_a_savepoint_is_recognized_and_a_later_one_is_imported_as_changes(
    tmp_path: Path, operators: list[str]
) -> None:
    store, first = imported(CANONICAL, tmp_path, operators=operators)
    _, again = imported(CANONICAL, tmp_path, store, operators=operators)
    assert (again.checkpoint_id, again.found, again.record) == (1, True, first.record)

    later = Golden("2.3_rescaled")
    _, done = imported(later, tmp_path, store, operators=operators)
    assert (done.checkpoint_id, done.found, done.is_incremental) == (2, False, True)
    assert store.maintenance.verify(deep=True).is_intact
    fresh, alone = imported(later, tmp_path / "fresh", operators=operators)
    forms = {state.state: state.form for state in alone.record.states}
    for state in done.record.states:
        if state.is_keyed and state.form == forms[state.state]:  # "person" did not change
            digests = {
                each.restore().keyed(state.operator, state.state).digest for each in (store, fresh)
            }
            assert digests == {state.digest}
    differing = store.inspect.diff(1, 2)
    assert differing.differs
    with pytest.raises(InvalidArgumentError, match="later than"):
        imported(CANONICAL, tmp_path, store, operators=operators)


@pytest.mark.long
def test_an_aggregate_over_all_rows_keeps_one_subtask(tmp_path: Path) -> None:
    """Flink's planner gives it a max parallelism of 1. All other operators accept a new one."""
    store, done = imported(Golden("2.3_sql"), tmp_path)
    most = {operator.operator: operator.max_parallelism for operator in done.record.operators}
    keyed = {one.operator for one in done.record.states if one.is_keyed}
    restored = store.restore(parallelism=3)
    assert {restored.parallelism_of(one) for one in keyed if most[one] == 1} == {1}
    assert {restored.parallelism_of(one) for one in keyed if most[one] > 1} == {3}
    for one in done.record.states:
        if one.is_keyed:
            state = restored.keyed(one.operator, one.state)
            subtasks = range(restored.parallelism_of(one.operator))
            assert sum(len(state.to_arrow(at)) for at in subtasks) == one.rows
    plan = store.plan(parallelism="auto", bytes_per_task=1000)
    assert max(len(operator.subtasks) for operator in plan.operators) > 1


def test_a_store_with_other_content_is_refused(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", [{"k": 1}], key="k")
    with pytest.raises(InvalidArgumentError, match="was not imported from a Flink savepoint"):
        imported(CANONICAL, tmp_path, store)
    other = StateStore.open(str(tmp_path / "sql"), table_format="parquet")
    imported(Golden("2.3_kafka"), tmp_path, other)
    with pytest.raises(InvalidArgumentError, match="another job"):
        imported(Golden("2.3_sql"), tmp_path, other)


def test_damage_is_an_error_without_a_checkpoint(tmp_path: Path) -> None:
    golden = Golden("2.3_rocksdb_canonical")
    place = golden.unpack(tmp_path / "s")
    files = sorted(one for one in place.iterdir() if one.name != "_metadata")
    assert files
    for file in files:
        data = bytearray(file.read_bytes())
        file.write_bytes(data[: len(data) - len(data) // 4])
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with pytest.raises(StateStoreError):
        import_savepoint(str(place), store)
    assert not list(tmp_path.glob("store/checkpoints/*.json"))
    assert not list(tmp_path.glob("store/operators/**/*.parquet"))


def test_a_flipped_key_is_an_error(tmp_path: Path) -> None:
    golden = Golden("2.3_rocksdb_canonical")
    place = golden.unpack(tmp_path / "s")
    savepoint = open_savepoint(str(place))
    entries = next(savepoint.operator("by_long").entries("last"))
    at = entries.keys.base + int(entries.keys.ends[0]) - 2  # the last byte of the key, a Long
    name = Path(entries.keys.name.partition(" (")[0]).name
    file = place / name
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with pytest.raises(DamagedFileError):
        import_savepoint(str(place), store, operators=["by_long"])


def test_progress_is_reported(tmp_path: Path) -> None:
    told: list[tuple[float, float, str]] = []
    imported(
        CANONICAL,
        tmp_path,
        operators=["by_long"],
        on_progress=lambda done, total, what: told.append((done, total, what)),
    )
    shares = [done for done, _, _ in told]
    assert shares == sorted(shares)
    assert {0, 1, 2, 3, 4} <= {*shares}
    assert sum(0 < share < 1 for share in shares) > 50  # the key groups of the first state
    assert {what for share, _, what in told if share < 1} == {"last of by_long"}


@pytest.mark.long
def test_the_record_contains_the_headers(tmp_path: Path) -> None:
    """It repeats them exactly, so that a savepoint can be written from the record."""
    store, done = imported(CANONICAL, tmp_path)
    record = SavepointRecord.of(store.restore())
    savepoint = open_savepoint(done.place)
    for state in record.states:
        if not state.is_keyed:
            continue
        operator = savepoint.operator(state.operator)
        infos = [info for part in operator.parts for info in part.header.states]
        assert state.info in infos
        assert state.key == operator.parts[0].header.key
    operators = {one.operator: one for one in record.operators}
    assert operators["numbers"].coordinator is not None
    assert operators["by_long"].max_parallelism == 300
    assert json.loads(json.dumps(operators["kinds"].id)) == operator_id("kinds")
