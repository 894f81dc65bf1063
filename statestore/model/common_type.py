"""The type under which the values of two types are compared, when a state's columns have changed.

A wider type is no difference: 1 as an integer is 1 as a double, and a struct that has got a field
is the same as long as that field is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statestore.model.schema import (
    MOST_DIGITS,
    DataType,
    Field,
    Schema,
    decimal_parts,
    same_type,
)
from statestore.model.schema_change import widens

__all__ = ["common_columns", "common_type", "digests_compare"]

_HASHED_ALIKE = ({"byte", "short", "integer", "long"}, {"float", "double"})


def common_columns(own: Schema, other: Schema) -> Schema:
    """Return those of a schema's own columns that another has too, each of the type that holds the
    values of both, or where there is none of its own type.
    """
    fields = []
    for field in own.fields:
        if field.name in other.names:
            common = common_type(field.type, other.type_of(field.name))
            fields.append(field if common is None else Field(field.name, common))
    return Schema(tuple(fields))


def common_type(left: DataType, right: DataType) -> DataType | None:
    """Return the narrowest type that holds every value of two, None when there is none.

    What is wider is said by :func:`~statestore.model.schema_change.widens`.
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
    parts = [decimal_parts(one) if isinstance(one, str) else None for one in (left, right)]
    known = [one for one in parts if one is not None]
    if len(known) < 2:
        return None
    scale = max(scale for _, scale in known)
    digits = max(precision - scale for precision, scale in known) + scale
    return f"decimal({digits},{scale})" if digits <= MOST_DIGITS else None


def _common_struct(left: Mapping[str, Any], right: Mapping[str, Any]) -> DataType | None:
    own, others = _types_of(left), _types_of(right)
    types = own | others
    for name in own.keys() & others.keys():
        common = common_type(own[name], others[name])
        if common is None:
            return None
        types[name] = common
    if len({name.lower() for name in types}) < len(types):  # no struct has such fields
        return None
    fields = [Field(name, kind).to_json() for name, kind in types.items()]
    return {"type": "struct", "fields": fields}


def digests_compare(left: Schema, right: Schema) -> bool:
    """Return whether digests of rows tell which are equal: the columns are the same, and equal
    values of their types have one hash, others another.
    """
    return set(left.names) == set(right.names) and all(
        _hashed_alike(field.type, right.type_of(field.name)) for field in left.fields
    )


def _hashed_alike(left: DataType, right: DataType) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        one, other = decimal_parts(left), decimal_parts(right)
        if one is not None and other is not None:
            return one[1] == other[1]
        return left == right or any({left, right} <= kinds for kinds in _HASHED_ALIKE)
    if isinstance(left, str) or isinstance(right, str) or left["type"] != right["type"]:
        return False
    if left["type"] == "struct":
        own, others = _types_of(left), _types_of(right)
        return own.keys() == others.keys() and all(
            _hashed_alike(own[name], others[name]) for name in own
        )
    inner = ("elementType",) if left["type"] == "array" else ("keyType", "valueType")
    return all(_hashed_alike(left[part], right[part]) for part in inner)


def _types_of(struct: Mapping[str, Any]) -> dict[str, DataType]:
    return {field["name"]: field["type"] for field in struct["fields"]}
