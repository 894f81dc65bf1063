"""The classes whose values Kryo 2 and Kryo 5 write: simple ones, and those that are converted.

The values of simple classes are decoded. The content of other classes can be converted from Kryo 2,
which Flink 1 has, to Kryo 5, which Flink 2 has. Numbers of a fixed width have another byte order in
Kryo 5, and collections, maps and times have another form.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from statestore.interop.flink.metadata.java_binary import Reader, varint
from statestore.interop.flink.metadata.versions import KRYO_2, KRYO_5
from statestore.interop.flink.types.kryo_objects import (
    MARK,
    MORE,
    KryoCodec,
    KryoObject,
    KryoSource,
    KryoTarget,
    encode_number,
    encode_text,
    from_code_units,
    put_bytes,
    read_number,
    read_text,
    read_text_bytes,
    to_code_units,
)

_NANOS_OF_MILLI, _NANOS_OF_SECOND = 1_000_000, 1_000_000_000
_MONTHS, _MOST_DAYS = 12, 31
_WORD, _LONG_WORD = 1 << 32, 1 << 64


@dataclass(frozen=True, slots=True)
class SimpleClass:
    """A class of numbers or text: its name, and the number with which Kryo registers it.

    ``packing`` is the format of its bytes in ``struct``, whose order differs between the versions
    of Kryo. It is empty for text, and for numbers of a variable length.
    """

    name: str
    number: int
    packing: str = ""

    @property
    def width(self) -> int | None:
        """The number of bytes of a value; None if it varies."""
        return struct.calcsize(self.packing) if self.packing else None

    @property
    def has_byte_order(self) -> bool:
        """Whether the versions of Kryo read different values from the same bytes."""
        return (self.width or 1) > 1

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions of Kryo that write its values differently, the older one first."""
        is_same = not self.has_byte_order and self.name != "String"
        return (KRYO_2,) if is_same else (KRYO_2, KRYO_5)

    def skip(self, reader: Reader) -> None:
        """Skip a value, whose end is the same in both versions."""
        if self.name == "String":
            if reader.varint() != _NEW_OBJECT:
                raise reader.error("Kryo refers to an object that it has not written")
            read_text_bytes(reader)
        elif self.width is not None:
            reader.take(self.width)
        elif self.name == "Integer":
            reader.varint()
        else:
            read_number(reader)

    def decode(self, data: bytes, kryo: int) -> Any:
        """Return the value that a version of Kryo wrote.

        Raises ValueError, IndexError, struct.error or DamagedFileError for other bytes.
        """
        if self.name == "String":
            text = read_text(Reader(data[1:], "a text"))
            if text is None:
                raise ValueError("it is null")
            return from_code_units(text)
        if self.packing:
            return struct.unpack(_ORDERS[kryo] + self.packing, data)[0]
        zigzag = read_number(Reader(data, "a number"))
        return zigzag >> 1 ^ -(zigzag & 1)

    def encode(self, value: Any, kryo: int) -> bytes:
        """Return the bytes that a version of Kryo writes."""
        if self.name == "String":
            text = encode_text(to_code_units(value), _LONGEST_ASCII[kryo])
            return bytes([_NEW_OBJECT]) + text
        if self.packing:
            return struct.pack(_ORDERS[kryo] + self.packing, value)
        return encode_number(value << 1 if value >= 0 else ~value << 1 | 1)


_ORDERS = {KRYO_2: ">", KRYO_5: "<"}
_LONGEST_ASCII = {KRYO_2: 63, KRYO_5: 32}  # longer text has a length
_NEW_OBJECT = 1
SIMPLE: Mapping[str, SimpleClass] = {
    simple.name: simple
    for simple in (
        SimpleClass("Integer", 0),
        SimpleClass("String", 1),
        SimpleClass("Float", 2, "f"),
        SimpleClass("Boolean", 3, "?"),
        SimpleClass("Byte", 4, "b"),
        SimpleClass("Character", 5, "H"),
        SimpleClass("Short", 6, "h"),
        SimpleClass("Long", 7),
        SimpleClass("Double", 8, "d"),
    )
}
"""The classes of simple values, which Kryo registers itself, by their names."""


def _signed(source: KryoSource) -> int:
    zigzag = read_number(source.reader)
    return zigzag >> 1 ^ -(zigzag & 1)


def _copy_number(source: KryoSource) -> bytes:
    return encode_number(read_number(source.reader))


