"""The key type that each Arrow type is hashed as, and the names of column types in messages.

The names come from Java and Flink SQL. They are recorded with a state and determine its hashes.
The table lists the default key type of each column type, and the other types that ``key_types`` can
name for it:

===================  ============================  =================================================
Arrow                java, pyflink                 on request
===================  ============================  =================================================
string               String                        UUID, BigInteger, BigDecimal, Character
int8 .. int64        Byte, Short, Integer, Long    another of these, BigInteger, BigDecimal(p,s),
                                                   Character (code unit), LocalDate (days),
                                                   LocalTime, LocalDateTime, Instant, Duration
                                                   (nanoseconds), java.sql.Timestamp, Date, Time
                                                   (milliseconds)
float, double        Float, Double
bool                 Boolean
decimal128           BigDecimal, the column scale  BigInteger, BigDecimal of another scale
date32               LocalDate
timestamp, zone      Instant                       java.sql.Timestamp
timestamp, no zone   LocalDateTime
time32, time64       LocalTime
duration             Duration
uuid                 UUID
binary               pyflink only: byte[]          UUID, of 16 bytes
struct               TupleN<…>                     Row<…>, NamedRow<…>
list                 List<…>                       arrays (int[], Integer[]) in pyflink or a Row
map                  Map<…>
===================  ============================  =================================================

In flink-sql a column is STRING, TINYINT to BIGINT, FLOAT, DOUBLE, BOOLEAN, DECIMAL(p, s), DATE,
TIMESTAMP or TIMESTAMP_LTZ(0, 3, 6 or 9), TIME(0 or 3, whole milliseconds) or BYTES. On request:
CHAR(n) and VARCHAR(n), BINARY(n) and VARBINARY(n), other widths, precisions and scales; integers as
DECIMAL, DATE (days), TIME and TIMESTAMP (nanoseconds). Nested types are refused.

The width of an integer is part of the key, as in Flink: an Integer -1 and a Long -1 are in two key
groups (numbers from 0 to 2^31 - 1 are in the same one). A bare Python int is a Long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.keys.java import MAX_TUPLE_ARITY
from statestore.keys.key_types import (
    COMPOSITES,
    DEFAULT_HASH_SCHEME,
    NANOSECOND_TYPES,
    JavaType,
    check_hash_scheme,
    java_type,
)
from statestore.keys.sql import parse_sql_type

if TYPE_CHECKING:
    from collections.abc import Sequence

SIMPLE_TYPES: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""The Arrow type of each stored type without parts, except decimals."""

_NAMES = {data_type: name for name, data_type in SIMPLE_TYPES.items()}
_SAME = {
    "large_string": "string",
    "string_view": "string",
    "large_binary": "binary",
    "binary_view": "binary",
}


