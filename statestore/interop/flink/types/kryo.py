"""Values that Kryo serializes with their class (``KryoSerializer``).

``writeClassAndObject`` writes the number of the class plus 2; 0 is a null, and 1 means that the
name of the class follows. Kryo registers the first numbers for simple classes, whose values have a
known end. The end of an exception is known too, because it is a stream of Java's own serialization.
Values of other classes are written by serializers of the job. The end of a collection is known if
the version of Kryo that wrote it is known.

The snapshot often names no class but ``java.lang.Object``. If all values are of one simple class,
such as ``Long``, they have columns. Other values stay bytes, except for the collections that the
user declares.

Flink 1 has Kryo 2, and Flink 2 has Kryo 5. Flink 2 accepts the state of Flink 1 as compatible,
because the serializer's snapshots are the same. But it would read wrong values: numbers of a fixed
width have another byte order, long ASCII texts another form, and so have collections, maps, enums
and times. So a value is read here as an object graph, and written again. Values of classes that a
job's own serializer writes, or for which Kryo uses the fields of the class, cannot be converted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, TypeVar

import pyarrow as pa

from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import JAVA_STREAM, Reader, skip_java_object
from statestore.interop.flink.metadata.snapshot_format import (
    RUNTIME,
    TEXT,
    bytes_member,
    plain,
    read_optional_map,
)
from statestore.interop.flink.metadata.versions import KRYO_2, KRYO_5
from statestore.interop.flink.types.base import FlinkType, nested_types, replace_parts
from statestore.interop.flink.types.byte_cursor import BYTES, Cursor, Skip
from statestore.interop.flink.types.column_bytes import refuse_nulls
from statestore.interop.flink.types.internal_types import read_slices
from statestore.interop.flink.types.java_types import ListType, MapType, Scalar
from statestore.interop.flink.types.key_hash import KeyHash
from statestore.interop.flink.types.kryo_codecs import CODECS, SIMPLE
from statestore.interop.flink.types.kryo_objects import (
    KryoClasses,
    KryoObject,
    KryoSource,
    KryoTarget,
    from_code_units,
    read_text_bytes,
)

T = TypeVar("T")

_FIRST_NUMBER = 2
"""The number of the first class that Kryo registers, as values have it."""

_VERSION = " of Kryo "
_UNSPECIFIED = 0  # the class has Kryo's own serializer
_NULL, _NAMED = 0, 1
_NEW_NAME, _NEW_OBJECT = 0, 1
_VOID = 9
_SIMPLE_NUMBERS = {simple.number: simple for simple in SIMPLE.values()}
_TO_CONVERT = (
    "It cannot be converted to Kryo 5: before the migration, let the job of Flink 1 store it with "
    "another serializer, or leave the state out"
)
_TO_SKIP = "Its end is unknown, so all of the value has to stay bytes"


@dataclass(frozen=True, slots=True)
class KryoType(FlinkType):
    """A class that Kryo serializes.

    ``body`` is the rest of its snapshot. ``kryo`` is the version of Kryo that wrote the values. If
    it is None, only the ends of simple values are known. ``content`` is the type of the values in
    columns: a simple one if all of them have that class, or a collection, which is only read.
    Without it they stay bytes. ``target`` is the version that values are converted to when they are
    written, if any.
    """

    class_name: str
    body: bytes
    kryo: int | None = None
    content: FlinkType | None = None
    target: int | None = None

    snapshots = (
        plain(
            f"{RUNTIME}kryo.KryoSerializerSnapshot",
            2,
            # Three maps, whose entries have lengths (``KryoSerializerSnapshotData``).
            {
                "class_name": TEXT,
                "body": bytes_member(lambda reader: [read_optional_map(reader) for _ in range(3)]),
            },
        ),
    )

    @property
    def classes(self) -> KryoClasses:
        """The classes that the job registered with Kryo (``KryoSerializerSnapshotData``)."""
        reader = Reader(self.body, "a snapshot of KryoSerializer")
        registrations = read_optional_map(reader)
        own = {name for name, _, value in registrations if _has_own_serializer(value)}
        for _ in range(2):  # default serializers, as objects and as classes
            own |= {name for name, _, _ in read_optional_map(reader)}
        return KryoClasses(tuple(name for name, _, _ in registrations), frozenset(own))

    @property
    def simple(self) -> str | None:
        """The simple class of all values, such as ``Long``; None if they are not of one."""
        return self.content.name if isinstance(self.content, Scalar) else None

    @property
    def text(self) -> str:
        """The class of simple values, as an import records it: ``Long``, ``Short of Kryo 5``."""
        name = self.simple or ""
        return name if self.kryo == KRYO_2 else f"{name}{_VERSION}{self.kryo}"

    @property
    def has_byte_order(self) -> bool:
        """Whether the versions of Kryo read different simple values from the same bytes."""
        return self.simple is not None and SIMPLE[self.simple].has_byte_order

    def with_class(self, text: str) -> KryoType:
        """Return the type of values of a simple class that an import recorded."""
        simple, _, version = text.partition(_VERSION)
        return replace(self, content=Scalar(simple), kryo=int(version or KRYO_2))

    def _java_name(self) -> str:
        return f"Kryo<{self.class_name if self.content is None else self.content.java_name}>"

    def _column_count(self) -> int:
        return 1 if self.content is None else self.content.column_count

    def _arrow_type(self) -> pa.DataType:
        return pa.binary() if self.content is None else self.content.arrow_type()

    def _skipper(self) -> Skip:
        if self.kryo is None or self.simple is not None:
            return skip_kryo
        classes, kryo = self.classes, self.kryo
        advice = _TO_SKIP if self.content is None and self.target is None else _TO_CONVERT

        def skip(reader: Reader) -> None:
            _read_object(reader, classes, kryo, advice)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        if self.content is None:
            return read_slices(cursor, self.skipper())
        if self.simple is None:
            return _read_collections(self.content, self.classes, cursor)
        return self._read_simple(self.simple, read_slices(cursor, skip_kryo))

    def _read_simple(self, name: str, raw: pa.Array) -> pa.Array:
        """Return values of a simple class, none of which Kryo would write as other bytes."""
        assert self.kryo is not None, "the version is known if the class is"
        simple = SIMPLE[name]
        try:
            values = []
            for value in raw.to_pylist():
                if value[0] != simple.number + _FIRST_NUMBER:
                    number = value[0] - _FIRST_NUMBER
                    raise ValueError(
                        f"its class has the number {number} instead of {simple.number}"
                    )
                values.append(simple.decode(value[1:], self.kryo))
            column = pa.array(values, self.arrow_type())
            is_exact = self.write(column).equals(raw.cast(BYTES))
        except (ValueError, IndexError, struct.error, DamagedFileError) as error:
            raise UnsupportedTypeError(f"a key is not a {self.text}: {error}") from error
        if not is_exact:
            raise UnsupportedTypeError(
                f"a key is a {self.text}, but not in the bytes that Kryo writes"
            )
        return column

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        if self.simple is not None:
            assert self.kryo is not None, "the version is known if the class is"
            simple, kryo = SIMPLE[self.simple], self.kryo
            head = bytes([simple.number + _FIRST_NUMBER])
            return pa.array(
                [head + simple.encode(value, kryo) for value in array.to_pylist()], BYTES
            )
        assert self.content is None, "collections of Kryo 2 are only read"
        if self.target is None:
            return array.cast(BYTES)
        name, classes = f"a value of {self.java_name}", self.classes
        return pa.array(
            (convert_kryo_value(value, classes, name) for value in array.to_pylist()), BYTES
        )

    def _key_hash(self) -> KeyHash | None:
        return self.content._key_hash() if isinstance(self.content, Scalar) else None


def is_kryo_bytes(flink_type: object) -> TypeGuard[KryoType]:
    """Return whether values of a type stay bytes because Kryo wrote them."""
    return isinstance(flink_type, KryoType) and flink_type.content is None


def find_kryo_part(part: object) -> str | None:
    """Return which part of a type, or of several types, stays bytes because Kryo wrote it."""
    names = (nested.java_name for nested in nested_types(part) if is_kryo_bytes(nested))
    name = next(names, None)
    return None if name is None else f"values of {name} can only be read as bytes"


def _has_own_serializer(registration: Reader | None) -> bool:
    """Return whether a registration has a serializer (``KryoRegistrationUtil``)."""
    if registration is None:  # the class was missing when the snapshot was written
        return True
    registration.utf()  # the class
    return registration.i32() != _UNSPECIFIED


def find_simple_types(kryo_type: KryoType, value: bytes) -> tuple[KryoType, ...]:
    """Return the types that all values may have if one of them is ``value``, the likeliest first.

    It is empty if the class of the value is not a simple one.
    """
    return tuple(
        replace(kryo_type, content=Scalar(simple.name), kryo=version)
        for simple in SIMPLE.values()
        for version in simple.versions
        if value[:1] == bytes([simple.number + _FIRST_NUMBER])
    )


def set_kryo(part: T, kryo: int) -> T:
    """Return a type, or a part of one, with the version of Kryo that wrote its values.

    A version that is already set does not change.
    """
    return _replace_kryo(part, lambda found: is_kryo_bytes(found) and found.kryo is None, kryo=kryo)


def without_kryo_version(part: T) -> T:
    """Return a type, or a part of one, without Kryo's version, which its snapshot does not have."""
    return _replace_kryo(part, is_kryo_bytes, kryo=None)


