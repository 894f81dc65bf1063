"""Java's binary encoding, and objects in its serialization format.

A :class:`Reader` reads big-endian numbers and three text formats, and never reads past the end of
its bytes. It also limits the nesting of values to ``MAX_DEPTH`` levels. A negative or too large
length raises a DamagedFileError that names the file and the byte. Functions write the same formats.

The grammar of objects is defined in "Java Object Serialization Specification", chapter 6. Nothing
is instantiated: no class is loaded, and an object is a class name with field values. The types of
Flink SQL are read as objects. An object of the job's own classes is not read: only its end is
located.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from statestore.errors import DamagedFileError, InvalidArgumentError, UnsupportedTypeError

_U16 = struct.Struct(">H")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_F32 = struct.Struct(">f")
_F64 = struct.Struct(">d")
_MAX_VARINT_BYTES = 5
_MAX_UTF_BYTES = 0xFFFF

MAX_DEPTH = 100
"""The limit for nested types, objects or handles; each level takes up to five Python calls."""


class Reader:
    """A read position in a buffer.

    ``name`` is the file of the bytes and ``base`` is the position of the first byte in that file;
    both are used in messages. ``position`` is relative to the first byte. ``depth`` is the current
    nesting level.
    """

    __slots__ = ("base", "data", "depth", "name", "position")

    def __init__(
        self,
        data: bytes | memoryview,
        name: str,
        *,
        position: int = 0,
        base: int = 0,
        depth: int = 0,
    ) -> None:
        self.data = memoryview(data)
        self.name = name
        self.position = position
        self.base = base
        self.depth = depth

    def part(self, length: int) -> Reader:
        """Return a reader for the next ``length`` bytes, and skip them here."""
        base = self.base + self.position
        return Reader(self.take(length), self.name, base=base, depth=self.depth)

    @contextmanager
    def nested(self, what: str) -> Iterator[None]:
        """Read one level deeper.

        Raises DamagedFileError if ``what``, such as "types", is nested too deeply.
        """
        if self.depth >= MAX_DEPTH:
            raise self.error(f"{what} are nested more than {MAX_DEPTH} levels deep")
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @property
    def whole(self) -> bytes:
        """All bytes, without a copy if the reader was created from ``bytes``."""
        buffer = self.data.obj
        return (
            buffer
            if isinstance(buffer, bytes) and len(buffer) == len(self.data)
            else bytes(self.data)
        )

    @property
    def remaining(self) -> int:
        """The number of bytes that are still unread."""
        return len(self.data) - self.position

    def error(self, problem: str, *, position: int | None = None) -> DamagedFileError:
        """Return an error with the problem, the file and the byte (by default the next byte)."""
        offset = self.base + (self.position if position is None else position)
        return DamagedFileError(f"{self.name} is damaged at byte {offset}: {problem}")

    def take(self, count: int) -> memoryview:
        """Return the next ``count`` bytes and advance."""
        start = self.position
        if count < 0:
            raise self.error(f"the length {count} is negative")
        if count > len(self.data) - start:
            raise self.error(
                f"{count} bytes are required, but only {len(self.data) - start} are left"
            )
        self.position = start + count
        return self.data[start : start + count]

    def bytes(self, count: int) -> bytes:
        """Return a copy of the next bytes."""
        return bytes(self.take(count))

    def bool(self) -> bool:
        """Read a boolean: a byte that must be 0 or 1."""
        value = self.take(1)[0]
        if value > 1:
            raise self.error(f"the byte {value} should be 0 or 1", position=self.position - 1)
        return value == 1

    def u8(self) -> int:
        """Read an unsigned byte."""
        return self.take(1)[0]

    def peek(self) -> int:
        """Return the next byte without advancing."""
        value = self.take(1)[0]
        self.position -= 1
        return value

    def i8(self) -> int:
        """Read a signed byte."""
        value = self.take(1)[0]
        return value - 256 if value > 127 else value

    def u16(self) -> int:
        """Read an unsigned 16-bit number."""
        return int(_U16.unpack(self.take(2))[0])

    def i16(self) -> int:
        """Read a signed 16-bit number."""
        return int(_I16.unpack(self.take(2))[0])

    def i32(self) -> int:
        """Read a signed 32-bit number."""
        return int(_I32.unpack(self.take(4))[0])

    def i64(self) -> int:
        """Read a signed 64-bit number."""
        return int(_I64.unpack(self.take(8))[0])

    def f32(self) -> float:
        """Read a 32-bit float."""
        return float(_F32.unpack(self.take(4))[0])

    def f64(self) -> float:
        """Read a 64-bit double."""
        return float(_F64.unpack(self.take(8))[0])

    def count(self, item_bytes: int, what: str) -> int:
        """Read the 32-bit number of items that follow, each of at least ``item_bytes``."""
        count = self.i32()
        if not 0 <= count * item_bytes <= self.remaining:
            raise self.error(
                f"{count} {what} do not fit in {self.remaining} bytes", position=self.position - 4
            )
        return count

    def expect(self, expected: int, what: str) -> None:
        """Read a 32-bit constant and check its value."""
        value = self.i32()
        if value != expected:
            problem = f"{what} is {value & 4294967295:#x} instead of {expected & 4294967295:#x}"
            raise self.error(problem, position=self.position - 4)

    def expect_prefix(self, prefix: memoryview, what: str) -> None:
        """Read bytes that are always the same at the beginning of ``what``."""
        if self.remaining < len(prefix) or self.take(len(prefix)) != prefix:
            raise self.error(f"it does not begin like {what}", position=0)

    def utf(self) -> str:
        """Read text in the format of ``DataOutput.writeUTF``: a 16-bit length, then the text."""
        length = self.u16()
        return self._decode_text(self.take(length))

    def long_utf(self) -> str:
        """Read text with a 64-bit length."""
        return self._decode_text(self.take(self.i64()))

    def _decode_text(self, data: memoryview) -> str:
        try:
            text = bytes(data).replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
            return text if text.isascii() else _join_surrogates_strictly(text)
        except UnicodeDecodeError:
            position = self.position - len(data)
            problem = "a text does not have Java's encoding, or ends with half a character"
            raise self.error(problem, position=position) from None

    def varint(self) -> int:
        """Read a varint: 7 bits per byte, lowest bits first, until a byte is below 128."""
        value = 0
        for number in range(_MAX_VARINT_BYTES):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * number)
            if byte < 0x80:
                return value
        raise self.error(
            "a variable-length number does not end", position=self.position - _MAX_VARINT_BYTES
        )

    def characters(self, length: int) -> str:
        """Read ``length`` 16-bit characters in the format of ``StringValue``."""
        if length > self.remaining:
            raise self.error(
                f"a text of {length} characters does not fit in {self.remaining} bytes"
            )
        whole = bytes(self.data[self.position : self.position + length])
        if whole.isascii():
            self.position += length
            return whole.decode("ascii")
        units = [self.varint() for _ in range(length)]
        if any(unit > 0xFFFF for unit in units):
            raise self.error("a character is above 65535")
        return _join_surrogates("".join(map(chr, units)))

    def end(self, what: str) -> None:
        """Raise an error if any bytes are left."""
        if self.remaining:
            raise self.error(f"{self.remaining} unexpected bytes follow {what}")


def _join_surrogates_strictly(text: str) -> str:
    """Join surrogate pairs; UnicodeDecodeError for a surrogate without its pair."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _join_surrogates(text: str) -> str:
    """Join surrogate pairs; a surrogate without its pair stays."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _code_units(text: str) -> list[int]:
    data = text.encode("utf-16-le", "surrogatepass")
    return list(struct.unpack(f"<{len(data) // 2}H", data))


def i8(value: int) -> bytes:
    """Encode a signed byte."""
    return value.to_bytes(1, "big", signed=True)


def i16(value: int) -> bytes:
    """Encode a signed 16-bit number."""
    return value.to_bytes(2, "big", signed=True)


def i32(value: int) -> bytes:
    """Encode a signed 32-bit number."""
    return value.to_bytes(4, "big", signed=True)


def i64(value: int) -> bytes:
    """Encode a signed 64-bit number."""
    return value.to_bytes(8, "big", signed=True)


def _encode_modified_utf8(text: str) -> bytes:
    """Encode text as Java's modified UTF-8: NUL in two bytes, each surrogate in three."""
    if text.isascii() and "\0" not in text:
        return text.encode("ascii")
    units = "".join(map(chr, _code_units(text)))
    return units.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def utf(text: str) -> bytes:
    """Encode text like ``DataOutput.writeUTF``; InvalidArgumentError if it is too long."""
    data = _encode_modified_utf8(text)
    if len(data) > _MAX_UTF_BYTES:
        raise InvalidArgumentError(
            f"a name has {len(data)} bytes, but Flink allows at most {_MAX_UTF_BYTES}; shorten it"
        )
    return len(data).to_bytes(2, "big") + data


