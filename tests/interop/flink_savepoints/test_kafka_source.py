"""Offsets of a table become the state of a KafkaSource, which real Flink continues from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import (
    InvalidArgumentError,
    SchemaMismatchError,
    StateStoreError,
    UnsupportedTypeError,
)
from statestore.interop.flink_savepoints import export_savepoint, open_savepoint
from statestore.interop.flink_savepoints.metadata.java_binary import Reader
from statestore.interop.flink_savepoints.metadata.reader import read_metadata
from statestore.interop.flink_savepoints.options import FlinkTarget
from statestore.interop.flink_savepoints.read.operator_state import kafka_splits
from tests.interop.flink_savepoints.test_real_flink import HEAP, NEWEST, OLDER, read
from tests.servers.flink import flink_with_kafka
from tests.servers.kafka import kafka_broker
from tests.services.kafka_topics import Topics

TARGET = FlinkTarget(types={"kafka/offsets": "KafkaSource"})
OFFSETS = pa.table(
    {"topic": ["orders"] * 2, "partition": pa.array([0, 1], pa.int32()), "offset": [50, 30]}
)


def store_of(folder: Path, offsets: pa.Table, mode: str = "union") -> StateStore:
    store = StateStore.open(str(folder), table_format="parquet")
    store.bootstrap_elements("kafka", "offsets", offsets, mode=mode)
    return store


@pytest.mark.parametrize("mode", ["union", "split"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_readers_and_the_coordinator_have_the_partitions(
    mode: str, parallelism: int, tmp_path: Path
) -> None:
    """Each partition is in one split, however the table is stored."""
    place = tmp_path / "to"
    store = store_of(tmp_path / "store", OFFSETS, mode)
    export_savepoint(store, str(place), target=TARGET, parallelism=parallelism)
    operator = open_savepoint(str(place)).operator("kafka")
    splits = [
        split
        for elements in operator.operator_state()
        for split in kafka_splits(elements.values(), "the splits")
    ]
    assert {elements.info.name for elements in operator.operator_state()} == {"SourceReaderState"}
    found = sorted((split.topic, split.partition, split.offset) for split in splits)
    assert found == [("orders", 0, 50), ("orders", 1, 30)]
    assert {split.stop for split in splits} == {-(1 << 63)}
    (metadata,) = read_metadata((place / "_metadata").read_bytes(), "it").operators
    assert metadata.coordinator is not None
    reader = Reader(metadata.coordinator.data, "the coordinator")
    assert (reader.i32(), reader.i32(), reader.i32()) == (1, 1, reader.remaining)
    partitions = [(reader.utf(), reader.i32()) for _ in range(reader.i32())]
    assert (sorted(partitions), reader.remaining) == ([("orders", 0), ("orders", 1)], 0)


@pytest.mark.parametrize(
    ("offsets", "kind", "said"),
    [
        (OFFSETS.drop_columns(["offset"]), SchemaMismatchError,
         "the column 'offset' (long) of KafkaSource is missing"),
        (OFFSETS.append_column("stop", OFFSETS["offset"]), SchemaMismatchError,
         "the column 'stop' is not part of KafkaSource: topic, partition, offset"),
        (OFFSETS.set_column(2, "offset", pa.array(["5", "6"])), SchemaMismatchError,
         "the column 'offset' is string, but KafkaSource has long"),
        (OFFSETS.set_column(2, "offset", pa.array([5, None])), InvalidArgumentError,
         "has a null in the offsets: {'topic': 'orders', 'partition': 1, 'offset': None}"),
        (OFFSETS.set_column(2, "offset", pa.array([5, -2])), InvalidArgumentError,
         "leave out partitions that the source should find itself"),
        (OFFSETS.set_column(1, "partition", pa.array([1, 1])), InvalidArgumentError,
         "has two offsets of partition 1 of topic 'orders'"),
    ],
)  # fmt: skip
def test_offsets_that_no_source_has_are_refused(
    offsets: pa.Table, kind: type[StateStoreError], said: str, tmp_path: Path
) -> None:
    store = store_of(tmp_path / "store", offsets)
    with pytest.raises(kind) as caught:
        export_savepoint(store, str(tmp_path / "to"), target=TARGET)
    assert said in str(caught.value)
    assert not any((tmp_path / "to").glob("**/*"))


def test_a_source_has_no_other_state_and_no_broadcast_state(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", OFFSETS)
    store.bootstrap("kafka", "totals", pa.table({"k": [1]}), key="k")
    with pytest.raises(UnsupportedTypeError, match="has no other state in Flink, but the operator"):
        export_savepoint(store, str(tmp_path / "to"), target=TARGET)
    store = store_of(tmp_path / "broadcast", OFFSETS, "broadcast")
    with pytest.raises(SchemaMismatchError, match="the splits of a source are no broadcast state"):
        export_savepoint(store, str(tmp_path / "to"), target=TARGET)
    store = StateStore.open(str(tmp_path / "keyed"), table_format="parquet")
    store.bootstrap("kafka", "offsets", OFFSETS, key="topic", namespace="partition")
    with pytest.raises(SchemaMismatchError, match="KafkaSource is operator state"):
        export_savepoint(store, str(tmp_path / "to"), target=TARGET)


def test_offsets_can_be_data_of_the_job(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", OFFSETS)
    with pytest.raises(
        UnsupportedTypeError, match="pass --type kafka/offsets=KafkaSource; if they"
    ):
        export_savepoint(store, str(tmp_path / "to"))
    target = FlinkTarget(types={"kafka/offsets": "List<Row>"})
    done = export_savepoint(store, str(tmp_path / "to"), target=target)
    assert done.operators[0].states[0].value_type == "Row<String, Integer, Long>"


@pytest.mark.flink
@pytest.mark.long
@pytest.mark.services
@pytest.mark.parametrize("version", [NEWEST, OLDER])
def test_a_source_continues_at_the_offsets_of_a_table(version: str, tmp_path: Path) -> None:
    """At another parallelism; a partition that is not in the table is read from its start."""
    place = str(tmp_path / "to")
    export_savepoint(store_of(tmp_path / "store", OFFSETS), place, target=TARGET)
    with kafka_broker(tmp_path / "broker") as broker:
        topics = Topics(broker.bootstrap)
        topics.make(3, name="orders")
        topics.fill("orders", {0: map(str, range(60)), 1: map(str, range(35)), 2: ["first"]})
        rows = tmp_path / "rows.jsonl"
        step: dict[str, Any] = {"do": "savepoint", "from": place, "to": str(tmp_path)}
        step |= {"events": "16", "bootstrap": broker.bootstrap, "topic": "orders"}
        step |= {"results": str(rows), "parallelism": "3", "format": "CANONICAL"}
        (later,) = flink_with_kafka(version).run([step | HEAP])
    found = [one["result"]["row"]["row"] for one in read(rows)]
    new = [[0, at, str(at)] for at in range(50, 60)] + [[1, at, str(at)] for at in range(30, 35)]
    assert sorted(found) == [*new, [2, 0, "first"]]
    splits = {
        (split.partition, split.offset)
        for elements in open_savepoint(later).operator("kafka").operator_state()
        for split in kafka_splits(elements.values(), "the splits")
    }
    assert splits == {(0, 60), (1, 35), (2, 1)}