def migrate_kryo(part: T) -> T:
    """Return a type, or a part of one, whose bytes of Kryo 2 are written for Kryo 5."""
    return _replace_kryo(part, is_kryo_bytes, kryo=KRYO_2, target=KRYO_5)


def write_for_kryo_5(part: T) -> T:
    """Return a type, or a part of one, whose values Kryo 5 writes instead of Kryo 2."""
    return _replace_kryo(part, lambda found: found.kryo is not None, kryo=KRYO_5)


def _replace_kryo(part: T, is_meant: Callable[[KryoType], bool], **members: int | None) -> T:
    """Return a type, or a part of one, whose Kryo types have other members if ``is_meant``."""

    def change(nested: Any) -> KryoType | None:
        is_changed = isinstance(nested, KryoType) and is_meant(nested)
        return replace(nested, **members) if is_changed else None

    return replace_parts(part, change)


def skip_kryo(reader: Reader) -> None:
    """Skip a value with its class; UnsupportedTypeError if its end is unknown."""
    number = reader.varint()
    if number in (_NULL, _VOID + _FIRST_NUMBER):
        return
    if number == _NAMED:
        _skip_named(reader)
        return
    simple = _SIMPLE_NUMBERS.get(number - _FIRST_NUMBER)
    if simple is None:
        raise _unknown_end(reader, f"the class with the number {number - _FIRST_NUMBER}")
    simple.skip(reader)


