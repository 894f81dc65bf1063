"""The golden vectors as Arrow columns, grouped by type; some values fit no column."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from statestore.keys.arrow_types import check_key_type
from tests.support.vectors import cases, key_cases, scalar_of, sql_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from decimal import Decimal

    from statestore.keys.key_types import RawBits

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
_NAMED: Final = {
    "uuid": (pa.string(), "UUID"),
    "biginteger": (pa.string(), "BigInteger"),
    "char": (pa.int32(), "Character"),
    "duration": (pa.int64(), "Duration"),
    "sql_timestamp": (pa.int64(), "java.sql.Timestamp"),
    "sql_date": (pa.int64(), "java.sql.Date"),
    "sql_time": (pa.int64(), "java.sql.Time"),
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
    """One key column of one vector: its type, its value, and the Java type if that differs."""

    type: pa.DataType
    key_type: str | None
    value: Any

    @property
    def java(self) -> str:
        """The Java type whose hash is used for the value."""
        return self.key_type or check_key_type(self.type, "pyflink")


_ColumnOf: TypeAlias = "Callable[[Any, str], Field]"


class NoColumn(Exception):
    """No column of an engine can contain a value; the argument is the kind of value."""


class Vectors(NamedTuple):
    """Vectors of one scheme and type, as columns, with Flink's answer for each row."""

    name: str
    hash_scheme: str
    columns: list[pa.Array]
    key_types: list[str | None]
    max_parallelism: list[int]
    hashes: list[int]
    groups: list[int]


def java_vectors(engine: str = "arrow") -> list[Vectors]:
    """Return the java and pyflink vectors that fit columns of an engine."""
    return _grouped(_carried(_java_questions(), engine)[0])


def sql_vectors(engine: str = "arrow") -> list[Vectors]:
    """Return the flink-sql vectors that fit columns of an engine."""
    return _grouped(_carried(_sql_questions(), engine)[0])


def refused(engine: str) -> Counter[str]:
    """Return the number of vectors that fit no column of an engine, by kind of value."""
    return sum((_carried(q(), engine)[1] for q in (_java_questions, _sql_questions)), Counter())


_Question: TypeAlias = "tuple[str, list[Any], _ColumnOf, tuple[Any, ...]]"


def _carried(questions: Iterable[_Question], engine: str) -> tuple[list[Any], Counter[str]]:
    found, kinds = [], Counter[str]()
    for scheme, values, column_of, answer in questions:
        try:
            if not values:
                raise NoColumn("a key without columns")
            found.append((scheme, [column_of(value, engine) for value in values], *answer))
        except NoColumn as kind:
            kinds[str(kind)] += 1
    return found, kinds


def _java_questions() -> Iterator[_Question]:
    for key, *answer in key_cases():
        single = key["t"] == "row" and len(key["v"]) == 1 and "kind" not in key
        several = key["t"] == "tuple" and len(key["v"]) > 1
        if several and not any(_is_null(part) for part in key["v"]):
            yield "java", key["v"], _field, tuple(answer)
        elif single and not _is_null(key["v"][0]):
            yield "pyflink", key["v"], _field, tuple(answer)
        if not several:
            yield "java", [key], _field, tuple(answer)
    for case in cases("bulk_keys"):
        given = case["in"]
        for value, group in zip(given["keys"], case["out"], strict=True):
            yield "java", [{"t": given["type"], "v": value}], _field, (given["max"], None, group)


def _is_null(tagged: dict[str, Any]) -> bool:
    return bool(tagged["t"] == "null")


def _sql_questions() -> Iterator[_Question]:
    for case in cases("sqlkeys"):
        answer = (case["in"]["max"], case["out"]["hash"], case["out"]["group"])
        yield "flink-sql", case["in"]["fields"], _sql_field, answer


def _grouped(questions: Iterable[tuple[Any, ...]]) -> list[Vectors]:
    by_type: dict[Any, list[Any]] = defaultdict(list)
    for scheme, fields, *rest in questions:
        # Vectors without hashes (bulk_keys) form a set of their own.
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


