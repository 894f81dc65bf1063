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
from statestore.interop.flink_savepoints.types.binary_rows import decoded_rows
from statestore.interop.flink_savepoints.types.byte_cursor import (
    Cursor,
    Rows,
    list_offsets,
    scattered,
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
    name_of,
)
from statestore.interop.flink_savepoints.types.scalar_values import (
    decoded_scalar,
    sized,
    sorted_longs,
)
from statestore.interop.flink_savepoints.types.value_lengths import (
    KIND_BITS,
    fixed_width,
    null_mask,
    skipper,
)

__all__ = ["decoded", "decoded_from", "decoded_list", "decoded_map_values"]

_COMMA = 44
_NULL, _ITSELF, _SUBCLASS, _TAGGED = 1, 2, 4, 8


def decoded(kind: FlinkType, spans: Spans) -> pa.Array:
    """Return the column of values that each fill their slice completely.

    Raises:
        UnsupportedTypeError: for a type without a column type, or a value that its column cannot
            hold.
        DamagedFileError: if bytes do not match the type, or are left over.
    """
    cursor = Cursor(spans, spans.starts, spans.ends)
    found = decoded_from(kind, cursor)
    cursor.refuse(cursor.position != cursor.end, "unexpected bytes follow a value")
    return found


def decoded_from(kind: FlinkType, cursor: Cursor) -> pa.Array:
    """Return the column of the values that begin at the cursor, and advance past them."""
    cursor.refuse_cells(_columns_of(kind))
    match kind:
        case Scalar("String[]"):
            return _list(Scalar("String"), cursor, cursor.counts(1))
        case Scalar(name):
            return decoded_scalar(name, cursor)
        case TupleType(_, fields):
            return _struct([decoded_from(field, cursor) for field in fields], arrow_type(kind))
        case RowType():
            return _row(kind, cursor)
        case ListType(element, form):
            if form == "LinkedList":
                return _linked_list(element, cursor)
            counts = cursor.counts(1)
            inner: FlinkType = NullableType(element) if form == "Set" else element
            return _list(inner, cursor, counts)
        case MapType(key, value, map_form):
            return _map(NullableType(key) if map_form == "NullAwareMap" else key, value, cursor)
        case ArrayType(_, element):
            return _list(PresentType(element), cursor, cursor.counts(1))
        case NullableType(value, padding):
            return _where_not(cursor.flags(), value, padding, cursor)
        case PresentType(value):
            return _where_not(~cursor.flags(), value, 0, cursor)
        case EitherType(left, right, either_form):
            return _either(left, right, cursor, is_tagged=either_form == "TaggedUnion")
        case TtlType(value):
            stamp = pa.array(cursor.numbers(">i8"))
            inner_values = decoded_from(value, cursor)
            return pa.StructArray.from_arrays([stamp, inner_values], ["last_access", "value"])
        case TtlAwareType(value) | ExternalType(_, value):
            return decoded_from(value, cursor)
        case RawType():
            return sized(cursor)
        case PythonType(value, many):
            return _python(value, cursor, many=many)
        case TimerType(key, namespace):
            return _timer(key, namespace, cursor)
        case PojoType():
            return _pojo(kind, cursor)
        case EnumType(class_name, constants):
            numbers = cursor.numbers(">i4")
            wrong = (numbers < 0) | (numbers >= len(constants))
            cursor.refuse(wrong, f"{class_name} has no such constant")
            return pa.array(constants, pa.string()).take(pa.array(numbers))
        case RowDataType(columns):
            return decoded_rows(columns, cursor)
        case _:
            raise UnsupportedTypeError(f"values of {name_of(kind)} can only be read as bytes")


@lru_cache(maxsize=512)
def _columns_of(kind: FlinkType) -> int:
    """Return the number of leaf columns that a type expands to."""
    match kind:
        case TupleType(_, fields) | RowType(fields):
            return sum(map(_columns_of, fields))
        case PojoType():
            fields = tuple(
                field.value
                for one in (kind, *(each.value for each in (*kind.registered, *kind.others)))
                if isinstance(one, PojoType)
                for field in one.fields
            )
            return 1 + sum(map(_columns_of, fields))
        case EitherType(left, right):
            return 1 + _columns_of(left) + _columns_of(right)
        case NullableType(value) | PresentType(value) | TtlType(value) | TtlAwareType(value):
            return _columns_of(value)
        case RowDataType(columns):
            return len(columns)
        case _:
            return 1


def _struct(columns: list[pa.Array], kind: pa.StructType, nulls: Rows | None = None) -> pa.Array:
    mask = None if nulls is None or not bool(nulls.any()) else pa.array(nulls)
    fields = [kind.field(at) for at in range(kind.num_fields)]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def _python(kind: FlinkType, cursor: Cursor, *, many: bool) -> pa.Array:
    """Read values of PyFlink's coders after a length: one value, or all values up to the end."""
    lengths = cursor.counts(1)
    inner = Cursor(cursor.spans, cursor.position, cursor.position + lengths)
    cursor.position = inner.end
    if not many:
        found = decoded_from(kind, inner)
        inner.refuse(inner.position != inner.end, "unexpected bytes follow a value")
        return found
    starts, counts = _parted(kind, inner, between=0)
    values = decoded_from(kind, Cursor(cursor.spans, starts, np.repeat(inner.end, counts)))
    return pa.ListArray.from_arrays(list_offsets(counts), values)


