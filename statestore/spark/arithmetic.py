"""Arithmetic on Spark columns, for key hashes; no result depends on a session setting.

Every integer is a bigint. Spark's int arithmetic fails on overflow in ANSI mode and wraps around
otherwise; the values here never overflow a bigint.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types as T

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

_U32: Final = 0xFFFFFFFF
_NANOS: Final = 1_000_000_000
_NO_HASH: Final = "cannot hash a key: "


def long_hash(value: Column) -> Column:
    """Return ``Long.hashCode()``."""
    return signed(value.bitwiseXOR(F.shiftrightunsigned(value, 32)))


def signed(value: Column) -> Column:
    """Return the low 32 bits of a bigint as a signed number; ``value`` is used once."""
    return value.bitwiseAND(_U32).bitwiseXOR(F.lit(1 << 31)) - (1 << 31)


def let(value: Column, use: Callable[[Column], Column]) -> Column:
    """Return ``use(value)`` with ``value`` computed once, however often ``use`` names it."""
    return F.transform(F.array(value), use)[0]


def reflect(java_class: str, method: str, argument: Column) -> Column:
    """Return the result of a static Java method of one argument that returns an int or a long."""
    called = F.java_method(F.lit(java_class), F.lit(method), argument)
    return called.cast("bigint")


def divide(value: Column, by: int) -> Column:
    """Return value / ``by`` as a bigint, truncated toward zero."""
    divisor = F.lit(by) if by < 1 << 31 else F.lit(Decimal(by))
    return F.call_function("div", value, divisor)


def micros_of_day(column: Column) -> Column:
    """Return the microsecond of the day of a timestamp_ntz, without using any time zone."""
    hours, minutes = F.hour(column).cast("bigint"), F.minute(column)
    seconds = F.extract(F.lit("SECOND"), column) * 1_000_000
    return (hours * 60 + minutes) * 60_000_000 + seconds.cast("bigint")


def unscaled_digits(column: Column) -> Column:
    """Return the digits of a decimal's unscaled value, without sign, as a string.

    The text of a small decimal is 0.05 or 5E-8, depending on ANSI mode; its digits are the same.
    """
    return F.regexp_replace(column.cast("string"), "[-.]|E.*", "")


def is_negative(column: Column) -> Column:
    """Return whether a decimal is below 0.

    This tests the text: Spark rounds a decimal(38, 38) before it compares it with a 0 of another
    scale.
    """
    return column.cast("string").startswith("-")


def words_of(magnitude: Column) -> tuple[Column, Column, Column]:
    """Return the upper 64 and the two lower 32 bits of a decimal(38, 0) >= 0, as bigints."""
    high = divide(magnitude, 1 << 64)
    low = magnitude % F.lit(Decimal(1 << 64))
    middle = divide(low, 1 << 32)
    return high, middle, (low % F.lit(Decimal(1 << 32))).cast("bigint")


def exact_decimal(
    column: Column, data_type: T.DataType, target_type: object, precision: int, scale: int
) -> Column:
    """Return a number as a decimal; one that does not fit fails the query when it runs."""
    wanted = T.DecimalType(precision, scale)
    if data_type == wanted:
        return column
    converted = column.try_cast(wanted)
    # Compare texts: comparing numbers would cast both to a common type, which may round.
    same = converted.try_cast(data_type).cast("string") == column.cast("string")
    problem = f"a value does not fit {target_type}: round it first, or declare its number of digits"
    return value_or_fail(column, F.coalesce(same, F.lit(False)), problem, converted)


def value_or_fail(column: Column, good: Column, problem: str, value: Column) -> Column:
    """Return ``value`` where ``column`` is null or good; otherwise the query fails.

    The error has the text ``problem``. The condition is part of the value itself, so that no
    optimization can drop it.
    """
    stop = F.raise_error(F.lit(_NO_HASH + problem))
    return F.when(column.isNull() | good, value).otherwise(stop)


def problem_of(error: Exception) -> str | None:
    """Return the problem with which :func:`value_or_fail` failed a query; None for other errors."""
    parameters = error.getMessageParameters() if isinstance(error, PySparkException) else None
    mark, marker, problem = (parameters or {}).get("errorMessage", "").partition(_NO_HASH)
    return problem if marker and not mark else None


def micros_of_interval(column: Column) -> Column:
    """Return the microseconds of a day-time interval."""
    return F.unix_micros(F.timestamp_micros(F.lit(0)) + column)


def instant_hash(nanos: Column) -> Column:
    """Return the hash of an Instant or a Duration of this many nanoseconds."""
    seconds, below = floor_divide(nanos, _NANOS), F.pmod(nanos, F.lit(_NANOS))
    return signed(long_hash(seconds) + below * 51)


def floor_divide(value: Column, by: int) -> Column:
    """Return value / ``by`` rounded down, as a bigint."""
    return divide(value, by) - F.when(value % by < 0, F.lit(1)).otherwise(F.lit(0))
