"""Values that stay bytes, although other parts of the same entry have columns."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES, Spans
from statestore.interop.flink.types.encode import refuse_nulls
from statestore.interop.flink.types.families.base import FlinkType, SnapshotReaders
from statestore.interop.flink.types.families.key_hash import GroupFunction
from statestore.interop.flink.types.value_lengths import Skip


@dataclass(frozen=True, slots=True)
class UndecodedType(FlinkType):
    """A value of another type as bytes, such as a key whose hash only the job can compute.

    The end of a value must follow from its type, so that the next part of the entry is found.
    """

    value: FlinkType

    def _java_name(self) -> str:
        return self.value.java_name

    def _serializer_length(self) -> int | None:
        return self.value.serializer_length

    def _fixed_width(self) -> int | None:
        return self.value.fixed_width

    def _arrow_type(self) -> pa.DataType:
        return pa.binary()

    def _skipper(self) -> Skip:
        return self.value.skipper()

    def _read(self, cursor: Cursor) -> pa.Array:
        return read_slices(cursor, self.skipper())

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        return array.cast(BYTES)

    def _key_groups(self, cursor: Cursor) -> GroupFunction:
        return self.value.key_groups(cursor)

    def _snapshot(self) -> bytes:
        return self.value.snapshot()

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {}


def plain_type(flink_type: FlinkType) -> FlinkType:
    """Return the type of values that may stay bytes."""
    return flink_type.value if isinstance(flink_type, UndecodedType) else flink_type


def read_slices(cursor: Cursor, skip: Skip) -> pa.Array:
    """Return the bytes of each value at the cursor, which ``skip`` skips, and advance past them."""
    begins, ends = cursor.position, cursor.position.copy()
    for row in range(len(cursor)):
        reader = cursor.reader(row)
        skip(reader)
        ends[row] += reader.position
    cursor.position = ends
    return Spans(cursor.spans.data, begins, ends, cursor.spans.name).arrow().cast(pa.binary())
