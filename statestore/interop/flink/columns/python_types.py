"""PyFlink states: their savepoints contain untyped bytes, so the user declares the types.

The job's state ``NAME`` is called ``python-state-NAME``. For a ``MapState`` it is a map of bytes.
For all others it is a list of bytes; each element holds the values that one bundle appended, one
after another (``BeamKeyedStateStore``, ``BeamBagStateHandler``).

A declaration is written as in the job: ``ValueState<LONG>``, ``MapState<STRING, ROW<INT,
DOUBLE>>``, with the names of ``pyflink.common.Types``. Values have the format that
``from_type_info`` of ``pyflink.fn_execution.coders`` selects, mostly the same format as Java's
serializers. Nothing is ever unpickled. For a state that was never in Flink, the export writes each
element of a list as a separate piece.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.read.keyed_states import (
    FlinkState,
    ListState,
    MapState,
    TimerState,
    ValueState,
)
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.internal_types import PythonType, TtlAwareType, TtlType
from statestore.interop.flink.types.java_types import (
    ArrayType,
    ListType,
    MapType,
    RowType,
    TupleType,
)
from statestore.interop.flink.types.scalars import Scalar

UNDECLARED = (
    "PyFlink stores no types: declare the type of the state, for example type = 'ValueState<LONG>'"
)
"""The reason why the values of an undeclared state stay bytes."""

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
    """Return PyFlink's name in savepoints for a keyed state of the job."""
    return _PREFIX + state


def to_python_type(flink_type: FlinkType) -> FlinkType:
    """Return the type that PyFlink uses for values that Java would write with type ``flink_type``.

    Raises UnsupportedTypeError for a type without a PyFlink coder.
    """
    match flink_type:
        case Scalar(name) if name in _AS_PYTHON:
            return Scalar(_AS_PYTHON[name])
        case RowType(fields):
            return RowType(tuple(map(to_python_type, fields)))
        case ListType(element):
            return ArrayType("", to_python_type(element))
        case MapType(key, value):
            return MapType(to_python_type(key), to_python_type(value))
        case _:
            raise UnsupportedTypeError(
                f"PyFlink has no coder for values of type {flink_type.java_name}"
            )


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


def bytes_state(state: FlinkState) -> FlinkState:
    """Return a PyFlink state as a savepoint's header has it: a list or map of bytes, or timers."""
    if isinstance(state, TimerState):
        return state
    if isinstance(state, MapState):
        return replace(state, value=_to_bytes_type(state.value))
    value = _to_bytes_type(state.value)
    elements = value if isinstance(value, ListType) else ListType(value)
    return ListState(state.name, "list", state.key, state.namespace, elements)


def _to_bytes_type(flink_type: FlinkType) -> Any:
    match flink_type:
        case TtlType(value):
            return TtlType(_to_bytes_type(value))
        case MapType(_, value):
            return MapType(Scalar("ByteArrayWrapper"), _to_bytes_type(value))
        case ListType(element):
            return ListType(_to_bytes_type(element))
        case _:
            return _BYTES


def is_python_state(name: str) -> bool:
    """Return whether a keyed state with this name was written by PyFlink."""
    return name.startswith(_PREFIX)


def declared_state(state: FlinkState, declared: str) -> FlinkState:
    """Return a PyFlink state with its declared types.

    Args:
        state: the state of bytes, as the header describes it.
        declared: such as ``ListState<STRING>``.

    Returns:
        The state. Its kind is "value" if PyFlink uses a list with a single element for it.

    Raises:
        InvalidArgumentError: if the declaration is invalid, or does not fit the state.
    """
    if not is_python_state(state.name):
        raise InvalidArgumentError(
            f"state {state.name!r} is not a PyFlink state and has its own types: remove the "
            "declared type"
        )
    name, parts = _parse_declaration(declared)
    kind = "map" if name == _MAP else "list"
    count = 2 if name == _MAP else 1
    if name not in (*_BAGS, _LIST, _MAP) or len(parts) != count or kind != state.kind:
        what = f"{_MAP}<KEY, VALUE>" if state.kind == "map" else f"{', '.join(_BAGS)} or {_LIST}"
        raise InvalidArgumentError(
            f"state {state.name!r}: the declared type {declared!r} does not fit; a "
            f"{state.kind} state of PyFlink is a {what} of its types"
        )
    inner = _replace_innermost(state.inner, PythonType(parts[-1], many=name == _LIST))
    if name == _MAP:
        return replace(state, value=MapType(PythonType(parts[0]), inner))
    if name == _LIST:
        return replace(state, value=ListType(inner))
    return ValueState(state.name, "value", state.key, state.namespace, inner, state.recipe)


