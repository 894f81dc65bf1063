"""Values from bytes: a column of a type, from where each of its values lies.

What every value of a type has in the same way is read of all of them at once; only texts that are
not ASCII, large numbers and the lengths of lists are looked at one by one. How values lie is what
the serializers say, which are named where their bytes are read.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.binary_rows import decoded_rows
from statestore.interop.flink.columns import WINDOW, arrow_type, pojo_fields
from statestore.interop.flink.cursor import Cursor, Rows, scattered
from statestore.interop.flink.skipping import ELEMENT_WIDTHS, KIND_BITS, fixed_width, skipper
from statestore.interop.flink.spans import Places, Spans, piece_array
from statestore.interop.flink.times import TIMES
from statestore.interop.flink.types import (
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

__all__ = ["decoded", "decoded_from", "decoded_list", "decoded_map_values"]

_NUMBERS = {
    "Byte": ">i1", "Short": ">i2", "Integer": ">i4", "Long": ">i8", "Float": ">f4",
    "Double": ">f8", "Character": ">u2", "CountWindow": ">i8",
}  # fmt: skip
_ELEMENTS = {
    "short[]": ">i2", "int[]": ">i4", "long[]": ">i8", "float[]": ">f4", "double[]": ">f8",
    "char[]": ">u2",
}  # fmt: skip
_CONSTANTS = {1: 0, 2: 1, 3: 10}
_FIRST_LENGTH = 4
_COMMA = 44
_MILLIS_PER_DAY = 86_400_000
_NULL, _ITSELF, _SUBCLASS, _TAGGED = 1, 2, 4, 8


def decoded(kind: FlinkType, spans: Spans) -> pa.Array:
    """Return the column of some values, each of which is the whole of its piece.

    Raises:
        UnsupportedTypeError: for a type that can be no column, or a value that its column cannot
            hold.
        DamagedFileError: when bytes are not of the type, or are left.
    """
    cursor = Cursor(spans, spans.starts, spans.ends)
    found = decoded_from(kind, cursor)
    cursor.refuse(cursor.at != cursor.end, "bytes are left behind a value")
    return found


def decoded_from(kind: FlinkType, cursor: Cursor) -> pa.Array:
    """Return the column of the values that begin where a cursor is, which goes on behind them."""
    match kind:
        case Scalar(name):
            return _scalar(name, cursor)
        case TupleType(_, fields):
            return _struct([decoded_from(one, cursor) for one in fields], arrow_type(kind))
        case RowType():
            return _row(kind, cursor)
        case ListType(element, form):
            counts = cursor.counts(1)
            inner: FlinkType = NullableType(element) if form == "Set" else element
            return _list(inner, cursor, counts)
        case MapType(key, value):
            return _map(key, value, cursor)
        case ArrayType(_, element):
            return _list(PresentType(element), cursor, cursor.counts(1))
        case NullableType(value, padding):
            return _where_not(cursor.flags(), value, padding, cursor)
        case PresentType(value):
            return _where_not(~cursor.flags(), value, 0, cursor)
        case EitherType(left, right):
            return _either(left, right, cursor)
        case TtlType(value):
            stamp = pa.array(cursor.numbers(">i8"))
            inner_values = decoded_from(value, cursor)
            return pa.StructArray.from_arrays([stamp, inner_values], ["last_access", "value"])
        case TtlAwareType(value) | ExternalType(_, value):
            return decoded_from(value, cursor)
        case RawType():
            return _sized(cursor)
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
            raise UnsupportedTypeError(f"values of {name_of(kind)} are read as bytes alone")


def _struct(columns: list[pa.Array], kind: pa.StructType, nulls: Rows | None = None) -> pa.Array:
    mask = None if nulls is None or not bool(nulls.any()) else pa.array(nulls)
    fields = [kind.field(at) for at in range(kind.num_fields)]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def _scalar(name: str, cursor: Cursor) -> pa.Array:
    if name in _NUMBERS:
        return pa.array(cursor.numbers(_NUMBERS[name]))
    if name in TIMES:
        return TIMES[name](cursor)
    if name in ELEMENT_WIDTHS:
        return _primitives(name, cursor)
    return _SCALARS[name](cursor)


def _booleans(cursor: Cursor) -> pa.Array:
    return pa.array(cursor.flags())


def _nothing(cursor: Cursor) -> pa.Array:
    """Pass over the byte of ``VoidSerializer``, ``VoidNamespaceSerializer``, a global window."""
    cursor.fixed(1)
    return pa.nulls(len(cursor))


def _window(cursor: Cursor) -> pa.Array:
    start, end = (pa.array(cursor.numbers(">i8")) for _ in range(2))
    return _struct([start, end], WINDOW)


def _strings(cursor: Cursor) -> pa.Array:
    """Read texts (``StringValue.readString``): their length and one, then a number a character."""
    lengths = cursor.varints() - 1
    nulls = lengths < 0
    lengths = np.maximum(lengths, 0)
    cursor.refuse(lengths > cursor.end - cursor.at, "a text does not fit into its value")
    begins, ends = cursor.at, cursor.at + lengths
    pieces = piece_array(cursor.data(), begins, ends)
    texts = _as_text(pieces)
    # A character of ASCII has one byte, so that where all bytes are of ASCII the text ends there.
    plain = pc.string_is_ascii(texts).to_numpy(zero_copy_only=False)
    if not bool(plain.all()):
        texts, ends = _other_texts(cursor, texts, plain, ends)
    cursor.at = ends
    if not bool(nulls.any()):
        return texts
    return pc.if_else(pa.array(~nulls), texts, pa.scalar(None, texts.type))


def _as_text(pieces: pa.Array) -> pa.Array:
    large = pa.types.is_large_binary(pieces.type)
    kind = pa.large_string() if large else pa.string()
    return pa.Array.from_buffers(kind, len(pieces), pieces.buffers(), offset=pieces.offset)


def _other_texts(
    cursor: Cursor, texts: pa.Array, plain: Rows, ends: Places
) -> tuple[pa.Array, Places]:
    """Read the texts that are not ASCII, each by itself; ``cursor`` is behind their lengths."""
    found: list[str] = []
    ends = ends.copy()
    for row in np.flatnonzero(~plain).tolist():
        reader = cursor.reader(row)
        found.append(reader.characters(int(ends[row] - cursor.at[row])))
        ends[row] = cursor.at[row] + reader.at
    order = np.empty(len(plain), np.int64)
    count = int(plain.sum())
    order[plain] = np.arange(count)
    order[~plain] = np.arange(count, len(plain))
    both = pa.concat_arrays([texts.filter(pa.array(plain)), _checked(found, texts.type)])
    return both.take(pa.array(order)), ends


def _checked(texts: list[str], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(texts, kind)
    except UnicodeEncodeError:
        raise UnsupportedTypeError(
            "a text has half of a pair of surrogates, which no column of text can hold"
        ) from None


def _sized(cursor: Cursor) -> pa.Array:
    """Read bytes with their length before them (``BytePrimitiveArraySerializer``)."""
    lengths = cursor.counts(1)
    begins = cursor.at
    cursor.at = begins + lengths
    return piece_array(cursor.data(), begins, cursor.at)


def _string_data(cursor: Cursor) -> pa.Array:
    """Read ``StringDataSerializer``: a length, and UTF-8."""
    begin = cursor.at
    try:
        return _sized(cursor).cast(pa.string())
    except pa.ArrowInvalid as error:
        cursor.at = begin
        raise cursor.damaged(f"a text is not UTF-8 ({error})", 0) from error


def _big_bytes(cursor: Cursor) -> list[int | None]:
    """Read ``BigIntSerializer``: 0 for null, 1 to 3 for 0, 1 and 10; else a length and four."""
    numbers = cursor.numbers(">i4").astype(np.int64)
    lengths = np.maximum(numbers - _FIRST_LENGTH, 0)
    wrong = (numbers < 0) | (lengths > cursor.end - cursor.at)
    cursor.refuse(wrong, "a number does not fit into its value")
    cursor.at = cursor.at + lengths
    raw = piece_array(cursor.data(), cursor.at - lengths, cursor.at).to_pylist()
    return [
        int.from_bytes(one, "big", signed=True) if length > 3 else _CONSTANTS.get(length)
        for one, length in zip(raw, numbers.tolist(), strict=True)
    ]


def _big_integers(cursor: Cursor) -> pa.Array:
    found = _big_bytes(cursor)
    return pa.array([None if one is None else str(one) for one in found], pa.string())


def _big_decimals(cursor: Cursor) -> pa.Array:
    """Read ``BigDecSerializer``: the digits as a whole number, and behind them the scale."""
    digits = _big_bytes(cursor)
    there = np.array([one is not None for one in digits], np.bool_)
    some = cursor.only(there)
    scales = iter(some.numbers(">i4").tolist())
    cursor.moved(there, some)
    found = [None if one is None else _decimal_text(one, next(scales)) for one in digits]
    return pa.array(found, pa.string())


def _decimal_text(digits: int, scale: int) -> str:
    sign, shown, _ = Decimal(digits).as_tuple()
    return str(Decimal((sign, shown, -scale)))


def _primitives(name: str, cursor: Cursor) -> pa.Array:
    """Read an array of primitives: its length, and its elements."""
    if name == "byte[]":
        return _sized(cursor)
    width = ELEMENT_WIDTHS[name]
    counts = cursor.counts(width)
    begins = cursor.at
    cursor.at = begins + counts * width
    pieces = piece_array(cursor.data(), begins, cursor.at)
    _, _, content = pieces.buffers()
    raw = np.frombuffer(content, np.uint8, int((counts * width).sum())) if content else _EMPTY
    if name == "boolean[]":
        cursor.refuse(np.array([bool((raw > 1).any())]), "a byte is not 0 or 1, as a boolean is")
        values = pa.array(raw == 1)
    else:
        dtype = np.dtype(_ELEMENTS[name])
        values = pa.array(raw.view(dtype).astype(dtype.newbyteorder("=")))
    return pa.ListArray.from_arrays(_offsets(counts), values)


_EMPTY = np.empty(0, np.uint8)


def _offsets(counts: Places) -> pa.Array:
    return pa.array(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32))


def _python(kind: FlinkType, cursor: Cursor, *, many: bool) -> pa.Array:
    """Read what PyFlink's coders wrote, behind its length: a value, or values up to the end."""
    lengths = cursor.counts(1)
    inner = Cursor(cursor.spans, cursor.at, cursor.at + lengths)
    cursor.at = inner.end
    if not many:
        found = decoded_from(kind, inner)
        inner.refuse(inner.at != inner.end, "bytes are left behind a value")
        return found
    starts, counts = _parted(kind, inner, between=0)
    values = decoded_from(kind, Cursor(cursor.spans, starts, np.repeat(inner.end, counts)))
    return pa.ListArray.from_arrays(_offsets(counts), values)


