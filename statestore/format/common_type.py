"""The common type in which values of two types are compared after a state's columns changed.

A wider type is not a difference: the integer 1 equals the double 1. A struct with an added field
is equal while that field is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statestore.format.schema import (
    MOST_DIGITS,
    DataType,
    Field,
    Schema,
    decimal_parts,
    same_type,
    struct_types,
)
from statestore.format.schema_evolution import widens

__all__ = ["common_columns", "common_type", "digests_compare"]


_HASHED_ALIKE = ({"byte", "short", "integer", "long"}, {"float", "double"})


def common_columns(own: Schema, other: Schema) -> Schema:
    """Return the columns that both schemas have, in the order of ``own``.

    A column has the type that represents the values of both schemas. If there is no such type, it
    keeps its type in ``own``.
    """
    fields = []
    for field in own.fields:
        if field.name in other.names:
            common = common_type(field.type, other.type_of(field.name))
            fields.append(field if common is None else Field(field.name, common))
    return Schema(tuple(fields))


def common_type(left: DataType, right: DataType) -> DataType | None:
    """Return the narrowest type that represents every value of both types; None without one.

    :func:`widens` defines which types are wider.
    """
    for narrower, wider in ((left, right), (right, left)):
        if widens(narrower, wider):
            return wider
    if isinstance(left, str) or isinstance(right, str):
        return _common_decimal(left, right)
    if left["type"] != right["type"]:
        return None
    if left["type"] == "struct":
        return _common_struct(left, right)
    inner = "elementType" if left["type"] == "array" else "valueType"
    if inner == "valueType" and not same_type(left["keyType"], right["keyType"]):
        return None
    common = common_type(left[inner], right[inner])
    return None if common is None else {**left, inner: common}


def _common_decimal(left: DataType, right: DataType) -> DataType | None:
    parts = [
        decimal_parts(data_type) if isinstance(data_type, str) else None
        for data_type in (left, right)
    ]
    known = [part for part in parts if part is not None]
    if len(known) < 2:
        return None
    scale = max(scale for _, scale in known)
    digits = max(precision - scale for precision, scale in known) + scale
    return f"decimal({digits},{scale})" if digits <= MOST_DIGITS else None


def _common_struct(left: Mapping[str, Any], right: Mapping[str, Any]) -> DataType | None:
    own, others = struct_types(left), struct_types(right)
    types = own | others
    for name in own.keys() & others.keys():
        common = common_type(own[name], others[name])
        if common is None:
            return None
        types[name] = common
    if len({name.lower() for name in types}) < len(types):  # a struct cannot have such fields
        return None
    fields = [Field(name, data_type).to_json() for name, data_type in types.items()]
    return {"type": "struct", "fields": fields}


def digests_compare(left: Schema, right: Schema) -> bool:
    """Return whether equal digests of rows mean equal rows.

    That requires the same columns, and types whose equal values have equal hashes and whose
    different values have different hashes.
    """
    return set(left.names) == set(right.names) and all(
        _have_same_hash(field.type, right.type_of(field.name)) for field in left.fields
    )


def _have_same_hash(left: DataType, right: DataType) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        left_parts, right_parts = decimal_parts(left), decimal_parts(right)
        if left_parts is not None and right_parts is not None:
            return left_parts[1] == right_parts[1]
        return left == right or any({left, right} <= kinds for kinds in _HASHED_ALIKE)
    if isinstance(left, str) or isinstance(right, str) or left["type"] != right["type"]:
        return False
    if left["type"] == "struct":
        own, others = struct_types(left), struct_types(right)
        return own.keys() == others.keys() and all(
            _have_same_hash(own[name], others[name]) for name in own
        )
    inner = ("elementType",) if left["type"] == "array" else ("keyType", "valueType")
    return all(_have_same_hash(left[part], right[part]) for part in inner)
