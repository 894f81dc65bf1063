"""States of PyFlink, whose savepoints have bytes where the job had types: the user declares them.

A state ``NAME`` of the job's is ``python-state-NAME``: a map of bytes for a ``MapState``, for every
other one a list of bytes, of which each piece is what one bundle added, value behind value
(``BeamKeyedStateStore``, ``BeamBagStateHandler``). A declaration has the job's own words:
``ValueState<LONG>``, ``MapState<STRING, ROW<INT, DOUBLE>>``, with the names that
``pyflink.common.Types`` has. Values lie as ``from_type_info`` of ``pyflink.fn_execution.coders``
has them written, mostly as Java's serializers do. Nothing is ever unpickled. A store
that never saw Flink is written so as well, each element of a list as a piece of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.states import KeyedState
from statestore.interop.flink.types import (
    ArrayType,
    FlinkType,
    ListType,
    MapType,
    PythonType,
    RowType,
    Scalar,
    TtlAwareType,
    TtlType,
    TupleType,
    name_of,
)

__all__ = [
    "UNDECLARED",
    "as_bytes",
    "as_python",
    "declared_state",
    "is_python_state",
    "python_name",
]

UNDECLARED = "PyFlink stores no types: declare the state's own, as type = 'ValueState<LONG>'"
"""Why values of a state that is not declared are bytes."""

_PREFIX = "python-state-"
_TOKEN = re.compile(r"\s*([A-Za-z_]+|[<>,])\s*")
_BAGS = ("ValueState", "ReducingState", "AggregatingState")
_MAP, _LIST = "MapState", "ListState"
_BYTES = Scalar("byte[]")
_SCALARS = {
    "STRING": "StringData", "CHAR": "StringData", "BYTE": "Byte", "BOOLEAN": "Boolean",
    "SHORT": "Short", "INT": "Integer", "LONG": "Long", "BIG_INT": "Long", "FLOAT": "Float",
    "DOUBLE": "Double", "BIG_DEC": "StringData", "INSTANT": "Instant", "SQL_DATE": "PythonDate",
    "SQL_TIME": "PythonTime", "SQL_TIMESTAMP": "PythonTimestamp", "PICKLED_BYTE_ARRAY": "byte[]",
}  # fmt: skip


def python_name(state: str) -> str:
    """Return what PyFlink calls a keyed state of a job's in its savepoints."""
    return _PREFIX + state


def as_python(kind: FlinkType) -> FlinkType:
    """Return the type as which PyFlink writes what Java would write as another one.

    UnsupportedTypeError for one that PyFlink has no coder of.
    """
    match kind:
        case Scalar(name) if name in _AS_PYTHON:
            return Scalar(_AS_PYTHON[name])
        case RowType(fields):
            return RowType(tuple(map(as_python, fields)))
        case ListType(element):
            return ArrayType("", as_python(element))
        case MapType(key, value):
            return MapType(as_python(key), as_python(value))
        case _:
            raise UnsupportedTypeError(f"PyFlink has no coder of values of type {name_of(kind)}")


_AS_PYTHON = {
    **dict.fromkeys(("String", "BigDecimal"), "StringData"),
    "LocalDate": "PythonDate",
    **{
        name: name
        for name in (
            *("Boolean", "Byte", "Short", "Integer", "Long", "Float", "Double"),
            *("byte[]", "Instant"),
        )
    },
}


def as_bytes(kind: FlinkType) -> FlinkType:
    """Return the type that the header of a savepoint has of a state of PyFlink's values."""
    match kind:
        case TtlType(value):
            return TtlType(as_bytes(value))
        case MapType(_, value):
            return MapType(Scalar("ByteArrayWrapper"), as_bytes(value))
        case ListType(element):
            return ListType(as_bytes(element))
        case _:
            return _BYTES


def is_python_state(name: str) -> bool:
    """Return whether a keyed state of this name is one of PyFlink's."""
    return name.startswith(_PREFIX)