def _field(tagged: dict[str, Any], engine: str) -> Field:
    """Return the column for a tagged value; raise NoColumn if there is none."""
    tag = tagged["t"]
    if tag in ("row", "named_row", "tuple"):
        return _struct(tagged, engine)
    if tag in ("list", "array", "int_array"):
        return _list(tagged, engine)
    if tag == "map":
        return _map(tagged, engine)
    if tag == "null":
        return Field(pa.int64(), "Long", None)
    value = scalar_of(tagged)
    if tag == "string" and "utf16" in tagged:
        raise NoColumn("text with lone surrogates, which is not UTF-8")
    if tag == "decimal":
        return _decimal(value)
    if tag in _INTEGERS:
        return Field(_INTEGERS[tag], None, value)
    if tag in ("datetime", "instant"):
        return _moment(tag, value, engine)
    if tag == "date" and not -(2**31) <= value < 2**31:
        return Field(pa.int64(), "LocalDate", value)
    if tag in _NAMED:
        data_type, name = _NAMED[tag]
        return Field(data_type, name, str(value) if pa.types.is_string(data_type) else value)
    if tag == "time" and engine == "spark":
        return Field(pa.int64(), "LocalTime", value)
    return Field(_SIMPLE[tag], None, value)


def _decimal(value: Decimal) -> Field:
    digits, scale = value.as_tuple().digits, -int(value.as_tuple().exponent)
    if scale < 0:
        raise NoColumn("decimals of a negative scale, which no stored column has")
    most = max(len(digits), scale)
    if most > 38:
        raise NoColumn("decimals of more than 38 digits")
    return Field(pa.decimal128(18 if most <= 18 else 38, scale), None, value)


