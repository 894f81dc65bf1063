"""Decode a column of values of one type from their bytes.

Parts that have the same form in every value are decoded for all rows with vectorized operations.
Only non-ASCII texts, large numbers and the lengths of lists are decoded row by row. The layout of
values follows Flink's serializers, which are named where their bytes are read.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink_savepoints.types.arrow_types import arrow_type, pojo_fields
from statestore.interop.flink_savepoints.types.binary_rows import decode_rows
from statestore.interop.flink_savepoints.types.byte_cursor import (
    Cursor,
    Rows,
    list_offsets,
    scatter,
)
from statestore.interop.flink_savepoints.types.byte_slices import Places, Spans
from statestore.interop.flink_savepoints.types.flink_types import (
    ArrayType,
    EitherType,
    EnumType,
    ExternalType,
    FlinkType,
    ListType,
    MapType,
    NullableType,
    PojoType,
    PresentType,
    PythonType,
    RawType,
    RowDataType,
    RowType,
    Scalar,
    TimerType,
    TtlAwareType,
    TtlType,
    TupleType,
    java_type_name,
)
from statestore.interop.flink_savepoints.types.scalar_values import (
    decode_scalar,
    decode_sized,
    decode_sorted_longs,
)
from statestore.interop.flink_savepoints.types.value_lengths import (
    KIND_BITS,
    fixed_width,
    null_mask,
    skipper,
)

__all__ = ["decode_at", "decode_list", "decode_map_values", "decode_values"]

_COMMA = 44
_NULL, _ITSELF, _SUBCLASS, _TAGGED = 1, 2, 4, 8


def decode_values(flink_type: FlinkType, spans: Spans) -> pa.Array:
    """Return the column of values that each fill their slice completely.

    Raises:
        UnsupportedTypeError: for a type without a column type, or a value that its column cannot
            hold.
        DamagedFileError: if bytes do not match the type, or are left over.
    """
    cursor = Cursor(spans, spans.starts, spans.ends)
    values = decode_at(flink_type, cursor)
    cursor.refuse(cursor.position != cursor.end, "unexpected bytes follow a value")
    return values


def decode_at(flink_type: FlinkType, cursor: Cursor) -> pa.Array:
    """Return the column of the values that begin at the cursor, and advance past them."""
    cursor.refuse_cells(_count_columns(flink_type))
    match flink_type:
        case Scalar("String[]"):
            return _decode_list(Scalar("String"), cursor, cursor.counts(1))
        case Scalar(name):
            return decode_scalar(name, cursor)
        case TupleType(_, fields):
            return _build_struct(
                [decode_at(field, cursor) for field in fields], arrow_type(flink_type)
            )
        case RowType():
            return _decode_row(flink_type, cursor)
        case ListType(element, form):
            if form == "LinkedList":
                return _decode_linked_list(element, cursor)
            counts = cursor.counts(1)
            inner: FlinkType = NullableType(element) if form == "Set" else element
            return _decode_list(inner, cursor, counts)
        case MapType(key, value, map_form):
            return _decode_map(
                NullableType(key) if map_form == "NullAwareMap" else key, value, cursor
            )
        case ArrayType(_, element):
            return _decode_list(PresentType(element), cursor, cursor.counts(1))
        case NullableType(value, padding):
            return _decode_non_null(cursor.flags(), value, padding, cursor)
        case PresentType(value):
            return _decode_non_null(~cursor.flags(), value, 0, cursor)
        case EitherType(left, right, either_form):
            return _decode_either(left, right, cursor, is_tagged=either_form == "TaggedUnion")
        case TtlType(value):
            return _decode_ttl(value, cursor)
        case TtlAwareType(value) | ExternalType(_, value):
            return decode_at(value, cursor)
        case RawType():
            return decode_sized(cursor)
        case PythonType(value, many):
            return _decode_python(value, cursor, many=many)
        case TimerType(key, namespace):
            return _decode_timer(key, namespace, cursor)
        case PojoType():
            return _decode_pojo(flink_type, cursor)
        case EnumType():
            return _decode_enum(flink_type, cursor)
        case RowDataType(columns):
            return decode_rows(columns, cursor)
        case _:
            raise UnsupportedTypeError(
                f"values of {java_type_name(flink_type)} can only be read as bytes"
            )


def _decode_ttl(value: FlinkType, cursor: Cursor) -> pa.Array:
    stamp = pa.array(cursor.numbers(">i8"))
    inner_values = decode_at(value, cursor)
    return pa.StructArray.from_arrays([stamp, inner_values], ["last_access", "value"])


def _decode_enum(enum: EnumType, cursor: Cursor) -> pa.Array:
    numbers = cursor.numbers(">i4")
    wrong = (numbers < 0) | (numbers >= len(enum.constants))
    cursor.refuse(wrong, f"{enum.class_name} has no such constant")
    return pa.array(enum.constants, pa.string()).take(pa.array(numbers))


@lru_cache(maxsize=512)
def _count_columns(flink_type: FlinkType) -> int:
    """Return the number of leaf columns that a type expands to."""
    match flink_type:
        case TupleType(_, fields) | RowType(fields):
            return sum(map(_count_columns, fields))
        case PojoType():
            fields = tuple(
                field.value
                for pojo in (
                    flink_type,
                    *(subclass.value for subclass in (*flink_type.registered, *flink_type.others)),
                )
                if isinstance(pojo, PojoType)
                for field in pojo.fields
            )
            return 1 + sum(map(_count_columns, fields))
        case EitherType(left, right):
            return 1 + _count_columns(left) + _count_columns(right)
        case NullableType(value) | PresentType(value) | TtlType(value) | TtlAwareType(value):
            return _count_columns(value)
        case RowDataType(columns):
            return len(columns)
        case _:
            return 1


def _build_struct(
    columns: list[pa.Array], struct_type: pa.StructType, nulls: Rows | None = None
) -> pa.Array:
    mask = None if nulls is None or not bool(nulls.any()) else pa.array(nulls)
    fields = [struct_type.field(index) for index in range(struct_type.num_fields)]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def _decode_python(flink_type: FlinkType, cursor: Cursor, *, many: bool) -> pa.Array:
    """Read values of PyFlink's coders after a length: one value, or all values up to the end."""
    lengths = cursor.counts(1)
    inner = Cursor(cursor.spans, cursor.position, cursor.position + lengths)
    cursor.position = inner.end
    if not many:
        values = decode_at(flink_type, inner)
        inner.refuse(inner.position != inner.end, "unexpected bytes follow a value")
        return values
    starts, counts = _split_elements(flink_type, inner, between=0)
    values = decode_at(flink_type, Cursor(cursor.spans, starts, np.repeat(inner.end, counts)))
    return pa.ListArray.from_arrays(list_offsets(counts), values)