def declared_state(state: KeyedState, declared: str) -> KeyedState:
    """Return a state of PyFlink with the types that are declared of it.

    Args:
        state: the state as a header has it, of bytes.
        declared: such as ``ListState<STRING>``.

    Returns:
        The state, which is a value where PyFlink keeps a list of one.

    Raises:
        InvalidArgumentError: for a declaration that is none, or does not fit the state.
    """
    if not is_python_state(state.name):
        raise InvalidArgumentError(
            f"state {state.name!r} is none of PyFlink's, and has its own types: declare none"
        )
    name, parts = _parsed(declared)
    kind = "map" if name == _MAP else "list"
    count = 2 if name == _MAP else 1
    if name not in (*_BAGS, _LIST, _MAP) or len(parts) != count or kind != state.kind:
        what = f"{_MAP}<KEY, VALUE>" if state.kind == "map" else f"{', '.join(_BAGS)} or {_LIST}"
        raise InvalidArgumentError(
            f"state {state.name!r}: {declared!r} is not what a {state.kind} state of PyFlink is, "
            f"which is a {what} of its types"
        )
    if isinstance(state.value, MapType):
        value = _within(state.value.value, PythonType(parts[1]))
        return replace(state, value=MapType(PythonType(parts[0]), value))
    assert isinstance(state.value, ListType), "a state of PyFlink is a list or a map"
    element = _within(state.value.element, PythonType(parts[0], many=name == _LIST))
    if name == _LIST:
        return replace(state, value=ListType(element))
    return replace(state, kind="value", value=element)


def _within(kind: FlinkType, value: PythonType) -> FlinkType:
    """Put a type where the bytes are, which may have a time to live."""
    match kind:
        case TtlType(inner):
            return TtlType(_within(inner, value))
        case TtlAwareType(inner, has_ttl):
            return TtlAwareType(_within(inner, value), has_ttl)
        case _:
            return value


def _parsed(declared: str) -> tuple[str, list[FlinkType]]:
    """Return the name of a state's kind, and the types between its brackets."""
    tokens, at = [], 0
    while at < len(declared):
        found = _TOKEN.match(declared, at)
        if found is None:
            raise _wrong(declared)
        tokens.append(found[1])
        at = found.end()
    words = iter([*tokens, ""])
    name, last = next(words), ""
    parts: list[FlinkType] = []
    if next(words, "") == "<":
        parts, last = _types(words, declared)
    if last != ">" or next(words, ""):
        raise _wrong(declared)
    return name, parts


def _types(words: Iterator[str], declared: str) -> tuple[list[FlinkType], str]:
    """Return the types up to a closing bracket, and that."""
    found: list[FlinkType] = []
    while True:
        name, behind = next(words, ""), next(words, "")
        inner: list[FlinkType] = []
        if behind == "<":
            inner, last = _types(words, declared)
            if last != ">":
                raise _wrong(declared)
            behind = next(words, "")
        found.append(_type(name, inner, declared))
        if behind != ",":
            return found, behind


def _type(name: str, inner: list[FlinkType], declared: str) -> FlinkType:
    if name in _SCALARS and not inner:
        return Scalar(_SCALARS[name])
    if name in _NESTED and inner:
        count, make = _NESTED[name]
        if count in (None, len(inner)):
            return make(inner)
    raise _wrong(declared)


def _array(inner: list[FlinkType]) -> FlinkType:
    return ArrayType("", inner[0])


def _primitives(inner: list[FlinkType]) -> FlinkType:
    return _BYTES if inner == [Scalar("Byte")] else ListType(inner[0])


_NESTED: Mapping[str, tuple[int | None, Callable[[list[FlinkType]], FlinkType]]] = {
    "ROW": (None, lambda inner: RowType(tuple(inner))),
    "TUPLE": (None, lambda inner: TupleType("Tuple", tuple(inner))),
    "MAP": (2, lambda inner: MapType(inner[0], inner[1])),
    "LIST": (1, _array),
    "BASIC_ARRAY": (1, _array),
    "OBJECT_ARRAY": (1, _array),
    "PRIMITIVE_ARRAY": (1, _primitives),
}


def _wrong(declared: str) -> InvalidArgumentError:
    names = ", ".join((*_SCALARS, *(f"{name}<…>" for name in _NESTED)))
    return InvalidArgumentError(
        f"{declared!r} declares no state of PyFlink: it is ValueState<TYPE>, ListState<TYPE>, "
        f"MapState<KEY, VALUE>, ReducingState<TYPE> or AggregatingState<TYPE>, of {names}"
    )
