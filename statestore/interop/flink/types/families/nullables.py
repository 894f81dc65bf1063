"""Nullable values: a flag, then the value or padding."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from statestore.interop.flink.metadata.java_binary import Reader, i32
from statestore.interop.flink.metadata.snapshot_format import RUNTIME, inner_class
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import join_parts
from statestore.interop.flink.types.decode import read_non_null
from statestore.interop.flink.types.encode import choose_bytes, find_valid, write_where
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    encode_parts,
    generic_name,
)
from statestore.interop.flink.types.value_lengths import Skip

_SNAPSHOT_CLASS = inner_class(RUNTIME, "NullableSerializer")
_LONGEST_PADDING = 1 << 16  # a null takes as many bytes as a value of a fixed length


@dataclass(frozen=True, slots=True)
class NullableType(FlinkType):
    """A nullable value; a null is followed by ``padding`` bytes."""

    value: FlinkType
    padding: int = 0

    def _java_name(self) -> str:
        return generic_name("Nullable", self.value)

    def _serializer_length(self) -> int | None:
        inner = self.value.serializer_length if self.padding else None
        return None if inner is None else 1 + inner

    def _column_count(self) -> int:
        return self.value.column_count

    def _arrow_type(self) -> pa.DataType:
        return self.value.arrow_type()

    def _skipper(self) -> Skip:
        skip_value, padding = self.value.skipper(), self.padding

        def skip(reader: Reader) -> None:
            if reader.bool():
                reader.take(padding)
            else:
                skip_value(reader)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        return read_non_null(cursor.flags(), self.value, self.padding, cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        valid = find_valid(array)
        flags = choose_bytes(valid, b"\0", b"\1" + bytes(self.padding))
        return join_parts(flags, write_where(array, valid, self.value))

    def _snapshot(self) -> bytes:
        return encode_parts(_SNAPSHOT_CLASS, 2, i32(self.padding), self.value)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_SNAPSHOT_CLASS: _parse_nullable}


def _parse_nullable(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    reader = snapshot.reader
    begin = reader.position
    padding = reader.i32()
    if not 0 <= padding <= _LONGEST_PADDING:
        raise reader.error(f"a null is followed by {padding} bytes", position=begin)
    return NullableType(snapshot.part(), padding)
