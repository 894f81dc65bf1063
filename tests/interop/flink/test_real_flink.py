"""Real Flink restores the written savepoints: all state is unchanged, and the job continues."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from statestore.errors import StorageError
from statestore.interop.flink import repack_savepoint
from statestore.interop.flink.options import SavepointAccess
from statestore.interop.flink.read.savepoint import open_savepoint
from tests.interop.flink import made
from tests.interop.flink.goldens import Golden
from tests.interop.flink.read.test_goldens import operator_of, rows_of
from tests.interop.flink.shown import as_text
from tests.servers.flink import Flink, flink_with_kafka
from tests.servers.kafka import kafka_broker
from tests.services.kafka_topics import Topics

pytestmark = pytest.mark.flink
NEWEST, OLDER = "2.3.0", "1.20.3"
ROCKSDB, HEAP = {"state.backend.type": "rocksdb"}, {"state.backend.type": "hashmap"}


@pytest.mark.long  # in each run, Flink restores two repacked savepoints in test_restore_tests.py
def test_flink_restores_a_repacked_savepoint(tmp_path: Path) -> None:
    """128 key groups become 720, and RocksDB restores hashmap's state at another parallelism."""
    golden = Golden("2.3_heap_canonical")
    source = golden.unpack(tmp_path / "from")
    done = repack_savepoint(str(source), str(tmp_path / "to"), max_parallelism=720, parallelism=4)
    assert {operator.operator: operator.parallelism for operator in done.operators}["kinds"] == 4
    found = dumped(Flink(NEWEST), tmp_path, done.savepoint, ROCKSDB, parallelism=3, most=720)
    assert comparable(found) == comparable(golden.rows())


@pytest.mark.parametrize(
    ("version", "backend", "most"),
    [
        # In each run, Flink restores all kinds of state in test_real_export.py.
        pytest.param(NEWEST, ROCKSDB, 300, marks=pytest.mark.long),
        pytest.param(NEWEST, HEAP, 100, marks=pytest.mark.long),
        pytest.param(OLDER, ROCKSDB, 100, marks=pytest.mark.long),
        pytest.param(OLDER, HEAP, 720, marks=pytest.mark.long),
    ],
)
def test_flink_restores_a_generated_savepoint(
    version: str, backend: Mapping[str, str], most: int, tmp_path: Path
) -> None:
    """No byte comes from Flink: types, keys, values and timers are written by the product."""
    found = made.values(seed=most, keys=400)
    made.write(found, str(tmp_path / "to"), most=most, parallelism=3)
    (written,) = open_savepoint(str(tmp_path / "to")).operators
    assert sum(map(len, written.rows("last"))) == len(found)
    rows = dumped(Flink(version), tmp_path, str(tmp_path / "to"), backend, parallelism=2, most=most)
    keyed = [row for row in rows if row["operator"] == "by_long"]
    wanted = list(made.rows(found, most))
    for one in (*keyed, *wanted):
        if one.get("state") == "sums":
            one["value"].sort()
    assert comparable(keyed) == comparable(wanted)


@pytest.mark.long
def test_flink_alone_refuses_another_number_of_key_groups(tmp_path: Path) -> None:
    source = Golden("2.3_heap_canonical").unpack(tmp_path / "from")
    with pytest.raises(StorageError, match="Max parallelism mismatch"):
        dumped(Flink(NEWEST), tmp_path, str(source), HEAP, parallelism=2, most=720)


@pytest.mark.long
def test_rocksdb_with_a_partitioned_index_is_read(tmp_path: Path) -> None:
    settings = {
        "state.backend.rocksdb.memory.partitioned-index-filters": "true",
        "execution.checkpointing.data-inline-threshold": "0b",
        "execution.checkpointing.dir": f"file://{tmp_path}/checkpoints",
    }
    step = {"do": "savepoint", "to": str(tmp_path / "to"), "events": "250", "parallelism": "2"}
    (place,) = Flink(NEWEST).run([step | {"format": "NATIVE"} | ROCKSDB | settings])
    assert any(b"partitions" in file.read_bytes() for file in Path(place).iterdir())
    savepoint = open_savepoint(place)
    wanted = Golden("2.3_heap_canonical").rows()
    for uid in ("by_long", "by_tuple"):
        found = Counter(
            as_text({"operator": uid, **row}) for row in rows_of(operator_of(savepoint, uid))
        )
        assert found == Counter(as_text(row) for row in wanted if row["operator"] == uid)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "version", "backend", "most", "parallelism"),
    [
        ("2.3_heap_snappy", NEWEST, HEAP, 300, 5),
        ("2.3_rocksdb_canonical", NEWEST, HEAP, 4096, 2),
        ("2.3_rocksdb_native", NEWEST, ROCKSDB, 256, 3),
        ("2.3_rocksdb_incremental", NEWEST, HEAP, 720, 3),
        ("2.3_rescaled", NEWEST, ROCKSDB, 100, 3),
        ("1.20_heap_canonical", OLDER, ROCKSDB, 720, 3),
        ("1.20_rocksdb_incremental", OLDER, ROCKSDB, 720, 3),
        ("1.20_rocksdb_canonical", OLDER, HEAP, 129, 1),
    ],
)
def test_other_versions_and_backends(
    name: str,
    version: str,
    backend: Mapping[str, str],
    most: int,
    parallelism: int,
    tmp_path: Path,
) -> None:
    golden = Golden(name)
    source = golden.unpack(tmp_path / "from")
    moved = {golden.about["written_at"]: str(tmp_path / "from")}
    done = repack_savepoint(
        str(source), str(tmp_path / "to"), max_parallelism=most, access=SavepointAccess(moved=moved)
    )
    found = dumped(
        Flink(version), tmp_path, done.savepoint, backend, parallelism=parallelism, most=most
    )
    assert comparable(found) == comparable(golden.rows())


