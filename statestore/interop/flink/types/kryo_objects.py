"""Graphs of objects that Kryo wrote: their classes, their marks, and references within a value.

An object begins with its class: 0 is a null, 1 is followed by the class name, and greater numbers
are those of registered classes plus 2. Names are written once in a graph, and then as numbers.
Objects that can be referred to have a mark: 1 for a new object, or the number of an earlier one
plus 2 (``Kryo.writeClassAndObject``, with references). The content of each class is read and
written by its codec (:mod:`statestore.interop.flink.types.kryo_codecs`).

Text is handled as its UTF-16 code units, each a character, because Kryo encodes each by itself.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import (
    JAVA_STREAM,
    Reader,
    skip_java_object,
    varint,
)
from statestore.interop.flink.metadata.versions import KRYO_2

MARK, MORE = 0x80, 0x40
"""Bits of the first byte of a text's length; the first one is also in the last byte of ASCII."""

_MARKED = re.compile(rb"[\x80-\xff]")
_MOST_SHIFTED_BYTES = 8  # the ninth byte of a long has 8 bits instead of 7


def read_number(reader: Reader) -> int:
    """Read a number of 1 to 9 bytes, lowest bits first, without a sign."""
    value = 0
    for place in range(_MOST_SHIFTED_BYTES):
        byte = reader.u8()
        value |= (byte & ~MARK) << 7 * place
        if byte < MARK:
            return value
    return value | reader.u8() << 7 * _MOST_SHIFTED_BYTES


def encode_number(value: int) -> bytes:
    """Encode a number of up to 64 bits without a sign."""
    if value < 1 << 7 * _MOST_SHIFTED_BYTES:
        return varint(value)
    low = [value >> 7 * place & 0x7F | MARK for place in range(_MOST_SHIFTED_BYTES)]
    return bytes([*low, value >> 7 * _MOST_SHIFTED_BYTES])


def read_text(reader: Reader) -> str | None:
    """Read ``Output.writeString``; DamagedFileError for a text that is not UTF-8."""
    begin = reader.position
    data = read_text_bytes(reader)
    try:
        return None if data is None else data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise reader.error("a text of Kryo is not UTF-8", position=begin) from None


def read_text_bytes(reader: Reader) -> bytes | None:
    """Read the UTF-8 of ``Output.writeString``: ASCII whose last byte is marked, or with a length.

    A null is None.
    """
    begin = reader.position
    first = reader.u8()
    if first < MARK:
        last = _MARKED.search(reader.data, reader.position)
        reader.position = begin
        text = bytearray(reader.take(last.end() - begin if last else reader.remaining + 1))
        text[-1] &= ~MARK
        return bytes(text)
    length = first & (MORE - 1)
    if first & MORE:
        length |= reader.varint() << 6
    if not length:  # it is counted from 1, as 0 is a null
        return None
    begin = reader.position
    for _ in range(length - 1):
        byte = reader.u8()
        reader.take(2 if byte >= 0xE0 else 1 if byte >= 0xC0 else 0)
    return bytes(reader.data[begin : reader.position])


def encode_text(text: str | None, longest_ascii: int) -> bytes:
    """Encode text, of which up to ``longest_ascii`` characters are written as plain ASCII."""
    if text is None:
        return bytes([MARK])
    if 1 < len(text) <= longest_ascii and text.isascii():
        return text[:-1].encode() + bytes([ord(text[-1]) | MARK])
    length = len(text) + 1
    first, rest = length & (MORE - 1) | MARK, length >> 6
    head = bytes([first]) if not rest else bytes([first | MORE]) + varint(rest)
    return head + text.encode("utf-8", "surrogatepass")


def to_code_units(text: str) -> str:
    """Return text with a character for each of its UTF-16 code units."""
    units = text.encode("utf-16-le", "surrogatepass")
    return "".join(map(chr, struct.unpack(f"<{len(units) // 2}H", units)))


def from_code_units(units: str) -> str:
    """Return the text of UTF-16 code units; UnicodeDecodeError if a surrogate stands alone."""
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


_FIRST_OF_JOB = 85
"""The number of the first class that a job registers; Flink registers the classes before it."""

_NULL, _NAMED, _FIRST = 0, 1, 2
_NEW = 1
_JAVA_OBJECT_HEAD = bytes([_NEW]) + JAVA_STREAM


@dataclass(frozen=True, slots=True)
class KryoClasses:
    """The classes that a job registers with Kryo.

    ``registered`` are the classes that the job registered, in the order of their numbers.
    ``own_serializers`` are the classes for which it has its own serializer.
    """

    registered: tuple[str, ...] = ()
    own_serializers: frozenset[str] = frozenset()