def _same(count: int) -> KryoCodec:
    """Return the codec of a class with ``count`` numbers of a variable length."""
    return KryoCodec(lambda source: b"".join(_copy_number(source) for _ in range(count)), put_bytes)


def _text_codec() -> KryoCodec:
    return KryoCodec(
        lambda source: read_text(source.reader),
        lambda target, text: target.put(encode_text(text, _LONGEST_ASCII[KRYO_5])),
    )


def _simple_codec(simple: SimpleClass) -> KryoCodec:
    """Return the codec of a simple class; no object refers to its values, except for text."""
    if simple.name == "String":
        return _text_codec()
    width = simple.width
    if width is None:
        return KryoCodec(_copy_number, put_bytes, has_mark=False)
    return KryoCodec(
        lambda source: bytes(source.reader.take(width))[::-1], put_bytes, has_mark=False
    )


def _read_bytes(source: KryoSource) -> bytes:
    """Read a number, which is the length plus 1, and as many bytes."""
    count = source.reader.varint()
    return varint(count) + bytes(source.reader.take(max(count - 1, 0)))


def _read_decimal(source: KryoSource) -> bytes:
    return _read_bytes(source) + _copy_number(source)


def _array(width: int) -> KryoCodec:
    """Return the codec of an array of numbers of a fixed width."""

    def read(source: KryoSource) -> bytes:
        count = source.reader.varint()
        data = bytes(source.reader.take(max(count - 1, 0) * width))
        values = [data[begin : begin + width][::-1] for begin in range(0, len(data), width)]
        return varint(count) + b"".join(values)

    return KryoCodec(read, put_bytes)


def _read_numbers(source: KryoSource) -> bytes:
    count = source.reader.varint()
    return varint(count) + b"".join(_copy_number(source) for _ in range(count - 1))


def _read_objects(source: KryoSource) -> list[KryoObject | None]:
    return [source.read() for _ in range(source.reader.varint() - 1)]


def _write_objects(target: KryoTarget, items: list[KryoObject | None]) -> None:
    target.put(varint(len(items) + 1))
    for item in items:
        target.write(item)


def _final_array(class_key: int) -> KryoCodec:
    """Return the codec of an array whose class determines the class of its elements."""

    def read(source: KryoSource) -> list[KryoObject | None]:
        count = source.reader.varint() - 1
        return [_read_item(source, class_key, is_nullable=True) for _ in range(count)]

    def write(target: KryoTarget, items: list[KryoObject | None]) -> None:
        target.put(varint(len(items) + 1))
        for item in items:
            _write_nullable(target, item)

    return KryoCodec(read, write)


def _read_item(source: KryoSource, class_key: int | str, *, is_nullable: bool) -> KryoObject | None:
    """Read an object of a known class; ``is_nullable`` if a null could be in its place."""
    if is_nullable and source.peek(1) == b"\0":
        source.reader.take(1)
        return None
    if is_nullable and not source.find_codec(class_key).has_mark:
        source.reader.take(1)
    return source.read_content(class_key)


def _write_nullable(target: KryoTarget, item: KryoObject | None) -> None:
    if item is None:
        target.put(b"\0")
    else:
        target.write_content(item, is_nullable=True)


def _collection(*, is_sorted: bool = False) -> KryoCodec:
    """Return the codec of a collection; a sorted one has a comparator before its elements."""
    return KryoCodec(
        partial(_read_collection, is_sorted),
        _write_collection,
        skip_5=partial(_skip_collection, is_sorted),
    )


_Collection = tuple[list[KryoObject | None], list[KryoObject | None]]


def _read_collection(is_sorted: bool, source: KryoSource) -> _Collection:
    comparator = [source.read()] if is_sorted else []
    count = source.reader.varint()
    return comparator, [source.read() for _ in range(count)]


def _read_list_of_array(source: KryoSource) -> _Collection:
    """Read a list that is a view of an array; the class of its elements follows the size."""
    count = source.reader.varint()
    source.read_class()
    return [], [source.read() for _ in range(count)]


def _write_collection(target: KryoTarget, content: _Collection) -> None:
    """Write the class once if all elements that are not null have the same one."""
    comparator, items = content
    classes = {item.class_key for item in items if item is not None}
    is_uniform = bool(items) and len(classes) <= 1
    target.put(_encode_flagged(len(items) + 1, is_uniform))
    for item in comparator:
        target.write(item)
    if not is_uniform:
        for item in items:
            target.write(item)
        return
    if not classes:
        target.put(b"\0")
        return
    target.write_class(classes.pop())
    has_null = None in items
    target.put(bytes([has_null]))
    for item in items:
        if has_null:
            _write_nullable(target, item)
        else:
            assert item is not None
            target.write_content(item, is_nullable=False)


