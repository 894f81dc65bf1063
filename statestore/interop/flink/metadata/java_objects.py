"""Objects in Java's serialization format.

The grammar is defined in "Java Object Serialization Specification", chapter 6. Nothing is
instantiated: no class is loaded, and an object is a class name with field values. The types of
Flink SQL are read as objects. An object of the job's own classes is not read: only its end is
located.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import MAX_DEPTH, Reader

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
        reader = self.reader
        match code:
            case "B":
                return reader.i8()
            case "Z":
                return reader.bool()
            case "S":
                return reader.i16()
            case "C":
                return reader.u16()
            case "I":
                return reader.i32()
            case "J":
                return reader.i64()
            case "F":
                return reader.f32()
            case "D":
                return reader.f64()
            case "L" | "[":
                return self.read_content()
        raise reader.error(f"{code!r} is not a valid type of a Java field")

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
