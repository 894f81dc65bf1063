"""Flink SQL's key hash as a Spark expression: Spark's ``hash()`` of a ``BinaryRowData``'s bytes.

The hashes are the same as Flink's ``BinaryRowData``; the scalar counterpart is ``keys.sql``.
Spark's hash of a binary is Murmur3-x86-32 with seed 42. It equals Flink's if the length is a
multiple of 4, which a row's length always is. Spark itself keeps only one NaN, so the payload of a
NaN is ignored here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F
from pyspark.sql import types as T

from statestore.keys.sql import SqlType, parse_sql_type
from statestore.spark.arithmetic import (
    divide,
    exact_decimal,
    floor_divide,
    is_negative,
    let,
    micros_of_day,
    reflect,
    unscaled_digits,
    value_or_fail,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

_U32: Final = 0xFFFFFFFF
_MASKS: Final = {"TINYINT": 0xFF, "SMALLINT": 0xFFFF, "INT": _U32}
_CASTS: Final = {"TINYINT": "tinyint", "SMALLINT": "smallint", "INT": "int", "BIGINT": "bigint"}
_HEX: Final = "0123456789ABCDEF"
_REVERSED_BYTES: Final = "OPMNKLIJGHEFCDAB"


class _Field(NamedTuple):
    """One column: its fixed 8-byte slot as a bigint or a binary, and its variable-length part
    with that part's length.
    """

    slot: Column
    tail: Column | None = None
    size: Column | None = None


def sql_hash_column(fields: Sequence[tuple[Column, T.DataType, str]]) -> Column:
    """Return ``BinaryRowData.hashCode()`` of columns as an int column that is never null.

    ``fields`` has each column with its Spark type and the name of its SQL type.
    """
    header = _header([column for column, _, _ in fields])
    offset: Column = F.lit(8 * (len(header) + len(fields))).cast("bigint")
    slots, tails = [], []
    for column, data_type, name in fields:
        field = _field(column, data_type, parse_sql_type(name), offset)
        slots.append(field.slot)
        if field.tail is not None and field.size is not None:
            tails.append(field.tail)
            offset = offset + field.size
    return F.hash(F.concat(*header, *slots, *tails))


def _header(columns: Sequence[Column]) -> list[Column]:
    """Return the header: 8 bytes for every 64 columns.

    It has the row kind, which is 0. Bit i + 8 is set if column i is null.
    """
    words = []
    for first in range(0, len(columns) + 8, 64):
        word: Column = F.lit(0).cast("bigint")
        for bit in range(64):
            index = first + bit - 8
            if 0 <= index < len(columns):
                flag = (1 << bit) - (1 << 64 if bit == 63 else 0)
                is_null = F.when(columns[index].isNull(), F.lit(flag)).otherwise(F.lit(0))
                word = word.bitwiseOR(is_null.cast("bigint"))
        words.append(_little_endian(word))
    return words


def _field(column: Column, data_type: T.DataType, sql_type: SqlType, offset: Column) -> _Field:
    name = sql_type.name
    if name in ("STRING", "CHAR", "VARCHAR", "BYTES", "BINARY", "VARBINARY"):
        return _text(_short_enough(column, sql_type).cast("binary"), offset)
    if name == "DECIMAL":
        digits = (sql_type.precision, sql_type.scale)
        column = exact_decimal(column, data_type, sql_type, *digits)
        if sql_type.reserved:
            return _wide_decimal(column, offset)
    if name in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        return _timestamp(column, data_type, sql_type, offset)
    if name == "TIME":
        column = _millis_of_day(column, data_type, sql_type)
    if name == "DATE" and isinstance(data_type, T.IntegralType):
        column = F.date_from_unix_date(column.cast("int"))
    return _Field(_little_endian(F.coalesce(_number(column, name), F.lit(0).cast("bigint"))))


def _number(column: Column, name: str) -> Column:
    """Return the 8-byte slot of a fixed-length type, as a number."""
    if name in _CASTS:
        whole = column.cast(_CASTS[name]).cast("bigint")
        return whole.bitwiseAND(_MASKS[name]) if name in _MASKS else whole
    if name == "TIME":
        return column
    if name == "BOOLEAN":
        return column.cast("int").cast("bigint")
    if name == "DATE":
        return F.unix_date(column).cast("bigint").bitwiseAND(_U32)
    if name == "DECIMAL":
        magnitude = unscaled_digits(column).cast("bigint")
        return magnitude * F.when(is_negative(column), F.lit(-1)).otherwise(F.lit(1))
    # Reflection fails on a null for a primitive parameter.
    present = F.coalesce(column, F.lit(0).cast("float" if name == "FLOAT" else "double"))
    if name == "FLOAT":
        return reflect("java.lang.Float", "floatToRawIntBits", present).bitwiseAND(_U32)
    return reflect("java.lang.Double", "doubleToRawLongBits", present)


def _short_enough(column: Column, sql_type: SqlType) -> Column:
    if sql_type.name in ("STRING", "BYTES"):
        return column
    problem = f"a key is longer than {sql_type} allows"
    return value_or_fail(column, F.length(column) <= sql_type.precision, problem, column)


def _millis_of_day(column: Column, data_type: T.DataType, sql_type: SqlType) -> Column:
    if isinstance(data_type, T.IntegralType):
        nanos = column.cast("bigint")
    else:
        nanos = micros_of_day(column) * 1000
    unit = 10 ** (9 - min(sql_type.precision, 3))
    good = nanos.between(0, 86_400 * 10**9 - 1) & (nanos % unit == 0)
    problem = f"a value is not a time of the day in {sql_type}: round the key first"
    return value_or_fail(nanos, good, problem, divide(nanos, 1_000_000))


def _timestamp(column: Column, data_type: T.DataType, sql_type: SqlType, offset: Column) -> _Field:
    """Return the milliseconds, and the remaining nanoseconds below a millisecond."""
    if isinstance(data_type, T.IntegralType):
        nanos = column.cast("bigint")
        millis, below = floor_divide(nanos, 1_000_000), F.pmod(nanos, F.lit(1_000_000))
    elif sql_type.name == "TIMESTAMP_LTZ":
        millis, below = F.unix_millis(column), F.pmod(F.unix_micros(column), F.lit(1000)) * 1000
    else:
        of_day = micros_of_day(column)
        days = F.unix_date(column.cast("date")).cast("bigint")
        millis, below = days * 86_400_000 + divide(of_day, 1000), of_day % 1000 * 1000
    digits = sql_type.precision
    problem = f"a value has more digits than precision {digits}: round the key first"
    good = below % 10 ** max(9 - max(digits, 3), 0) == 0
    if digits < 3:
        good = good & (millis % 10 ** (3 - digits) == 0)
    millis = F.coalesce(value_or_fail(column, good, problem, millis), F.lit(0).cast("bigint"))
    if not sql_type.reserved:
        return _Field(_little_endian(millis))
    below = F.coalesce(below, F.lit(0).cast("bigint"))
    return _Field(_reference(offset, below), _little_endian(millis), F.lit(8))


def _wide_decimal(column: Column, offset: Column) -> _Field:
    """Return the minimal big-endian two's complement; for -m, it is the inverse of m - 1."""
    magnitude = unscaled_digits(column).cast("decimal(38,0)")
    negative = is_negative(column)
    below = F.when(negative, magnitude - 1).otherwise(magnitude).cast("decimal(38,0)")
    digits = let(below, _hex128)
    digits = F.when(negative, F.translate(digits, _HEX, _HEX[::-1])).otherwise(digits)
    # A leading byte that only repeats the sign is dropped; the last byte is kept.
    minimal = F.regexp_replace(digits, "^(?:(?:00)+(?=[0-7].)|(?:FF)+(?=[89A-F].))", "")
    shown = F.coalesce(minimal, F.lit(""))
    slot = _reference(offset, F.shiftright(F.length(shown), 1))
    return _Field(slot, F.unhex(F.rpad(shown, 32, "0")), F.lit(16))


