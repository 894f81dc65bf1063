"""Layouts: the bytes of values, and the columns that hold them.

A layout skips, reads and writes values. Most types of Flink's serializers are one of these:

- ``Leaf``: values that functions read and write, of a fixed width or with an end of their own.
- ``Numbers``: numbers of a NumPy type.
- ``Struct``: named parts, one after another.
- ``Flagged``: a tag, then the value if there is one.
- ``Tagged``: a tag, then the parts that it selects.
- ``Masked``: a bit for each part, then the parts that are not null.
- ``Counted``: a number of elements, then the elements; ``Entries`` for maps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import StateStoreError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.types.base import FlinkType, Layout, total_width
from statestore.interop.flink.types.byte_cursor import (
    Cursor,
    Rows,
    Skip,
    join_parts,
    list_offsets,
    make_fixed_skip,
    make_sequence_skip,
    piece_array,
)
from statestore.interop.flink.types.column_bytes import (
    build_struct,
    choose_bytes,
    find_valid,
    flatten_entries,
    join_runs,
    list_lengths,
    matrix_bytes,
    read_lists,
    read_non_null,
    refuse_nulls,
    refuse_outside,
    refuse_repeated,
    write_fields,
    write_numbers,
    write_where,
)

_KIND_BITS = 2
"""The number of bits of a ``RowKind``."""
_MOST_KIND = 3


@dataclass(frozen=True, slots=True)
class Leaf(Layout):
    """Values that one function reads and another one writes.

    ``extent`` is their width, or the function that skips a value.
    """

    arrow: pa.DataType
    extent: int | Skip
    read_values: Callable[[Cursor], pa.Array] = field(repr=False)
    write_values: Callable[[pa.Array], pa.Array] = field(repr=False)

    def _fixed_width(self) -> int | None:
        return self.extent if isinstance(self.extent, int) else None

    def _arrow_type(self) -> pa.DataType:
        return self.arrow

    def _skipper(self) -> Skip:
        return make_fixed_skip(self.extent) if isinstance(self.extent, int) else self.extent

    def _read(self, cursor: Cursor) -> pa.Array:
        return self.read_values(cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        return self.write_values(array)


@dataclass(frozen=True, slots=True)
class Numbers(Layout):
    """Numbers of a big-endian NumPy type, which are cast to the column's type."""

    dtype: str
    arrow: pa.DataType
    numbers: pa.DataType

    def _fixed_width(self) -> int:
        return np.dtype(self.dtype).itemsize

    def _arrow_type(self) -> pa.DataType:
        return self.arrow

    def _skipper(self) -> Skip:
        return make_fixed_skip(self._fixed_width())

    def _read(self, cursor: Cursor) -> pa.Array:
        return self.to_column(cursor.numbers(self.dtype))

    def _write(self, array: pa.Array) -> pa.Array:
        is_plain = self.arrow == self.numbers
        return write_numbers(array if is_plain else array.cast(self.numbers), self.dtype)

    def to_column(self, numbers: npt.NDArray[Any]) -> pa.Array:
        """Return numbers, in the machine's byte order, as a column."""
        return pa.array(numbers, self.numbers).cast(self.arrow)


@dataclass(frozen=True, slots=True)
class Struct(Layout):
    """Named parts, one after another; none of them has a null flag."""

    names: tuple[str, ...]
    parts: tuple[Layout, ...]

    def _fixed_width(self) -> int | None:
        return total_width(part.fixed_width for part in self.parts)

    def _column_count(self) -> int:
        return sum(part.column_count for part in self.parts)

    def _arrow_type(self) -> pa.DataType:
        return _struct_type(self.names, self.parts)

    def _skipper(self) -> Skip:
        return make_sequence_skip(*(part.skipper() for part in self.parts))

    def _read(self, cursor: Cursor) -> pa.Array:
        return build_struct([part.read(cursor) for part in self.parts], self.arrow_type())

    def _write(self, array: pa.Array) -> pa.Array:
        return write_fields(array, self.parts)


def numbered_struct(parts: tuple[Layout, ...]) -> Struct:
    """Return the layout of the parts ``f0``, ``f1``, …"""
    return Struct(number_names(parts), parts)


