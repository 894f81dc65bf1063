"""Lists, sets and arrays of objects: the number of elements, then the elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, i8, i32, utf
from statestore.interop.flink.metadata.snapshot_format import (
    BASE,
    DATAVIEW,
    FLINK,
    TABLE,
    inner_class,
)
from statestore.interop.flink.types.byte_cursor import Cursor, list_offsets, scatter
from statestore.interop.flink.types.byte_slices import BYTES, join_parts
from statestore.interop.flink.types.decode import read_lists, read_non_null
from statestore.interop.flink.types.encode import (
    choose_bytes,
    find_valid,
    join_runs,
    list_lengths,
    refuse_nulls,
    refuse_repeated,
    write_counted,
    write_where,
)
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    encode_parts,
    generic_name,
)
from statestore.interop.flink.types.families.key_hash import KeyHash
from statestore.interop.flink.types.families.nullables import NullableType
from statestore.interop.flink.types.value_lengths import Skip, make_counted_skip, make_flagged_skip

_SNAPSHOTS = {
    "List": f"{BASE}ListSerializerSnapshot",
    "ArrayList": f"{FLINK}runtime.state.ArrayListSerializerSnapshot",
    "Set": f"{BASE}SetSerializerSnapshot",
    "LinkedList": inner_class(TABLE, "LinkedListSerializer"),
}
_ARRAY_SNAPSHOT = f"{BASE}GenericArraySerializerSnapshot"


@dataclass(frozen=True, slots=True)
class ListType(FlinkType):
    """A ``List`` or ``Set``; the hashmap backend stores a list state as an ``ArrayList``.

    The ``LinkedList`` of Flink SQL has a null bit for each element.
    """

    element: FlinkType
    form: Literal["List", "ArrayList", "Set", "LinkedList"] = "List"

    @property
    def _written_element(self) -> FlinkType:
        """The type of the elements as they are written: those of a set have a null flag."""
        return NullableType(self.element) if self.form == "Set" else self.element

    def _java_name(self) -> str:
        return generic_name("List" if self.form == "ArrayList" else self.form, self.element)

    def _arrow_type(self) -> pa.DataType:
        return pa.list_(self.element.arrow_type())

    def _skipper(self) -> Skip:
        if self.form == "LinkedList":
            return _make_masked_skip(self.element.skipper())
        return make_counted_skip(self._written_element.skipper())

    def _read(self, cursor: Cursor) -> pa.Array:
        if self.form == "LinkedList":
            return _read_linked_lists(self.element, cursor)
        return read_lists(self._written_element, cursor, cursor.counts(1))

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        if self.form == "LinkedList":
            return _write_linked_lists(array, self.element)
        elements = array.flatten()
        if self.form == "Set" and not self.element.has_identity:
            refuse_repeated(array, elements, "a set has the element")
        return write_counted(array, self._written_element.write(elements))

    def _key_hash(self) -> KeyHash | None:
        element = self.element._key_hash()
        if element is None:
            return None

        def convert(column: pa.Array) -> pa.Array:
            return pa.ListArray.from_arrays(column.offsets, element.convert(column.values))

        is_column = self.form == "List" and element.is_column
        return KeyHash(f"List<{element.key_type}>", convert, is_column=is_column)

    def _snapshot(self) -> bytes:
        if self.form == "LinkedList":
            return encode_parts(_SNAPSHOTS[self.form], 3, i8(True), self.element)
        return encode_parts(_SNAPSHOTS[self.form], 1, b"", self.element)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {
            _SNAPSHOTS["List"]: _parse_list,
            _SNAPSHOTS["ArrayList"]: _parse_array_list,
            _SNAPSHOTS["Set"]: _parse_set,
            _SNAPSHOTS["LinkedList"]: _parse_linked_list,
            # A view has the layout of the list or map in it.
            f"{DATAVIEW}ListViewSerializerSnapshot": _parse_view,
            f"{DATAVIEW}MapViewSerializerSnapshot": _parse_view,
        }


class PresentElementsType(FlinkType):
    """A number of elements, each after a flag that it is not null."""

    __slots__ = ()

    element: FlinkType

    def _column_count(self) -> int:
        return self.element.column_count

    def _arrow_type(self) -> pa.DataType:
        return pa.list_(self.element.arrow_type())

    def _skipper(self) -> Skip:
        return make_counted_skip(PresentType(self.element).skipper())

    def _read(self, cursor: Cursor) -> pa.Array:
        return read_lists(PresentType(self.element), cursor, cursor.counts(1))

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        return write_counted(array, PresentType(self.element).write(array.flatten()))


@dataclass(frozen=True, slots=True)
class ArrayType(PresentElementsType):
    """An array of objects."""

    class_name: str
    element: FlinkType

    def _java_name(self) -> str:
        return f"{self.element.java_name}[]"

    def _has_identity(self) -> bool:
        return True

    def _snapshot(self) -> bytes:
        return encode_parts(_ARRAY_SNAPSHOT, 1, utf(self.class_name), self.element)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_ARRAY_SNAPSHOT: _parse_array}


@dataclass(frozen=True, slots=True)
class PresentType(FlinkType):
    """An element of an array of objects, after a flag that it is not null."""

    value: FlinkType

    def _java_name(self) -> str:
        return self.value.java_name

    def _column_count(self) -> int:
        return self.value.column_count

    def _arrow_type(self) -> pa.DataType:
        return self.value.arrow_type()

    def _skipper(self) -> Skip:
        return make_flagged_skip(self.value.skipper(), skips_if=True)

    def _read(self, cursor: Cursor) -> pa.Array:
        return read_non_null(~cursor.flags(), self.value, 0, cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        valid = find_valid(array)
        return join_parts(choose_bytes(valid, b"\1", b"\0"), write_where(array, valid, self.value))

    def _snapshot(self) -> bytes:
        raise UnsupportedTypeError(
            "the serializer of an array writes the flags of its elements, "
            f"so {self.java_name} has no snapshot"
        )

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {}


def _make_masked_skip(element: Skip) -> Skip:
    """Skip a ``LinkedList``: its length, a null bit for each element, and the other elements."""

    def skip(reader: Reader) -> None:
        for is_null in _null_mask(reader):
            if not is_null:
                element(reader)

    return skip


def _null_mask(reader: Reader) -> list[bool]:
    """Return the null mask of the ``LinkedList`` that begins here (``MaskUtils``)."""
    count = reader.i32()
    if count < 0 or (count + 7) // 8 > reader.remaining:
        raise reader.error(f"the list length {count} is invalid", position=reader.position - 4)
    mask = bytes(reader.take((count + 7) // 8))
    return [bool(mask[index // 8] >> (7 - index % 8) & 1) for index in range(count)]


def _read_linked_lists(element: FlinkType, cursor: Cursor) -> pa.Array:
    """Read ``LinkedListSerializer``: a length, a null bit per element, then the other elements."""
    skip = element.skipper()
    starts: list[int] = []
    limits: list[int] = []
    nulls: list[bool] = []
    counts, ends = np.zeros(len(cursor), np.int64), cursor.position.copy()
    for row in range(len(cursor)):
        reader, begin = cursor.reader(row), int(cursor.position[row])
        mask = _null_mask(reader)
        nulls += mask
        counts[row] = len(mask)
        for _ in range(mask.count(False)):
            starts.append(begin + reader.position)
            limits.append(int(cursor.end[row]))
            skip(reader)
        ends[row] = begin + reader.position
    cursor.position = ends
    present = Cursor(cursor.spans, np.array(starts, np.int64), np.array(limits, np.int64))
    values = scatter(element.read(present), ~np.array(nulls, np.bool_))
    return pa.ListArray.from_arrays(list_offsets(counts), values)


def _write_linked_lists(array: pa.Array, element: FlinkType) -> pa.Array:
    """Encode lists like ``LinkedListSerializer``, with a null bit for each element."""
    counts, flat = list_lengths(array), array.flatten()
    valid = find_valid(flat)
    masks, start = [], 0
    for count in counts.tolist():
        masks.append(i32(count) + np.packbits(~valid[start : start + count]).tobytes())
        start += count
    return join_parts(pa.array(masks, BYTES), join_runs(write_where(flat, valid, element), counts))


def _parse_list(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return ListType(snapshot.part())


def _parse_array_list(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return ListType(snapshot.part(), "ArrayList")


def _parse_set(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return ListType(snapshot.part(), "Set")


def _parse_linked_list(snapshot: SnapshotReader) -> FlinkType:
    outer = snapshot.outer_version()
    has_mask = snapshot.reader.bool() if outer >= 3 else outer == 2
    return ListType(snapshot.part(), "LinkedList" if has_mask else "List")


def _parse_view(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return snapshot.part()


def _parse_array(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return ArrayType(snapshot.reader.utf(), snapshot.part())