def arrow_type_text(data_type: pa.DataType) -> str:
    """Return a type in the manifest's notation, or in Arrow's if it cannot be stored.

    Messages and ``show`` use the manifest's notation too, so a stored type has only one name.
    """
    types = pa.types
    if types.is_struct(data_type):
        fields = (f"{field.name}: {arrow_type_text(field.type)}" for field in data_type)
        return f"struct<{', '.join(fields)}>"
    if types.is_map(data_type):
        parts = (data_type.key_type, data_type.item_type)
        return f"map<{', '.join(map(arrow_type_text, parts))}>"
    if types.is_list(data_type) or types.is_large_list(data_type):
        return f"array<{arrow_type_text(data_type.value_type)}>"
    if types.is_dictionary(data_type):
        return arrow_type_text(data_type.value_type)
    if types.is_decimal128(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if types.is_timestamp(data_type):
        return "timestamp" if data_type.tz else "timestamp_ntz"
    if types.is_fixed_size_binary(data_type) or isinstance(data_type, pa.UuidType):
        return "binary"
    return _NAMES.get(data_type) or _SAME.get(str(data_type)) or str(data_type)


_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_SQL_INTEGERS: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_INTEGERS: Final = ("Byte", "Short", "Integer", "Long")
_MILLIS: Final = ("java.sql.Timestamp", "java.sql.Date", "java.sql.Time")
_CARRIES: Final[dict[str, tuple[str, ...]]] = {
    "String": ("UUID", "BigInteger", "BigDecimal", "Character"),
    "byte[]": ("UUID",),
    "BigDecimal": ("BigInteger", "BigDecimal"),
    "Instant": ("java.sql.Timestamp",),
    "Tuple": ("Row", "NamedRow"),
    "List": ("Array",),
} | dict.fromkeys(
    _INTEGERS,
    (
        *_INTEGERS,
        *NANOSECOND_TYPES,
        *_MILLIS,
        "BigInteger",
        "BigDecimal",
        "Character",
        "LocalDate",
    ),
)
_SQL_CARRIES: Final[dict[str, tuple[str, ...]]] = {
    "STRING": ("CHAR", "VARCHAR"),
    "BYTES": ("BINARY", "VARBINARY"),
    "DECIMAL": ("DECIMAL",),
    "TIMESTAMP": ("TIMESTAMP",),
    "TIMESTAMP_LTZ": ("TIMESTAMP_LTZ",),
    "TIME": ("TIME",),
} | dict.fromkeys(
    _SQL_INTEGERS, (*_SQL_INTEGERS, "DECIMAL", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ")
)


def check_key_type(
    type: pa.DataType,  # noqa: A002
    hash_scheme: str = DEFAULT_HASH_SCHEME,
    key_type: str | None = None,
) -> str:
    """Return the name of the hashed type of a key column: "Long", "BigDecimal(10,2)".

    ``key_type`` requests another type than the column's own. Raises UnsupportedTypeError, which
    says what to do, if the column cannot be a key or cannot be hashed as that type;
    InvalidArgumentError if the type does not exist.
    """
    check_hash_scheme(hash_scheme)
    if hash_scheme == "flink-sql":
        return _sql_name(type, key_type)
    asked = None if key_type is None else java_type(key_type)
    return str(_hashed_type(type, asked, deep=hash_scheme == "pyflink"))


def check_key_types(
    columns: Sequence[pa.Field], hash_scheme: str, key_types: Sequence[str | None]
) -> tuple[str, ...]:
    """Return the result of :func:`check_key_type` for each column of a key.

    Raises UnsupportedTypeError with the column's name, and for columns that cannot form one Java
    Tuple.
    """
    names = []
    for column, key_type in zip(columns, key_types, strict=True):
        try:
            names.append(check_key_type(column.type, hash_scheme, key_type))
        except UnsupportedTypeError as error:
            error.add_note(f"key column {column.name!r}")
            raise
    if hash_scheme != "flink-sql":
        check_tuple(names)
    return tuple(names)


def check_tuple(names: Sequence[str]) -> None:
    """Raise UnsupportedTypeError if these columns cannot be the fields of one Java Tuple."""
    _check_arity(len(names))
    if len(names) > 1 and any(name.endswith("[]") for name in names):
        raise UnsupportedTypeError(
            "an array inside a tuple has an identity hash in Java, which differs in every "
            "JVM, so it has no stable key group and Flink rejects it"
        )


def _check_arity(count: int) -> None:
    if count > MAX_TUPLE_ARITY:
        raise UnsupportedTypeError(
            f"Flink has no tuple of {count} fields (at most {MAX_TUPLE_ARITY}): put some of "
            "the key columns into a struct, following the nested tuples of the job"
        )


def _hashed_type(data_type: pa.DataType, asked: JavaType | None, *, deep: bool) -> JavaType:
    """Return the type that a column is hashed as: its own type, or the requested one.

    If ``deep`` is true, arrays are hashed by content, as in a Row.
    """
    data_type = _value_type(data_type)
    own = _default_java_type(data_type)
    if own is None:
        raise _unsupported_error(data_type, "java")
    hashed = own if asked is None else asked
    if hashed.primitive is not None and hashed.name != "byte[]" and own.name == "List":
        return _array_of_primitives(data_type, hashed, deep)
    if hashed.name != own.name and hashed.name not in _CARRIES.get(own.name, ()):
        raise _cannot_hash_error(data_type, own, hashed)
    if hashed.name in ("byte[]", "Array") and not deep:
        raise _unsupported_error(data_type, "java")
    if own.name == "byte[]" and hashed.name == "UUID":
        _check_width(data_type)
    if hashed.name in COMPOSITES:
        return JavaType(hashed.name, _parts(data_type, own, hashed, deep))
    if hashed.name == "BigDecimal" and own.name == "String":
        if hashed.digits is not None:
            raise _cannot_hash_error(data_type, own, hashed)  # each text has a scale of its own
        return hashed
    if hashed.name == "BigDecimal" and hashed.digits is None:
        digits = own.digits or (19, 0)
        return JavaType(hashed.name, digits=digits)
    if hashed.name == "BigInteger" and own.digits is not None and own.digits[1] != 0:
        raise _cannot_hash_error(data_type, own, hashed)
    return hashed


def _value_type(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(data_type):
        return data_type.value_type
    return data_type


def _parts(
    data_type: pa.DataType, own: JavaType, hashed: JavaType, deep: bool
) -> tuple[JavaType, ...]:
    deep = {"Row": True, "NamedRow": True, "Tuple": False}.get(hashed.name, deep)
    if own.name == "Map":
        inner = [data_type.key_type, data_type.item_type]
    elif own.name == "List":
        inner = [data_type.value_type]
    else:
        inner = [field.type for field in data_type.fields]
    asked = hashed.parts if hashed.parts is not None else [None] * len(inner)
    if len(asked) != len(inner):
        raise _cannot_hash_error(data_type, own, hashed)
    parts = tuple(
        _hashed_type(inner_type, wanted, deep=deep)
        for inner_type, wanted in zip(inner, asked, strict=True)
    )
    if hashed.name == "Tuple":
        _check_arity(len(parts))
    return parts


def _array_of_primitives(data_type: pa.DataType, hashed: JavaType, deep: bool) -> JavaType:
    assert hashed.primitive is not None
    element = _default_java_type(_value_type(data_type.value_type))
    if not deep or element is None or element.name != hashed.primitive.name:
        raise _cannot_hash_error(data_type, JavaType("List"), hashed)
    return hashed


def _check_width(data_type: pa.DataType) -> None:
    if pa.types.is_fixed_size_binary(data_type) and data_type.byte_width != 16:
        raise UnsupportedTypeError(
            f"a UUID needs 16 bytes, which a column of type {data_type} does not have"
        )


def _default_java_type(data_type: pa.DataType) -> JavaType | None:
    """Return the default Java type of a column, without its parts; None without one."""
    types = pa.types
    if types.is_decimal128(data_type):
        return JavaType("BigDecimal", digits=(data_type.precision, data_type.scale))
    if types.is_timestamp(data_type):
        return JavaType("LocalDateTime" if data_type.tz is None else "Instant")
    for matches, name in _JAVA_NAMES:
        if matches(data_type):
            return JavaType(name)
    return None


_JAVA_NAMES: Final[tuple[tuple[Any, str], ...]] = (
    (lambda t: is_text(t), "String"),
    (pa.types.is_int8, "Byte"),
    (pa.types.is_int16, "Short"),
    (pa.types.is_int32, "Integer"),
    (pa.types.is_int64, "Long"),
    (pa.types.is_float32, "Float"),
    (pa.types.is_float64, "Double"),
    (pa.types.is_boolean, "Boolean"),
    (pa.types.is_date32, "LocalDate"),
    (pa.types.is_time, "LocalTime"),
    (pa.types.is_duration, "Duration"),
    (lambda t: isinstance(t, pa.UuidType), "UUID"),
    (lambda t: is_binary(t), "byte[]"),
    (pa.types.is_struct, "Tuple"),
    (pa.types.is_map, "Map"),
    (lambda t: is_list(t), "List"),
)


def _sql_name(data_type: pa.DataType, key_type: str | None) -> str:
    data_type = _value_type(data_type)
    own = _default_sql_type(data_type)
    if key_type is None:
        return own
    asked = parse_sql_type(key_type)
    name = own.partition("(")[0]
    if asked.name != name and asked.name not in _SQL_CARRIES.get(name, ()):
        raise _cannot_hash_error(data_type, own, asked)
    return str(asked)


def _default_sql_type(data_type: pa.DataType) -> str:
    types = pa.types
    if types.is_signed_integer(data_type):
        return _SQL_INTEGERS[(data_type.bit_width // 8).bit_length() - 1]
    if types.is_decimal128(data_type) and 0 <= data_type.scale <= data_type.precision:
        return f"DECIMAL({data_type.precision}, {data_type.scale})"
    if types.is_timestamp(data_type):
        name = "TIMESTAMP" if data_type.tz is None else "TIMESTAMP_LTZ"
        return f"{name}({_DIGITS[data_type.unit]})"
    if types.is_time(data_type):
        return f"TIME({min(_DIGITS[data_type.unit], 3)})"
    for matches, name in _SQL_NAMES:
        if matches(data_type):
            return name
    raise _unsupported_error(data_type, "flink-sql")


_SQL_NAMES: Final[tuple[tuple[Any, str], ...]] = (
    (lambda t: is_text(t), "STRING"),
    (lambda t: is_binary(t), "BYTES"),
    (pa.types.is_float32, "FLOAT"),
    (pa.types.is_float64, "DOUBLE"),
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_date32, "DATE"),
)


def is_text(data_type: pa.DataType) -> bool:
    """Return whether the type is UTF-8 text, with 32-bit or 64-bit offsets or views."""
    types = pa.types
    return bool(
        types.is_string(data_type)
        or types.is_large_string(data_type)
        or types.is_string_view(data_type)
    )


def is_binary(data_type: pa.DataType) -> bool:
    """Return whether the type is binary, of fixed or variable size."""
    types = pa.types
    return bool(
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
        or types.is_fixed_size_binary(data_type)
    )


def is_list(data_type: pa.DataType) -> bool:
    """Return whether the type is a list of any size and offset width; a map is not a list."""
    types = pa.types
    return bool(
        types.is_list(data_type)
        or types.is_large_list(data_type)
        or types.is_fixed_size_list(data_type)
        or types.is_list_view(data_type)
        or types.is_large_list_view(data_type)
    )


def _cannot_hash_error(data_type: pa.DataType, own: object, asked: object) -> UnsupportedTypeError:
    name = asked if isinstance(asked, str) else str(asked)
    return UnsupportedTypeError(
        f"a column of type {arrow_type_text(data_type)} is hashed as {own} and cannot be hashed as "
        f"{name}: use a column of a suitable type, or remove the key type; hashed as {own}, the "
        f"keys have other key groups than as {name}"
    )


def _unsupported_error(data_type: pa.DataType, hash_scheme: str) -> UnsupportedTypeError:
    types = pa.types
    moves = "which gives its keys other key groups than Flink's"
    if isinstance(data_type, pa.UuidType):
        advice = "Flink SQL has no UUID type: use its text or its 16 bytes, like the job"
    elif is_binary(data_type):
        advice = (
            "an array has an identity hash in Java. Pass key_types='UUID' if the "
            "16 bytes are a UUID; for a PyFlink job, whose keys can be bytes, use the scheme "
            "pyflink"
        )
    elif types.is_nested(data_type) and hash_scheme == "flink-sql":
        advice = f"name the fields that make the key as separate key columns, {moves}"
    elif is_list(data_type):
        advice = (
            "an array has an identity hash in Java; it is hashed by content only in a Row "
            "and in the scheme pyflink. For a java.util.List use the key type List"
        )
    elif types.is_unsigned_integer(data_type):
        advice = "Java has no unsigned integers: cast it to the signed type that the job uses"
    elif types.is_null(data_type):
        advice = "the column has no values: cast it to the key's type"
    elif types.is_decimal(data_type):
        advice = "cast it to decimal128 with the scale that the job uses, in 0..precision"
    elif types.is_date64(data_type):
        advice = "cast it to date32, which has the same key groups"
    elif types.is_duration(data_type):
        advice = "Flink SQL has no such key type: cast it to the type that the job uses"
    else:
        advice = f"cast it to a supported type, {moves} unless the job does the same"
    name = str(data_type) if isinstance(data_type, pa.UuidType) else arrow_type_text(data_type)
    return UnsupportedTypeError(
        f"a column of type {name} cannot be a key in the hash scheme {hash_scheme}: {advice}"
    )
