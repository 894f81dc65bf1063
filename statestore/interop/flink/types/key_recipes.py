"""Recipes for hashes of keys that a savepoint does not contain.

A recipe says how ``hashCode()`` of the job's own class computes a hash of its fields:

- ``scala``: as Scala hashes a case class without a ``hashCode`` of its own.
- ``record(a, b)``: as a Java record and a data class of Kotlin do, ``31 * hash(a) + hash(b)``.
- ``objects(a, b)``: as ``Objects.hash(a, b)`` does, ``31 * (31 + hash(a)) + hash(b)``.
- ``lombok(a, b)``: as Lombok's ``@EqualsAndHashCode`` does.
- ``python:NAME``: by a function that :func:`register_key_hash` registered.

A recipe is only used after it gave the stored key group of every key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.types.base import FlinkType, Layout
from statestore.interop.flink.types.java_types import EnumType
from statestore.interop.flink.types.key_hash import HashCodes
from statestore.interop.flink.types.layouts import Masked, Struct
from statestore.interop.flink.types.pojos import PojoType

SCALA = "scala"
"""The recipe of case classes, which names no fields."""

HashFunction: TypeAlias = Callable[[Any, Mapping[str, int]], int]
"""A function from a key, and the hashes of its fields, to the hash of the key."""

_PYTHON = "python:"
_OF_FIELDS = re.compile(r"(\w+)\(([^()]*)\)")


@dataclass(frozen=True, slots=True)
class _Polynomial:
    """A hash that is multiplied by ``factor`` before the hash of each field is added.

    ``null`` is the hash of a null, and ``flags`` are those of a boolean that is true or false, if
    they are not Java's.
    """

    start: int
    factor: int
    null: int = 0
    flags: tuple[int, int] | None = None


_POLYNOMIALS = {
    "record": _Polynomial(0, 31),
    "objects": _Polynomial(1, 31),
    "lombok": _Polynomial(1, 59, null=43, flags=(79, 97)),
}
_FUNCTIONS: dict[str, HashFunction] = {}


def register_key_hash(name: str, function: HashFunction) -> None:
    """Let the recipe ``python:NAME`` compute hashes of keys with a function in this process.

    The function is never stored. Register it again before a later import or export needs it.

    Args:
        name: the name in the recipe.
        function: returns the result of ``hashCode()`` for a key. Its first argument is a dictionary
            of the fields of a POJO, tuple, row or case class, or the value of another key. The
            second one is a dictionary of Java's hashes of these fields, without those of fields
            that are arrays or classes of the job. The lower 32 bits of the result count.
    """
    _FUNCTIONS[name] = function


def is_computable(recipe: str) -> bool:
    """Return whether a recipe that a store has can be used in this process."""
    if recipe.startswith(_PYTHON):
        return recipe.removeprefix(_PYTHON) in _FUNCTIONS
    return recipe == SCALA or _parse(recipe) is not None


def recipe_hash_codes(recipe: str, key_type: FlinkType, column: pa.Array) -> HashCodes:
    """Return the hashes that a recipe gives.

    Args:
        recipe: the recipe, such as ``scala`` or ``record(name, id)``.
        key_type: the type of the keys.
        column: the keys.

    Returns:
        The hash of each key.

    Raises:
        InvalidArgumentError: if the recipe is invalid, or does not fit the keys.
        UnsupportedTypeError: for a part of the keys whose own hash cannot be computed.
    """
    if recipe == SCALA:
        return key_type.hash_codes(column)
    if recipe.startswith(_PYTHON):
        return _call_function(recipe.removeprefix(_PYTHON), key_type, column)
    parsed = _parse(recipe)
    if parsed is None:
        raise InvalidArgumentError(
            f"the recipe {recipe!r} is none of scala, record(FIELD, …), objects(FIELD, …), "
            "lombok(FIELD, …), and python:NAME of a function that register_key_hash() registered"
        )
    polynomial, names = parsed
    members = _list_members(key_type, column)
    codes = np.full(len(column), polynomial.start, np.int32)
    for name in names:
        if name not in members:
            raise InvalidArgumentError(
                f"keys of {key_type.java_name} have no field {name!r}; the fields are "
                f"{', '.join(members) or 'none'}"
            )
        codes = codes * np.int32(polynomial.factor) + _hash_field(polynomial, *members[name])
    return codes


def _parse(recipe: str) -> tuple[_Polynomial, list[str]] | None:
    """Return how a recipe hashes which fields; None if it does not name fields."""
    found = _OF_FIELDS.fullmatch(recipe)
    if found is None or found[1] not in _POLYNOMIALS:
        return None
    return _POLYNOMIALS[found[1]], [name.strip() for name in found[2].split(",")]


def _list_members(key_type: FlinkType, column: pa.Array) -> dict[str, tuple[Layout, pa.Array]]:
    """Return the layouts and the columns of a key's fields by name."""
    if isinstance(key_type, PojoType):
        if key_type.registered or key_type.others:
            raise UnsupportedTypeError(
                f"{key_type.java_name} has subclasses, which can have other hashes"
            )
        parts: dict[str, Layout] = {field.name: field.value for field in key_type.fields}
    elif isinstance(key_type.layout, Struct | Masked):
        parts = dict(zip(key_type.layout.names, key_type.layout.parts, strict=True))
    else:
        if isinstance(key_type, EnumType):
            key_type.hash_codes(column)  # whose error gives the reason
        return {}
    columns = dict(zip([field.name for field in column.type], column.flatten(), strict=True))
    return {name: (part, columns[name]) for name, part in parts.items()}


def _hash_field(polynomial: _Polynomial, layout: Layout, column: pa.Array) -> HashCodes:
    if not isinstance(layout, FlinkType):
        raise UnsupportedTypeError("a recipe cannot hash an array, a map or a union of Avro")
    if polynomial.flags is not None and pa.types.is_boolean(column.type):
        values = column.fill_null(False).to_numpy(zero_copy_only=False)
        codes = np.where(values, *map(np.int32, polynomial.flags))
    else:
        codes = layout.hash_codes(column)
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    return np.where(is_null, np.int32(polynomial.null), codes)


def _call_function(name: str, key_type: FlinkType, column: pa.Array) -> HashCodes:
    function = _FUNCTIONS.get(name)
    if function is None:
        raise InvalidArgumentError(
            f"no function is registered as {name!r}: call register_key_hash({name!r}, …) first"
        )
    try:
        keys = column.to_pylist()
    except (OverflowError, ValueError) as error:  # Python has no date after the year 9999
        raise UnsupportedTypeError(f"a key is not a value of Python: {error}") from error
    known: dict[str, list[int]] = {}
    for member, (layout, values) in _list_members(key_type, column).items():
        with suppress(UnsupportedTypeError):
            known[member] = _hash_field(_POLYNOMIALS["record"], layout, values).tolist()
    hashes = (
        {member: codes[place] for member, codes in known.items()} for place in range(len(keys))
    )
    codes = [function(*pair) for pair in zip(keys, hashes, strict=True)]
    try:
        return np.array([index(code) & 0xFFFFFFFF for code in codes], np.uint32).view(np.int32)
    except TypeError:
        raise InvalidArgumentError(
            f"the function {name!r} returned something other than a whole number"
        ) from None
