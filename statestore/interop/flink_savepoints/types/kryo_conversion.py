"""Convert values from Kryo 2, which Flink 1 has, to Kryo 5, which Flink 2 has.

Flink 2 accepts the state of Flink 1 as compatible, because the serializer's snapshots are the same.
But it reads other values from it: numbers of a fixed width have another byte order, and
collections, maps, enums and times have another form. So a value is read here as an object graph,
and written again. Values of classes that a job's own serializer writes, or for which Kryo uses the
fields of the class, cannot be converted.

An object begins with its class: 0 is a null, 1 is followed by the class name, and greater numbers
are those of registered classes plus 2. Names are written once in a graph, and then as numbers.
Objects that can be referred to have a mark: 1 for a new object, or the number of an earlier one
plus 2 (``Kryo.writeClassAndObject``, with references).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink_savepoints.metadata.java_binary import Reader, varint
from statestore.interop.flink_savepoints.types.kryo_bytes import (
    MARK,
    MORE,
    encode_number,
    encode_text,
    read_number,
    read_text,
)

__all__ = [
    "FIRST_OF_JOB",
    "KryoObject",
    "convert_kryo_value",
    "read_kryo_object",
    "skip_kryo_value",
]

FIRST_OF_JOB = 85
"""The number of the first class that a job registers; Flink registers the classes before it."""

_NULL, _NAMED, _FIRST = 0, 1, 2
_NEW = 1
_LONGEST_ASCII = 32  # Kryo 5 writes longer text with its length
_NANOS_OF_MILLI, _NANOS_OF_SECOND = 1_000_000, 1_000_000_000
_MONTHS, _MOST_DAYS = 12, 31
_WORD, _LONG_WORD = 1 << 32, 1 << 64


@dataclass(eq=False)
class KryoObject:
    """An object of a graph: its class, and its content in the form that its codec reads.

    A class is the number with which Kryo registers it, or its name. Numbers and texts have the form
    of Kryo 5. The content of a collection or map is a comparator, if any, and the objects in it.
    """

    class_key: int | str
    content: Any = None


@dataclass
class _Source:
    """The graph that is read: its class names and objects so far, in order."""

    reader: Reader
    registered: Sequence[str]
    names: list[str] = field(default_factory=list)
    objects: list[KryoObject] = field(default_factory=list)

    def read(self) -> KryoObject | None:
        """Read an object with its class."""
        number = self.reader.varint()
        if number == _NULL:
            return None
        if number != _NAMED:
            return self.read_content(number - _FIRST)
        name_number = self.reader.varint()
        if name_number == len(self.names):
            self.names.append(_read_name(self))
        if name_number >= len(self.names):
            raise self.reader.error("Kryo refers to the name of a class that it has not written")
        return self.read_content(self.names[name_number])

    def read_content(self, class_key: int | str) -> KryoObject:
        """Read an object of a class, with its mark if it has one."""
        codec = self.find_codec(class_key)
        made = KryoObject(class_key)
        if codec.has_mark:
            mark = self.reader.varint()
            if mark != _NEW:
                if not _FIRST <= mark < len(self.objects) + _FIRST:
                    raise self.reader.error("Kryo refers to an object that it has not written")
                return self.objects[mark - _FIRST]
            self.objects.append(made)
        made.content = codec.read(self)
        return made

    def read_field(self, class_key: str) -> bytes:
        """Read a field of a class whose content is bytes."""
        begin = self.reader.position
        found = self.read_content(class_key)
        if found.class_key != class_key or found.content is None:
            raise self.reader.error(
                f"a field of the class {class_key} refers to another object", position=begin
            )
        content: bytes = found.content
        return content

    def find_codec(self, class_key: int | str) -> _Codec:
        """Return the codec of a class; UnsupportedTypeError if there is none."""
        codec = _CODECS.get(class_key)
        if codec is None and isinstance(class_key, int):
            place = class_key - FIRST_OF_JOB
            if 0 <= place < len(self.registered):
                codec = _CODECS.get(self.registered[place])
                class_name = self.registered[place]
            else:
                class_name = f"the registered class {class_key}"
        else:
            class_name = str(class_key)
        if codec is None:
            raise UnsupportedTypeError(
                f"{self.reader.name} has a value of {class_name}, which cannot be converted from "
                "Kryo 2 to Kryo 5, because the fields of the class are unknown. Before the "
                "migration, let the job of Flink 1 store it with another serializer, or leave the "
                "state out"
            )
        return codec


@dataclass
class _Target:
    """The graph that is written."""

    source: _Source
    parts: list[bytes] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)

    def put(self, data: bytes) -> None:
        """Write bytes."""
        self.parts.append(data)

    def write(self, value: KryoObject | None) -> None:
        """Write an object with its class."""
        if value is None:
            self.put(b"\0")
            return
        self.write_class(value.class_key)
        self.write_content(value, is_nullable=False)

    def write_class(self, class_key: int | str) -> None:
        """Write the class of an object."""
        if isinstance(class_key, int):
            self.put(varint(class_key + _FIRST))
            return
        is_new = class_key not in self.names
        number = self.names.setdefault(class_key, len(self.names))
        self.put(varint(_NAMED) + varint(number) + (_encode_name(class_key) if is_new else b""))

    def write_content(self, value: KryoObject, *, is_nullable: bool) -> None:
        """Write an object of a known class; ``is_nullable`` if a null could be in its place."""
        codec = self.source.find_codec(value.class_key)
        if codec.has_mark:
            number = self.numbers.get(id(value))
            if number is not None:
                self.put(varint(number + _FIRST))
                return
            self.numbers[id(value)] = len(self.numbers)
        if codec.has_mark or is_nullable:
            self.put(bytes([_NEW]))
        codec.write(self, value.content)


@dataclass(frozen=True)
class _Codec:
    """How the content of a class is read from Kryo 2 and written for Kryo 5."""

    read: Callable[[_Source], Any]
    write: Callable[[_Target, Any], None]
    has_mark: bool = True


def convert_kryo_value(data: bytes, registered: Sequence[str], name: str) -> bytes:
    """Convert a value with its class from Kryo 2 to Kryo 5.

    Args:
        data: the value, as ``KryoSerializer`` of Flink 1 writes it.
        registered: the classes that the job registered, by their number after ``FIRST_OF_JOB``.
        name: the place of the value, for messages.

    Returns:
        The value, as ``KryoSerializer`` of Flink 2 writes it.

    Raises:
        UnsupportedTypeError: for a value of a class that cannot be converted.
        DamagedFileError: if the bytes are not a value.
    """
    source = _Source(Reader(data, name), registered)
    target = _Target(source)
    try:
        value = source.read()
        source.reader.end("a value of Kryo")
        target.write(value)
    except RecursionError:
        raise _nested_too_deeply(name) from None
    return b"".join(target.parts)


def skip_kryo_value(reader: Reader, registered: Sequence[str]) -> None:
    """Skip a value with its class that Kryo 2 wrote; the errors are those of the conversion."""
    read_kryo_object(reader, registered)


def read_kryo_object(reader: Reader, registered: Sequence[str]) -> KryoObject | None:
    """Read a value with its class that Kryo 2 wrote; the errors are those of the conversion."""
    try:
        return _Source(reader, registered).read()
    except RecursionError:
        raise _nested_too_deeply(reader.name) from None


def _nested_too_deeply(name: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"{name} has a value whose objects are nested too deeply to convert it"
    )


def _signed(source: _Source) -> int:
    zigzag = read_number(source.reader)
    return zigzag >> 1 ^ -(zigzag & 1)


def _copy_number(source: _Source) -> bytes:
    return encode_number(read_number(source.reader))


def _read_name(source: _Source) -> str:
    """Read the name of a class."""
    begin = source.reader.position
    name = read_text(source.reader)
    if not name or not name.isascii():
        raise source.reader.error("the name of a class is not ASCII", position=begin)
    return name


def _encode_name(name: str) -> bytes:
    """Encode ``Output.writeAscii``, which a class name has in any length."""
    return name[:-1].encode("ascii") + bytes([ord(name[-1]) | MARK])


def _put(target: _Target, content: bytes) -> None:
    target.put(content)


def _same(count: int) -> _Codec:
    """Return the codec of a class with ``count`` numbers of a variable length."""
    return _Codec(lambda source: b"".join(_copy_number(source) for _ in range(count)), _put)


def _fixed(width: int, *, has_mark: bool = False) -> _Codec:
    """Return the codec of a number of a fixed width, whose byte order is reversed."""
    return _Codec(lambda source: bytes(source.reader.take(width))[::-1], _put, has_mark=has_mark)


def _text_codec() -> _Codec:
    return _Codec(
        lambda source: read_text(source.reader),
        lambda target, text: target.put(encode_text(text, _LONGEST_ASCII)),
    )


def _read_bytes(source: _Source) -> bytes:
    """Read bytes that follow their number plus 1."""
    count = source.reader.varint()
    return varint(count) + bytes(source.reader.take(max(count - 1, 0)))


def _read_decimal(source: _Source) -> bytes:
    return _read_bytes(source) + _copy_number(source)


def _array(width: int) -> _Codec:
    """Return the codec of an array of numbers of a fixed width."""

    def read(source: _Source) -> bytes:
        count = source.reader.varint()
        data = bytes(source.reader.take(max(count - 1, 0) * width))
        values = [data[begin : begin + width][::-1] for begin in range(0, len(data), width)]
        return varint(count) + b"".join(values)

    return _Codec(read, _put)


def _read_numbers(source: _Source) -> bytes:
    count = source.reader.varint()
    return varint(count) + b"".join(_copy_number(source) for _ in range(count - 1))


def _read_objects(source: _Source) -> list[KryoObject | None]:
    return [source.read() for _ in range(source.reader.varint() - 1)]


def _write_objects(target: _Target, items: list[KryoObject | None]) -> None:
    target.put(varint(len(items) + 1))
    for item in items:
        target.write(item)


def _final_array(class_key: int) -> _Codec:
    """Return the codec of an array whose class says that of its elements."""

    def read(source: _Source) -> list[KryoObject | None]:
        codec = source.find_codec(class_key)
        items: list[KryoObject | None] = []
        for _ in range(source.reader.varint() - 1):
            is_null = source.reader.u8() == _NULL
            if codec.has_mark and not is_null:  # the mark is part of the object
                source.reader.position -= 1
            items.append(None if is_null else source.read_content(class_key))
        return items

    def write(target: _Target, items: list[KryoObject | None]) -> None:
        target.put(varint(len(items) + 1))
        for item in items:
            _write_nullable(target, item)

    return _Codec(read, write)


def _write_nullable(target: _Target, item: KryoObject | None) -> None:
    if item is None:
        target.put(b"\0")
    else:
        target.write_content(item, is_nullable=True)


def _collection(*, is_sorted: bool = False) -> _Codec:
    """Return the codec of a collection; a sorted one has a comparator before its elements."""
    return _Codec(partial(_read_collection, is_sorted), _write_collection)


_Collection = tuple[list[KryoObject | None], list[KryoObject | None]]


def _read_collection(is_sorted: bool, source: _Source) -> _Collection:
    comparator = [source.read()] if is_sorted else []
    count = source.reader.varint()
    return comparator, [source.read() for _ in range(count)]


def _read_list_of_array(source: _Source) -> _Collection:
    """Read a list that is a view of an array; the class of its elements follows the size."""
    count = source.reader.varint()
    if source.reader.varint() == _NAMED:
        name_number = source.reader.varint()
        if name_number == len(source.names):
            source.names.append(_read_name(source))
    return [], [source.read() for _ in range(count)]


def _write_collection(target: _Target, content: _Collection) -> None:
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


def _encode_flagged(value: int, flag: bool) -> bytes:
    """Encode ``Output.writeVarIntFlag``: the first byte has the flag, and 6 bits of the number."""
    first = value & (MORE - 1) | (MARK if flag else 0)
    rest = value >> 6
    return bytes([first]) if not rest else bytes([first | MORE]) + varint(rest)


def _map(*, is_sorted: bool = False) -> _Codec:
    def read(source: _Source) -> _Collection:
        comparator = [source.read()] if is_sorted else []
        count = source.reader.varint()
        return comparator, [source.read() for _ in range(2 * count)]

    def write(target: _Target, content: _Collection) -> None:
        comparator, items = content
        target.put(varint(len(items) // 2 + 1))
        for item in (*comparator, *items):
            target.write(item)

    return _Codec(read, write)


def _record(count: int) -> _Codec:
    """Return the codec of ``count`` objects with their classes."""

    def write(target: _Target, items: list[KryoObject | None]) -> None:
        for item in items:
            target.write(item)

    return _Codec(lambda source: [source.read() for _ in range(count)], write)


def _read_uuid(source: _Source) -> bytes:
    return struct.pack("<qq", _signed(source), _signed(source))


def _read_nanos(source: _Source) -> int:
    """Read the nanoseconds of a second."""
    begin = source.reader.position
    nanos = _signed(source)
    if not 0 <= nanos < _NANOS_OF_SECOND:
        raise source.reader.error(f"a time has {nanos} nanoseconds", position=begin)
    return nanos


def _read_instant(source: _Source) -> bytes:
    nanos, seconds = _read_nanos(source), _signed(source)
    return encode_number(seconds % _LONG_WORD) + encode_number(nanos)


def _read_duration(source: _Source) -> bytes:
    nanos, seconds = _read_nanos(source), _signed(source)
    return struct.pack("<q", seconds) + encode_number(nanos)


def _read_timestamp(source: _Source) -> bytes:
    """Read milliseconds and nanoseconds; in Kryo 5 the milliseconds are those of whole seconds."""
    millis, nanos = read_number(source.reader), read_number(source.reader)
    return encode_number((millis - nanos // _NANOS_OF_MILLI) % _LONG_WORD) + encode_number(nanos)


def _read_date(source: _Source) -> bytes:
    begin = source.reader.position
    day, month = source.reader.i16(), source.reader.i16()
    if not (1 <= month <= _MONTHS and 1 <= day <= _MOST_DAYS):
        raise source.reader.error(f"a date has month {month} and day {day}", position=begin)
    return encode_number(_signed(source) % _WORD) + bytes([month, day])


def _read_time(source: _Source) -> bytes:
    """Read a time; in Kryo 5 the parts of 0 at its end are left out, and the last part negated."""
    hour, minute = source.reader.u8(), source.reader.u8()
    nano, second = _read_nanos(source), source.reader.u8()
    if nano:
        return bytes([hour, minute, second]) + encode_number(nano)
    parts = [hour, minute, second]
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return bytes([*parts[:-1], ~parts[-1] & 0xFF])


def _read_date_time(source: _Source) -> bytes:
    """Read a date and a time, which Kryo 2 writes as fields: each may be an earlier object."""
    return b"".join(
        source.read_field(name) for name in ("java.time.LocalDate", "java.time.LocalTime")
    )


_STRING = 1
_WRAPPERS: Mapping[int | str, _Codec] = {
    0: _Codec(_copy_number, _put, has_mark=False),
    2: _fixed(4),
    3: _Codec(lambda source: bytes(source.reader.take(1)), _put, has_mark=False),
    4: _Codec(lambda source: bytes(source.reader.take(1)), _put, has_mark=False),
    5: _fixed(2),
    6: _fixed(2),
    7: _Codec(_copy_number, _put, has_mark=False),
    8: _fixed(8),
}
"""The classes of numbers that Kryo registers itself; no object refers to them."""

_NOTHING = _Codec(lambda source: b"", _put)
_CODECS: Mapping[int | str, _Codec] = {
    **_WRAPPERS,
    _STRING: _text_codec(),
    73: _Codec(_read_list_of_array, _write_collection),
    75: _collection(is_sorted=True),  # java.util.PriorityQueue
    77: _same(1),  # java.sql.Date
    78: _same(1),  # java.sql.Time
    79: _Codec(_read_timestamp, _put),
    82: _Codec(_read_uuid, _put),
    "[B": _Codec(_read_bytes, _put),
    "[Z": _Codec(_read_bytes, _put),
    "[S": _array(2),
    "[C": _array(2),
    "[F": _array(4),
    "[D": _array(8),
    "[I": _Codec(_read_numbers, _put),
    "[J": _Codec(_read_numbers, _put),
    "[Ljava.lang.Object;": _Codec(_read_objects, _write_objects),
    "[Ljava.lang.String;": _final_array(_STRING),
    "[Ljava.lang.Long;": _final_array(7),
    "[Ljava.lang.Integer;": _final_array(0),
    "[Ljava.lang.Double;": _final_array(8),
    "java.lang.StringBuilder": _text_codec(),
    "java.lang.StringBuffer": _text_codec(),
    "java.math.BigInteger": _Codec(_read_bytes, _put),
    "java.math.BigDecimal": _Codec(_read_decimal, _put),
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
    "java.time.Instant": _Codec(_read_instant, _put),
    "java.time.Duration": _Codec(_read_duration, _put),
    "java.time.LocalDate": _Codec(_read_date, _put),
    "java.time.LocalTime": _Codec(_read_time, _put),
    "java.time.LocalDateTime": _Codec(_read_date_time, _put),
}
"""The codecs by the number or the name of a class."""
