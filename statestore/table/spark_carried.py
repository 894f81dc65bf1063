"""Hashes of Java types that Spark columns of another type carry: a UUID in text, nanoseconds in a
long. Native expressions; a value that the type cannot hold fails the query when it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from statestore.table.spark_arithmetic import (
    checked,
    floor_divide,
    let,
    long_hash,
    reflect,
    seconds_and_nanos,
    signed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

__all__ = ["WHOLE_RULES", "character", "date_hash", "uuid", "whole_text"]

_U32: Final = 0xFFFFFFFF
_NANOS_PER_DAY: Final = 86_400 * 10**9
_MOST_DAYS: Final = 365_241_780_471
_ERA: Final = 146_097  # days of 400 years, after which the calendar repeats
_CHUNK: Final = 9  # decimal digits that fit 32 bits
_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_WHOLE: Final = "^(0|-?[1-9][0-9]*)$"


def uuid(column: Column) -> Column:
    """Return the hash of a UUID, of its 16 bytes or its text as Java writes it."""
    text = column.cast("string")
    digits = F.when(F.length(column) == 16, F.lower(F.hex(column))).otherwise(
        F.when(text.rlike(_UUID), F.replace(text, F.lit("-"), F.lit("")))
    )
    problem = "a key is no UUID: give 16 bytes, or 36 characters with hyphens in lower case"

    def folded(whole: Column) -> Column:
        words = [F.conv(F.substring(whole, at, 8), 16, 10).cast("bigint") for at in (1, 9, 17, 25)]
        return signed(words[0].bitwiseXOR(words[1]).bitwiseXOR(words[2]).bitwiseXOR(words[3]))

    return checked(column, digits.isNotNull(), problem, let(digits, folded))


def character(column: Column) -> Column:
    """Return the hash of text that is one UTF-16 code unit."""
    good = (F.length(column) == 1) & (F.octet_length(column) <= 3)
    hashed = reflect("java.util.Objects", "hashCode", column)
    return checked(column, good, "a key is no Character: that is one UTF-16 code unit", hashed)


def whole_text(column: Column) -> Column:
    """Return the hash of a BigInteger of any length from its decimal digits."""
    problem = "a key is no BigInteger: write it in decimal digits, without plus and leading zeros"
    digits = F.regexp_replace(column, "^-", "")
    count = floor_divide(F.length(digits).cast("bigint") + (_CHUNK - 1), _CHUNK).cast("int")
    padded = F.lpad(digits, count * _CHUNK, F.lit("0"))
    places = F.sequence(F.lit(0), count - 1)
    chunks = F.transform(
        places, lambda at: F.substring(padded, at * _CHUNK + 1, F.lit(_CHUNK)).cast("bigint")
    )
    empty = F.array().cast("array<bigint>")
    limbs = F.aggregate(chunks, empty, _times_and_plus)
    zero = F.lit(0).cast("bigint")
    magnitude = F.aggregate(F.reverse(limbs), zero, lambda h, limb: signed(h * 31 + limb))
    sign = F.when(column.startswith("-"), F.lit(-1)).otherwise(F.lit(1)).cast("bigint")
    return checked(column, column.rlike(_WHOLE), problem, signed(magnitude * sign))


def _times_and_plus(limbs: Column, chunk: Column) -> Column:
    """Return ``limbs * 10**9 + chunk``, limbs of 32 bits, lowest first."""
    start = F.struct(chunk.alias("carry"), F.array().cast("array<bigint>").alias("done"))

    def step(so_far: Column, limb: Column) -> Column:
        grown = limb * 10**_CHUNK + so_far["carry"]
        low = F.array(grown.bitwiseAND(_U32))
        return F.struct(
            F.shiftrightunsigned(grown, 32).alias("carry"),
            F.concat(so_far["done"], low).alias("done"),
        )

    return F.aggregate(limbs, start, step, lambda end: F.concat(end["done"], F.array(end["carry"])))


def date_hash(year: Column, month: Column, day: Column) -> Column:
    """Return the hash of a LocalDate."""
    return signed(year.bitwiseAND(-2048).bitwiseXOR(year * 2048 + month * 64 + day))


def _date_of_days(days: Column) -> Column:
    """The hash of a LocalDate of any year, from days since 1970."""
    civil = F.date_from_unix_date(F.pmod(days, F.lit(_ERA)).cast("int"))
    years = floor_divide(days, _ERA) * 400
    parts = [part(civil).cast("bigint") for part in (F.year, F.month, F.day)]
    return date_hash(parts[0] + years, parts[1], parts[2])


def _local_date(days: Column) -> Column:
    problem = "a key is no LocalDate: its days since 1970 are out of range"
    return checked(days, days.between(-_MOST_DAYS, _MOST_DAYS), problem, _date_of_days(days))


def _local_time(nanos: Column) -> Column:
    problem = "a key is no LocalTime: that is 0 to 86,399,999,999,999 nanoseconds of the day"
    good = nanos.between(0, _NANOS_PER_DAY - 1)
    return checked(nanos, good, problem, long_hash(nanos))


def _local_datetime(nanos: Column) -> Column:
    of_day = F.pmod(nanos, F.lit(_NANOS_PER_DAY))
    return _date_of_days(floor_divide(nanos, _NANOS_PER_DAY)).bitwiseXOR(long_hash(of_day))


def _code_unit(value: Column) -> Column:
    return checked(value, value.between(0, 0xFFFF), "a key is no Character: 0 to 65535", value)


WHOLE_RULES: Final[dict[str, Callable[[Column], Column]]] = {
    "LocalDate": _local_date,
    "LocalTime": _local_time,
    "LocalDateTime": _local_datetime,
    "Instant": seconds_and_nanos,
    "Duration": seconds_and_nanos,
    "java.sql.Timestamp": long_hash,
    "Character": _code_unit,
}
"""By Java type, the hash of a whole number: days, nanoseconds, milliseconds, a code unit."""