def _skip_collection(is_sorted: bool, source: KryoSource) -> None:
    """Skip a collection in the form of :func:`_write_collection`."""
    count, is_uniform = _read_flagged(source.reader)
    if is_sorted:
        source.read()
    if not is_uniform:
        for _ in range(count - 1):
            source.read()
        return
    class_key = source.read_class()
    if class_key is not None:
        has_null = source.reader.bool()
        for _ in range(count - 1):
            _read_item(source, class_key, is_nullable=has_null)


def _read_flagged(reader: Reader) -> tuple[int, bool]:
    """Read a number and a flag in the form of :func:`_encode_flagged`."""
    first = reader.u8()
    rest = reader.varint() if first & MORE else 0
    return rest << 6 | first & (MORE - 1), bool(first & MARK)


def _encode_flagged(value: int, flag: bool) -> bytes:
    """Encode ``Output.writeVarIntFlag``: the first byte has the flag, and 6 bits of the number."""
    first = value & (MORE - 1) | (MARK if flag else 0)
    rest = value >> 6
    return bytes([first]) if not rest else bytes([first | MORE]) + varint(rest)


def _map(*, is_sorted: bool = False) -> KryoCodec:
    def read(source: KryoSource) -> _Collection:
        comparator = [source.read()] if is_sorted else []
        count = source.reader.varint()
        return comparator, [source.read() for _ in range(2 * count)]

    def skip_5(source: KryoSource) -> None:
        count = source.reader.varint() - 1
        for _ in range(is_sorted + 2 * count):
            source.read()

    def write(target: KryoTarget, content: _Collection) -> None:
        comparator, items = content
        target.put(varint(len(items) // 2 + 1))
        for item in (*comparator, *items):
            target.write(item)

    return KryoCodec(read, write, skip_5=skip_5)


def _record(count: int) -> KryoCodec:
    """Return the codec of ``count`` objects with their classes."""

    def write(target: KryoTarget, items: list[KryoObject | None]) -> None:
        for item in items:
            target.write(item)

    return KryoCodec(lambda source: [source.read() for _ in range(count)], write)


def _read_uuid(source: KryoSource) -> bytes:
    return struct.pack("<qq", _signed(source), _signed(source))


def _read_nanos(source: KryoSource) -> int:
    """Read the nanoseconds of a second."""
    begin = source.reader.position
    nanos = _signed(source)
    if not 0 <= nanos < _NANOS_OF_SECOND:
        raise source.reader.error(f"a time has {nanos} nanoseconds", position=begin)
    return nanos


def _read_instant(source: KryoSource) -> bytes:
    nanos, seconds = _read_nanos(source), _signed(source)
    return encode_number(seconds % _LONG_WORD) + encode_number(nanos)


def _read_duration(source: KryoSource) -> bytes:
    nanos, seconds = _read_nanos(source), _signed(source)
    return struct.pack("<q", seconds) + encode_number(nanos)


def _read_timestamp(source: KryoSource) -> bytes:
    """Read milliseconds and nanoseconds; in Kryo 5 the milliseconds are those of whole seconds."""
    millis, nanos = read_number(source.reader), read_number(source.reader)
    return encode_number((millis - nanos // _NANOS_OF_MILLI) % _LONG_WORD) + encode_number(nanos)


def _read_date(source: KryoSource) -> bytes:
    begin = source.reader.position
    day, month = source.reader.i16(), source.reader.i16()
    if not (1 <= month <= _MONTHS and 1 <= day <= _MOST_DAYS):
        raise source.reader.error(
            f"a date has month {month} and day {day}, which do not exist", position=begin
        )
    return encode_number(_signed(source) % _WORD) + bytes([month, day])


def _read_time(source: KryoSource) -> bytes:
    """Read a time; Kryo 5 omits trailing parts of 0, and negates the last written part."""
    hour, minute = source.reader.u8(), source.reader.u8()
    nano, second = _read_nanos(source), source.reader.u8()
    if nano:
        return bytes([hour, minute, second]) + encode_number(nano)
    parts = [hour, minute, second]
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return bytes([*parts[:-1], ~parts[-1] & 0xFF])


def _skip_time(source: KryoSource) -> None:
    """Skip a time of Kryo 5: up to three bytes until a negated one, then the nanoseconds."""
    for _ in range(3):
        if source.reader.u8() >= MARK:
            return
    read_number(source.reader)


def _skip_parts(*widths: int) -> Callable[[KryoSource], None]:
    """Return a function that skips numbers of these widths; 0 for one of a variable length."""

    def skip(source: KryoSource) -> None:
        for width in widths:
            if width:
                source.reader.take(width)
            else:
                read_number(source.reader)

    return skip


_skip_date = _skip_parts(0, 2)


def _skip_date_time(source: KryoSource) -> None:
    _skip_date(source)
    _skip_time(source)


def _read_date_time(source: KryoSource) -> bytes:
    """Read a date and a time, fields of Kryo 2, each of which may refer to an earlier object."""
    return b"".join(
        source.read_field(name) for name in ("java.time.LocalDate", "java.time.LocalTime")
    )


_NOTHING = KryoCodec(lambda source: b"", put_bytes)
CODECS: Mapping[int | str, KryoCodec] = {
    **{simple.number: _simple_codec(simple) for simple in SIMPLE.values()},
    73: KryoCodec(_read_list_of_array, _write_collection, skip_5=partial(_skip_collection, False)),
    75: _collection(is_sorted=True),  # java.util.PriorityQueue
    77: _same(1),  # java.sql.Date
    78: _same(1),  # java.sql.Time
    79: KryoCodec(_read_timestamp, put_bytes),
    82: KryoCodec(_read_uuid, put_bytes, skip_5=_skip_parts(16)),
    "[B": KryoCodec(_read_bytes, put_bytes),
    "[Z": KryoCodec(_read_bytes, put_bytes),
    "[S": _array(2),
    "[C": _array(2),
    "[F": _array(4),
    "[D": _array(8),
    "[I": KryoCodec(_read_numbers, put_bytes),
    "[J": KryoCodec(_read_numbers, put_bytes),
    "[Ljava.lang.Object;": KryoCodec(_read_objects, _write_objects),
    "[Ljava.lang.String;": _final_array(SIMPLE["String"].number),
    "[Ljava.lang.Long;": _final_array(SIMPLE["Long"].number),
    "[Ljava.lang.Integer;": _final_array(SIMPLE["Integer"].number),
    "[Ljava.lang.Double;": _final_array(SIMPLE["Double"].number),
    "java.lang.StringBuilder": _text_codec(),
    "java.lang.StringBuffer": _text_codec(),
    "java.math.BigInteger": KryoCodec(_read_bytes, put_bytes),
    "java.math.BigDecimal": KryoCodec(_read_decimal, put_bytes),
    "java.util.Date": _same(1),
    "java.util.Optional": _record(1),
    "java.util.concurrent.atomic.AtomicBoolean": _same(1),
    "java.util.concurrent.atomic.AtomicInteger": _same(1),
    "java.util.concurrent.atomic.AtomicLong": _same(1),
    "java.util.Collections$EmptyList": _NOTHING,
    "java.util.Collections$EmptyMap": _NOTHING,
    "java.util.Collections$EmptySet": _NOTHING,
    "java.util.Collections$SingletonList": _record(1),
    "java.util.Collections$SingletonSet": _record(1),
    "java.util.Collections$SingletonMap": _record(2),
    **dict.fromkeys(
        (
            "java.util.ArrayList",
            "java.util.LinkedList",
            "java.util.Vector",
            "java.util.ArrayDeque",
            "java.util.HashSet",
            "java.util.LinkedHashSet",
        ),
        _collection(),
    ),
    "java.util.TreeSet": _collection(is_sorted=True),
    **dict.fromkeys(
        (
            "java.util.HashMap",
            "java.util.LinkedHashMap",
            "java.util.concurrent.ConcurrentHashMap",
        ),
        _map(),
    ),
    "java.util.TreeMap": _map(is_sorted=True),
    "java.time.Instant": KryoCodec(_read_instant, put_bytes, skip_5=_skip_parts(0, 0)),
    "java.time.Duration": KryoCodec(_read_duration, put_bytes, skip_5=_skip_parts(8, 0)),
    "java.time.LocalDate": KryoCodec(_read_date, put_bytes, skip_5=_skip_date),
    "java.time.LocalTime": KryoCodec(_read_time, put_bytes, skip_5=_skip_time),
    "java.time.LocalDateTime": KryoCodec(_read_date_time, put_bytes, skip_5=_skip_date_time),
}
"""The codecs by the number or the name of a class."""