def big_integer(value: int) -> bytes:
    """Encode ``BigInteger.toByteArray``: two's complement without spare bytes."""
    width = (value + (value < 0)).bit_length() // 8 + 1
    return value.to_bytes(width, "big", signed=True)


def varint(value: int) -> bytes:
    """Encode a number as a varint: 7 bits per byte, lowest bits first."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def string_value(text: str | None) -> bytes:
    """Encode text like ``StringValue.writeString``."""
    if text is None:
        return b"\0"
    if text.isascii():
        return varint(len(text) + 1) + text.encode("ascii")
    units = _code_units(text)
    return varint(len(units) + 1) + b"".join(map(varint, units))


JAVA_STREAM = b"\xac\xed\x00\x05"
"""The beginning of a stream of Java objects."""

_HEADER = int.from_bytes(JAVA_STREAM, "big")
_NULL, _REFERENCE, _CLASS_DESC, _OBJECT, _STRING, _ARRAY, _CLASS, _BLOCK, _END = range(0x70, 0x79)
_RESET, _LONG_BLOCK, _EXCEPTION, _LONG_STRING, _PROXY, _ENUM = range(0x79, 0x7F)
_FIRST_HANDLE = 0x7E0000
_WRITES_MORE, _SERIALIZABLE, _EXTERNALIZABLE, _IN_BLOCKS = 1, 2, 4, 8
_MOST_CLASSES = 100
_WIDTHS = {"B": 1, "Z": 1, "S": 2, "C": 2, "I": 4, "F": 4, "J": 8, "D": 8}


@dataclass(slots=True)
class JavaObject:
    """An object: its class, its fields by name, and the data that its own write method added.

    For an enum, ``constant`` is the name of the constant.
    """

    class_name: str
    fields: dict[str, object] = field(default_factory=dict)
    custom_data: list[object] = field(default_factory=list)
    constant: str | None = None


@dataclass(slots=True)
class _Class:
    name: str
    flags: int = 0
    fields: tuple[tuple[str, str], ...] = ()
    superclass: _Class | None = None


_NUMBER_READERS: Mapping[str, Callable[[Reader], object]] = {
    "B": Reader.i8, "Z": Reader.bool, "S": Reader.i16, "C": Reader.u16, "I": Reader.i32,
    "J": Reader.i64, "F": Reader.f32, "D": Reader.f64,
}  # fmt: skip


def read_java_object(reader: Reader) -> object:
    """Return the object of the Java stream that begins here, and advance past it.

    Raises:
        DamagedFileError: if the bytes are not such a stream.
        UnsupportedTypeError: for an object whose class has its own format, whose end is unknown.
    """
    reader.expect(_HEADER - (1 << 32), "the header of a Java object stream")
    return _Stream(reader).read_content()


def skip_java_object(reader: Reader) -> None:
    """Advance past the Java stream that begins here, whatever object it contains.

    Raises:
        DamagedFileError: if the bytes are not such a stream.
        UnsupportedTypeError: for an object whose end is unknown, or that is nested too deeply.
    """
    reader.expect(_HEADER - (1 << 32), "the header of a Java object stream")
    _SkippedStream(reader).read_content()


class _Stream:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.handles: list[object] = []

    def read_content(self) -> object:
        with self.reader.nested("Java objects"):
            return self.read_tagged(self.reader)

    def unknown_end(self, what: str) -> UnsupportedTypeError:
        reader = self.reader
        return UnsupportedTypeError(
            f"{reader.name} has {what} before byte {reader.base + reader.position}, so the end of "
            "the Java object is unknown"
        )

    def read_tagged(self, reader: Reader) -> object:
        tag = reader.u8()
        if tag == _NULL:
            return None
        if tag == _REFERENCE:
            return self.read_reference()
        if tag in (_STRING, _LONG_STRING):
            return self.register(self.read_text(tag))
        if tag in (_CLASS_DESC, _PROXY):
            return self.read_class_description(tag)
        if tag == _CLASS:
            return self.register(self.read_class())
        if tag == _OBJECT:
            return self.read_instance()
        if tag == _ENUM:
            return self.read_enum()
        if tag == _ARRAY:
            return self.read_array()
        if tag == _BLOCK:
            return reader.bytes(reader.u8())
        if tag == _LONG_BLOCK:
            return reader.bytes(reader.i32())
        if tag == _EXCEPTION:
            raise self.unknown_end("an exception that ended the writing of an object")
        raise reader.error(f"{tag:#x} does not begin a Java object", position=reader.position - 1)

    def register(self, value: object) -> object:
        self.handles.append(value)
        return value

    def read_reference(self) -> object:
        number = self.reader.i32() - _FIRST_HANDLE
        if not 0 <= number < len(self.handles):
            raise self.reader.error(
                "a Java object has an invalid reference", position=self.reader.position - 4
            )
        return self.handles[number]

    def read_text(self, tag: int) -> str:
        return self.reader.utf() if tag == _STRING else self.reader.long_utf()

    def read_class(self) -> _Class | None:
        begin = self.reader.position
        java_class = self.read_content()
        if java_class is not None and not isinstance(java_class, _Class):
            raise self.reader.error("a Java class is expected", position=begin)
        return java_class

    def read_class_description(self, tag: int) -> _Class:
        reader = self.reader
        if tag == _PROXY:
            return self.read_proxy_class()
        java_class = _Class(reader.utf())
        reader.take(8)  # serialVersionUID
        self.handles.append(java_class)
        java_class.flags = reader.u8()
        java_class.fields = tuple(self.read_field() for _ in range(reader.u16()))
        self.read_annotations()
        java_class.superclass = self.read_class()
        return java_class

    def read_proxy_class(self) -> _Class:
        """Read the class of a ``java.lang.reflect.Proxy``: its interfaces and its superclass."""
        reader = self.reader
        java_class = _Class("Proxy", _SERIALIZABLE)
        self.handles.append(java_class)
        for _ in range(reader.count(2, "interfaces of a Java proxy")):
            reader.utf()
        self.read_annotations()
        java_class.superclass = self.read_class()
        return java_class

    def read_field(self) -> tuple[str, str]:
        code, name = chr(self.reader.u8()), self.reader.utf()
        if code in "[L":
            self.read_content()
        return name, code

    def read_annotations(self) -> list[object]:
        items = []
        while self.reader.peek() != _END:
            items.append(self.read_content())
        self.reader.u8()
        return items

    def read_instance(self) -> JavaObject:
        object_class = self.read_class()
        if object_class is None:
            raise self.reader.error("a Java object has no class")
        instance = JavaObject(object_class.name)
        self.handles.append(instance)
        classes = []
        ancestor: _Class | None = object_class
        while ancestor is not None:
            classes.append(ancestor)
            ancestor = ancestor.superclass
            if len(classes) > _MOST_CLASSES:
                raise self.reader.error("a Java class is its own superclass")
        for java_class in reversed(classes):
            if java_class.flags & _EXTERNALIZABLE and not java_class.flags & _IN_BLOCKS:
                raise self.unknown_end(f"a value of {java_class.name} in that class's own format")
            if java_class.flags & _SERIALIZABLE:
                instance.fields |= self.read_values(java_class)
            if java_class.flags & (_WRITES_MORE | _EXTERNALIZABLE):
                instance.custom_data += self.read_annotations()
        return instance

    def read_values(self, java_class: _Class) -> Mapping[str, object]:
        return {name: self.read_value(code) for name, code in java_class.fields}

    def read_value(self, code: str) -> object:
        if code in _NUMBER_READERS:
            return _NUMBER_READERS[code](self.reader)
        if code in ("L", "["):
            return self.read_content()
        raise self.reader.error(f"{code!r} is not a valid type of a Java field")

    def read_enum(self) -> JavaObject:
        enum_class = self.read_class()
        if enum_class is None:
            raise self.reader.error("a Java constant has no class")
        constant = JavaObject(enum_class.name)
        self.handles.append(constant)
        name = self.read_content()
        constant.constant = name if isinstance(name, str) else None
        return constant

    def read_array(self) -> list[object]:
        array_class = self.read_class()
        elements: list[object] = []
        self.handles.append(elements)
        if array_class is None or len(array_class.name) < 2:
            raise self.reader.error("a Java array has no class")
        self.read_elements(array_class.name[1], elements)
        return elements

    def read_elements(self, code: str, elements: list[object]) -> None:
        for _ in range(self.reader.count(_WIDTHS.get(code, 1), "array elements")):
            elements.append(self.read_value(code))  # noqa: PERF401 - may hold itself


class _SkippedStream(_Stream):
    """A stream that is only skipped, to find its end.

    A text may end with half of a surrogate pair, as in Java. The numbers in arrays are not read.
    """

    def read_content(self) -> object:
        if self.reader.depth >= MAX_DEPTH:
            raise self.unknown_end(f"objects nested more than {MAX_DEPTH} levels deep")
        return super().read_content()

    def read_text(self, tag: int) -> str:
        reader = self.reader
        return str(reader.take(reader.u16() if tag == _STRING else reader.i64()), "latin-1")

    def read_elements(self, code: str, elements: list[object]) -> None:
        width = _WIDTHS.get(code)
        if width is None:
            super().read_elements(code, elements)
        else:
            self.reader.take(width * self.reader.count(width, "array elements"))