def _hex128(value: Column) -> Column:
    high, middle, low = words_of(value)
    widths = ((high, 16), (middle, 8), (low, 8))
    return F.concat(*(F.lpad(F.hex(word), width, "0") for word, width in widths))


def _text(raw: Column, offset: Column) -> _Field:
    size = F.octet_length(raw)
    is_short = size < 8
    zero, nothing = F.lit(b"\0"), F.lit(b"")
    in_place = F.concat(F.rpad(raw, F.lit(7), zero), F.unhex(F.hex(size + 128)))
    slot = F.when(is_short, in_place).otherwise(_reference(offset, size))
    padded = (size + 7).bitwiseAND(-8)
    tail = F.when(is_short, nothing).otherwise(F.rpad(raw, padded, zero))
    behind = F.when(is_short | raw.isNull(), F.lit(0)).otherwise(padded)
    empty = F.lit(bytes(8))
    return _Field(F.coalesce(slot, empty), F.coalesce(tail, nothing), behind)


def _reference(offset: Column, low: Column) -> Column:
    """Return a slot with the offset in its upper half and a small number in its lower half."""
    return _little_endian(F.shiftleft(offset, 32) + low)


def _little_endian(value: Column) -> Column:
    """Return the 8 bytes of a bigint, the lowest first."""
    digits = F.lpad(F.hex(value), 16, "0")
    # Letter i of the pattern stands for digit i: one call of translate() reverses the bytes.
    swapped = F.call_function(
        "translate", F.lit(_REVERSED_BYTES), F.lit("ABCDEFGHIJKLMNOP"), digits
    )
    return F.unhex(swapped)
