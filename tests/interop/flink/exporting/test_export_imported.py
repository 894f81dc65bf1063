"""An import followed by an export gives the same savepoint: every entry is equal byte for byte."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from statestore.interop.flink import ExportedSavepoint, export_savepoint, import_savepoint
from statestore.interop.flink.options import ExportSelection, SavepointAccess, SavepointHints
from statestore.interop.flink.read.canonical import prefix_bytes
from statestore.interop.flink.read.operator_state import kafka_splits
from statestore.interop.flink.read.savepoint import FlinkOperator, open_savepoint
from statestore.store import StateStore
from tests.interop.flink.goldens import GOLDENS, Golden, few
from tests.support.options import grouped

pytestmark = pytest.mark.slow

Entry = tuple[str, int | None, bytes, bytes]
# Kryo values in the hashmap backend's own format have no length.
WHOLE = [one for one in GOLDENS if not one.name.endswith("heap_native")]


def entries(operator: FlinkOperator, *, with_groups: bool = True) -> Counter[Entry]:
    """Return the entries of an operator, without the bytes after a null in a map."""
    prefix = prefix_bytes(operator.metadata.max_parallelism)
    found: Counter[Entry] = Counter()
    for entry in operator.entries():
        group = entry.key_group if with_groups else None
        values = entry.values.arrow().to_pylist()
        for key, value in zip(entry.keys.arrow().to_pylist(), values, strict=True):
            is_null = entry.state.kind == "map" and value[:1] == b"\1"
            found[entry.state.name, group, key[prefix:], b"\1" if is_null else value] += 1
    return found


def elements(operator: FlinkOperator) -> Counter[tuple[str, str, bytes]]:
    """Return the elements of operator state from any subtask, and broadcast state once."""
    found: Counter[tuple[str, str, bytes]] = Counter()
    for one in operator.operator_state():
        raw = one.raw.arrow().to_pylist()
        if one.info.mode == "broadcast":
            found[one.info.name, one.info.mode, b"".join(raw)] = 1
        else:
            found.update((one.info.name, one.info.mode, element) for element in raw)
    return found


def there_and_back(golden: Golden, folder: Path, **options: Any) -> tuple[Path, ExportedSavepoint]:
    source = golden.unpack(folder / "from")
    moved = {golden.about["written_at"]: str(folder / "from")}
    store = StateStore.open(str(folder / "store"), layout="ranged")
    import_savepoint(str(source), store, access=SavepointAccess(moved=moved))
    return source, export_savepoint(
        store, str(folder / "to"), **grouped(options, selection=ExportSelection)
    )


@pytest.mark.long_cases("1.20_heap_snappy", "2.3_sql")
@pytest.mark.parametrize("golden", few(WHOLE, ("1.20_heap_snappy", "2.3_sql", "2.3_kafka")))
def test_every_byte_survives_a_round_trip(golden: Golden, tmp_path: Path) -> None:
    source, done = there_and_back(golden, tmp_path)
    moved = {golden.about["written_at"]: str(tmp_path / "from")}
    before, after = (
        open_savepoint(str(source), access=SavepointAccess(moved=moved)),
        open_savepoint(done.savepoint),
    )
    made = {one.metadata.id: one for one in after.operators}
    assert set(made) == {one.metadata.id for one in before.operators}
    for operator in before.operators:
        again = made[operator.metadata.id]
        for name in ("parallelism", "max_parallelism", "coordinator", "is_finished"):
            assert getattr(again.metadata, name) == getattr(operator.metadata, name)
        assert entries(again) == entries(operator)
        assert elements(again) == elements(operator)
        known = {one.name: one for part in operator.parts for one in part.header.states}
        for part in again.parts:
            for state in part.header.states:
                assert state.serializers.keys() == known[state.name].serializers.keys()
                assert state.options == known[state.name].options


@pytest.mark.long
def test_at_another_number_of_key_groups(tmp_path: Path) -> None:
    """Entries that are stored as bytes move as well, because their keys are texts."""
    golden = Golden("2.3_rocksdb_canonical")
    source, done = there_and_back(golden, tmp_path, max_parallelism=720, parallelism=3)
    made = {one.metadata.id: one for one in open_savepoint(done.savepoint).operators}
    for operator in open_savepoint(str(source)).operators:
        again = made[operator.metadata.id]
        assert entries(again, with_groups=False) == entries(operator, with_groups=False)
        if again.parts:
            assert again.metadata.max_parallelism == 720


@pytest.mark.long
def test_selected_operators(tmp_path: Path) -> None:
    """The import records the savepoint's other operators, and the export does not require them."""
    _, done = there_and_back(Golden("2.3_heap_canonical"), tmp_path, operators=["kinds"])
    assert [operator.operator for operator in done.operators] == ["kinds"]
    assert {one.reason for one in done.left_out} == {"not selected"}
    assert [operator.metadata.id for operator in open_savepoint(done.savepoint).operators] == [
        done.operators[0].operator_id
    ]


