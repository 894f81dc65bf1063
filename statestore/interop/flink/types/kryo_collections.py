"""Collections in fields of POJOs: Kryo wrote them in Flink 1, and Flink 2 has serializers for them.

Flink 2 derives the serializer of a field from its declared type, such as ``List<String>``. The
savepoint of Flink 1 does not have this type, so the user declares it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.families.base import FlinkType, SnapshotReaders, replace_parts
from statestore.interop.flink.types.families.kryo import KryoType
from statestore.interop.flink.types.families.kryo_keys import KRYO_NUMBERS, decode_kryo_5
from statestore.interop.flink.types.families.lists import ListType
from statestore.interop.flink.types.families.maps import MapType
from statestore.interop.flink.types.families.nullables import NullableType
from statestore.interop.flink.types.families.pojos import PojoField
from statestore.interop.flink.types.families.scalar import Scalar
from statestore.interop.flink.types.kryo_bytes import from_code_units
from statestore.interop.flink.types.kryo_conversion import read_kryo_object
from statestore.interop.flink.types.kryo_objects import KryoClasses, KryoObject
from statestore.interop.flink.types.value_lengths import Skip

Collections = Mapping[tuple[str, str], FlinkType]
"""The types of fields, by the class that declares the field, and the field's name."""

_TOKEN = re.compile(r"\s*([A-Za-z]+|[<>,])")
_UTIL = "java.util."
_LIST_OF_ARRAY = 73  # the number of the class of Arrays.asList
_FORMS: Mapping[str, tuple[int | str, ...]] = {
    "List": (_LIST_OF_ARRAY, "ArrayList", "LinkedList", "Vector"),
    "Set": ("HashSet", "LinkedHashSet"),
    "Map": ("HashMap", "LinkedHashMap"),
}


@dataclass(frozen=True, slots=True)
class KryoCollectionType(FlinkType):
    """A collection that Kryo 2 wrote, read as a value of the type ``content``.

    ``classes`` are those of the field's :class:`KryoType`.
    """

    content: FlinkType
    classes: KryoClasses

    def _java_name(self) -> str:
        return f"Kryo<{self.content.java_name}>"

    def _column_count(self) -> int:
        return self.content.column_count

    def _arrow_type(self) -> pa.DataType:
        return self.content.arrow_type()

    def _skipper(self) -> Skip:
        def skip(reader: Reader) -> None:
            read_kryo_object(reader, self.classes)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        values, ends = [], cursor.position.copy()
        for row in range(len(cursor)):
            reader = cursor.reader(row)
            values.append(_to_value(read_kryo_object(reader, self.classes), self.content, reader))
            ends[row] += reader.position
        cursor.position = ends
        return pa.array(values, self.arrow_type())

    def _write(self, array: pa.Array) -> pa.Array:
        raise AssertionError("values of Kryo 2 are only read")

    def _snapshot(self) -> bytes:
        raise AssertionError("values of Kryo 2 are only read")

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {}


def _to_value(found: KryoObject | None, content: FlinkType, reader: Reader) -> Any:
    """Return an object as a value of a column of ``content``."""
    if found is None:
        return None
    if isinstance(content, Scalar):
        if found.class_key != KRYO_NUMBERS[content.name]:
            raise _other_class(found, content, reader)
        if content.name == "String":
            return None if found.content is None else from_code_units(found.content)
        return decode_kryo_5(content.name, found.content)
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
    simple = (name for name, number in KRYO_NUMBERS.items() if number == found.class_key)
    class_name = next(simple, found.class_key)
    return UnsupportedTypeError(
        f"{reader.name} has an object of the class {class_name}, which is not a "
        f"{content.java_name}: correct the type of the field (--classes), or leave the state out"
    )


def read_collections(flink_type: FlinkType, collections: Collections) -> FlinkType:
    """Return a type that reads the declared fields as Kryo 2 wrote them."""
    return _replace_fields(
        flink_type, collections, lambda kryo, content: KryoCollectionType(content, kryo.classes)
    )


def write_collections(flink_type: FlinkType, collections: Collections) -> FlinkType:
    """Return a type whose declared fields have the serializers of Flink 2."""
    return _replace_fields(flink_type, collections, lambda _, content: _make_nullable(content))


def _replace_fields(
    flink_type: FlinkType,
    collections: Collections,
    convert: Callable[[KryoType, FlinkType], FlinkType],
) -> FlinkType:
    def change(part: object) -> PojoField | None:
        if not isinstance(part, PojoField) or not isinstance(part.value, KryoType):
            return None
        content = collections.get((part.declared_by, part.name))
        return None if content is None else replace(part, value=convert(part.value, content))

    return replace_parts(flink_type, change)


def _make_nullable(content: FlinkType) -> FlinkType:
    """Return a type as Flink 2 derives it from a class: collections and their keys can be null."""
    if isinstance(content, ListType):
        is_set = content.form == "Set"  # whose elements have flags of their own
        element = _make_nested(content.element) if is_set else _make_nullable(content.element)
        return NullableType(replace(content, element=element))
    if isinstance(content, MapType):
        key, value = _make_nullable(content.key), _make_nested(content.value)
        return NullableType(replace(content, key=key, value=value))
    return NullableType(content)


def _make_nested(content: FlinkType) -> FlinkType:
    return content if isinstance(content, Scalar) else _make_nullable(content)


def parse_collection(text: object, name: str) -> FlinkType:
    """Return the type of a field, such as ``Map<String, List<Long>>``.

    Args:
        text: the type, as it is declared in Java.
        name: the field, for messages.

    Raises:
        InvalidArgumentError: for anything but a ``List``, ``Set`` or ``Map`` of simple types.
    """
    try:
        if not isinstance(text, str):
            raise ValueError
        tokens = _tokenize(text)
        content = _parse_type(tokens)
        if next(tokens, None) is not None or isinstance(content, Scalar):
            raise ValueError
    except (ValueError, StopIteration):
        raise InvalidArgumentError(
            f"the field {name} is declared as {text!r}: declare List<…>, Set<…> or Map<…, …> of "
            f"these or of {', '.join(KRYO_NUMBERS)}"
        ) from None
    return content


def _tokenize(text: str) -> Iterator[str]:
    position = 0
    while text[position:].strip():
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError
        yield found[1]
        position = found.end()


def _parse_type(tokens: Iterator[str]) -> FlinkType:
    name = next(tokens)
    if name in KRYO_NUMBERS:
        return Scalar(name)
    _expect(tokens, "<")
    first = _parse_type(tokens)
    if name == "Map":
        _expect(tokens, ",")
        parsed: FlinkType = MapType(first, _parse_type(tokens))
    elif name in ("List", "Set"):
        parsed = ListType(first, "Set" if name == "Set" else "List")
    else:
        raise ValueError
    _expect(tokens, ">")
    return parsed


def _expect(tokens: Iterator[str], token: str) -> None:
    if next(tokens) != token:
        raise ValueError