def number_names(parts: Collection[object]) -> tuple[str, ...]:
    """Return the names ``f0``, ``f1``, … of a tuple's or row's fields."""
    return tuple(f"f{index}" for index in range(len(parts)))


def _struct_type(names: Iterable[str], parts: Iterable[Layout]) -> pa.StructType:
    fields = zip(names, parts, strict=True)
    return pa.struct([pa.field(name, part.arrow_type()) for name, part in fields])


@dataclass(frozen=True, slots=True)
class Tags:
    """Numbers from ``first`` to ``last``, one of which precedes each value.

    ``problem`` is the message for another number, which it can contain as ``{}``. If
    ``is_known`` is true, Flink can write another number, which cannot be read.
    """

    first: int = 0
    last: int = 1
    dtype: str = ">u1"
    problem: str = "a boolean is neither 0 nor 1"
    is_known: bool = False

    def read(self, cursor: Cursor) -> npt.NDArray[Any]:
        """Return the next tag of every row; raises as a wrong tag requires."""
        before = cursor.position
        numbers: npt.NDArray[Any] = cursor.numbers(self.dtype)
        wrong = np.flatnonzero((numbers < self.first) | (numbers > self.last))
        if len(wrong):
            row = int(wrong[0])
            where = Cursor(cursor.spans, before, cursor.end).error
            raise self._wrong_tag(int(numbers[row]), lambda problem: where(problem, row))
        return numbers

    def read_one(self, reader: Reader) -> int:
        """Return the tag that begins here, and advance past it."""
        begin = reader.position
        number = reader.u8() if self.dtype == ">u1" else reader.i32()
        if not self.first <= number <= self.last:
            raise self._wrong_tag(number, lambda problem: reader.error(problem, position=begin))
        return number

    def encode(self, number: int) -> bytes:
        """Return the bytes of a tag."""
        return np.array(number, self.dtype).tobytes()

    def reader(self) -> Callable[[Reader], int]:
        """Return the function that reads one tag."""
        return Reader.bool if self == FLAG else self.read_one

    def _wrong_tag(self, number: int, damage: Callable[[str], StateStoreError]) -> StateStoreError:
        problem = self.problem.format(number)
        return UnsupportedTypeError(problem) if self.is_known else damage(problem)


FLAG = Tags()
"""A boolean."""


@dataclass(frozen=True, slots=True)
class Flagged(Layout):
    """A tag, then the value if the tag is ``present``; in the column, its absence is a null.

    ``padding`` is the number of bytes after the other one of two tags. ``null_value`` is the
    message for a value that is present and null, if there can be one.
    """

    value: Layout
    present: int
    tags: Tags = FLAG
    padding: int = 0
    null_value: str = ""

    def _column_count(self) -> int:
        return self.value.column_count

    def _arrow_type(self) -> pa.DataType:
        return self.value.arrow_type()

    def _skipper(self) -> Skip:
        skip_value, read_tag = self.value.skipper(), self.tags.reader()
        present, padding = self.present, self.padding

        def skip(reader: Reader) -> None:
            if read_tag(reader) == present:
                skip_value(reader)
            elif padding:
                reader.take(padding)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        is_absent = self.tags.read(cursor) != self.present
        values = read_non_null(is_absent, self.value, self.padding, cursor)
        if self.null_value and values.null_count > int(is_absent.sum()):
            raise UnsupportedTypeError(self.null_value)
        return values

    def _write(self, array: pa.Array) -> pa.Array:
        is_set = find_valid(array)
        other = self.tags.first + self.tags.last - self.present
        absent = self.tags.encode(other) + bytes(self.padding)
        heads = choose_bytes(is_set, self.tags.encode(self.present), absent)
        return join_parts(heads, write_where(array, is_set, self.value))


@dataclass(frozen=True, slots=True)
class Choice:
    """A part of a value, and the tags that it follows."""

    name: str
    layout: Layout
    tags: tuple[int, ...]

    def follows(self, tags: npt.NDArray[Any]) -> Rows:
        """Return the rows in whose values it follows the tag."""
        first, *others = self.tags
        rows: Rows = tags == first
        for other in others:
            rows |= tags == other
        return rows


