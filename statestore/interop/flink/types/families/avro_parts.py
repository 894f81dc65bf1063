"""Parts of Avro values in Flink's own encoding (``DataOutputEncoder``).

It differs from Avro's binary encoding: numbers and the index of a union's branch have a fixed
width. Only the number of elements of an array or a map is a varint.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, i32, varint
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES, Spans, join_parts
from statestore.interop.flink.types.decode import read_lists, read_non_null
from statestore.interop.flink.types.encode import (
    choose_bytes,
    find_valid,
    join_runs,
    list_lengths,
    refuse_nulls,
    refuse_repeated,
    write_numbers,
    write_where,
)
from statestore.interop.flink.types.families.base import FlinkType, SnapshotReaders, generic_name
from statestore.interop.flink.types.families.maps import flatten_entries
from statestore.interop.flink.types.families.scalar import Scalar
from statestore.interop.flink.types.families.tuples import TupleType
from statestore.interop.flink.types.value_lengths import Skip, make_fixed_skip

_END = pa.scalar(b"\0", BYTES)
_ENTRY_KEY = Scalar("StringData")
_NO_END = "an array or a map of Avro does not end after its elements"


class _PartType(FlinkType):
    """A type that only occurs inside of an Avro schema."""

    __slots__ = ()

    def _snapshot(self) -> bytes:
        raise UnsupportedTypeError(
            f"the schema of an Avro type contains {self.java_name}, so it has no snapshot"
        )

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {}


@dataclass(frozen=True, slots=True)
class AvroFixedType(_PartType):
    """A fixed number of bytes."""

    width: int

    def _java_name(self) -> str:
        return f"fixed({self.width})"

    def _fixed_width(self) -> int | None:
        return self.width

    def _arrow_type(self) -> pa.DataType:
        return pa.binary()

    def _skipper(self) -> Skip:
        return make_fixed_skip(self.width)

    def _read(self, cursor: Cursor) -> pa.Array:
        begins = cursor.position
        cursor.refuse(begins + self.width > cursor.end, "a fixed value is cut")
        cursor.position = begins + self.width
        spans = Spans(cursor.spans.data, begins, cursor.position, cursor.spans.name)
        return spans.arrow().cast(pa.binary())

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        if not pc.all(pc.equal(pc.binary_length(array), self.width), min_count=0).as_py():
            raise InvalidArgumentError(f"a value of {self.java_name} has another length")
        return array.cast(BYTES)


@dataclass(frozen=True, slots=True)
class AvroOptionalType(_PartType):
    """A union of null and one other type; ``null_index`` is the index of null."""

    value: FlinkType
    null_index: int

    def _java_name(self) -> str:
        return generic_name("Optional", self.value)

    def _column_count(self) -> int:
        return self.value.column_count

    def _arrow_type(self) -> pa.DataType:
        return self.value.arrow_type()

    def _skipper(self) -> Skip:
        skip_value, null_index = self.value.skipper(), self.null_index

        def skip(reader: Reader) -> None:
            if _read_index(reader, 2) != null_index:
                skip_value(reader)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        return read_non_null(_read_indexes(cursor, 2) == self.null_index, self.value, 0, cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        is_set = find_valid(array)
        index = choose_bytes(is_set, i32(1 - self.null_index), i32(self.null_index))
        return join_parts(index, write_where(array, is_set, self.value))


@dataclass(frozen=True, slots=True)
class AvroUnionType(_PartType):
    """A union of any types, with None for null.

    Its column has the index of the branch, and a field for each branch except null.
    """

    branches: tuple[FlinkType | None, ...]

    @property
    def _types(self) -> list[tuple[int, FlinkType]]:
        return [(index, part) for index, part in enumerate(self.branches) if part is not None]

    def _java_name(self) -> str:
        return generic_name("Union", *(part for _, part in self._types))

    def _column_count(self) -> int:
        return 1 + sum(part.column_count for _, part in self._types)

    def _arrow_type(self) -> pa.DataType:
        fields = {f"f{index}": part.arrow_type() for index, part in self._types}
        return pa.struct({"branch": pa.int32(), **fields})

    def _skipper(self) -> Skip:
        skips = [None if part is None else part.skipper() for part in self.branches]

        def skip(reader: Reader) -> None:
            skip_branch = skips[_read_index(reader, len(skips))]
            if skip_branch is not None:
                skip_branch(reader)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        indexes = _read_indexes(cursor, len(self.branches))
        columns = [read_non_null(indexes != index, part, 0, cursor) for index, part in self._types]
        branch = pa.array(indexes, pa.int32())
        return pa.StructArray.from_arrays([branch, *columns], fields=list(self._arrow_type()))

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        branch, *columns = array.flatten()
        parts = [write_numbers(branch, ">i4")]
        indexes = branch.to_numpy(zero_copy_only=False)
        if len(indexes) and not 0 <= indexes.min() <= indexes.max() < len(self.branches):
            wrong = indexes[(indexes < 0) | (indexes >= len(self.branches))][0]
            raise InvalidArgumentError(
                f"{self.java_name} has no branch {wrong}; its branches are 0 to "
                f"{len(self.branches) - 1}"
            )
        for column, (index, part) in zip(columns, self._types, strict=True):
            parts.append(write_where(column, indexes == index, part))
        return join_parts(*parts)


@dataclass(frozen=True, slots=True)
class AvroArrayType(_PartType):
    """An array: a varint of the number of elements, the elements, and a 0; or only a 0."""

    element: FlinkType

    def _java_name(self) -> str:
        return generic_name("Array", self.element)

    def _column_count(self) -> int:
        return self.element.column_count

    def _arrow_type(self) -> pa.DataType:
        return pa.list_(self.element.arrow_type())

    def _skipper(self) -> Skip:
        skip_element = self.element.skipper()

        def skip(reader: Reader) -> None:
            count = reader.varint()
            if count > reader.remaining:
                raise reader.error(f"{count} elements do not fit in {reader.remaining} bytes")
            for _ in range(count):
                skip_element(reader)
            if count and reader.u8():
                raise reader.error(_NO_END, position=reader.position - 1)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        counts = cursor.varints()
        cursor.refuse(counts > cursor.end - cursor.position, "a count is too large for its value")
        lists = read_lists(self.element, cursor, counts)
        rows = counts > 0
        ends = cursor.select(rows)
        wrong = ends.take(1)[:, 0] != 0
        ends.position = ends.position - 1
        ends.refuse(wrong, _NO_END)
        ends.position = ends.position + 1
        cursor.move_rows(rows, ends)
        return lists

    def _write(self, array: pa.Array) -> pa.Array:
        return _write_block(array, self.element.write(array.flatten()))


@dataclass(frozen=True, slots=True)
class AvroMapType(_PartType):
    """A map from text, in the form of an array of its entries."""

    value: FlinkType

    @property
    def _entry(self) -> FlinkType:
        return TupleType("", (_ENTRY_KEY, self.value))

    def _java_name(self) -> str:
        return generic_name("Map", Scalar("String"), self.value)

    def _column_count(self) -> int:
        return 1 + self.value.column_count

    def _arrow_type(self) -> pa.DataType:
        return pa.map_(pa.string(), self.value.arrow_type())

    def _skipper(self) -> Skip:
        return AvroArrayType(self._entry).skipper()

    def _read(self, cursor: Cursor) -> pa.Array:
        lists = AvroArrayType(self._entry).read(cursor)
        return pa.MapArray.from_arrays(lists.offsets, *lists.flatten().flatten())

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        entries = flatten_entries(array)
        refuse_repeated(array, entries.field(0), "a map has the key")
        return _write_block(array, self._entry.write(entries))


def _write_block(array: pa.Array, elements: pa.Array) -> pa.Array:
    refuse_nulls(array)
    counts = list_lengths(array)
    heads = pa.array([varint(count) if count else b"" for count in counts.tolist()], BYTES)
    return join_parts(heads, join_runs(elements, counts), _END)


def _read_index(reader: Reader, branches: int) -> int:
    index = reader.i32()
    if not 0 <= index < branches:
        problem = f"a union of Avro has no branch {index}"
        raise reader.error(problem, position=reader.position - 4)
    return index


def _read_indexes(cursor: Cursor, branches: int) -> npt.NDArray[np.int32]:
    indexes: npt.NDArray[np.int32] = cursor.numbers(">i4")
    cursor.refuse((indexes < 0) | (indexes >= branches), "a union of Avro has no such branch")
    return indexes
