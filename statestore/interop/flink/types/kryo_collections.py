"""Collections in fields of POJOs: Kryo wrote them in Flink 1, and Flink 2 has serializers for them.

Flink 2 derives the serializer of a field from its declared type, such as ``List<String>``. The
savepoint of Flink 1 does not have this type, so the user declares it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from statestore.errors import InvalidArgumentError
from statestore.interop.flink.metadata.versions import KRYO_2
from statestore.interop.flink.types.base import FlinkType, replace_parts
from statestore.interop.flink.types.java_types import ListType, MapType, NullableType
from statestore.interop.flink.types.kryo import KryoType
from statestore.interop.flink.types.kryo_codecs import SIMPLE
from statestore.interop.flink.types.pojos import PojoField
from statestore.interop.flink.types.scalars import Scalar

Collections = Mapping[tuple[str, str], FlinkType]
"""The types of fields, by the class that declares the field, and the field's name."""

_TOKEN = re.compile(r"\s*([A-Za-z]+|[<>,])")


def read_collections(flink_type: FlinkType, collections: Collections) -> FlinkType:
    """Return a type that reads the declared fields as Kryo 2 wrote them."""
    return _replace_fields(
        flink_type, collections, lambda kryo, content: replace(kryo, kryo=KRYO_2, content=content)
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
            f"these or of {', '.join(SIMPLE)}"
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
    if name in SIMPLE:
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
