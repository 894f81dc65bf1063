"""What an Arrow column is hashed as, when it is a key column.

One line a type; the names are Java's and Flink SQL's own.
They are recorded with a state and pin its hashes. What a column is hashed as:

===================  ============================  ===================================
Arrow                java, pyflink                 flink-sql
===================  ============================  ===================================
string               String                        STRING
int8 .. int64        Byte, Short, Integer, Long    TINYINT, SMALLINT, INT, BIGINT
float, double        Float, Double                 FLOAT, DOUBLE
bool                 Boolean                       BOOLEAN
decimal128           BigDecimal, the column scale  DECIMAL(p, s)
date32               LocalDate                     DATE
timestamp, zone      Instant                       TIMESTAMP_LTZ(0, 3, 6 or 9)
timestamp, no zone   LocalDateTime                 TIMESTAMP(0, 3, 6 or 9)
time32, time64       LocalTime                     TIME(0 or 3), whole milliseconds
binary               pyflink only: byte[], alone   BYTES
struct               TupleN                        refused: name its fields instead
===================  ============================  ===================================

The width of an integer is part of the key, as in Flink: an Integer -1 and a Long -1 lie in two key
groups (numbers from 0 up to 2^31 - 1 in the same). A bare Python int is a Long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.model.javahash import MAX_TUPLE_ARITY
from statestore.model.keyhash import DEFAULT_HASH_SCHEME, check_hash_scheme

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_key_type", "check_key_types", "check_tuple", "is_binary", "is_text", "java_name"]

_JAVA_INTEGERS: Final = ("Byte", "Short", "Integer", "Long")
_SQL_INTEGERS: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def check_key_type(
    type: pa.DataType,  # noqa: A002
    hash_scheme: str = DEFAULT_HASH_SCHEME,
    key_type: str | None = None,
) -> str:
    """Return the name of the type that a key column is hashed as: "Long", "BigDecimal(10,2)",
    "INT".

    ``key_type`` asks for another one: any integer type for an integer column, any precision for a
    flink-sql timestamp. Raises UnsupportedTypeError, naming what to do, when it cannot be a key.
    """
    check_hash_scheme(hash_scheme)
    name = _sql_name(type) if hash_scheme == "flink-sql" else java_name(type, hash_scheme)
    if key_type is None or key_type == name:
        return name
    integers = _SQL_INTEGERS if hash_scheme == "flink-sql" else _JAVA_INTEGERS
    if name in integers and key_type in integers:
        return key_type
    family, _, _ = name.partition("(")
    precisions = {f"{family}({digits})" for digits in range(10)}
    if family in ("TIMESTAMP", "TIMESTAMP_LTZ") and key_type in precisions:
        return key_type
    raise UnsupportedTypeError(
        f"a column of type {type} is hashed as {name}, it cannot be hashed as {key_type}: cast it"
    )


def check_key_types(
    columns: Sequence[pa.Field], hash_scheme: str, key_types: Sequence[str | None]
) -> tuple[str, ...]:
    """Return :func:`check_key_type` of each column of a key.

    Raises UnsupportedTypeError, with the column's name, and for what cannot be one Java Tuple.
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
    """Raise UnsupportedTypeError when these columns cannot be the fields of one Java Tuple."""
    if len(names) > MAX_TUPLE_ARITY:
        raise UnsupportedTypeError(
            f"Flink has no tuple of {len(names)} fields (at most {MAX_TUPLE_ARITY}): "
            "put some of the key columns into a struct"
        )
    if len(names) > 1 and "byte[]" in names:
        raise UnsupportedTypeError(
            "a byte[] inside a tuple has an identity hash in Java: key by its hex digits instead"
        )


def java_name(
    data_type: pa.DataType, hash_scheme: str = DEFAULT_HASH_SCHEME, *, nested: bool = False
) -> str:
    """Return the Java type that a column, or with ``nested`` a field of a struct, is hashed as."""
    types = pa.types
    if types.is_dictionary(data_type):
        return java_name(data_type.value_type, hash_scheme, nested=nested)
    if types.is_decimal128(data_type):
        return f"BigDecimal({data_type.precision},{data_type.scale})"
    if types.is_timestamp(data_type):
        return "LocalDateTime" if data_type.tz is None else "Instant"
    if types.is_struct(data_type):
        inner = [java_name(field.type, hash_scheme, nested=True) for field in data_type]
        check_tuple(inner)
        return f"Tuple{len(inner)}<{', '.join(inner)}>" if inner else "Tuple0"
    if is_binary(data_type) and hash_scheme == "pyflink" and not nested:
        return "byte[]"
    for matches, name in _JAVA_NAMES:
        if matches(data_type):
            return name
    raise _unsupported(data_type, hash_scheme)


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
)


def _sql_name(data_type: pa.DataType) -> str:
    types = pa.types
    if types.is_dictionary(data_type):
        return _sql_name(data_type.value_type)
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
    raise _unsupported(data_type, "flink-sql")


_SQL_NAMES: Final[tuple[tuple[Any, str], ...]] = (
    (lambda t: is_text(t), "STRING"),
    (lambda t: is_binary(t), "BYTES"),
    (pa.types.is_float32, "FLOAT"),
    (pa.types.is_float64, "DOUBLE"),
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_date32, "DATE"),
)


def is_text(data_type: pa.DataType) -> bool:
    """Whether the type is UTF-8 text, with 32- or 64-bit offsets or views."""
    types = pa.types
    return bool(
        types.is_string(data_type)
        or types.is_large_string(data_type)
        or types.is_string_view(data_type)
    )


def is_binary(data_type: pa.DataType) -> bool:
    """Whether the type is bytes, of one size or many."""
    types = pa.types
    return bool(
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
        or types.is_fixed_size_binary(data_type)
    )


def _unsupported(data_type: pa.DataType, hash_scheme: str) -> UnsupportedTypeError:
    types = pa.types
    if is_binary(data_type):
        advice = "an array has an identity hash in Java: key by its hex digits"
    elif types.is_nested(data_type):
        advice = "name the fields that make the key as separate key columns"
    elif types.is_unsigned_integer(data_type):
        advice = "Java has no unsigned integers: cast it to int64, or to decimal128(20, 0)"
    elif types.is_null(data_type):
        advice = "the column has no values: cast it to the key's type"
    elif types.is_decimal(data_type):
        advice = "cast it to decimal128 with a scale in 0..precision"
    elif types.is_date64(data_type):
        advice = "cast it to date32"
    else:
        advice = "cast it to a string"
    return UnsupportedTypeError(
        f"a column of type {data_type} cannot be a key in the hash scheme {hash_scheme}: {advice}"
    )