def _moment(tag: str, nanos: int, engine: str) -> Field:
    """Return a timestamp column if the value fits one, otherwise a column of nanoseconds."""
    zone = "UTC" if tag == "instant" else None
    for unit in ("ns", "us") if engine == "arrow" else ("us",):
        if nanos % _NANOS[unit] == 0 and abs(nanos // _NANOS[unit]) < 2**63:
            return Field(pa.timestamp(unit, zone), None, nanos)
    if abs(nanos) < 2**63:
        return Field(pa.int64(), "LocalDateTime" if zone is None else "Instant", nanos)
    if nanos % _NANOS["us"]:
        raise NoColumn("nanoseconds outside the years 1677 to 2262")
    if engine == "arrow" and abs(nanos // _NANOS["s"]) < 2**63:
        return Field(pa.timestamp("s", zone), None, nanos)
    raise NoColumn("years that no timestamp column holds")


def _struct(tagged: dict[str, Any], engine: str) -> Field:
    if tagged.get("kind", "+I") != "+I":
        raise NoColumn("rows of another kind than +I")
    named = tagged["t"] == "named_row"
    parts = tagged["v"] if named else {f"f{i}": part for i, part in enumerate(tagged["v"])}
    if not parts:
        raise NoColumn("rows and tuples without fields, which no stored struct is")
    fields = {name: _field(part, engine) for name, part in parts.items()}
    kind = {"tuple": f"Tuple{len(fields)}", "row": "Row"}.get(tagged["t"], "NamedRow")
    data_type = pa.struct([(name, field.type) for name, field in fields.items()])
    java = f"{kind}<{', '.join(field.java for field in fields.values())}>"
    return Field(data_type, java, {name: field.value for name, field in fields.items()})


def _list(tagged: dict[str, Any], engine: str) -> Field:
    if tagged["t"] == "int_array":
        return Field(pa.list_(pa.int32()), "int[]", tagged["v"])
    one, values = _of_one_type(tagged["v"], engine)
    java = f"{one.java}[]" if tagged["t"] == "array" else f"List<{one.java}>"
    return Field(pa.list_(one.type), java, values)


def _map(tagged: dict[str, Any], engine: str) -> Field:
    if any(_is_null(key) for key, _ in tagged["v"]):
        raise NoColumn("maps with a null key")
    key, keys = _of_one_type([key for key, _ in tagged["v"]], engine)
    item, items = _of_one_type([value for _, value in tagged["v"]], engine)
    entries = list(zip(keys, items, strict=True))
    return Field(pa.map_(key.type, item.type), f"Map<{key.java}, {item.java}>", entries)


def _of_one_type(parts: list[dict[str, Any]], engine: str) -> tuple[Field, list[Any]]:
    """Return a field of the type that all parts share, and their values; null fits any type."""
    fields = [_field(part, engine) for part in parts]
    there = [one for one, part in zip(fields, parts, strict=True) if not _is_null(part)]
    kinds = {(one.type, one.java): one for one in there}
    if len(kinds) > 1:
        raise NoColumn("lists whose elements have several types")
    one = next(iter(kinds.values()), Field(pa.int64(), "Long", None))
    return one, [field.value for field in fields]


def _sql_field(given: tuple[str, Any], engine: str) -> Field:
    name, value = given
    exact = sql_value(name, value)
    if name == "DOUBLE" and engine == "spark" and exact is not None and _odd_nan(exact.bits):
        raise NoColumn("NaN of other bits than Java's own, of which Spark keeps one")
    if match := re.fullmatch(r"(TIMESTAMP|TIMESTAMP_LTZ)\((\d)\)", name):
        zone = "UTC" if match[1] == "TIMESTAMP_LTZ" else None
        if engine == "arrow":
            return Field(pa.timestamp(_UNITS[match[2]], zone), None, exact)
        if match[2] != "9" and (exact or 0) % _NANOS["us"] == 0:
            return Field(pa.timestamp("us", zone), name, exact)
        return _sql_nanos(name, exact)
    if match := re.fullmatch(r"DECIMAL\((\d+), (\d+)\)", name):
        return Field(pa.decimal128(int(match[1]), int(match[2])), None, exact)
    if engine == "spark" and name.startswith("TIME("):
        return _sql_nanos(name, exact)
    return Field(_SQL[name], None, exact)


def _sql_nanos(name: str, exact: int | None) -> Field:
    if exact is not None and abs(exact) >= 2**63:
        raise NoColumn("nanoseconds outside the years 1677 to 2262")
    return Field(pa.int64(), name, exact)


def _odd_nan(bits: int) -> bool:
    return bits & (1 << 63) - 1 > 0x7FF << 52 and bits != 0x7FF8 << 48


def array_of(values: list[Any], data_type: pa.DataType) -> pa.Array:
    """Build an array from exact values: dates in days, times in nanoseconds, floats as bits."""
    if pa.types.is_struct(data_type):
        there = [{} if value is None else value for value in values]
        children = [array_of([v.get(field.name) for v in there], field.type) for field in data_type]
        nulls = pa.array([value is None for value in values])
        return pa.StructArray.from_arrays(children, fields=list(data_type), mask=nulls)
    if pa.types.is_list(data_type):
        inner = array_of([one for value in values for one in value], data_type.value_type)
        return pa.ListArray.from_arrays(_offsets(values), inner)
    if pa.types.is_map(data_type):
        entries = [entry for value in values for entry in value]
        keys = array_of([key for key, _ in entries], data_type.key_type)
        items = array_of([item for _, item in entries], data_type.item_type)
        return pa.MapArray.from_arrays(_offsets(values), keys, items)
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


def _offsets(values: list[Any]) -> pa.Array:
    return pa.array([0, *accumulate(map(len, values))], pa.int32())


def _floats(values: list[RawBits | None], data_type: pa.DataType) -> pa.Array:
    bits = [0 if value is None else value.bits for value in values]
    unsigned = np.uint32 if pa.types.is_float32(data_type) else np.uint64
    floats = np.array(bits, unsigned).view(data_type.to_pandas_dtype())
    return pa.array(floats, data_type, mask=np.array([value is None for value in values]))
