"""Offsets of a table as the state of Flink's ``KafkaSource``.

The readers keep a split for each partition, with the offset of the next record. The coordinator
keeps the partitions that are assigned to readers. Without that, it would assign all partitions
again, from the offsets of the job's configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.format.state import OperatorState
from statestore.interop.flink_savepoints.metadata.java_binary import i32, utf
from statestore.interop.flink_savepoints.read.operator_state import (
    KafkaSplit,
    kafka_split_bytes,
    kafka_splits,
)
from statestore.interop.flink_savepoints.types.flink_types import Scalar
from statestore.interop.flink_savepoints.types.store_types import FlinkColumn
from statestore.rows.column_types import arrow_schema

__all__ = ["KAFKA_SOURCE", "coordinator_bytes", "list_misfits", "split_column"]

KAFKA_SOURCE = "KafkaSource"
"""The declared type of a state with a source's offsets."""

_COLUMNS = {"topic": (pa.string(),), "partition": (pa.int32(), pa.int64()), "offset": (pa.int64(),)}
_TYPES = {"topic": "string", "partition": "integer or long", "offset": "long"}
_NO_STOP = -(1 << 63)
_COORDINATOR_VERSION, _ENUMERATOR_VERSION = 1, 1
"""Later versions of the enumerator also have splits that no reader has, which a table cannot say.
Every connector reads this version as a list of partitions that are assigned."""


def list_misfits(state: OperatorState) -> Iterator[str]:
    """Yield a sentence for each column that the offsets of a source lack or should not have."""
    stored = arrow_schema(state.schema)
    for name, fitting in _COLUMNS.items():
        if name not in stored.names:
            yield f"the column {name!r} ({_TYPES[name]}) of {KAFKA_SOURCE} is missing"
        elif stored.field(name).type not in fitting:
            yield (
                f"the column {name!r} is {state.schema.type_of(name)}, but {KAFKA_SOURCE} has "
                f"{_TYPES[name]}"
            )
    for name in stored.names:
        if name not in _COLUMNS:
            yield f"the column {name!r} is not part of {KAFKA_SOURCE}: {', '.join(_COLUMNS)}"


def split_column(stored: Mapping[str, pa.DataType], subject: str) -> FlinkColumn:
    """Return columns of offsets as the bytes of a source's splits.

    ``subject`` is the state in messages.
    """
    struct = pa.struct([pa.field(*column) for column in stored.items()])

    def to_flink(array: pa.Array) -> pa.Array:
        _refuse_wrong(array, subject)
        splits = (
            KafkaSplit(row["topic"], row["partition"], row["offset"], _NO_STOP)
            for row in array.to_pylist()
        )
        return pa.array([kafka_split_bytes(split) for split in splits], pa.binary())

    def from_flink(array: pa.Array) -> pa.Array:
        rows = [
            {"topic": split.topic, "partition": split.partition, "offset": split.offset}
            for split in kafka_splits(array, subject)
        ]
        return pa.array(rows, struct)

    return FlinkColumn(struct, Scalar("byte[]"), to_flink, from_flink)


def _refuse_wrong(array: pa.Array, subject: str) -> None:
    """Raise InvalidArgumentError for a row that is not the offset of a partition."""
    for row in array.to_pylist():
        if None in row.values():
            raise InvalidArgumentError(f"{subject} has a null in the offsets: {row}")
        if row["offset"] < 0 or not 0 <= row["partition"] < 1 << 31:
            raise InvalidArgumentError(
                f"{subject} has a partition or offset that Kafka does not have: {row}. A table "
                "says at which offset each partition continues; leave out partitions that the "
                "source should find itself and read from their beginning"
            )


def coordinator_bytes(offsets: pa.Table, subject: str) -> bytes:
    """Return the state of the source's coordinator, which assigned all partitions of the offsets.

    Raises InvalidArgumentError for a partition that occurs twice.
    """
    keys = offsets.select(["topic", "partition"])
    counts = keys.group_by(["topic", "partition"]).aggregate([([], "count_all")])
    twice = counts.filter(pc.greater(counts["count_all"], 1)).to_pylist()
    if twice:
        raise InvalidArgumentError(
            f"{subject} has two offsets of partition {twice[0]['partition']} of topic "
            f"{twice[0]['topic']!r}: keep the one at which the source continues"
        )
    partitions = [utf(row["topic"]) + i32(row["partition"]) for row in keys.to_pylist()]
    data = b"".join([i32(len(partitions)), *partitions])
    return i32(_COORDINATOR_VERSION) + i32(_ENUMERATOR_VERSION) + i32(len(data)) + data