def _where_not(nulls: Rows, value: FlinkType, padding: int, cursor: Cursor) -> pa.Array:
    """Read the values of the rows that are not null; skip ``padding`` bytes in the others."""
    if not bool(nulls.any()):
        return decoded_from(value, cursor)
    if padding:
        empty = cursor.only(nulls)
        empty.fixed(padding)
        cursor.moved(nulls, empty)
    some = cursor.only(~nulls)
    found = decoded_from(value, some)
    cursor.moved(~nulls, some)
    return scattered(found, ~nulls)


def _either(left: FlinkType, right: FlinkType, cursor: Cursor, *, is_tagged: bool) -> pa.Array:
    """Read ``EitherSerializer``: a flag for the left side, then the value of that side.

    ``UnionSerializer`` of ``CoGroupedStreams`` has the tag 1 or 2 instead of the flag.
    """
    if is_tagged:
        tags = cursor.fixed(1)[:, 0]
        cursor.refuse((tags != 1) & (tags != 2), "a value belongs to neither of the two streams")
        is_left = tags == 1
    else:
        is_left = cursor.flags()
    sides = [_where_not(~is_left, left, 0, cursor), _where_not(is_left, right, 0, cursor)]
    return pa.StructArray.from_arrays([pa.array(is_left), *sides], ["is_left", "left", "right"])


def _timer(key: FlinkType, namespace: FlinkType, cursor: Cursor) -> pa.Array:
    """Read ``TimerSerializer``: the time has its sign bit flipped, so that bytes sort by time."""
    parts = [sorted_longs(cursor), decoded_from(key, cursor), decoded_from(namespace, cursor)]
    return pa.StructArray.from_arrays(parts, ["time", "key", "namespace"])