@dataclass(frozen=True, slots=True)
class Tagged(Layout):
    """A tag, then the parts that it selects; in the column, the other parts are null.

    ``label`` is the column of the tag: a number, or a boolean that is true for the tag of the first
    part. Without it, the parts that are null tell the tag.
    """

    tags: Tags
    choices: tuple[Choice, ...]
    label: pa.Field | None = None

    def _column_count(self) -> int:
        labels = 0 if self.label is None else 1
        return labels + sum(choice.layout.column_count for choice in self.choices)

    def _arrow_type(self) -> pa.DataType:
        parts = [pa.field(choice.name, choice.layout.arrow_type()) for choice in self.choices]
        return pa.struct(parts if self.label is None else [self.label, *parts])

    def _skipper(self) -> Skip:
        read_tag = self.tags.reader()
        skips = {
            tag: make_sequence_skip(
                *(choice.layout.skipper() for choice in self.choices if tag in choice.tags)
            )
            for tag in range(self.tags.first, self.tags.last + 1)
        }

        def skip(reader: Reader) -> None:
            skips[read_tag(reader)](reader)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        tags = self.tags.read(cursor)
        columns = [
            read_non_null(~choice.follows(tags), choice.layout, 0, cursor)
            for choice in self.choices
        ]
        if self.label is not None:
            is_flag = pa.types.is_boolean(self.label.type)
            labels = self.choices[0].follows(tags) if is_flag else tags
            columns.insert(0, pa.array(labels, self.label.type))
        return build_struct(columns, self.arrow_type())

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        columns = array.flatten()
        tags = self._infer_tags(columns) if self.label is None else self._to_tags(columns.pop(0))
        parts = [write_numbers(pa.array(tags), self.tags.dtype)]
        for choice, column in zip(self.choices, columns, strict=True):
            parts.append(write_where(column, choice.follows(tags), choice.layout))
        return join_parts(*parts)

    def _to_tags(self, labels: pa.Array) -> npt.NDArray[Any]:
        refuse_nulls(labels)
        values: npt.NDArray[Any] = labels.to_numpy(zero_copy_only=False)
        if pa.types.is_boolean(labels.type):
            (first,) = self.choices[0].tags
            return np.where(values, first, self.tags.first + self.tags.last - first)
        refuse_outside(values, self.tags.first, self.tags.last, "the branch of a union")
        return values

    def _infer_tags(self, columns: list[pa.Array]) -> npt.NDArray[Any]:
        """Return the tag after which exactly the parts follow that are not null; or the last one.

        If no tag has these parts, writing those of the last one refuses the null of another part.
        """
        is_set = [find_valid(column) for column in columns]
        tags = np.full(len(columns[0]), self.tags.last)
        for tag in range(self.tags.first, self.tags.last):
            selected = [tag in choice.tags for choice in self.choices]
            tags[
                np.all([mask == flag for mask, flag in zip(is_set, selected, strict=True)], axis=0)
            ] = tag
        return tags


