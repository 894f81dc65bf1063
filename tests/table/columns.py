"""The golden vectors as Arrow columns: those whose type a column can hold, grouped by type."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tests.vectors import cases, key_cases, scalar_of, sql_value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.model.keyvalues import RawBits

_INTEGERS: Final = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
}
_SIMPLE: Final = {
    "string": pa.string(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "time": pa.time64("ns"),
    "bytes": pa.binary(),
}
_SQL: Final = {
    "STRING": pa.string(),
    "CHAR(3)": pa.string(),
    "VARCHAR(20)": pa.string(),
    "BYTES": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIME(0)": pa.time32("s"),
    "TIME(3)": pa.time32("ms"),
}
_UNITS: Final = {"0": "s", "3": "ms", "6": "us", "9": "ns"}
_NANOS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class Field(NamedTuple):
    """One key column of one vector: its type, the Java type if not the column's own, a value."""

    type: pa.DataType
    key_type: str | None
    value: Any


class Vectors(NamedTuple):
    """Vectors of one scheme and type, as columns, with what Flink answers for each row."""

    name: str
    hash_scheme: str
    columns: list[pa.Array]
    key_types: list[str | None]
    max_parallelism: list[int]
    hashes: list[int]
    groups: list[int]


def java_vectors(unit: str = "ns") -> list[Vectors]:
    """Return the java and pyflink vectors; timestamps in ``unit``, finer ones left out."""
    questions = []
    for tagged, *answer in key_cases():
        key, scheme = tagged, "java"
        if tagged["t"] == "row" and len(tagged["v"]) == 1 and "kind" not in tagged:
            key, scheme = tagged["v"][0], "pyflink"
        several = key["t"] == "tuple" and len(key["v"]) > 1
        fields = [_field(part, unit) for part in (key["v"] if several else [key])]
        whole = [field for field in fields if field is not None]
        if len(whole) == len(fields) and not (several and _has_bytes(whole)):
            questions.append((scheme, whole, *answer))
    for case in cases("bulk_keys"):
        given = case["in"]
        for value, group in zip(given["keys"], case["out"], strict=True):
            field = _field({"t": given["type"], "v": value}, unit)
            assert field is not None
            questions.append(("java", [field], given["max"], None, group))
    return _grouped(questions)


def sql_vectors(unit: str = "ns", *, times: bool = True) -> list[Vectors]:
    """Return the flink-sql vectors; without those finer than ``unit``, or without TIME."""
    questions = []
    for case in cases("sqlkeys"):
        fields = [_sql_field(name, value, unit) for name, value in case["in"]["fields"]]
        whole = [field for field in fields if field is not None]
        has_time = any(pa.types.is_time(field.type) for field in whole)
        if fields and len(whole) == len(fields) and (times or not has_time):
            answer = (case["in"]["max"], case["out"]["hash"], case["out"]["group"])
            questions.append(("flink-sql", whole, *answer))
    return _grouped(questions)


def _grouped(questions: Iterable[tuple[Any, ...]]) -> list[Vectors]:
    by_type: dict[Any, list[Any]] = defaultdict(list)
    for scheme, fields, *rest in questions:
        # Where only groups are known (bulk_keys), a set of its own.
        kind = (scheme, tuple((f.type, f.key_type) for f in fields), rest[1] is None)
        by_type[kind].append((fields, rest))
    found = []
    for (scheme, kinds, _), members in by_type.items():
        columns = [
            array_of([fields[i].value for fields, _ in members], kind)
            for i, (kind, _) in enumerate(kinds)
        ]
        name = f"{scheme}-{'-'.join(str(key_type or kind) for kind, key_type in kinds)}"
        maxima, hashes, groups = (list(part) for part in zip(*(m[1] for m in members), strict=True))
        key_types = [key_type for _, key_type in kinds]
        found.append(Vectors(name, scheme, columns, key_types, maxima, hashes, groups))
    return found


