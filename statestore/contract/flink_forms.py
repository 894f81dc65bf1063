"""The serializer snapshots of Flink as plain values, which a lock file can have.

A type without parameters is its name, such as ``Long``. Another type is a table: ``serializer`` is
the class of the serializer without its package, ``nested`` are the types in it, and the other
members are what its ``TypeSerializerSnapshot`` compares. Bytes are never part of a form.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import Any

from statestore.interop.flink.metadata.logical_types import OUT_OF_LINE, LogicalType
from statestore.interop.flink.types.avro import AvroType
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.internal_types import (
    JavaObjectType,
    TtlAwareType,
    UndecodedType,
    UnknownType,
)
from statestore.interop.flink.types.java_types import EnumType, Scalar
from statestore.interop.flink.types.kryo import KryoType
from statestore.interop.flink.types.pojos import PojoType, Subclass
from statestore.interop.flink.types.scala_types import ScalaEnumType
from statestore.interop.flink.types.sql_types import RowDataType, SqlCollection

TypeForm = str | dict[str, Any]
"""The form of a type."""

_SNAPSHOT = "Snapshot"
_NOT_COMPARED = frozenset({"form", "name", "version", "is_key"})
"""Members that no rule compares, or that ``serializer`` says already."""


def type_form(flink_type: FlinkType) -> TypeForm:
    """Return the form of a type: what the serializer's snapshot says about it."""
    match flink_type:
        case Scalar(name):
            return name
        case JavaObjectType():
            return flink_type.java_name
        case TtlAwareType() | UndecodedType():
            return type_form(flink_type.value)
        case UnknownType(class_name, body):
            return {"serializer": class_name, "snapshot": hashlib.sha256(body).hexdigest()[:16]}
    members: dict[str, Any]
    match flink_type:
        case PojoType():
            members = _pojo_members(flink_type)
        case EnumType(class_name, constants):
            members = {"class": class_name, "constants": list(constants)}
        case ScalaEnumType(class_name, constants):
            named = [f"{name}={number}" for name, number in constants]
            members = {"class": class_name, "constants": named}
        case AvroType(class_name, schema):
            members = {"class": class_name, "schema": schema}
        case KryoType():
            members = _kryo_members(flink_type)
        case RowDataType(columns, column_types):
            members = _row_members(columns, column_types)
        case SqlCollection():
            members = {"types": [child.text for child in flink_type.column.children]}
        case _:
            members = _other_members(flink_type)
    return {"serializer": _serializer(flink_type), **members}


def _serializer(flink_type: FlinkType) -> str:
    """Return the short name of the class that serializes a type."""
    form = next(form for form in flink_type.snapshots if form.describes(flink_type))
    name = form.class_name.rpartition(".")[2].rpartition("$")[2]
    return name.removesuffix(_SNAPSHOT)


def _pojo_members(pojo: PojoType) -> dict[str, Any]:
    """Return the members of a POJO; a field names its class only if that is a superclass."""
    members: dict[str, Any] = {
        "class": pojo.class_name,
        "fields": [
            {"name": field.name, "type": type_form(field.value)}
            | ({} if field.declared_by == pojo.class_name else {"declared_by": field.declared_by})
            for field in pojo.fields
        ],
    }
    for name, subclasses in (("registered", pojo.registered), ("subclasses", pojo.others)):
        if subclasses:
            members[name] = [_subclass_form(subclass) for subclass in subclasses]
    return members


def _subclass_form(subclass: Subclass) -> dict[str, Any]:
    known = {} if subclass.value is None else {"type": type_form(subclass.value)}
    return {"class": subclass.class_name, **known}


def _kryo_members(kryo: KryoType) -> dict[str, Any]:
    classes = kryo.classes
    members: dict[str, Any] = {"class": kryo.class_name}
    if classes.registered:
        members["registered"] = list(classes.registered)
    if classes.own_serializers:
        members["own_serializers"] = sorted(classes.own_serializers)
    return members


def _row_members(
    columns: tuple[LogicalType, ...], column_types: tuple[FlinkType, ...]
) -> dict[str, Any]:
    """Return the logical types of a row, and the serializers of columns that SQL cannot see into.

    The serializers of the others follow from their logical types.
    """
    opaque = [
        type_form(column_type)
        for column, column_type in zip(columns, column_types, strict=True)
        if column.root in OUT_OF_LINE
    ]
    members: dict[str, Any] = {"types": [column.text for column in columns]}
    return {**members, "nested": opaque} if opaque else members


def _other_members(flink_type: FlinkType) -> dict[str, Any]:
    """Return the members of a type by the fields of its class; the types in it are ``nested``."""
    members: dict[str, Any] = {}
    nested: list[TypeForm] = []
    for field in fields(flink_type):  # type: ignore[arg-type]
        value = getattr(flink_type, field.name)
        if isinstance(value, FlinkType):
            nested.append(type_form(value))
        elif isinstance(value, tuple):
            nested += [type_form(part) for part in value]
        elif isinstance(value, str | int) and field.name not in _NOT_COMPARED:
            members["class" if field.name == "class_name" else field.name] = value
    return {**members, "nested": nested} if nested else members