def _text_arrays(cursor: Cursor) -> pa.Array:
    return _list(Scalar("String"), cursor, cursor.counts(1))


def _python_dates(cursor: Cursor) -> pa.Array:
    """Read ``DateCoderImpl`` of PyFlink: days since 1970."""
    return pa.array(cursor.numbers(">i4"), pa.int32()).cast(pa.date32())


def _python_times(cursor: Cursor) -> pa.Array:
    """Read ``TimeCoderImpl`` of PyFlink: milliseconds of the day."""
    found = cursor.numbers(">i4")
    cursor.refuse((found < 0) | (found >= _MILLIS_PER_DAY), "a day has no such millisecond")
    return pa.array(found, pa.int32()).cast(pa.time32("ms"))


def _python_timestamps(cursor: Cursor) -> pa.Array:
    """Read ``TimestampCoderImpl`` of PyFlink: milliseconds since 1970, by no zone's clock."""
    return pa.array(cursor.numbers(">i8"), pa.int64()).cast(pa.timestamp("ms"))


_SCALARS: dict[str, Callable[[Cursor], pa.Array]] = {
    "Boolean": _booleans,
    "String": _strings,
    "StringData": _string_data,
    "ByteArrayWrapper": _sized,
    "PythonDate": _python_dates,
    "PythonTime": _python_times,
    "PythonTimestamp": _python_timestamps,
    "BigInteger": _big_integers,
    "BigDecimal": _big_decimals,
    "Void": _nothing,
    "Null": _nothing,
    "VoidNamespace": _nothing,
    "GlobalWindow": _nothing,
    "SqlGlobalWindow": _nothing,
    "Tuple0": _nothing,
    "TimeWindow": _window,
    "SqlTimeWindow": _window,
    "String[]": _text_arrays,
}


