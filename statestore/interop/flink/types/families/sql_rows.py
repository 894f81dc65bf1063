"""Rows of Flink SQL: a length, and the bytes of ``BinaryRowData``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statestore.interop.flink.metadata.java_binary import i32, utf
from statestore.interop.flink.metadata.logical_types import LogicalType, read_logical_type
from statestore.interop.flink.metadata.snapshot_format import TABLE, encode_nested, inner_class
from statestore.interop.flink.types.arrow_types import row_fields
from statestore.interop.flink.types.binary_rows import decode_rows, encode_rows
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES
from statestore.interop.flink.types.encode import write_sized
from statestore.interop.flink.types.families.base import (
    FlinkType,
    OpaqueType,
    SnapshotReader,
    SnapshotReaders,
)
from statestore.interop.flink.types.families.key_hash import GroupFunction, groups_of_hashes
from statestore.interop.flink.types.value_lengths import Skip, skip_sized
from statestore.keys.sql import sql_row_hash

_ROW_DATA = inner_class(TABLE, "RowDataSerializer")
_BINARY_ROW = inner_class(TABLE, "BinaryRowDataSerializer")
_LENGTH_BYTES = 4
_WORD = 8  # SQL rows consist of whole words, and Flink hashes them by words


@dataclass(frozen=True, slots=True)
class RowDataType(FlinkType):
    """A row of Flink SQL; its columns have no names.

    The planner's projection writes keys. In a key, a null of a long type reserves the bytes of a
    value.
    """

    columns: tuple[LogicalType, ...]
    fields: tuple[FlinkType, ...]
    is_key: bool = False

    def _java_name(self) -> str:
        return f"RowData<{', '.join(column.text for column in self.columns)}>"

    def _has_identity(self) -> bool:
        return False  # its equals compares bytes

    def _column_count(self) -> int:
        return len(self.columns)

    def _arrow_type(self) -> pa.DataType:
        return pa.struct(row_fields(self.columns))

    def _skipper(self) -> Skip:
        return skip_sized

    def _read(self, cursor: Cursor) -> pa.Array:
        return decode_rows(self.columns, cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        rows = encode_rows(self.columns, array, are_keys=self.is_key)
        return write_sized(pa.array(rows, BYTES))

    def _key_groups(self, cursor: Cursor) -> GroupFunction:
        return _sql_row_groups(cursor)

    def _snapshot(self) -> bytes:
        java = b"".join(column.java for column in self.columns)
        nested = encode_nested(*(field.snapshot() for field in self.fields))
        return utf(_ROW_DATA) + i32(3) + i32(len(self.columns)) + java + nested

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_ROW_DATA: _parse_row_data}


@dataclass(frozen=True, slots=True)
class BinaryRowType(OpaqueType):
    """A row of Flink SQL with a known number of columns, but unknown types."""

    columns: int

    def _java_name(self) -> str:
        return f"BinaryRowData<{self.columns}>"

    def _skipper(self) -> Skip:
        return skip_sized

    def _key_groups(self, cursor: Cursor) -> GroupFunction:
        return _sql_row_groups(cursor)

    def _snapshot(self) -> bytes:
        return utf(_BINARY_ROW) + i32(3) + i32(self.columns)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_BINARY_ROW: _parse_binary_row}


def _parse_row_data(snapshot: SnapshotReader) -> FlinkType:
    reader = snapshot.reader
    columns = tuple(read_logical_type(reader) for _ in range(reader.count(4, "columns")))
    return RowDataType(columns, snapshot.parts(len(columns)))


def _parse_binary_row(snapshot: SnapshotReader) -> FlinkType:
    return BinaryRowType(snapshot.reader.i32())


def _sql_row_groups(cursor: Cursor) -> GroupFunction:
    return groups_of_hashes(np.array([sql_row_hash(row) for row in _take_rows(cursor)], np.int32))


def _take_rows(cursor: Cursor) -> list[bytes]:
    """Return the rows of Flink SQL at a cursor, without their length prefixes."""
    sql_rows, positions = [], cursor.position.copy()
    for row in range(len(cursor)):
        reader = cursor.reader(row)
        skip_sized(reader)
        if reader.position % _WORD != _LENGTH_BYTES:
            raise reader.error(f"a SQL row has {reader.position - _LENGTH_BYTES} bytes", position=0)
        sql_rows.append(bytes(reader.data[_LENGTH_BYTES : reader.position]))
        positions[row] += reader.position
    cursor.position = positions
    return sql_rows