def _skip_named(reader: Reader) -> None:
    """Skip a value after the number that says that the name of its class follows."""
    if reader.varint() != _NEW_NAME:
        raise reader.error("Kryo refers to the name of a class that it has not written")
    name = (read_text_bytes(reader) or b"").decode("ascii", "replace")
    if reader.varint() != _NEW_OBJECT:
        raise reader.error("Kryo refers to an object that it has not written")
    if bytes(reader.data[reader.position : reader.position + len(JAVA_STREAM)]) != JAVA_STREAM:
        raise _unknown_end(reader, f"the class {name}")
    skip_java_object(reader)


def _unknown_end(reader: Reader, what: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"{reader.name} has a value of {what} at byte {reader.base + reader.position}, which the "
        "job's own Kryo serializer wrote, so its end is unknown: take a canonical savepoint, which "
        "has the length of each value"
    )


def convert_kryo_value(data: bytes, classes: KryoClasses, name: str) -> bytes:
    """Convert a value with its class from Kryo 2 to Kryo 5.

    Args:
        data: the value, as ``KryoSerializer`` of Flink 1 writes it.
        classes: the classes that the job registered with Kryo.
        name: the place of the value, for messages.

    Returns:
        The value, as ``KryoSerializer`` of Flink 2 writes it.

    Raises:
        UnsupportedTypeError: for a value of a class that cannot be converted.
        DamagedFileError: if the bytes are not a value.
    """
    reader, target = Reader(data, name), KryoTarget()
    value = _read_object(reader, classes, KRYO_2, _TO_CONVERT)
    reader.end("a value of Kryo")
    try:
        target.write(value)
    except RecursionError:
        raise _nested_too_deeply(name) from None
    return b"".join(target.parts)