def _where_not(nulls: Rows, value: FlinkType, padding: int, cursor: Cursor) -> pa.Array:
    """Read values of the rows that are not null, and pass over ``padding`` in all others."""
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


def _either(left: FlinkType, right: FlinkType, cursor: Cursor) -> pa.Array:
    """Read ``EitherSerializer``: whether it is the left one, and that one."""
    is_left = cursor.flags()
    sides = [_where_not(~is_left, left, 0, cursor), _where_not(is_left, right, 0, cursor)]
    return pa.StructArray.from_arrays([pa.array(is_left), *sides], ["is_left", "left", "right"])


def _timer(key: FlinkType, namespace: FlinkType, cursor: Cursor) -> pa.Array:
    """Read ``TimerSerializer``: the time, its sign flipped so that bytes sort as it does."""
    time = cursor.numbers(">i8") ^ np.int64(-(1 << 63))
    parts = [pa.array(time), decoded_from(key, cursor), decoded_from(namespace, cursor)]
    return pa.StructArray.from_arrays(parts, ["time", "key", "namespace"])


def _row(kind: RowType, cursor: Cursor) -> pa.Array:
    """Read ``RowSerializer``: bits, highest first, for the row's kind and which fields are null."""
    first = KIND_BITS if kind.has_kind else 0
    mask = cursor.fixed((len(kind.fields) + first + 7) // 8)
    bits = np.unpackbits(mask, axis=1).astype(np.bool_)
    columns = [] if not first else [pa.array((bits[:, 0] + 2 * bits[:, 1]).astype(np.int8))]
    columns += [
        _where_not(bits[:, first + at], one, 0, cursor) for at, one in enumerate(kind.fields)
    ]
    return _struct(columns, arrow_type(kind))


def _list(element: FlinkType, cursor: Cursor, counts: Places) -> pa.Array:
    elements, cursor.at = _elements(element, cursor, counts)
    return pa.ListArray.from_arrays(_offsets(counts), elements)


def _elements(element: FlinkType, cursor: Cursor, counts: Places) -> tuple[pa.Array, Places]:
    """Read elements that lie one behind the other; return them, and where the last of each ends."""
    width = fixed_width(element)
    if width is None:
        starts, ends = _scanned(element, cursor, counts)
    else:
        ends = cursor.at + counts * width
        cursor.refuse(ends > cursor.end, "a list goes past the end of its value")
        starts = np.repeat(cursor.at, counts) + _within(counts) * width
    return decoded_from(element, Cursor(cursor.spans, starts, np.repeat(ends, counts))), ends


def _scanned(element: FlinkType, cursor: Cursor, counts: Places) -> tuple[Places, Places]:
    """Return where each element begins, and where the last of each row ends."""
    skip = skipper(element)
    starts: list[int] = []
    ends = cursor.at.copy()
    for row in np.flatnonzero(counts).tolist():
        reader, begin = cursor.reader(row), int(cursor.at[row])
        for _ in range(int(counts[row])):
            starts.append(begin + reader.at)
            skip(reader)
        ends[row] = begin + reader.at
    return np.array(starts, np.int64), ends


def decoded_list(element: FlinkType, spans: Spans) -> pa.Array:
    """Return the lists of a list state, whose elements have commas between them.

    They lie as ``ListDelimitedSerializer`` puts them, for RocksDB to join. Errors as
    :func:`decoded`.
    """
    cursor = Cursor(spans, spans.starts, spans.ends)
    width = fixed_width(element)
    if width is None:
        starts, counts = _parted(element, cursor)
    else:
        counts = (cursor.end - cursor.at + 1) // (width + 1)
        wrong = (counts * (width + 1) - 1 != cursor.end - cursor.at) & (cursor.end > cursor.at)
        cursor.refuse(wrong, "a list does not end with an element")
        starts = np.repeat(cursor.at, counts) + _within(counts) * (width + 1)
    commas = starts[_within(counts) > 0] - 1
    if bool((spans.data[commas] != _COMMA).any()):
        raise cursor.damaged("elements of a list have no comma between them", 0)
    limits = np.repeat(cursor.end, counts)
    values = decoded_from(element, Cursor(spans, starts, limits))
    return pa.ListArray.from_arrays(_offsets(counts), values)


def decoded_map_values(value: FlinkType, spans: Spans) -> pa.Array:
    """Return the values of a map state's entries, which begin with whether they are null.

    Behind a null there may be what the value's serializer writes for one
    (``HeapKeyValueStateIterator``). Errors as :func:`decoded`.
    """
    cursor = Cursor(spans, spans.starts, spans.ends)
    nulls = cursor.flags()
    found = _where_not(nulls, value, 0, cursor)
    cursor.refuse((cursor.at != cursor.end) & ~nulls, "bytes are left behind a value")
    return found


def _within(counts: Places) -> Places:
    """Return for each thing of each row its place among those of the row."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def _parted(element: FlinkType, cursor: Cursor, between: int = 1) -> tuple[Places, Places]:
    """Return where each element begins, with so many bytes ``between`` two, and how many each row
    has.
    """
    skip = skipper(element)
    starts: list[int] = []
    counts = np.zeros(len(cursor), np.int64)
    for row in range(len(cursor)):
        reader, begin, before = cursor.reader(row), int(cursor.at[row]), len(starts)
        while reader.left:
            starts.append(begin + reader.at)
            skip(reader)
            if reader.left and between:
                reader.take(between)
                if not reader.left:
                    raise reader.damaged("a list ends with a comma")
        counts[row] = len(starts) - before
    return np.array(starts, np.int64), counts


def _map(key: FlinkType, value: FlinkType, cursor: Cursor) -> pa.Array:
    """Read ``MapSerializer``: its size, and keys and values that may be null."""
    counts = cursor.counts(2)
    entry = TupleType("", (key, NullableType(value)))
    entries, cursor.at = _elements(entry, cursor, counts)
    keys, values = entries.flatten()
    if keys.null_count:
        raise UnsupportedTypeError("a map has a null key, which no column of maps can hold")
    return pa.MapArray.from_arrays(_offsets(counts), keys, values)


def _pojo(kind: PojoType, cursor: Cursor) -> pa.Array:
    """Read ``PojoSerializer``: flags that say null, itself or a subclass; then fields."""
    flags = cursor.fixed(1)[:, 0]
    known = np.isin(flags, (_NULL, _ITSELF, _SUBCLASS, _TAGGED))
    if not bool(known.all()):
        cursor.at = cursor.at - 1
        cursor.refuse(~known, f"a value of {kind.class_name} has other flags than a POJO's")
    which = np.full(len(cursor), -1, np.int64)
    which[flags == _ITSELF] = 0
    subclasses = (*kind.registered, *kind.others)
    _name_subclasses(kind, cursor, flags, which)
    fields = pojo_fields(kind)
    classes = [kind, *(one.value for one in subclasses)]
    columns: dict[str, list[tuple[Rows, pa.Array]]] = {field.name: [] for field in fields}
    for number, one in enumerate(classes):
        rows = which == number
        if not bool(rows.any()):
            continue
        if not isinstance(one, PojoType):
            raise UnsupportedTypeError(f"a subclass of {kind.class_name} is no POJO")
        some = cursor.only(rows)
        if number:  # a subclass writes itself whole, with flags of its own
            some.refuse(some.fixed(1)[:, 0] != _ITSELF, "a value of a subclass has other flags")
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
    """Say for each row of a subclass which one it is, by its number or its name."""
    tagged = flags == _TAGGED
    if bool(tagged.any()):
        some = cursor.only(tagged)
        numbers = some.fixed(1)[:, 0].astype(np.int64)
        some.refuse(numbers >= len(kind.registered), "a subclass has no such number")
        which[tagged] = numbers + 1
        cursor.moved(tagged, some)
    named = {one.class_name: at for at, one in enumerate(kind.others, len(kind.registered) + 1)}
    cursor.at = cursor.at.copy()
    for row in np.flatnonzero(flags == _SUBCLASS).tolist():
        reader = cursor.reader(row)
        name = reader.utf()
        if name not in named:
            raise UnsupportedTypeError(
                f"{cursor.spans.name} has a value of {name}, a subclass of {kind.class_name} that "
                "its header does not describe; it was first met after that was written"
            )
        which[row] = named[name]
        cursor.at[row] += reader.at


def _merged(parts: list[tuple[Rows, pa.Array]], kind: pa.DataType, count: int) -> pa.Array:
    """Return one column of the values of several sets of rows, null where none has one."""
    if len(parts) == 1:
        return scattered(parts[0][1], parts[0][0])
    places, there, upto = np.zeros(count, np.int64), np.zeros(count, np.bool_), 0
    for rows, found in parts:
        places[rows] = upto + np.arange(len(found))
        there |= rows
        upto += len(found)
    whole = pa.concat_arrays([found for _, found in parts] or [pa.nulls(0, kind)])
    return whole.take(pa.array(places, mask=~there))
