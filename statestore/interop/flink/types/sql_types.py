"""Types of Flink SQL: rows, decimals, timestamps and collections in its internal binary format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.interop.flink.metadata.java_binary import i32, read_java_object
from statestore.interop.flink.metadata.logical_types import (
    EXACT_IN_MILLIS,
    LogicalType,
    read_logical_type,
    row_fields,
    sql_type,
)
from statestore.interop.flink.metadata.snapshot_format import (
    INT,
    TABLE,
    VERSION,
    Member,
    SnapshotForm,
    SnapshotReader,
    bytes_member,
    composite,
    counted_member,
    encode_parts,
    inner_class,
    plain,
)
from statestore.interop.flink.types.base import FlinkType, Layout, OpaqueType, generic_name
from statestore.interop.flink.types.binary_rows import (
    COMPACT_DIGITS,
    build_decimals,
    build_timestamps,
    decode_collections,
    decode_rows,
    encode_collections,
    encode_rows,
    read_digits,
    split_timestamps,
    unscaled_words,
)
from statestore.interop.flink.types.byte_cursor import (
    Cursor,
    Skip,
    join_parts,
    piece_array,
    skip_sized,
)
from statestore.interop.flink.types.column_bytes import refuse_nulls, write_numbers, write_sized
from statestore.interop.flink.types.key_hash import GroupFunction, groups_of_hashes
from statestore.interop.flink.types.layouts import Leaf
from statestore.interop.flink.types.scalar_values import read_sized
from statestore.keys.arrow import minimal_digits, words_hashes

_LENGTH_BYTES = 4
_WORD = 8  # SQL rows consist of whole words, and Flink hashes them by words
_MOST_DIGITS = 38
_MOST_FRACTIONAL_DIGITS = 9
_MOST_NANOS = 999_999
_LONG, _INT = 8, 4


@dataclass(frozen=True, slots=True)
class RowDataType(FlinkType):
    """A row of Flink SQL: a length, and the bytes of ``BinaryRowData``; its columns have no names.

    The planner's projection writes keys. In a key, a null of a long type reserves the bytes of a
    value.
    """

    columns: tuple[LogicalType, ...]
    fields: tuple[FlinkType, ...]
    is_key: bool = False

    snapshots = (
        plain(
            inner_class(TABLE, "RowDataSerializer"),
            3,
            {
                "columns": counted_member(
                    read_logical_type, lambda column: column.java, least=4, what="columns"
                ),
                "fields": Member(
                    lambda snapshot: snapshot.parts(len(snapshot.members["columns"])), encode_parts
                ),
            },
        ),
    )

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
        return write_sized(encode_rows(self.columns, array, are_keys=self.is_key))

    def _has_identity(self) -> bool:
        return False  # its equals compares bytes

    def _key_groups(self, cursor: Cursor) -> GroupFunction:
        return _sql_row_groups(cursor)


@dataclass(frozen=True, slots=True)
class BinaryRowType(OpaqueType):
    """A row of Flink SQL with a known number of columns, but unknown types."""

    columns: int

    snapshots = (plain(inner_class(TABLE, "BinaryRowDataSerializer"), 3, {"columns": INT}),)

    def _java_name(self) -> str:
        return f"BinaryRowData<{self.columns}>"

    def _skipper(self) -> Skip:
        return skip_sized

    def _key_groups(self, cursor: Cursor) -> GroupFunction:
        return _sql_row_groups(cursor)


def _digits_member(least: int, most: int) -> Member:
    """Return a number of digits of a type."""

    def read(snapshot: SnapshotReader) -> int:
        digits = snapshot.reader.i32()
        if not least <= digits <= min(most, snapshot.members.get("precision", most)):
            raise snapshot.reader.error(f"a type of Flink SQL cannot have {digits} digits")
        return digits

    return Member(read, i32)


@dataclass(frozen=True, slots=True)
class DecimalDataType(FlinkType):
    """A decimal: the unscaled number, in eight bytes or as a length and bytes."""

    precision: int
    scale: int
    version: int = 3

    snapshots = (
        plain(
            f"{TABLE}DecimalDataSerializer$DecimalSerializerSnapshot",
            None,
            {
                "version": VERSION,
                "precision": _digits_member(1, _MOST_DIGITS),
                "scale": _digits_member(0, _MOST_DIGITS),
            },
        ),
    )

    @property
    def _column(self) -> LogicalType:
        text = f"DECIMAL({self.precision}, {self.scale})"
        return LogicalType(text, b"", "DECIMAL", self.precision, self.scale)

    @property
    def _is_compact(self) -> bool:
        return self.precision <= COMPACT_DIGITS

    def _java_name(self) -> str:
        return f"DecimalData({self.precision}, {self.scale})"

    def _make_layout(self) -> Layout:
        extent = _LONG if self._is_compact else skip_sized
        return Leaf(sql_type(self._column), extent, self._read_decimals, self._write_decimals)

    def _read_decimals(self, cursor: Cursor) -> pa.Array:
        unscaled = cursor.numbers(">i8") if self._is_compact else read_digits(read_sized(cursor))
        return build_decimals(self._column, unscaled, np.zeros(len(cursor), np.bool_), cursor)

    def _write_decimals(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        words = unscaled_words(self._column, array)
        if self._is_compact:
            return write_numbers(pa.array(words[:, 0].view(np.int64)), ">i8")
        digits, lengths = minimal_digits(words)
        starts = 16 * np.arange(len(array))
        return write_sized(piece_array(digits.reshape(-1), starts, starts + lengths))


@dataclass(frozen=True, slots=True)
class TimestampDataType(FlinkType):
    """A timestamp: milliseconds since 1970, and nanoseconds if it has more than three digits.

    Its serializer does not say whether it has a time zone.
    """

    precision: int
    version: int = 1

    snapshots = (
        plain(
            inner_class(TABLE, "TimestampDataSerializer"),
            None,
            {"version": VERSION, "precision": _digits_member(0, _MOST_FRACTIONAL_DIGITS)},
        ),
    )

    @property
    def _column(self) -> LogicalType:
        text = f"TIMESTAMP({self.precision})"
        return LogicalType(text, b"", "TIMESTAMP_WITHOUT_TIME_ZONE", self.precision)

    def _java_name(self) -> str:
        return f"TimestampData({self.precision})"

    def _make_layout(self) -> Layout:
        width = _LONG if self.precision <= EXACT_IN_MILLIS else _LONG + _INT
        return Leaf(sql_type(self._column), width, self._read_timestamps, self._write_timestamps)

    def _serializer_length(self) -> int | None:
        return self.fixed_width

    def _read_timestamps(self, cursor: Cursor) -> pa.Array:
        millis = cursor.numbers(">i8")
        nanos = np.zeros(len(millis), np.int64)
        if self.precision > EXACT_IN_MILLIS:
            nanos = cursor.numbers(">i4").astype(np.int64)
            is_outside = (nanos < 0) | (nanos > _MOST_NANOS)
            cursor.refuse(is_outside, "a millisecond does not have this nanosecond")
        return build_timestamps(self._column, millis, nanos, np.zeros(len(millis), np.bool_))

    def _write_timestamps(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        if self.precision <= EXACT_IN_MILLIS:
            return write_numbers(array.cast(pa.int64()), ">i8")
        millis, nanos = split_timestamps(array)
        return join_parts(
            write_numbers(pa.array(millis), ">i8"), write_numbers(pa.array(nanos), ">i4")
        )


@dataclass(frozen=True, slots=True)
class ExternalType(FlinkType):
    """A user function's value in Flink SQL's internal format.

    ``outer`` is the type as a Java object, and a flag for internal input.
    """

    outer: bytes
    value: FlinkType

    snapshots = (
        composite(
            inner_class(TABLE, "ExternalSerializer"),
            1,
            {"outer": bytes_member(lambda reader: (read_java_object(reader), reader.bool()))},
            ("value",),
        ),
    )

    def _java_name(self) -> str:
        return self.value.java_name

    def _make_layout(self) -> Layout:
        return self.value


@dataclass(frozen=True, slots=True)
class RawType(FlinkType):
    """A value of another serializer with a length prefix, which Flink SQL treats as opaque."""

    value: FlinkType

    snapshots = (composite(inner_class(TABLE, "RawValueDataSerializer"), 0, parts=("value",)),)

    def _java_name(self) -> str:
        return generic_name("Raw", self.value)

    def _make_layout(self) -> Layout:
        return Leaf(pa.binary(), skip_sized, read_sized, write_sized)


def _collection_form(root: str, class_name: str, parts: int) -> SnapshotForm:
    """Return the snapshot of collections of ``parts`` types of elements.

    These are followed by their serializers, as Java objects.
    """

    def read_column(snapshot: SnapshotReader) -> LogicalType:
        children = tuple(read_logical_type(snapshot.reader) for _ in range(parts))
        text = f"{root}<{', '.join(child.text for child in children)}>"
        return LogicalType(text, b"", root, children=children)

    members = {
        "version": VERSION,
        "column": Member(
            read_column, lambda column: b"".join(child.java for child in column.children)
        ),
        "serializers": bytes_member(
            lambda reader: [read_java_object(reader) for _ in range(parts)]
        ),
    }

    def make(root: str, **members: Any) -> SqlCollection:
        return SqlCollection(**members)

    return plain(inner_class(TABLE, class_name), None, members, make=make, root=root)


@dataclass(frozen=True, slots=True)
class SqlCollection(FlinkType):
    """An array or map outside of a row: a length, and the bytes of Flink SQL's binary format.

    ``column`` is its type in a row. ``serializers`` are the serializers of its elements, as Java
    serialized them.
    """

    column: LogicalType
    version: int
    serializers: bytes

    snapshots = (
        _collection_form("ARRAY", "ArrayDataSerializer", 1),
        _collection_form("MAP", "MapDataSerializer", 2),
    )

    @property
    def root(self) -> str:
        """``ARRAY`` or ``MAP``."""
        return self.column.root

    def _java_name(self) -> str:
        elements = ", ".join(child.text for child in self.column.children)
        return f"{self.root.capitalize()}Data<{elements}>"

    def _arrow_type(self) -> pa.DataType:
        return sql_type(self.column)

    def _skipper(self) -> Skip:
        return skip_sized

    def _read(self, cursor: Cursor) -> pa.Array:
        return decode_collections(self.column, cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        return write_sized(encode_collections(self.column, array))


def _sql_row_groups(cursor: Cursor) -> GroupFunction:
    """Return the key groups of rows of Flink SQL, and advance past them."""
    begins = cursor.position
    sizes = cursor.counts(1)
    cursor.position = begins
    for row in np.flatnonzero(sizes % _WORD)[:1].tolist():
        raise cursor.error(
            f"a SQL row has {sizes[row]} bytes, which are not a multiple of {_WORD}", row
        )
    cursor.position = begins + _LENGTH_BYTES + sizes
    return groups_of_hashes(words_hashes(cursor.data(), begins + _LENGTH_BYTES, sizes))