@dataclass(frozen=True, slots=True)
class Masked(Layout):
    """A bit for each part, set for a null, then the other parts (``RowSerializer``).

    If ``has_kind`` is true, two bits for the row kind come before, with the lower one first.
    """

    names: tuple[str, ...]
    parts: tuple[Layout, ...]
    has_kind: bool

    @property
    def _first_bit(self) -> int:
        """The index of the bit of the first part."""
        return _KIND_BITS if self.has_kind else 0

    def _column_count(self) -> int:
        return sum(part.column_count for part in self.parts)

    def _arrow_type(self) -> pa.DataType:
        kind = [pa.field("row_kind", pa.int8())] if self.has_kind else []
        return pa.struct([*kind, *_struct_type(self.names, self.parts)])

    def _skipper(self) -> Skip:
        skips = tuple(part.skipper() for part in self.parts)
        first = self._first_bit
        width = (len(skips) + first + 7) // 8

        def skip(reader: Reader) -> None:
            mask = int.from_bytes(reader.take(width), "big")
            for number, skip_part in enumerate(skips, first):
                if not mask >> (8 * width - 1 - number) & 1:
                    skip_part(reader)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        first = self._first_bit
        mask = cursor.take((len(self.parts) + first + 7) // 8)
        bits = np.unpackbits(mask, axis=1).astype(np.bool_)
        columns = [] if not first else [pa.array((bits[:, 0] + 2 * bits[:, 1]).astype(np.int8))]
        columns += [
            read_non_null(bits[:, first + index], part, 0, cursor)
            for index, part in enumerate(self.parts)
        ]
        return build_struct(columns, self.arrow_type())

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        columns = array.flatten()
        first = self._first_bit
        bits = np.zeros((len(array), first + len(self.parts)), np.bool_)
        if self.has_kind:
            kinds = columns.pop(0)
            refuse_nulls(kinds)
            row_kind = kinds.to_numpy(zero_copy_only=False)
            refuse_outside(row_kind, 0, _MOST_KIND, "a row_kind")
            bits[:, 0], bits[:, 1] = row_kind & 1 != 0, row_kind & 2 != 0
        encoded = []
        for number, (column, part) in enumerate(zip(columns, self.parts, strict=True), first):
            valid = find_valid(column)
            bits[:, number] = ~valid
            encoded.append(write_where(column, valid, part))
        return join_parts(matrix_bytes(np.packbits(bits, axis=1)), *encoded)


Unique = Literal["", "element", "key"]
"""What Java keeps once: the elements of a set, or the keys of a map."""

_CONTAINERS = {"element": "a set has the element", "key": "a map has the key"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements(Layout):
    """Lists of elements, none of which is null.

    ``unique`` is what must not occur twice: elements, or the first field of elements.
    """

    element: Layout = field(kw_only=False)
    unique: Unique = ""

    def _arrow_type(self) -> pa.DataType:
        return pa.list_(self.element.arrow_type())

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        return self.write_elements(array, array.flatten())

    def write_elements(self, array: pa.Array, elements: pa.Array) -> pa.Array:
        """Return the bytes of lists or maps, given all of their elements."""
        if self.unique:
            values = elements.field(0) if self.unique == "key" else elements
            refuse_repeated(array, values, _CONTAINERS[self.unique])
        return self.join(list_lengths(array), self.element.write(elements))

    @abstractmethod
    def join(self, counts: npt.NDArray[np.int64], elements: pa.Array) -> pa.Array:
        """Return the bytes of lists of these lengths, given those of all their elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Elements):
    """A number of elements, each of at least ``least`` bytes, then the elements."""

    least: int = 1

    def _skipper(self) -> Skip:
        skip_element, width = self.element.skipper(), self.element.fixed_width

        def skip(reader: Reader) -> None:
            count = reader.count(width or 1, "elements")
            if width is not None:
                reader.take(count * width)
                return
            for _ in range(count):
                skip_element(reader)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        numbers = self._numbers
        if numbers is None:
            return read_lists(self.element, cursor, cursor.counts(self.least))
        width = numbers._fixed_width()
        counts = cursor.counts(width)
        begins = cursor.position
        cursor.position = begins + counts * width
        _, _, content = piece_array(cursor.data(), begins, cursor.position).buffers()
        raw = np.frombuffer(content or b"", numbers.dtype, int(counts.sum()))
        values = numbers.to_column(raw.astype(raw.dtype.newbyteorder("=")))
        return pa.ListArray.from_arrays(list_offsets(counts), values)

    @property
    def _numbers(self) -> Numbers | None:
        """The layout of elements that are numbers, which are read at once."""
        layout = self.element.layout if isinstance(self.element, FlinkType) else self.element
        return layout if isinstance(layout, Numbers) else None

    def join(self, counts: npt.NDArray[np.int64], elements: pa.Array) -> pa.Array:
        """Return the bytes of lists of these lengths, given those of all their elements."""
        return join_parts(write_numbers(pa.array(counts), ">i4"), join_runs(elements, counts))


@dataclass(frozen=True, slots=True)
class Entries(Layout):
    """A map as the list of its entries, which are structs of a key and a value."""

    entries: Elements

    def _arrow_type(self) -> pa.DataType:
        entry = self.entries.element.arrow_type()
        return pa.map_(entry.field(0).type, entry.field(1).type)

    def _skipper(self) -> Skip:
        return self.entries.skipper()

    def _read(self, cursor: Cursor) -> pa.Array:
        lists = self.entries.read(cursor)
        keys, values = lists.flatten().flatten()
        if keys.null_count:
            raise UnsupportedTypeError("a map has a null key, which a map column cannot store")
        return pa.MapArray.from_arrays(lists.offsets, keys, values)

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        return self.entries.write_elements(array, flatten_entries(array))