@dataclass(eq=False)
class KryoObject:
    """An object of a graph: its class, and its content in the form that its codec reads.

    A class is the number with which Kryo registers it, or its name. Numbers and texts have the form
    of Kryo 5. The content of a collection or map is a comparator, if any, and the objects in it.
    """

    class_key: int | str
    codec: KryoCodec
    content: Any = None


@dataclass
class KryoSource:
    """The graph that is read: its class names and objects so far, in order.

    ``kryo`` is the version that wrote it; a graph of Kryo 5 is only skipped, so its objects have no
    content. ``advice`` is what a user can do about a class that is not known here.
    """

    reader: Reader
    classes: KryoClasses
    codecs: Mapping[int | str, KryoCodec]
    kryo: int
    advice: str
    names: list[str] = field(default_factory=list)
    objects: list[KryoObject] = field(default_factory=list)

    def read(self) -> KryoObject | None:
        """Read an object with its class."""
        class_key = self.read_class()
        return None if class_key is None else self.read_content(class_key)

    def read_class(self) -> int | str | None:
        """Read the class of an object; None if there is a null instead of the object."""
        number = self.reader.varint()
        if number == _NULL:
            return None
        if number != _NAMED:
            return number - _FIRST
        name_number = self.reader.varint()
        if name_number == len(self.names):
            self.names.append(_read_name(self))
        if name_number >= len(self.names):
            raise self.reader.error("Kryo refers to the name of a class that it has not written")
        return self.names[name_number]

    def read_content(self, class_key: int | str) -> KryoObject:
        """Read an object of a class, with its mark if it has one."""
        codec = self.find_codec(class_key)
        made = KryoObject(class_key, codec)
        if codec.has_mark:
            mark = self.reader.varint()
            if mark != _NEW:
                if not _FIRST <= mark < len(self.objects) + _FIRST:
                    raise self.reader.error("Kryo refers to an object that it has not written")
                return self.objects[mark - _FIRST]
            self.objects.append(made)
        if self.kryo == KRYO_2:
            made.content = codec.read(self)
        else:
            (codec.skip_5 or codec.read)(self)
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

    def find_codec(self, class_key: int | str) -> KryoCodec:
        """Return the codec of a class; UnsupportedTypeError if there is none."""
        class_name = class_key
        registered = self.classes.registered
        if isinstance(class_key, int) and 0 <= class_key - _FIRST_OF_JOB < len(registered):
            class_name = registered[class_key - _FIRST_OF_JOB]
        if class_name not in self.classes.own_serializers:
            if class_name in self.codecs:
                return self.codecs[class_name]
            if self.peek(len(_JAVA_OBJECT_HEAD)) == _JAVA_OBJECT_HEAD:
                return _JAVA_OBJECT
        number = "the registered class " if isinstance(class_name, int) else ""
        raise UnsupportedTypeError(
            f"{self.reader.name} has a value of {number}{class_name}, which was written by the "
            f"job's own serializer or by the fields of the class. {self.advice}"
        )

    def peek(self, count: int) -> bytes:
        """Return the next bytes, without advancing."""
        begin = self.reader.position
        return bytes(self.reader.data[begin : begin + count])


@dataclass
class KryoTarget:
    """The graph that is written."""

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
        if value.codec.has_mark:
            number = self.numbers.get(id(value))
            if number is not None:
                self.put(varint(number + _FIRST))
                return
            self.numbers[id(value)] = len(self.numbers)
        if value.codec.has_mark or is_nullable:
            self.put(bytes([_NEW]))
        value.codec.write(self, value.content)


@dataclass(frozen=True)
class KryoCodec:
    """How the content of a class is read from Kryo 2 and written for Kryo 5.

    ``skip_5`` skips it in the form of Kryo 5, if ``read`` does not find the end of that form, too.
    """

    read: Callable[[KryoSource], Any]
    write: Callable[[KryoTarget, Any], None]
    has_mark: bool = True
    skip_5: Callable[[KryoSource], object] | None = None


def _read_name(source: KryoSource) -> str:
    """Read the name of a class."""
    begin = source.reader.position
    name = read_text(source.reader)
    if not name or not name.isascii():
        raise source.reader.error("the name of a class is not ASCII", position=begin)
    return name


def _encode_name(name: str) -> bytes:
    """Encode ``Output.writeAscii``, which Kryo uses for class names of any length."""
    return name[:-1].encode("ascii") + bytes([ord(name[-1]) | MARK])


def put_bytes(target: KryoTarget, content: bytes) -> None:
    """Write content that was read as the bytes of Kryo 5."""
    target.put(content)


def _read_java_object(source: KryoSource) -> bytes:
    """Read a stream of Java's own serialization, which both versions write for exceptions."""
    begin = source.reader.position
    skip_java_object(source.reader)
    return bytes(source.reader.data[begin : source.reader.position])


_JAVA_OBJECT = KryoCodec(_read_java_object, put_bytes)