def _row(kind: RowType, cursor: Cursor) -> pa.Array:
    """Read ``RowSerializer``: bits, highest first, for the row kind and for each null field."""
    first = KIND_BITS if kind.has_kind else 0
    mask = cursor.fixed((len(kind.fields) + first + 7) // 8)
    bits = np.unpackbits(mask, axis=1).astype(np.bool_)
    columns = [] if not first else [pa.array((bits[:, 0] + 2 * bits[:, 1]).astype(np.int8))]
    columns += [
        _where_not(bits[:, first + at], one, 0, cursor) for at, one in enumerate(kind.fields)
    ]
    return _struct(columns, arrow_type(kind))


def _list(element: FlinkType, cursor: Cursor, counts: Places) -> pa.Array:
    elements, cursor.position = _elements(element, cursor, counts)
    return pa.ListArray.from_arrays(list_offsets(counts), elements)


def _linked_list(element: FlinkType, cursor: Cursor) -> pa.Array:
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
    some = Cursor(cursor.spans, np.array(starts, np.int64), np.array(limits, np.int64))
    values = scattered(decoded_from(element, some), ~np.array(nulls, np.bool_))
    return pa.ListArray.from_arrays(list_offsets(counts), values)


def _elements(element: FlinkType, cursor: Cursor, counts: Places) -> tuple[pa.Array, Places]:
    """Read lists of consecutive elements; return the elements and the end of each list."""
    width = fixed_width(element)
    if width is None:
        starts, ends = _scanned(element, cursor, counts)
    else:
        ends = cursor.position + counts * width
        cursor.refuse(ends > cursor.end, "a list exceeds its value")
        starts = np.repeat(cursor.position, counts) + _within(counts) * width
    return decoded_from(element, Cursor(cursor.spans, starts, np.repeat(ends, counts))), ends


def _scanned(element: FlinkType, cursor: Cursor, counts: Places) -> tuple[Places, Places]:
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


def decoded_list(element: FlinkType, spans: Spans) -> pa.Array:
    """Return the lists of a list state, whose elements are separated by commas.

    ``ListDelimitedSerializer`` writes this format, so that RocksDB can append elements by merging.
    Raises the errors of :func:`decoded`.
    """
    cursor = Cursor(spans, spans.starts, spans.ends)
    width = fixed_width(element)
    if width is None:
        starts, counts = _parted(element, cursor)
    else:
        counts = (cursor.end - cursor.position + 1) // (width + 1)
        wrong = (counts * (width + 1) - 1 != cursor.end - cursor.position) & (
            cursor.end > cursor.position
        )
        cursor.refuse(wrong, "a list does not end with an element")
        starts = np.repeat(cursor.position, counts) + _within(counts) * (width + 1)
    commas = starts[_within(counts) > 0] - 1
    if bool((spans.data[commas] != _COMMA).any()):
        raise cursor.damaged("the elements of a list have no comma between them", 0)
    limits = np.repeat(cursor.end, counts)
    values = decoded_from(element, Cursor(spans, starts, limits))
    return pa.ListArray.from_arrays(list_offsets(counts), values)


def decoded_map_values(value: FlinkType, spans: Spans) -> pa.Array:
    """Return the values of a map state's entries, each of which begins with a null flag.

    A null flag can be followed by the bytes that the value's serializer writes for a null
    (``HeapKeyValueStateIterator``). Raises the errors of :func:`decoded`.
    """
    cursor = Cursor(spans, spans.starts, spans.ends)
    nulls = cursor.flags()
    found = _where_not(nulls, value, 0, cursor)
    cursor.refuse((cursor.position != cursor.end) & ~nulls, "unexpected bytes follow a value")
    return found


def _within(counts: Places) -> Places:
    """Return the index of each element within its row."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def _parted(element: FlinkType, cursor: Cursor, between: int = 1) -> tuple[Places, Places]:
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
                    raise reader.damaged("a list ends with a comma")
        counts[row] = len(starts) - before
    return np.array(starts, np.int64), counts


def _map(key: FlinkType, value: FlinkType, cursor: Cursor) -> pa.Array:
    """Read ``MapSerializer``: the size, then keys and nullable values."""
    counts = cursor.counts(2)
    entry = TupleType("", (key, NullableType(value)))
    entries, cursor.position = _elements(entry, cursor, counts)
    keys, values = entries.flatten()
    if keys.null_count:
        raise UnsupportedTypeError("a map has a null key, which a map column cannot store")
    return pa.MapArray.from_arrays(list_offsets(counts), keys, values)


def _pojo(kind: PojoType, cursor: Cursor) -> pa.Array:
    """Read ``PojoSerializer``: flags for null, the class itself or a subclass; then the fields."""
    flags = cursor.fixed(1)[:, 0]
    known = np.isin(flags, (_NULL, _ITSELF, _SUBCLASS, _TAGGED))
    if not bool(known.all()):
        cursor.position = cursor.position - 1
        cursor.refuse(~known, f"a value of {kind.class_name} has flags that a POJO cannot have")
    which = np.full(len(cursor), -1, np.int64)
    which[flags == _ITSELF] = 0
    subclasses = (*kind.registered, *kind.others)
    _name_subclasses(kind, cursor, flags, which)
    fields = pojo_fields(kind)
    classes = [kind, *(subclass.value for subclass in subclasses)]
    columns: dict[str, list[tuple[Rows, pa.Array]]] = {field.name: [] for field in fields}
    for number, one in enumerate(classes):
        rows = which == number
        if not bool(rows.any()):
            continue
        if not isinstance(one, PojoType):
            raise UnsupportedTypeError(f"a subclass of {kind.class_name} is not a POJO")
        some = cursor.only(rows)
        if number:  # a subclass is written as a complete POJO, with its own flags
            some.refuse(some.fixed(1)[:, 0] != _ITSELF, "a value of a subclass has invalid flags")
        for field in one.fields:
            found = _where_not(some.flags(), field.value, 0, some)
            columns[field.name].append((rows, found))
        cursor.moved(rows, some)
    if subclasses:
        names = pa.array([one.class_name for one in classes if isinstance(one, PojoType)])
        there = which >= 0
        named = names.take(pa.array(which[there]))
        columns[fields[0].name].append((there, named))
    merged = [_merged(columns[field.name], field.type, len(cursor)) for field in fields]
    return _struct(merged, arrow_type(kind), which < 0)


def _name_subclasses(kind: PojoType, cursor: Cursor, flags: Any, which: Places) -> None:
    """Store in ``which`` the number of each row's subclass, found by its number or its name."""
    tagged = flags == _TAGGED
    if bool(tagged.any()):
        some = cursor.only(tagged)
        numbers = some.fixed(1)[:, 0].astype(np.int64)
        some.refuse(numbers >= len(kind.registered), "a subclass has an invalid number")
        which[tagged] = numbers + 1
        cursor.moved(tagged, some)
    named = {one.class_name: at for at, one in enumerate(kind.others, len(kind.registered) + 1)}
    cursor.position = cursor.position.copy()
    for row in np.flatnonzero(flags == _SUBCLASS).tolist():
        reader = cursor.reader(row)
        name = reader.utf()
        if name not in named:
            raise UnsupportedTypeError(
                f"{cursor.spans.name} has a value of {name}, a subclass of {kind.class_name} "
                "that its header does not describe because the job first used it after the "
                "header was written"
            )
        which[row] = named[name]
        cursor.position[row] += reader.position


def _merged(parts: list[tuple[Rows, pa.Array]], kind: pa.DataType, count: int) -> pa.Array:
    """Merge the values of several sets of rows into one column; other rows are null."""
    if len(parts) == 1:
        return scattered(parts[0][1], parts[0][0])
    places, there, upto = np.zeros(count, np.int64), np.zeros(count, np.bool_), 0
    for rows, found in parts:
        places[rows] = upto + np.arange(len(found))
        there |= rows
        upto += len(found)
    whole = pa.concat_arrays([found for _, found in parts] or [pa.nulls(0, kind)])
    return whole.take(pa.array(places, mask=~there))
