"""Objects in Java's serialization format, as far as the types of Flink SQL need it.

The grammar is defined in "Java Object Serialization Specification", chapter 6. Nothing is
instantiated: no class is loaded, and an object is a class name with field values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from statestore.interop.flink_savepoints.metadata.java_binary import Reader

__all__ = ["JavaObject", "read_java_object"]

_HEADER = 0xACED0005
_NULL, _REFERENCE, _CLASS_DESC, _OBJECT, _STRING, _ARRAY, _CLASS, _BLOCK, _END = range(0x70, 0x79)
_RESET, _LONG_BLOCK, _EXCEPTION, _LONG_STRING, _PROXY, _ENUM = range(0x79, 0x7F)
_FIRST_HANDLE = 0x7E0000
_WRITES_MORE, _SERIALIZABLE, _EXTERNALIZABLE, _IN_BLOCKS = 1, 2, 4, 8
_MOST_CLASSES = 100


@dataclass(slots=True)
class JavaObject:
    """An object: its class, its fields by name, and the data that its own write method added.

    For an enum, ``constant`` is the name of the constant.
    """

    class_name: str
    fields: dict[str, object] = field(default_factory=dict)
    written: list[object] = field(default_factory=list)
    constant: str | None = None


@dataclass(slots=True)
class _Class:
    name: str
    flags: int = 0
    fields: tuple[tuple[str, str], ...] = ()
    above: _Class | None = None


def read_java_object(reader: Reader) -> object:
    """Return the object of the Java stream that begins here, and advance past it.

    Raises DamagedFileError if the bytes are not such a stream, or contain elements that Flink's
    types never have.
    """
    reader.expect(_HEADER - (1 << 32), "the header of a Java object stream")
    return _Stream(reader).content()


class _Stream:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.handles: list[object] = []

    def content(self) -> object:
        with self.reader.nested("Java objects"):
            return self.one_content(self.reader)

    def one_content(self, reader: Reader) -> object:
        kind = reader.u8()
        if kind == _NULL:
            return None
        if kind == _REFERENCE:
            return self.referred()
        if kind in (_STRING, _LONG_STRING):
            return self.kept(self.text(kind))
        if kind in (_CLASS_DESC, _PROXY):
            return self.described(kind)
        if kind == _CLASS:
            return self.kept(self.class_of())
        if kind == _OBJECT:
            return self.instance()
        if kind == _ENUM:
            return self.enum()
        if kind == _ARRAY:
            return self.array()
        if kind == _BLOCK:
            return reader.bytes(reader.u8())
        if kind == _LONG_BLOCK:
            return reader.bytes(reader.i32())
        raise reader.damaged(f"{kind:#x} does not begin a Java object", at=reader.at - 1)

    def kept(self, value: object) -> object:
        self.handles.append(value)
        return value

    def referred(self) -> object:
        number = self.reader.i32() - _FIRST_HANDLE
        if not 0 <= number < len(self.handles):
            raise self.reader.damaged(
                "a Java object has an invalid reference", at=self.reader.at - 4
            )
        return self.handles[number]

    def text(self, kind: int) -> str:
        return self.reader.utf() if kind == _STRING else self.reader.long_utf()

    def class_of(self) -> _Class | None:
        begin = self.reader.at
        found = self.content()
        if found is not None and not isinstance(found, _Class):
            raise self.reader.damaged("a Java class is expected", at=begin)
        return found

    def described(self, kind: int) -> _Class:
        reader = self.reader
        if kind == _PROXY:
            raise reader.damaged("a Java proxy is not a type")
        found = _Class(reader.utf())
        reader.take(8)  # serialVersionUID
        self.handles.append(found)
        found.flags = reader.u8()
        found.fields = tuple(self.declared() for _ in range(reader.u16()))
        self.annotations()
        found.above = self.class_of()
        return found

    def declared(self) -> tuple[str, str]:
        code, name = chr(self.reader.u8()), self.reader.utf()
        if code in "[L":
            self.content()
        return name, code

    def annotations(self) -> list[object]:
        found = []
        while self.reader.peek() != _END:
            found.append(self.content())
        self.reader.u8()
        return found

    def instance(self) -> JavaObject:
        described = self.class_of()
        if described is None:
            raise self.reader.damaged("a Java object has no class")
        found = JavaObject(described.name)
        self.handles.append(found)
        classes = []
        at: _Class | None = described
        while at is not None:
            classes.append(at)
            at = at.above
            if len(classes) > _MOST_CLASSES:
                raise self.reader.damaged("a Java class is its own superclass")
        for one in reversed(classes):
            if one.flags & _EXTERNALIZABLE and not one.flags & _IN_BLOCKS:
                raise self.reader.damaged(
                    f"{one.name} has its own serialization format, whose end is unknown"
                )
            if one.flags & _SERIALIZABLE:
                found.fields |= self.values(one)
            if one.flags & (_WRITES_MORE | _EXTERNALIZABLE):
                found.written += self.annotations()
        return found

    def values(self, described: _Class) -> Mapping[str, object]:
        return {name: self.value(code) for name, code in described.fields}

    def value(self, code: str) -> object:
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
                return self.content()
        raise reader.damaged(f"{code!r} is not a valid type of a Java field")

    def enum(self) -> JavaObject:
        described = self.class_of()
        if described is None:
            raise self.reader.damaged("a Java constant has no class")
        found = JavaObject(described.name)
        self.handles.append(found)
        name = self.content()
        found.constant = name if isinstance(name, str) else None
        return found

    def array(self) -> list[object]:
        described = self.class_of()
        found: list[object] = []
        self.handles.append(found)
        if described is None or len(described.name) < 2:
            raise self.reader.damaged("a Java array has no class")
        for _ in range(self.reader.count(1, "array elements")):
            found.append(self.value(described.name[1]))  # noqa: PERF401 - may hold itself
        return found