def test_moved_kafka_offsets_are_in_the_splits(tmp_path: Path) -> None:
    """One offset is rewound and one is unchanged. The partition without records keeps its start
    position.
    """
    golden = Golden("2.3_kafka")
    store = StateStore.open(str(tmp_path / "store"))
    import_savepoint(str(golden.unpack(tmp_path / "from")), store)
    rewound = [{"topic": "orders", "partition": 0, "offset": 7}]
    kept = [{"topic": "orders", "partition": 1, "offset": 30}]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_union("kafka", "offsets", [rewound + kept])
        checkpoint.carry_rest()
    done = export_savepoint(store, str(tmp_path / "to"))
    (left,) = done.left_out
    assert (left.operator, left.state) == ("kafka", "offsets")
    operator = open_savepoint(done.savepoint).operator("kafka")
    splits = [
        split for one in operator.operator_state() for split in kafka_splits(one.values(), "splits")
    ]
    assert sorted((one.partition, one.offset) for one in splits) == [(0, 7), (1, 30), (2, -2)]


def lists_in(place: str, name: str) -> Counter[str]:
    """Return the values of a list state's lists."""
    (operator,) = (
        one
        for one in open_savepoint(place).operators
        if any(state.name == name for part in one.parts for state in part.header.states)
    )
    return Counter(
        str(value)
        for rows in operator.rows(name)
        if rows.value is not None
        for value in rows.value.to_pylist()
    )


@pytest.mark.long
def test_a_list_that_lost_elements_is_exported(tmp_path: Path) -> None:
    """A savepoint has no positions, so the gaps that an edit leaves are closed."""
    there_and_back(Golden("2.3_heap_canonical"), tmp_path)
    store = StateStore.open(str(tmp_path / "store"))
    lists: dict[str, list[int]] = {}
    for row in store.restore().keyed("kinds", "list_long").to_arrow().to_pylist():
        lists.setdefault(row["key"], []).append(row["value"])
    sql = "SELECT * FROM state WHERE position % 3 <> 0"
    store.maintenance.edit("kinds", "list_long", sql=sql)
    done = export_savepoint(store, str(tmp_path / "without"))
    left = [[v for at, v in enumerate(values) if at % 3] for values in lists.values()]
    assert lists_in(done.savepoint, "list_long") == Counter(str(one) for one in left if one)


@pytest.mark.long
def test_a_list_whose_first_elements_expired_is_exported(tmp_path: Path) -> None:
    golden = Golden("2.3_heap_canonical")
    source = golden.unpack(tmp_path / "from")
    store = StateStore.open(str(tmp_path / "store"))
    moved = {golden.about["written_at"]: str(source)}
    hints = SavepointHints(ttl={"ttl_list": "30d"})
    import_savepoint(str(source), store, hints=hints, access=SavepointAccess(moved=moved))
    now_ms = time.time_ns() // 10**6
    times = f"CASE WHEN position % 3 = 1 THEN {now_ms} ELSE 0 END AS last_access"
    sql = f"SELECT key, position, value, {times} FROM state"
    store.maintenance.edit("kinds", "ttl_list", sql=sql)
    done = export_savepoint(store, str(tmp_path / "to"))
    before = store.restore().keyed("kinds", "ttl_list").to_arrow()
    assert 0 < before.num_rows < 62
    living = lists_in(done.savepoint, "ttl_list")
    assert sum(text.count("last_access") for text in living.elements()) == before.num_rows
