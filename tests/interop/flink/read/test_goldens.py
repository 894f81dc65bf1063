"""Savepoints of real Flink: exactly the rows that Flink's own restore found are read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.errors import IncompatibleStateError, UnsupportedTypeError
from statestore.interop.flink.metadata.metadata_file import metadata_v3, read_metadata
from statestore.interop.flink.options import SavepointAccess
from statestore.interop.flink.read.keyed_states import SavepointRows
from statestore.interop.flink.read.operator_state import SOURCE_READER_STATE, kafka_splits
from statestore.interop.flink.read.savepoint import FlinkOperator, FlinkSavepoint, open_savepoint
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.column_bytes import encode_list
from statestore.interop.flink.types.java_types import ListType, MapType, TupleType
from statestore.jobgraph.operators import operator_id
from tests.interop.flink.goldens import GOLDENS, Golden, few
from tests.interop.flink.shown import as_text, shown

pytestmark = pytest.mark.slow

JOBS = [golden for golden in GOLDENS if "sql" not in golden.name]
QUERIES = [golden for golden in GOLDENS if "sql" in golden.name]

# States whose values stay bytes: Kryo's output, and subclasses that no header describes.
AS_BYTES = ("opaque", "person", "list_person")


def opened(golden: Golden, folder: Path) -> FlinkSavepoint:
    place = golden.unpack(folder)
    return open_savepoint(
        str(place), access=SavepointAccess(moved={golden.about["written_at"]: str(folder)})
    )


@pytest.mark.long_cases("1.20_heap_snappy", "2.3_heap_canonical", "2.3_kafka")
@pytest.mark.parametrize("golden", few(JOBS))
def test_every_row_and_every_element_is_read(golden: Golden, tmp_path: Path) -> None:
    savepoint, rows = opened(golden, tmp_path), golden.rows()
    check_keyed_state(golden, savepoint, rows)
    check_operator_state(savepoint, [row for row in rows if "mode" in row])


def check_keyed_state(
    golden: Golden, savepoint: FlinkSavepoint, stored: list[dict[str, Any]]
) -> None:
    wanted: dict[str, Counter[str]] = defaultdict(Counter)
    for row in stored:
        if ("state" in row or "timer" in row) and "mode" not in row:
            wanted[row["operator"]][as_text(row)] += 1
    for uid, rows in wanted.items():
        operator = operator_of(savepoint, uid)
        if uid == "kinds" and "heap_native" in golden.name:
            with pytest.raises(UnsupportedTypeError, match="take a canonical savepoint"):
                list(operator.rows())
            continue
        found = Counter(as_text({"operator": uid, **row}) for row in rows_of(operator))
        assert known(found) == known(rows)
        assert sum(found.values()) == sum(rows.values())


def operator_of(savepoint: FlinkSavepoint, uid: str) -> FlinkOperator:
    """Find an operator by its uid, or by the uid's hash in versions without uids."""
    operator = savepoint.operator(uid)
    assert operator.problem is None
    assert operator.metadata.uid in (uid, None)
    return operator


def known(rows: Counter[str]) -> Counter[str]:
    """Omit rows that are bytes."""
    hidden = tuple(f'"state":"{name}"' for name in AS_BYTES)
    return Counter({row: n for row, n in rows.items() if not any(one in row for one in hidden)})


def rows_of(operator: FlinkOperator) -> list[dict[str, Any]]:
    """Return all rows of an operator. A map has one row per key, with all its entries."""
    found: list[dict[str, Any]] = []
    maps: dict[str, dict[str, Any]] = {}
    for rows in operator.rows(as_bytes=AS_BYTES):
        if rows.state.name == "merging-window-set":
            continue  # an internal state that no function of a job can request
        for row in shown_rows(rows):
            if rows.state.kind == "map":
                place = as_text({**row, "value": None})
                if place in maps:
                    maps[place]["value"] += row["value"]
                    continue
                maps[place] = row
            found.append(row)
    for row in maps.values():
        row["value"].sort(key=as_text)
    return found


def shown_rows(rows: SavepointRows) -> Iterator[dict[str, Any]]:
    state, group = rows.state, rows.key_group
    keys, namespaces = shown(rows.key, state.key), shown(rows.namespace, state.namespace)
    places = [
        {"group": group, "key": key, "namespace": namespace}
        for key, namespace in zip(keys, namespaces, strict=True)
    ]
    if rows.time is not None:
        which = "event" if "event" in state.name else "processing"
        for place, time in zip(places, rows.time.to_pylist(), strict=True):
            yield {"timer": which, **place, "time": time}
        return
    values = shown_values(rows)
    for place, value in zip(places, values, strict=True):
        yield {"state": state.name, **place, "value": value}


def shown_values(rows: SavepointRows) -> list[Any]:
    state, value = rows.state, rows.value
    assert value is not None
    if state.name in AS_BYTES:
        return [raw.hex() for raw in value.to_pylist()]
    kind: FlinkType = state.value
    if rows.map_key is not None and isinstance(kind, MapType):
        keys, items = shown(rows.map_key, kind.key), shown(value, kind.value)
        return [[[key, item]] for key, item in zip(keys, items, strict=True)]
    if isinstance(kind, ListType) and state.kind == "list":
        kind = ListType(kind.element)
    return shown(value, kind)


