"""Compute the hashes of keys with the Java expression of their class's ``hashCode()``.

The expression is computed on whole columns, with Java's arithmetic of 32 and 64 bits. Its names are
the fields of the key. The fields of tuples, case classes and rows are ``f0``, ``f1``, …
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.types.families.key_hash import HashCodes, hash_valid
from statestore.interop.flink.types.families.tuples import FieldsType
from statestore.interop.flink.types.flink_types import (
    ArrayType,
    AvroType,
    EnumType,
    FlinkType,
    ListType,
    PojoType,
    RecordType,
    RowType,
    Scalar,
)
from statestore.interop.flink.types.java_hash_parser import Step, parse_java_hash
from statestore.keys.text_bytes import byte_arrays

_INTS = ("Byte", "Short", "Integer", "Character")
_LONG = Scalar("Long")
_ARRAYS = {
    "boolean[]": Scalar("Boolean"),
    "short[]": Scalar("Short"),
    "int[]": Scalar("Integer"),
    "long[]": Scalar("Long"),
    "float[]": Scalar("Float"),
    "double[]": Scalar("Double"),
    "char[]": Scalar("Character"),
    "String[]": Scalar("String"),
}
"""The types of the elements of arrays."""

_BOXES = ("Boolean", "Byte", "Short", "Integer", "Long", "Character", "Float", "Double")
_SELF = "this"


@dataclass(frozen=True, slots=True, eq=False)
class _Number:
    """Ints or longs; the width follows from the type of the array."""

    values: npt.NDArray[Any]

    @property
    def is_long(self) -> bool:
        return self.values.dtype == np.int64


@dataclass(frozen=True, slots=True, eq=False)
class _Flag:
    """The results of a comparison."""

    values: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class _Field:
    """A field of the keys, or the keys themselves."""

    flink_type: FlinkType
    column: pa.Array
    name: str


@dataclass(frozen=True, slots=True)
class _Name:
    """The name ``null``, or the name of a class with static functions."""

    name: str


_Value = _Number | _Flag | _Field | _Name


def java_hash_codes(text: str, key_type: FlinkType, column: pa.Array) -> HashCodes:
    """Return the hash of each key.

    Args:
        text: the expression, such as ``31 * a.hashCode() + b``.
        key_type: the type of the keys.
        column: the keys.

    Returns:
        The hashes.

    Raises:
        InvalidArgumentError: if the expression is invalid, or does not fit the keys.
        UnsupportedTypeError: for a field whose own hash cannot be computed.
    """
    machine = _Machine(_Field(key_type, column, _SELF))
    for step in parse_java_hash(text):
        machine.run(step)
    result = _to_number(machine.pop(), "the recipe")
    if result.is_long:
        raise InvalidArgumentError(
            f"the recipe {text!r} gives a long, and a hash is an int: cast it, as in (int) (…)"
        )
    codes: HashCodes = result.values
    return codes


class _Machine:
    """A stack of values, with one element for each key."""

    def __init__(self, key: _Field) -> None:
        self._key = key
        self._stack: list[_Value] = []

    def pop(self) -> _Value:
        return self._stack.pop()

    def run(self, step: Step) -> None:
        match step.does:
            case "number" | "long":
                dtype = np.int64 if step.does == "long" else np.int32
                self._push_number(np.full(len(self._key.column), step.number, dtype))
            case "name":
                self._stack.append(self._find_name(step.name))
            case "member":
                self._stack.append(_find_member(self.pop(), step.name))
            case "call":
                values = [self.pop() for _ in range(step.count)]
                self._push_number(_call(step.name, values[::-1]))
            case "unary":
                value = _to_number(self.pop(), step.name).values
                self._push_number(-value if step.name == "-" else ~value)
            case "cast":
                dtype = np.int64 if step.name == "long" else np.int32
                self._push_number(_to_number(self.pop(), f"({step.name})").values.astype(dtype))
            case "binary":
                right, left = self.pop(), self.pop()
                self._stack.append(_combine(step.name, left, right))
            case _:
                no, yes, condition = self.pop(), self.pop(), self.pop()
                self._push_number(_choose(condition, yes, no))

    def _push_number(self, values: npt.NDArray[Any]) -> None:
        self._stack.append(_Number(values))

    def _find_name(self, name: str) -> _Value:
        if name == _SELF:
            return self._key
        if name in ("null", "Objects", "Arrays", *_BOXES) and name not in _list_members(self._key):
            return _Name(name)
        return _find_member(self._key, name)


def _list_members(field: _Field) -> dict[str, _Field]:
    """Return the fields of a value by name."""
    flink_type = field.flink_type
    if isinstance(flink_type, AvroType):
        flink_type = flink_type.layout
    if isinstance(flink_type, PojoType):
        if flink_type.registered or flink_type.others:
            raise UnsupportedTypeError(
                f"{flink_type.java_name} has subclasses, which can have other hashes"
            )
        types = {member.name: member.value for member in flink_type.fields}
    elif isinstance(flink_type, FieldsType | RowType):
        types = {f"f{number}": part for number, part in enumerate(flink_type.fields)}
    elif isinstance(flink_type, RecordType):
        types = dict(zip(flink_type.names, flink_type.fields, strict=True))
    else:
        if isinstance(flink_type, EnumType):
            flink_type.hash_codes(field.column)  # whose error gives the reason
        return {}
    names = [column.name for column in field.column.type]
    columns = dict(zip(names, field.column.flatten(), strict=True))
    return {name: _Field(part, columns[name], name) for name, part in types.items()}


def _find_member(value: _Value, name: str) -> _Field:
    if not isinstance(value, _Field):
        raise InvalidArgumentError(f"a recipe asks for {name!r} of a value without fields")
    members = _list_members(value)
    if name not in members:
        known = ", ".join(members) or "none"
        raise InvalidArgumentError(
            f"keys of {value.flink_type.java_name} have no field {name!r}; the fields are {known}"
        )
    return members[name]


def _to_number(value: _Value, where: str) -> _Number:
    """Return a value as an int or a long; a null is 0, as Java fails for it."""
    if isinstance(value, _Number):
        return value
    if isinstance(value, _Field) and _is_scalar(value, *_INTS, "Long"):
        dtype = np.int64 if value.flink_type == _LONG else np.int32
        return _Number(value.column.fill_null(0).to_numpy(zero_copy_only=False).astype(dtype))
    name = value.name if isinstance(value, _Field | _Name) else "a condition"
    raise InvalidArgumentError(
        f"{where} needs a whole number instead of {name}: use {name}.hashCode()"
    )


def _is_scalar(field: _Field, *names: str) -> bool:
    return isinstance(field.flink_type, Scalar) and field.flink_type.name in names


def _widen(values: Sequence[_Number]) -> list[npt.NDArray[Any]]:
    """Return the numbers as longs if one of them is a long, as Java does for two operands."""
    is_long = any(value.is_long for value in values)
    return [value.values.astype(np.int64) if is_long else value.values for value in values]


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "^": np.bitwise_xor,
    "|": np.bitwise_or,
    "&": np.bitwise_and,
}
_SHIFTS = ("<<", ">>", ">>>")


def _combine(operator: str, left: _Value, right: _Value) -> _Value:
    """Return the result of a binary operator."""
    if operator in ("==", "!="):
        is_equal = _compare(left, right)
        return _Flag(is_equal if operator == "==" else ~is_equal)
    first, second = _to_number(left, operator), _to_number(right, operator)
    if operator in _SHIFTS:
        return _Number(_shift(operator, first, second.values))
    return _Number(_ARITHMETIC[operator](*_widen((first, second))))


def _shift(operator: str, number: _Number, counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    values = number.values
    counts = counts.astype(values.dtype) & (63 if number.is_long else 31)
    if operator != ">>>":
        shifted: npt.NDArray[Any] = values << counts if operator == "<<" else values >> counts
        return shifted
    unsigned = np.uint64 if number.is_long else np.uint32
    without_sign: npt.NDArray[Any] = values.view(unsigned) >> counts.astype(unsigned)
    return without_sign.view(values.dtype)


def _compare(left: _Value, right: _Value) -> npt.NDArray[np.bool_]:
    if isinstance(left, _Name) and left.name == "null":
        left, right = right, left
    if isinstance(left, _Field) and isinstance(right, _Name) and right.name == "null":
        is_null: npt.NDArray[np.bool_] = left.column.is_null().to_numpy(zero_copy_only=False)
        return is_null
    first, second = _widen((_to_number(left, "=="), _to_number(right, "==")))
    equal: npt.NDArray[np.bool_] = first == second
    return equal


def _choose(condition: _Value, yes: _Value, no: _Value) -> npt.NDArray[Any]:
    """Return the values of a ternary."""
    if isinstance(condition, _Field) and condition.flink_type == Scalar("Boolean"):
        flags = condition.column.fill_null(False).to_numpy(zero_copy_only=False)
    elif isinstance(condition, _Flag):
        flags = condition.values
    else:
        raise InvalidArgumentError("the condition before a '?' is neither a boolean nor a test")
    return np.where(flags, *_widen((_to_number(yes, "?"), _to_number(no, "?"))))


def _call(name: str, values: list[_Value]) -> npt.NDArray[Any]:
    """Return the result of a method of the first value, or of a static function of a class."""
    target, *arguments = values
    owner = target.name if isinstance(target, _Name) else ""
    match owner, name, arguments:
        case "Objects", "hash", [first, *others]:
            codes = np.int32(31) + _hash(first)
            for argument in others:
                codes = codes * np.int32(31) + _hash(argument)
            return codes
        case "Arrays", "hashCode", [argument]:
            return _hash_array(argument)
        case "Objects", "hashCode", [argument]:
            return _hash(argument)
        case _, "hashCode", [argument] if owner in _BOXES:
            return _hash_box(owner, argument)
        case "", "hashCode", []:
            return _hash(target)
    raise InvalidArgumentError(
        f"a recipe cannot call {owner or 'a field'}.{name} with {len(arguments)} values: use "
        "field.hashCode(), Objects.hash(…), Objects.hashCode(field), Arrays.hashCode(field), or "
        "hashCode of Long, Double and the other boxes"
    )


def _hash(value: _Value) -> HashCodes:
    """Return ``hashCode()`` of a field, or of a boxed number; 0 for a null."""
    if isinstance(value, _Field):
        if value.name == _SELF:
            raise InvalidArgumentError("a recipe cannot use the hashCode() that it defines")
        return value.flink_type.hash_codes(value.column)
    number = _to_number(value, "hashCode")
    box = _LONG if number.is_long else Scalar("Integer")
    return box.hash_codes(pa.array(number.values))


def _hash_box(box: str, value: _Value) -> HashCodes:
    """Return ``hashCode`` of a box's class for a primitive number, a boolean or a character."""
    if box == "Long":
        return _hash(_Number(_to_number(value, "Long.hashCode").values.astype(np.int64)))
    if box in _INTS and not (number := _to_number(value, f"{box}.hashCode")).is_long:
        return _hash(number)
    if isinstance(value, _Field) and _is_scalar(value, box):
        return _hash(value)
    raise InvalidArgumentError(f"{box}.hashCode in a recipe needs a {box}")


def _hash_array(value: _Value) -> HashCodes:
    """Return ``Arrays.hashCode`` of a field. A list of the elements has the same hash."""
    if isinstance(value, _Field):
        flink_type, column = value.flink_type, value.column
        if isinstance(flink_type, ArrayType):
            return ListType(flink_type.element).hash_codes(column)
        if flink_type == Scalar("byte[]"):
            return hash_valid(column, lambda known: byte_arrays(known).view(np.int32))
        if isinstance(flink_type, Scalar) and flink_type.name in _ARRAYS:
            return ListType(_ARRAYS[flink_type.name]).hash_codes(column)
    raise InvalidArgumentError("Arrays.hashCode in a recipe needs a field that is an array")
