"""Java's ``hashCode()`` as Spark expressions; the native twin of ``model.javahash``.

Every expression is a bigint that holds a signed 32-bit value: Spark's int arithmetic fails on
overflow in ANSI mode and wraps otherwise, bigint never gets there. A value is used twice at most,
so that nesting does not multiply. Strings and floats go through ``java_method``, which calls
Java's own methods.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.sql import functions as F
from pyspark.sql import types as T

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column

__all__ = [
    "divide",
    "is_negative",
    "java_hash_column",
    "let",
    "micros_of_day",
    "reflect",
    "signed",
    "tuple_hash_column",
    "unscaled_digits",
    "words_of",
]

_U32: Final = 0xFFFFFFFF
_INTEGERS: Final = {"Byte": "tinyint", "Short": "smallint", "Integer": "int"}


def java_hash_column(column: Column, data_type: T.DataType, name: str = "") -> Column:
    """Return ``hashCode()`` of ``column``, as the Java type ``name`` if given; 0 for null."""
    if name in _INTEGERS:
        hashed = column.cast(_INTEGERS[name]).cast("bigint")
    elif name == "Long":
        hashed = _long(column.cast("bigint"))
    elif isinstance(data_type, T.StructType):
        fields = [java_hash_column(column.getField(f.name), f.dataType) for f in data_type]
        return tuple_hash_column(fields)
    elif isinstance(data_type, T.DecimalType):
        hashed = _decimal(column, data_type)
    else:
        hashed = next(rule(column) for kind, rule in _HASHES if isinstance(data_type, kind))
    return F.when(column.isNull(), F.lit(0).cast("bigint")).otherwise(hashed)


def tuple_hash_column(fields: Sequence[Column]) -> Column:
    """Return the hash of a Java Tuple from those of its fields."""
    h = fields[0] if fields else F.lit(0).cast("bigint")
    for field in fields[1:]:
        h = signed(h * 31 + field)
    return h


def signed(value: Column) -> Column:
    """Return the low 32 bits of a bigint as a signed number; ``value`` is used once."""
    return value.bitwiseAND(_U32).bitwiseXOR(F.lit(1 << 31)) - (1 << 31)


def let(value: Column, use: Callable[[Column], Column]) -> Column:
    """Return ``use(value)`` with ``value`` computed once, however often ``use`` names it."""
    return F.transform(F.array(value), use)[0]


def reflect(java_class: str, method: str, argument: Column) -> Column:
    """Return what a static Java method that gives an int or a long says of ``argument``."""
    called = F.java_method(F.lit(java_class), F.lit(method), argument)
    return called.cast("bigint")


def divide(value: Column, by: int) -> Column:
    """Return the whole part of value / ``by`` as a bigint."""
    divisor = F.lit(by) if by < 1 << 31 else F.lit(Decimal(by))
    return F.call_function("div", value, divisor)


def micros_of_day(column: Column) -> Column:
    """Return the microsecond of the day of a timestamp_ntz, without asking for any time zone."""
    hours, minutes = F.hour(column).cast("bigint"), F.minute(column)
    seconds = F.extract(F.lit("SECOND"), column) * 1_000_000
    return (hours * 60 + minutes) * 60_000_000 + seconds.cast("bigint")


def unscaled_digits(column: Column) -> Column:
    """Return the digits of a decimal's unscaled value, without sign, as a string.

    The text of a small decimal is 0.05 or 5E-8, as ANSI mode says: its digits are the same.
    """
    return F.regexp_replace(column.cast("string"), "[-.]|E.*", "")


def is_negative(column: Column) -> Column:
    """Return whether a decimal is below 0.

    By its text: Spark rounds a decimal(38, 38) before it compares it with a 0 of another scale.
    """
    return column.cast("string").startswith("-")


def words_of(magnitude: Column) -> tuple[Column, Column, Column]:
    """Return the upper 64 and the two lower 32 bits of a decimal(38, 0) >= 0, as bigints."""
    high = divide(magnitude, 1 << 64)
    low = magnitude % F.lit(Decimal(1 << 64))
    middle = divide(low, 1 << 32)
    return high, middle, (low % F.lit(Decimal(1 << 32))).cast("bigint")


def _long(value: Column) -> Column:
    return signed(value.bitwiseXOR(F.shiftrightunsigned(value, 32)))


def _string(column: Column) -> Column:
    return reflect("java.util.Objects", "hashCode", column)


def _byte_array(column: Column) -> Column:
    """``Arrays.hashCode(byte[])`` from two string hashes.

    As ISO-8859-1 every byte is one code unit, 0..255. A second text has 1 for each byte that is
    negative in Java: 256 times its hash is what the first one is too much. The 1 in front is the 1
    that the hash of an array starts with.
    """
    text = F.decode(column, "ISO-8859-1")
    ascii_gone = F.regexp_replace(text, "[\\x00-\\x7f]", "\0")
    negative = F.regexp_replace(ascii_gone, "[\\x80-\\xff]", "\1")
    return signed(_string(F.concat(F.lit("\1"), text)) - _string(negative) * 256)


def _boolean(column: Column) -> Column:
    return F.when(column, F.lit(1231)).otherwise(F.lit(1237)).cast("bigint")


def _float(column: Column) -> Column:
    # Reflection fails on a null where Java wants a primitive; the caller replaces the result.
    present = F.coalesce(column, F.lit(0).cast("float"))
    return reflect("java.lang.Float", "floatToIntBits", present)


def _double(column: Column) -> Column:
    return reflect("java.lang.Double", "hashCode", F.coalesce(column, F.lit(0).cast("double")))


def _decimal(column: Column, data_type: T.DecimalType) -> Column:
    digits = unscaled_digits(column)
    if data_type.precision <= 18:
        magnitude = let(
            digits.cast("bigint"),
            lambda m: F.shiftright(m, 32) * 31 + m.bitwiseAND(_U32),
        )
    else:
        magnitude = let(digits.cast("decimal(38,0)"), _magnitude_hash)
    sign = F.when(is_negative(column), F.lit(-31)).otherwise(F.lit(31)).cast("bigint")
    return signed(magnitude * sign + data_type.scale)


def _magnitude_hash(magnitude: Column) -> Column:
    high, middle, low = words_of(magnitude)
    upper = F.shiftright(high, 32) * 31 + high.bitwiseAND(_U32)
    return signed((upper * 31 + middle) * 31 + low)


def _date(column: Column) -> Column:
    year, month, day = (part(column).cast("bigint") for part in (F.year, F.month, F.day))
    return signed(year.bitwiseAND(-2048).bitwiseXOR(year * 2048 + month * 64 + day))


def _instant(column: Column) -> Column:
    nanos = F.pmod(F.unix_micros(column), F.lit(1_000_000)) * 1000
    return signed(_long(F.unix_seconds(column)) + nanos * 51)


def _local_datetime(column: Column) -> Column:
    return _date(column).bitwiseXOR(_long(micros_of_day(column) * 1000))


_Kind: TypeAlias = "type[T.DataType] | tuple[type[T.DataType], ...]"

_HASHES: Final[tuple[tuple[_Kind, Callable[[Column], Column]], ...]] = (
    ((T.StringType, T.CharType, T.VarcharType), _string),
    ((T.ByteType, T.ShortType, T.IntegerType), lambda column: column.cast("bigint")),
    (T.LongType, _long),
    (T.BooleanType, _boolean),
    (T.FloatType, _float),
    (T.DoubleType, _double),
    (T.DateType, _date),
    (T.TimestampType, _instant),
    (T.TimestampNTZType, _local_datetime),
    (T.BinaryType, _byte_array),
)