def _decode_non_null(nulls: Rows, value: FlinkType, padding: int, cursor: Cursor) -> pa.Array:
    """Read the values of the rows that are not null; skip ``padding`` bytes in the others."""
    if not bool(nulls.any()):
        return decode_at(value, cursor)
    if padding:
        empty = cursor.select(nulls)
        empty.take(padding)
        cursor.move_rows(nulls, empty)
    selected = cursor.select(~nulls)
    values = decode_at(value, selected)
    cursor.move_rows(~nulls, selected)
    return scatter(values, ~nulls)


def _decode_either(
    left: FlinkType, right: FlinkType, cursor: Cursor, *, is_tagged: bool
) -> pa.Array:
    """Read ``EitherSerializer``: a flag for the left side, then the value of that side.

    ``UnionSerializer`` of ``CoGroupedStreams`` has the tag 1 or 2 instead of the flag.
    """
    if is_tagged:
        tags = cursor.take(1)[:, 0]
        cursor.refuse((tags != 1) & (tags != 2), "a value belongs to neither of the two streams")
        is_left = tags == 1
    else:
        is_left = cursor.flags()
    sides = [
        _decode_non_null(~is_left, left, 0, cursor),
        _decode_non_null(is_left, right, 0, cursor),
    ]
    return pa.StructArray.from_arrays([pa.array(is_left), *sides], ["is_left", "left", "right"])


def _decode_timer(key: FlinkType, namespace: FlinkType, cursor: Cursor) -> pa.Array:
    """Read ``TimerSerializer``: the time has its sign bit flipped, so that bytes sort by time."""
    parts = [decode_sorted_longs(cursor), decode_at(key, cursor), decode_at(namespace, cursor)]
    return pa.StructArray.from_arrays(parts, ["time", "key", "namespace"])