def _field(tagged: dict[str, Any], unit: str) -> Field | None:
    """The column that holds a tagged value, or None when there is none."""
    tag = tagged["t"]
    if tag in _INTEGERS:
        return Field(_INTEGERS[tag], None, tagged["v"])
    if tag == "tuple":
        return _struct_field(tagged["v"], unit)
    if tag == "string" and "utf16" in tagged:
        return None  # lone surrogates are not UTF-8
    if tag in ("datetime", "instant"):
        nanos = scalar_of(tagged)
        return _timestamp(nanos, "UTC" if tag == "instant" else None, unit)
    if tag == "time" and unit != "ns":
        return None
    if tag == "decimal":
        value = scalar_of(tagged)
        scale = -value.as_tuple().exponent
        precision = 18 if max(len(value.as_tuple().digits), scale) <= 18 else 38
        return Field(pa.decimal128(precision, scale), None, value) if scale >= 0 else None
    return Field(_SIMPLE[tag], None, scalar_of(tagged)) if tag in _SIMPLE else None


def _struct_field(parts: list[dict[str, Any]], unit: str) -> Field | None:
    """A nested tuple, each field of the type that its Java type has as a column."""
    fields = [Field(pa.int64(), None, None) if p["t"] == "null" else _field(p, unit) for p in parts]
    whole = [field for field in fields if field is not None]
    if not parts or len(whole) < len(fields) or _has_bytes(whole):
        return None
    data_type = pa.struct([(f"f{i}", field.type) for i, field in enumerate(whole)])
    return Field(data_type, None, {f"f{i}": field.value for i, field in enumerate(whole)})


def _has_bytes(fields: list[Field]) -> bool:
    return any(pa.types.is_binary(field.type) for field in fields)


def _timestamp(nanos: int, zone: str | None, unit: str) -> Field | None:
    """The finest column up to ``unit`` that holds the instant, if one does."""
    for candidate in ("ns", "us"):
        fits = nanos % _NANOS[candidate] == 0 and abs(nanos // _NANOS[candidate]) < 2**63
        if fits and _NANOS[candidate] >= _NANOS[unit]:
            return Field(pa.timestamp(candidate, zone), None, nanos)
    return None


def _sql_field(name: str, value: Any, unit: str) -> Field | None:
    exact = sql_value(name, value)
    if match := re.fullmatch(r"(TIMESTAMP|TIMESTAMP_LTZ)\((\d)\)", name):
        zone = "UTC" if match[1] == "TIMESTAMP_LTZ" else None
        if unit == "ns":
            return Field(pa.timestamp(_UNITS[match[2]], zone), None, exact)
        fits = match[2] != "9" and (exact or 0) % _NANOS[unit] == 0
        return Field(pa.timestamp(unit, zone), name, exact) if fits else None
    if match := re.fullmatch(r"DECIMAL\((\d+), (\d+)\)", name):
        return Field(pa.decimal128(int(match[1]), int(match[2])), None, exact)
    return Field(_SQL[name], None, exact)


def array_of(values: list[Any], data_type: pa.DataType) -> pa.Array:
    """Build an array from exact values: dates in days, times in nanoseconds, floats in bits."""
    if pa.types.is_struct(data_type):
        children = [array_of([v[field.name] for v in values], field.type) for field in data_type]
        return pa.StructArray.from_arrays(children, fields=list(data_type))
    if pa.types.is_floating(data_type):
        return _floats(values, data_type)
    if pa.types.is_date(data_type):
        return pa.array(values, pa.int32()).cast(data_type)
    if pa.types.is_timestamp(data_type) or pa.types.is_time(data_type):
        unit = _NANOS[data_type.unit]
        integer = pa.int32() if pa.types.is_time32(data_type) else pa.int64()
        counts = [None if value is None else value // unit for value in values]
        return pa.array(counts, integer).cast(data_type)
    return pa.array(values, data_type)


def _floats(values: list[RawBits | None], data_type: pa.DataType) -> pa.Array:
    bits = [0 if value is None else value.bits for value in values]
    unsigned = np.uint32 if pa.types.is_float32(data_type) else np.uint64
    floats = np.array(bits, unsigned).view(data_type.to_pandas_dtype())
    return pa.array(floats, data_type, mask=np.array([value is None for value in values]))
