"""Rows of Flink SQL: a length, and the bytes of ``BinaryRowData``."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from statestore.interop.flink_savepoints.metadata.logical_types import LogicalType
from statestore.interop.flink_savepoints.types.arrow_types import row_fields
from statestore.interop.flink_savepoints.types.binary_rows import decode_rows, encode_rows
from statestore.interop.flink_savepoints.types.byte_cursor import Cursor
from statestore.interop.flink_savepoints.types.byte_slices import BYTES
from statestore.interop.flink_savepoints.types.encode import write_sized
from statestore.interop.flink_savepoints.types.families.base import FlinkType, OpaqueType
from statestore.interop.flink_savepoints.types.value_lengths import Skip, skip_sized

__all__ = ["BinaryRowType", "RowDataType"]


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


@dataclass(frozen=True, slots=True)
class BinaryRowType(OpaqueType):
    """A row of Flink SQL with a known number of columns, but unknown types."""

    columns: int

    def _java_name(self) -> str:
        return f"BinaryRowData<{self.columns}>"

    def _skipper(self) -> Skip:
        return skip_sized