@pytest.mark.long
@pytest.mark.parametrize("version", [NEWEST, OLDER])
def test_a_job_continues(version: str, tmp_path: Path) -> None:
    """After 100 more events it has the same state as a job that was never repacked."""
    short = version.rpartition(".")[0]
    source = Golden(f"{short}_heap_canonical").unpack(tmp_path / "from")
    done = repack_savepoint(str(source), str(tmp_path / "to"), max_parallelism=720)
    flink = Flink(version)
    step = {"do": "savepoint", "from": done.savepoint, "to": str(tmp_path), "events": "350"}
    step |= {"parallelism": "4", "max": "720", "format": "CANONICAL"}
    (later,) = flink.run([step | ROCKSDB])
    found = dumped(flink, tmp_path, later, ROCKSDB, parallelism=3, most=720)
    assert comparable(found) == comparable(Golden(f"{short}_rescaled").rows())


@pytest.mark.long
@pytest.mark.parametrize("version", [NEWEST, OLDER])
def test_sql_queries_continue(version: str, tmp_path: Path) -> None:
    """Their outputs before and after add up to the output of queries that are never stopped."""
    golden = Golden(f"{version.rpartition('.')[0]}_sql")
    source = golden.unpack(tmp_path / "from")
    done = repack_savepoint(str(source), str(tmp_path / "to"), max_parallelism=512, parallelism=5)
    common = {"do": "savepoint", "to": str(tmp_path), "events": "400", "format": "CANONICAL"}
    later = {
        "from": done.savepoint,
        "results": f"{tmp_path}/later",
        "parallelism": "3",
        "max": "512",
    }
    whole = {"results": f"{tmp_path}/whole", "parallelism": "2"}
    Flink(version).run([common | HEAP | later, common | HEAP | whole])
    found = said(golden.rows())
    found.update(said(read(tmp_path / "later")))
    assert {row: times for row, times in found.items() if times} == said(read(tmp_path / "whole"))


@pytest.mark.long
@pytest.mark.services
def test_a_kafka_source_continues_at_its_offsets(tmp_path: Path) -> None:
    """No record is read again, and all new records of all partitions are read."""
    source = Golden("2.3_kafka").unpack(tmp_path / "from")
    done = repack_savepoint(str(source), str(tmp_path / "to"), max_parallelism=720)
    with kafka_broker(tmp_path / "broker") as broker:
        topics = Topics(broker.bootstrap)
        topics.make(3, name="orders")
        topics.fill("orders", {0: map(str, range(60)), 1: map(str, range(35)), 2: ["first"]})
        step = {"do": "savepoint", "from": done.savepoint, "to": str(tmp_path), "events": "16"}
        step |= {"bootstrap": broker.bootstrap, "topic": "orders", "format": "CANONICAL"}
        rows = tmp_path / "rows.jsonl"
        step |= {"results": str(rows), "parallelism": "3", "max": "720"}
        flink_with_kafka().run([step | HEAP])
    found = [one["result"]["row"]["row"] for one in read(rows)]
    new = [[0, at, str(at)] for at in range(50, 60)] + [[1, at, str(at)] for at in range(30, 35)]
    assert sorted(found) == [*new, [2, 0, "first"]]


def dumped(
    flink: Flink,
    folder: Path,
    savepoint: str,
    backend: Mapping[str, str],
    *,
    parallelism: int,
    most: int,
) -> list[dict[str, Any]]:
    """Let Flink restore a savepoint; return the rows that it finds."""
    rows = folder / "rows.jsonl"
    step = {"do": "dump", "from": savepoint, "to": str(rows), "max": str(most)}
    flink.run([{**step, **backend, "parallelism": str(parallelism)}])
    return read(rows)


def read(rows: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rows.read_text().splitlines()]


def said(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return how often each row occurs in a result."""
    return Counter({json.dumps(row["result"]): row["times"] for row in rows})


def comparable(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return rows without the parts that depend on the parallelism. These are key groups and the
    subtask of each element. Equal union or broadcast state of all subtasks counts once.
    """
    found: Counter[str] = Counter()
    for row in rows:
        kept = {name: value for name, value in row.items() if name not in ("group", "subtask")}
        if row.get("mode") == "split":
            elements = [kept | {"values": one} for one in row["values"]]
            found.update(json.dumps(element, sort_keys=True) for element in elements)
        elif "mode" in row:
            found[json.dumps(kept, sort_keys=True)] = 1
        else:
            found[json.dumps(kept, sort_keys=True)] += 1
    return found
