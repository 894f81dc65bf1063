"""Convert values to the form of the goldens' rows (tests/golden/flink/README.md)."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.interop.flink.exporting.flink_versions import parse_collection
from statestore.interop.flink.metadata.logical_types import LogicalType, key_logical_type
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.byte_cursor import Spans
from statestore.interop.flink.types.column_bytes import decode_values
from statestore.interop.flink.types.internal_types import StreamElementType, TtlAwareType, TtlType
from statestore.interop.flink.types.java_types import (
    ArrayType,
    EitherType,
    ListType,
    MapType,
    NullableType,
    RowType,
    Scalar,
    TupleType,
)
from statestore.interop.flink.types.kryo import KryoType
from statestore.interop.flink.types.pojos import PojoType
from statestore.interop.flink.types.sql_types import (
    DecimalDataType,
    RowDataType,
    SqlCollection,
    TimestampDataType,
)

__all__ = ["as_text", "shown"]

_KINDS = ("INSERT", "UPDATE_BEFORE", "UPDATE_AFTER", "DELETE")
_DAY = 86_400
_COLLECTIONS = {"java.util.List": "List<String>", "java.util.Map": "Map<String, Integer>"}
"""The types of fields that Kryo 2 wrote."""


def shown(array: pa.Array, kind: FlinkType) -> list[Any]:
    """Return the values of a column in the form of the goldens."""
    return [_value(one, kind) for one in array.cast(_plain(array.type)).to_pylist()]


def as_text(value: Any) -> str:
    """Return a value in the form by which the goldens sort it."""
    return json.dumps(value, separators=(",", ":"))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without dates and times, because Python cannot represent all of them."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind.fields])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_temporal(kind) else kind


def _value(value: Any, kind: FlinkType) -> Any:
    if value is None:
        return "global" if kind == Scalar("GlobalWindow") else None
    match kind:
        case Scalar(name):
            return _scalar(value, name)
        case TupleType(_, fields):
            return [_value(value[f"f{at}"], one) for at, one in enumerate(fields)]
        case RowType(fields):
            row = [_value(value[f"f{at}"], one) for at, one in enumerate(fields)]
            return {"row": row, "kind": _KINDS[value["row_kind"]]}
        case RowDataType(columns):
            row = [_sql(value[f"f{at}"], one) for at, one in enumerate(columns)]
            return {"row": row, "kind": _KINDS[value["row_kind"]]}
        case SqlCollection(column):
            return _sql(value, column)
        case DecimalDataType():
            return str(value)
        case TimestampDataType(precision):
            return _sql(value, key_logical_type(f"TIMESTAMP({precision})"))
        case StreamElementType(inner):
            return {"timestamp": value["timestamp"], "value": _value(value["value"], inner)}
        case ListType(element) | ArrayType(_, element):
            return [_value(one, element) for one in value]
        case MapType(key, item):
            pairs = [[_value(one, key), _value(other, item)] for one, other in value]
            return sorted(pairs, key=as_text)
        case KryoType(class_name):
            declared = parse_collection(_COLLECTIONS[class_name], "a field of the goldens")
            spans = Spans.from_values([value], "a field of the goldens")
            read = decode_values(replace(kind, kryo=2, content=declared), spans)
            return _value(read[0].as_py(), declared)
        case NullableType(inner) | TtlAwareType(inner):
            return _value(value, inner)
        case TtlType(inner):
            return _value(value["value"], inner)
        case EitherType(left, right):
            if value["is_left"]:
                return {"left": _value(value["left"], left)}
            return {"right": _value(value["right"], right)}
        case PojoType():
            name = value.get("class", kind.class_name)
            inners = (one.value for one in kind.others if one.class_name == name)
            whose = next(inners, kind)
            assert isinstance(whose, PojoType)
            fields_of = {
                field.name: _value(value[field.name], field.value) for field in whose.fields
            }
            return {"class": name, "fields": fields_of}
        case _:
            return value


def _scalar(value: Any, name: str) -> Any:
    if name == "Character":
        return chr(value)
    if name in ("Float", "Double", "float[]", "double[]"):
        if isinstance(value, list):
            return [_number(one, name) for one in value]
        return _number(value, name)
    if name == "char[]":
        return list(map(chr, value))
    if name == "byte[]":
        return value.hex()
    if name in ("Instant", "SqlTimestamp", "LocalDateTime"):
        second, nano = value["second"], value["nano"]
        if name == "Instant":
            return [second, nano]
        if name == "SqlTimestamp":
            return [second * 1000 + nano // 1_000_000, nano]
        return [second // _DAY, second % _DAY * 1_000_000_000 + nano]
    if name in ("TimeWindow", "SqlTimeWindow"):
        return [value["start"], value["end"]]
    return value


def _number(value: float, name: str) -> Any:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(str(np.float32(value))) if name.startswith(("F", "f")) else value


def _sql(value: Any, column: LogicalType) -> Any:
    if value is None:
        return None
    if column.root in ("ROW", "STRUCTURED_TYPE"):
        names = column.names or [f"f{at}" for at in range(len(column.children))]
        row = [_sql(value[name], one) for name, one in zip(names, column.children, strict=True)]
        return {"row": row, "kind": _KINDS[value["row_kind"]]}
    if column.root == "ARRAY":
        return [_sql(one, column.children[0]) for one in value]
    if column.root == "MAP":
        sides = list(zip(*value, strict=True)) or [(), ()]
        return {
            name: [_sql(one, child) for one in side]
            for name, side, child in zip(("keys", "values"), sides, column.children, strict=True)
        }
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        millis, nano = value["second"] * 1000 + value["nano"] // 1_000_000, value["nano"]
        return [millis, nano % 1_000_000]
    if column.root.startswith("TIMESTAMP"):
        if column.precision <= 3:
            return [value, 0]
        return [value // 1000, value % 1000 * 1000]
    return _number(value, column.root) if isinstance(value, float) else value
