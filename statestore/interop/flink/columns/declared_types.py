"""Types that a savepoint lacks, as the user declares them: those of Java jobs and of PyFlink.

The types of a Java job are in Java's notation: ``Map<String, com.acme.Item>``. The names of the
JDK's and Flink's own classes may have their packages. A ``Row`` may name its fields:
``Row<id Long, name String>``.

PyFlink's savepoints contain untyped bytes. The job's state ``NAME`` is called
``python-state-NAME``. For a ``MapState`` it is a map of bytes. For all others it is a list of
bytes; each element holds the values that one bundle appended, one after another
(``BeamKeyedStateStore``, ``BeamBagStateHandler``). A declaration is written as in the job:
``ValueState<LONG>``, ``MapState<STRING, ROW<INT, DOUBLE>>``, with the names of
``pyflink.common.Types``. Values have the format that ``from_type_info`` of
``pyflink.fn_execution.coders`` selects, mostly the same format as Java's serializers. Nothing is
ever unpickled. For a state that was never in Flink, the export writes each element of a list as a
separate piece.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
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
    Scalar,
    TupleType,
)

_TOKEN = re.compile(r"\s*([A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*|[<>,]|\[\s*\])")
_PACKAGE = re.compile(
    r"java\.lang\.|java\.math\.|java\.time\.|java\.util\.(?=(?:List|Set|Map)$)"
    r"|org\.apache\.flink\.types\.(?=Row$)|org\.apache\.flink\.api\.java\.tuple\.(?=Tuple)"
)
_TUPLE = re.compile(r"Tuple(\d*)")
_COUNTS = {"List": 1, "Set": 1, "Map": 2}
_MOST_BRACKETS = 100

BOXES = {
    "boolean": "Boolean", "byte": "Byte", "short": "Short", "int": "Integer", "long": "Long",
    "float": "Float", "double": "Double", "char": "Character",
}  # fmt: skip
"""The classes of primitive types."""

SIMPLE_TYPES = {
    **{name: name for name in ("String", "BigDecimal", "BigInteger", "Instant")},
    **{name: name for name in ("LocalDate", "LocalTime", "LocalDateTime")},
    **{box: box for box in BOXES.values()},
    "java.util.Date": "Date", "java.sql.Date": "SqlDate", "java.sql.Time": "SqlTime",
    "java.sql.Timestamp": "SqlTimestamp",
}  # fmt: skip
"""The classes without parameters that have a serializer in Flink, and our short names of these."""


@dataclass(frozen=True, slots=True)
class DeclaredType:
    """A type: its name, the types between its brackets, and the names of a row's fields.

    An array has the name ``[]`` and the type of its elements. A ``Tuple``, ``Row``, ``List``,
    ``Set`` or ``Map`` without parts gets its parts from the column.
    """

    name: str
    parts: tuple[DeclaredType, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def is_composite(self) -> bool:
        """Whether each of its fields can be a column: a tuple, a row, or a class of the job."""
        return self.name in ("Tuple", "Row") or self.is_class

    @property
    def is_class(self) -> bool:
        """Whether Flink does not know the type, which makes it a class of the job."""
        return self.name not in (*SIMPLE_TYPES, *BOXES, *_COUNTS, "Tuple", "Row", "[]")

    def __str__(self) -> str:
        """Return the type as in Java."""
        if self.name == "[]":
            return f"{self.parts[0]}[]"
        if not self.parts:
            return self.name
        inner = [
            f"{name} {part}" if name else str(part)
            for name, part in zip(self.names or [""] * len(self.parts), self.parts, strict=True)
        ]
        count = len(self.parts) if self.name == "Tuple" else ""
        return f"{self.name}{count}<{', '.join(inner)}>"


def parse_declared_type(text: str, where: str) -> DeclaredType:
    """Parse a type.

    Args:
        text: the type, as in Java.
        where: the owner of the type, for messages.

    Returns:
        The type; a name that Flink does not know is a class of the job.

    Raises:
        InvalidArgumentError: if the text is not a type.
    """
    try:
        return _to_java_type(parse_type_tree(text))
    except ValueError:
        raise InvalidArgumentError(
            f"{where}: {text!r} is not a type: write it as in Java, such as Long, "
            "Tuple2<String, Long>, Row<id Long, name String>, List<String>, long[], or "
            "com.acme.Account for a class of the job"
        ) from None


def parse_type_tree(text: str) -> DeclaredType:
    """Parse names with types between their brackets, whatever the names are.

    Raises ValueError for another text.
    """
    if text.count("<") + text.count("[") > _MOST_BRACKETS:
        raise ValueError(text)
    tokens = _tokenize(text)
    parsed, last = _parse_type(tokens, next(tokens, ""))
    if last:
        raise ValueError(last)
    return parsed


def _tokenize(text: str) -> Iterator[str]:
    position = 0
    while text[position:].strip():
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError(text)
        yield "[]" if found[1].startswith("[") else found[1]
        position = found.end()


def _parse_type(tokens: Iterator[str], word: str) -> tuple[DeclaredType, str]:
    """Return the type that begins with ``word``, and the token after it, empty at the end."""
    if not word or not (word[0].isalpha() or word[0] in "_$"):
        raise ValueError(word)
    parts: list[DeclaredType] = []
    names: list[str] = []
    last = next(tokens, "")
    if last == "<":
        parts, names = _parse_parts(tokens)
        last = next(tokens, "")
    parsed = DeclaredType(word, tuple(parts), tuple(names))
    while last == "[]":
        parsed, last = DeclaredType("[]", (parsed,)), next(tokens, "")
    return parsed, last


def _parse_parts(tokens: Iterator[str]) -> tuple[list[DeclaredType], list[str]]:
    """Return the types up to a closing bracket, and the names of the parts that have one."""
    parts, names = [], []
    last = ","
    while last == ",":
        part, last = _parse_type(tokens, next(tokens, ""))
        if last not in (",", ">", ""):  # a name before its type
            if part.parts or "." in part.name:
                raise ValueError(last)
            names.append(part.name)
            part, last = _parse_type(tokens, last)
        parts.append(part)
    if last != ">" or (names and len(names) != len(parts)):
        raise ValueError(last)
    return parts, names


def _to_java_type(tree: DeclaredType) -> DeclaredType:
    """Return a type without the packages of known classes; ValueError for wrong parts."""
    name, parts = _PACKAGE.sub("", tree.name), tuple(map(_to_java_type, tree.parts))
    tuple_name = _TUPLE.fullmatch(name)
    if tuple_name is not None:
        name = "Tuple"
        if tuple_name[1] and int(tuple_name[1]) != len(parts):
            raise ValueError(tree)
    elif parts and name not in ("Row", "[]") and _COUNTS.get(name) != len(parts):
        raise ValueError(tree)
    if tree.names and (name != "Row" or len({*tree.names}) != len(parts)):
        raise ValueError(tree)
    return DeclaredType(name, parts, tree.names)


UNDECLARED = (
    "PyFlink stores no types: declare the type of the state, for example type = 'ValueState<LONG>'"
)
"""The reason why the values of an undeclared state stay bytes."""

_PREFIX = "python-state-"
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
    try:
        tree = parse_type_tree(declared)
    except ValueError:
        raise _declaration_error(declared) from None
    if not tree.parts or tree.names:
        raise _declaration_error(declared)
    return tree.name, [_build_type(part, declared) for part in tree.parts]


def _build_type(tree: DeclaredType, declared: str) -> FlinkType:
    inner = [_build_type(part, declared) for part in tree.parts]
    if tree.name in _SCALARS and not inner:
        return Scalar(_SCALARS[tree.name])
    if tree.name in _NESTED and inner and not tree.names:
        count, make = _NESTED[tree.name]
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