def check_operator_state(savepoint: FlinkSavepoint, rows: list[dict[str, Any]]) -> None:
    operators = {row["operator"]: operator_of(savepoint, row["operator"]) for row in rows}
    parts = {uid: [*operator.operator_state()] for uid, operator in operators.items()}
    for row in rows:
        found = [one for one in parts[row["operator"]] if one.info.name == row["state"]]
        assert {one.info.mode for one in found} == {row["mode"]}
        values = []
        for one in found:
            if row["mode"] == "split" and one.subtask != row["subtask"]:
                continue
            kind = one.info.value
            if one.info.key is not None:
                kind = TupleType("", (one.info.key, one.info.value))
            values += shown(one.values(), kind)
        if row["mode"] == "broadcast":
            values = sorted({as_text(value): value for value in values}.values(), key=as_text)
        if row["mode"] == "union":
            # Each subtask that received all elements keeps them all. The rows have each element
            # once.
            assert sorted({*map(as_text, values)}) == sorted(map(as_text, row["values"]))
        else:
            assert values == row["values"]


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda one: one.name)
def test_metadata_is_written_as_version_3_and_read_again(golden: Golden, tmp_path: Path) -> None:
    data = (golden.unpack(tmp_path) / "_metadata").read_bytes()
    found = read_metadata(data, "m")
    again = read_metadata(metadata_v3(found), "m")
    assert [operator.subtasks for operator in again.operators] == [
        operator.subtasks for operator in found.operators
    ]
    assert [operator.coordinator for operator in again.operators] == [
        operator.coordinator for operator in found.operators
    ]


@pytest.mark.long_cases("1.20_sql_native", "2.3_sql", "1.20_sql")
@pytest.mark.parametrize("golden", QUERIES, ids=lambda one: one.name)
def test_state_of_sql_is_read(golden: Golden, tmp_path: Path) -> None:
    savepoint = opened(golden, tmp_path)
    rows = 0
    for operator in savepoint.operators:
        assert operator.problem is None
        for state in operator.states:
            stored = stored_bytes(operator, state.name)
            for row in operator.rows(state.name):
                rows += len(row)
                if row.value is not None and state.kind != "map":
                    assert state.value.write(row.value).equals(stored[row.key_group])
    assert rows > 100


@pytest.mark.long
def test_values_of_keyed_state_are_written_as_they_were(tmp_path: Path) -> None:
    savepoint = opened(Golden("2.3_rocksdb_canonical"), tmp_path)
    tried = 0
    for operator in savepoint.operators:
        stored = {state.name: stored_bytes(operator, state.name) for state in operator.states}
        for rows in operator.rows(as_bytes=["opaque"]):
            kind = rows.state.value
            if rows.value is None or rows.state.kind == "map" or rows.state.name == "opaque":
                continue
            if rows.state.kind == "list" and isinstance(kind, ListType):
                found = encode_list(rows.value, kind.element)
            else:
                found = kind.write(rows.value)
            assert found.equals(stored[rows.state.name][rows.key_group]), rows.state.name
            tried += len(rows)
    assert tried > 1000


def stored_bytes(operator: FlinkOperator, name: str) -> dict[int, pa.Array]:
    """Return the values of a state by key group, as stored in the savepoint."""
    parts: dict[int, list[pa.Array]] = defaultdict(list)
    for entries in operator.entries(name):
        parts[entries.key_group].append(entries.values.arrow())
    return {
        group: pa.concat_arrays(arrays).cast(pa.large_binary()) for group, arrays in parts.items()
    }


def test_the_source_has_its_splits(tmp_path: Path) -> None:
    (golden,) = (one for one in GOLDENS if one.name == "2.3_heap_canonical")
    operator = opened(golden, tmp_path).operator("numbers")
    (found,) = operator.operator_state()
    assert found.info.name == SOURCE_READER_STATE
    assert found.values().type == pa.binary()
    assert operator.metadata.coordinator is not None


def test_offsets_of_kafka_are_read(tmp_path: Path) -> None:
    operator = opened(Golden("2.3_kafka"), tmp_path).operator("kafka")
    found = [kafka_splits(one.values(), one.raw.name) for one in operator.operator_state()]
    splits = sorted((one for part in found for one in part), key=lambda one: one.partition)
    assert [(split.topic, split.partition, split.offset) for split in splits] == [
        ("orders", 0, 50),
        ("orders", 1, 30),
        ("orders", 2, -2),
    ]
    numbers = opened(Golden("2.3_heap_canonical"), tmp_path / "other").operator("numbers")
    (other,) = numbers.operator_state()
    with pytest.raises(UnsupportedTypeError, match="a source other than Kafka"):
        kafka_splits(other.values(), "splits")


def test_raw_state_is_refused_by_name(tmp_path: Path) -> None:
    (golden,) = (one for one in GOLDENS if one.name == "2.3_heap_canonical")
    folder = golden.unpack(tmp_path)
    data = read_metadata((folder / "_metadata").read_bytes(), "m")
    operators = [
        replace(one, subtasks=tuple(replace(sub, raw_keyed=sub.keyed) for sub in one.subtasks))
        for one in data.operators
    ]
    (folder / "_metadata").write_bytes(metadata_v3(replace(data, operators=tuple(operators))))
    operator = open_savepoint(str(folder)).operator(operator_id("by_long"))
    assert operator.problem is not None
    assert "raw state" in operator.problem
    with pytest.raises(IncompatibleStateError, match="raw state"):
        list(operator.rows())