def _decode_row(row_type: RowType, cursor: Cursor) -> pa.Array:
    """Read ``RowSerializer``: bits, highest first, for the row kind and for each null field."""
    first = KIND_BITS if row_type.has_kind else 0
    mask = cursor.take((len(row_type.fields) + first + 7) // 8)
    bits = np.unpackbits(mask, axis=1).astype(np.bool_)
    columns = [] if not first else [pa.array((bits[:, 0] + 2 * bits[:, 1]).astype(np.int8))]
    columns += [
        _decode_non_null(bits[:, first + index], field, 0, cursor)
        for index, field in enumerate(row_type.fields)
    ]
    return _build_struct(columns, arrow_type(row_type))


def _decode_list(element: FlinkType, cursor: Cursor, counts: Places) -> pa.Array:
    elements, cursor.position = _decode_elements(element, cursor, counts)
    return pa.ListArray.from_arrays(list_offsets(counts), elements)


def _decode_linked_list(element: FlinkType, cursor: Cursor) -> pa.Array:
    """Read ``LinkedListSerializer``: a length, a null bit per element, then the other elements."""
    skip = skipper(element)
    starts: list[int] = []
    limits: list[int] = []
    nulls: list[bool] = []
    counts, ends = np.zeros(len(cursor), np.int64), cursor.position.copy()
    for row in range(len(cursor)):
        reader, begin = cursor.reader(row), int(cursor.position[row])
        mask = null_mask(reader)
        nulls += mask
        counts[row] = len(mask)
        for _ in range(mask.count(False)):
            starts.append(begin + reader.position)
            limits.append(int(cursor.end[row]))
            skip(reader)
        ends[row] = begin + reader.position
    cursor.position = ends
    present = Cursor(cursor.spans, np.array(starts, np.int64), np.array(limits, np.int64))
    values = scatter(decode_at(element, present), ~np.array(nulls, np.bool_))
    return pa.ListArray.from_arrays(list_offsets(counts), values)


def _decode_elements(element: FlinkType, cursor: Cursor, counts: Places) -> tuple[pa.Array, Places]:
    """Read lists of consecutive elements; return the elements and the end of each list."""
    width = fixed_width(element)
    if width is None:
        starts, ends = _scan_elements(element, cursor, counts)
    else:
        ends = cursor.position + counts * width
        cursor.refuse(ends > cursor.end, "a list exceeds its value")
        starts = np.repeat(cursor.position, counts) + _index_within_row(counts) * width
    return decode_at(element, Cursor(cursor.spans, starts, np.repeat(ends, counts))), ends


def _scan_elements(element: FlinkType, cursor: Cursor, counts: Places) -> tuple[Places, Places]:
    """Return the position of each element, and the end of each row's last element."""
    skip = skipper(element)
    starts: list[int] = []
    ends = cursor.position.copy()
    for row in np.flatnonzero(counts).tolist():
        reader, begin = cursor.reader(row), int(cursor.position[row])
        for _ in range(int(counts[row])):
            starts.append(begin + reader.position)
            skip(reader)
        ends[row] = begin + reader.position
    return np.array(starts, np.int64), ends


def decode_list(element: FlinkType, spans: Spans) -> pa.Array:
    """Return the lists of a list state, whose elements are separated by commas.

    ``ListDelimitedSerializer`` writes this format, so that RocksDB can append elements by merging.
    Raises the errors of :func:`decode_values`.
    """
    cursor = Cursor(spans, spans.starts, spans.ends)
    width = fixed_width(element)
    if width is None:
        starts, counts = _split_elements(element, cursor)
    else:
        counts = (cursor.end - cursor.position + 1) // (width + 1)
        wrong = (counts * (width + 1) - 1 != cursor.end - cursor.position) & (
            cursor.end > cursor.position
        )
        cursor.refuse(wrong, "a list does not end with an element")
        starts = np.repeat(cursor.position, counts) + _index_within_row(counts) * (width + 1)
    commas = starts[_index_within_row(counts) > 0] - 1
    if bool((spans.data[commas] != _COMMA).any()):
        raise cursor.error("the elements of a list have no comma between them", 0)
    limits = np.repeat(cursor.end, counts)
    values = decode_at(element, Cursor(spans, starts, limits))
    return pa.ListArray.from_arrays(list_offsets(counts), values)


def decode_map_values(value: FlinkType, spans: Spans) -> pa.Array:
    """Return the values of a map state's entries, each of which begins with a null flag.

    A null flag can be followed by the bytes that the value's serializer writes for a null
    (``HeapKeyValueStateIterator``). Raises the errors of :func:`decode_values`.
    """
    cursor = Cursor(spans, spans.starts, spans.ends)
    nulls = cursor.flags()
    values = _decode_non_null(nulls, value, 0, cursor)
    cursor.refuse((cursor.position != cursor.end) & ~nulls, "unexpected bytes follow a value")
    return values


def _index_within_row(counts: Places) -> Places:
    """Return the index of each element within its row."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def _split_elements(element: FlinkType, cursor: Cursor, between: int = 1) -> tuple[Places, Places]:
    """Return the position of each element, and the number of elements per row.

    Two elements are separated by ``between`` bytes.
    """
    skip = skipper(element)
    starts: list[int] = []
    counts = np.zeros(len(cursor), np.int64)
    for row in range(len(cursor)):
        reader, begin, before = cursor.reader(row), int(cursor.position[row]), len(starts)
        while reader.remaining:
            starts.append(begin + reader.position)
            skip(reader)
            if reader.remaining and between:
                reader.take(between)
                if not reader.remaining:
                    raise reader.error("a list ends with a comma")
        counts[row] = len(starts) - before
    return np.array(starts, np.int64), counts


def _decode_map(key: FlinkType, value: FlinkType, cursor: Cursor) -> pa.Array:
    """Read ``MapSerializer``: the size, then keys and nullable values."""
    counts = cursor.counts(2)
    entry = TupleType("", (key, NullableType(value)))
    entries, cursor.position = _decode_elements(entry, cursor, counts)
    keys, values = entries.flatten()
    if keys.null_count:
        raise UnsupportedTypeError("a map has a null key, which a map column cannot store")
    return pa.MapArray.from_arrays(list_offsets(counts), keys, values)


def _decode_pojo(pojo: PojoType, cursor: Cursor) -> pa.Array:
    """Read ``PojoSerializer``: flags for null, the class itself or a subclass; then the fields."""
    flags = cursor.take(1)[:, 0]
    known = np.isin(flags, (_NULL, _ITSELF, _SUBCLASS, _TAGGED))
    if not bool(known.all()):
        cursor.position = cursor.position - 1
        cursor.refuse(~known, f"a value of {pojo.class_name} has flags that a POJO cannot have")
    class_numbers = np.full(len(cursor), -1, np.int64)
    class_numbers[flags == _ITSELF] = 0
    subclasses = (*pojo.registered, *pojo.others)
    _name_subclasses(pojo, cursor, flags, class_numbers)
    fields = pojo_fields(pojo)
    classes = [pojo, *(subclass.value for subclass in subclasses)]
    columns: dict[str, list[tuple[Rows, pa.Array]]] = {field.name: [] for field in fields}
    for number, pojo_class in enumerate(classes):
        rows = class_numbers == number
        if not bool(rows.any()):
            continue
        if not isinstance(pojo_class, PojoType):
            raise UnsupportedTypeError(f"a subclass of {pojo.class_name} is not a POJO")
        selected = cursor.select(rows)
        if number:  # a subclass is written as a complete POJO, with its own flags
            selected.refuse(
                selected.take(1)[:, 0] != _ITSELF, "a value of a subclass has invalid flags"
            )
        for field in pojo_class.fields:
            values = _decode_non_null(selected.flags(), field.value, 0, selected)
            columns[field.name].append((rows, values))
        cursor.move_rows(rows, selected)
    if subclasses:
        names = pa.array(
            [pojo_class.class_name for pojo_class in classes if isinstance(pojo_class, PojoType)]
        )
        is_known = class_numbers >= 0
        named = names.take(pa.array(class_numbers[is_known]))
        columns[fields[0].name].append((is_known, named))
    merged = [_merge_columns(columns[field.name], field.type, len(cursor)) for field in fields]
    return _build_struct(merged, arrow_type(pojo), class_numbers < 0)


def _name_subclasses(pojo: PojoType, cursor: Cursor, flags: Any, class_numbers: Places) -> None:
    """Store in ``class_numbers`` each row's subclass number, found by its number or its name."""
    tagged = flags == _TAGGED
    if bool(tagged.any()):
        selected = cursor.select(tagged)
        numbers = selected.take(1)[:, 0].astype(np.int64)
        selected.refuse(numbers >= len(pojo.registered), "a subclass has an invalid number")
        class_numbers[tagged] = numbers + 1
        cursor.move_rows(tagged, selected)
    named = {
        subclass.class_name: number
        for number, subclass in enumerate(pojo.others, len(pojo.registered) + 1)
    }
    cursor.position = cursor.position.copy()
    for row in np.flatnonzero(flags == _SUBCLASS).tolist():
        reader = cursor.reader(row)
        name = reader.utf()
        if name not in named:
            raise UnsupportedTypeError(
                f"{cursor.spans.name} has a value of {name}, a subclass of {pojo.class_name} "
                "that its header does not describe because the job first used it after the "
                "header was written"
            )
        class_numbers[row] = named[name]
        cursor.position[row] += reader.position


def _merge_columns(
    parts: list[tuple[Rows, pa.Array]], data_type: pa.DataType, count: int
) -> pa.Array:
    """Merge the values of several sets of rows into one column; other rows are null."""
    if len(parts) == 1:
        return scatter(parts[0][1], parts[0][0])
    places, is_set, upto = np.zeros(count, np.int64), np.zeros(count, np.bool_), 0
    for rows, values in parts:
        places[rows] = upto + np.arange(len(values))
        is_set |= rows
        upto += len(values)
    whole = pa.concat_arrays([values for _, values in parts] or [pa.nulls(0, data_type)])
    return whole.take(pa.array(places, mask=~is_set))