def _read_object(reader: Reader, classes: KryoClasses, kryo: int, advice: str) -> KryoObject | None:
    """Read a value with its class that the version ``kryo`` wrote."""
    try:
        return KryoSource(reader, classes, CODECS, kryo, advice).read()
    except RecursionError:
        raise _nested_too_deeply(reader.name) from None


def _nested_too_deeply(name: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(f"{name} has a value whose objects are nested too deeply")


_UTIL = "java.util."
_LIST_OF_ARRAY = 73  # the number of the class of Arrays.asList
_FORMS: Mapping[str, tuple[int | str, ...]] = {
    "List": (_LIST_OF_ARRAY, "ArrayList", "LinkedList", "Vector"),
    "Set": ("HashSet", "LinkedHashSet"),
    "Map": ("HashMap", "LinkedHashMap"),
}


def _read_collections(content: FlinkType, classes: KryoClasses, cursor: Cursor) -> pa.Array:
    """Return collections that Kryo 2 wrote as a column of ``content``, and advance past them."""
    values, ends = [], cursor.position.copy()
    for row in range(len(cursor)):
        reader = cursor.reader(row)
        found = _read_object(reader, classes, KRYO_2, _TO_CONVERT)
        values.append(_to_value(found, content, reader))
        ends[row] += reader.position
    cursor.position = ends
    return pa.array(values, content.arrow_type())


def _to_value(found: KryoObject | None, content: FlinkType, reader: Reader) -> Any:
    """Return an object as a value of a column of ``content``."""
    if found is None:
        return None
    if isinstance(content, Scalar):
        if found.class_key != SIMPLE[content.name].number:
            raise _other_class(found, content, reader)
        if content.name == "String":
            return None if found.content is None else from_code_units(found.content)
        return SIMPLE[content.name].decode(found.content, KRYO_5)
    assert isinstance(content, ListType | MapType), "a declared type is simple or a collection"
    items = _list_items(found, content.form, reader, content)
    if isinstance(content, ListType):
        return [_to_value(item, content.element, reader) for item in items]
    keys = [_to_value(key, content.key, reader) for key in items[::2]]
    if None in keys:
        raise UnsupportedTypeError(f"{reader.name} has a map with a null key: leave the state out")
    return list(
        zip(keys, (_to_value(item, content.value, reader) for item in items[1::2]), strict=True)
    )


def _list_items(
    found: KryoObject, form: str, reader: Reader, content: FlinkType
) -> list[KryoObject | None]:
    """Return the objects in a collection; those of a map are keys and values in turn."""
    name = found.class_key
    if isinstance(name, str) and name.startswith(_UTIL):
        name = name.removeprefix(_UTIL)
    if name == f"Collections$Empty{form}":
        return []
    if name == f"Collections$Singleton{form}":
        return list(found.content)
    if name not in _FORMS[form]:
        raise _other_class(found, content, reader)
    _, items = found.content
    return list(items)


def _other_class(found: KryoObject, content: FlinkType, reader: Reader) -> UnsupportedTypeError:
    simple = (simple.name for simple in SIMPLE.values() if simple.number == found.class_key)
    class_name = next(simple, found.class_key)
    return UnsupportedTypeError(
        f"{reader.name} has an object of the class {class_name}, which is not a "
        f"{content.java_name}: correct the type of the field (--classes), or leave the state out"
    )