def _replace_innermost(flink_type: FlinkType, value: PythonType) -> FlinkType:
    """Replace the innermost type, inside of the TTL wrappers if there are any."""
    match flink_type:
        case TtlType(inner):
            return TtlType(_replace_innermost(inner, value))
        case TtlAwareType(inner, has_ttl):
            return TtlAwareType(_replace_innermost(inner, value), has_ttl)
        case _:
            return value


def _parse_declaration(declared: str) -> tuple[str, list[FlinkType]]:
    """Return the kind of a declared state, and the types between its brackets."""
    tokens, position = [], 0
    while position < len(declared):
        token = _TOKEN.match(declared, position)
        if token is None:
            raise _declaration_error(declared)
        tokens.append(token[1])
        position = token.end()
    words = iter([*tokens, ""])
    name, last = next(words), ""
    parts: list[FlinkType] = []
    if next(words, "") == "<":
        parts, last = _parse_types(words, declared)
    if last != ">" or next(words, ""):
        raise _declaration_error(declared)
    return name, parts


def _parse_types(words: Iterator[str], declared: str) -> tuple[list[FlinkType], str]:
    """Return the types up to a closing bracket, and the bracket itself."""
    types: list[FlinkType] = []
    while True:
        name, separator = next(words, ""), next(words, "")
        inner: list[FlinkType] = []
        if separator == "<":
            inner, last = _parse_types(words, declared)
            if last != ">":
                raise _declaration_error(declared)
            separator = next(words, "")
        types.append(_build_type(name, inner, declared))
        if separator != ",":
            return types, separator


def _build_type(name: str, inner: list[FlinkType], declared: str) -> FlinkType:
    if name in _SCALARS and not inner:
        return Scalar(_SCALARS[name])
    if name in _NESTED and inner:
        count, make = _NESTED[name]
        if count in (None, len(inner)):
            return make(inner)
    raise _declaration_error(declared)


def _build_array(inner: list[FlinkType]) -> FlinkType:
    return ArrayType("", inner[0])


def _build_primitive_array(inner: list[FlinkType]) -> FlinkType:
    return _BYTES if inner == [Scalar("Byte")] else ListType(inner[0])


_NESTED: Mapping[str, tuple[int | None, Callable[[list[FlinkType]], FlinkType]]] = {
    "ROW": (None, lambda inner: RowType(tuple(inner))),
    "TUPLE": (None, lambda inner: TupleType("Tuple", tuple(inner))),
    "MAP": (2, lambda inner: MapType(inner[0], inner[1])),
    "LIST": (1, _build_array),
    "BASIC_ARRAY": (1, _build_array),
    "OBJECT_ARRAY": (1, _build_array),
    "PRIMITIVE_ARRAY": (1, _build_primitive_array),
}


def _declaration_error(declared: str) -> InvalidArgumentError:
    names = ", ".join((*_SCALARS, *(f"{name}<…>" for name in _NESTED)))
    return InvalidArgumentError(
        f"{declared!r} is not a type of a PyFlink state: use ValueState<TYPE>, "
        "ListState<TYPE>, MapState<KEY, VALUE>, ReducingState<TYPE> or "
        f"AggregatingState<TYPE>, with the types {names}"
    )
