"""Java's ``hashCode()`` as Spark expressions; the native counterpart of ``keys.java``.

Every expression is a bigint that holds a signed 32-bit value. Spark's int arithmetic fails on
overflow in ANSI mode and wraps around otherwise; these values never overflow a bigint. An
expression uses a value at most twice, so that nested expressions do not grow exponentially. Strings
and floats use ``java_method``, which calls Java's own methods.

A Java type can be stored in a Spark column of another type, such as a UUID in text, or nanoseconds
in a long. A value that the type cannot hold fails the query when it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.sql import functions as F
from pyspark.sql import types as T

from statestore.keys.java import signed as signed_int
from statestore.keys.java import string_hash
from statestore.keys.key_types import COMPOSITES, DECIMAL_TEXT, JavaType
from statestore.spark.arithmetic import (
    exact_decimal,
    floor_divide,
    instant_hash,
    is_negative,
    let,
    long_hash,
    micros_of_day,
    micros_of_interval,
    reflect,
    signed,
    unscaled_digits,
    value_or_fail,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column

_NANOS_PER_DAY: Final = 86_400 * 10**9
_MOST_DAYS: Final = 365_241_780_471
_ERA: Final = 146_097  # days of 400 years, after which the calendar repeats
_CHUNK: Final = 9  # decimal digits that fit 32 bits
_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_WHOLE: Final = "^(0|-?[1-9][0-9]*)$"


def uuid(column: Column) -> Column:
    """Return the hash of a UUID, from its 16 bytes or from its text in Java's format."""
    text = column.cast("string")
    digits = F.when(F.length(column) == 16, F.lower(F.hex(column))).otherwise(
        F.when(text.rlike(_UUID), F.replace(text, F.lit("-"), F.lit("")))
    )
    problem = "a key is not a UUID: pass 16 bytes, or 36 characters with hyphens in lower case"

    def folded(whole: Column) -> Column:
        words = [
            F.conv(F.substring(whole, start, 8), 16, 10).cast("bigint") for start in (1, 9, 17, 25)
        ]
        return signed(words[0].bitwiseXOR(words[1]).bitwiseXOR(words[2]).bitwiseXOR(words[3]))

    return value_or_fail(column, digits.isNotNull(), problem, let(digits, folded))


def character(column: Column) -> Column:
    """Return the hash of a text that is one UTF-16 code unit."""
    good = (F.length(column) == 1) & (F.octet_length(column) <= 3)
    hashed = reflect("java.util.Objects", "hashCode", column)
    return value_or_fail(
        column, good, "a key is not a Character: that is one UTF-16 code unit", hashed
    )


def whole_text(column: Column) -> Column:
    """Return the hash of a BigInteger of any length from its decimal digits."""
    problem = (
        "a key is not a BigInteger: write it in decimal digits, without a plus sign and leading "
        "zeros"
    )
    digits = F.regexp_replace(column, "^-", "")
    count = floor_divide(F.length(digits).cast("bigint") + (_CHUNK - 1), _CHUNK).cast("int")
    padded = F.lpad(digits, count * _CHUNK, F.lit("0"))
    places = F.sequence(F.lit(0), count - 1)
    chunks = F.transform(
        places, lambda index: F.substring(padded, index * _CHUNK + 1, F.lit(_CHUNK)).cast("bigint")
    )
    empty = F.array().cast("array<bigint>")
    limbs = F.aggregate(chunks, empty, _append_digits)
    zero = F.lit(0).cast("bigint")
    magnitude = F.aggregate(F.reverse(limbs), zero, lambda h, limb: signed(h * 31 + limb))
    sign = F.when(column.startswith("-"), F.lit(-1)).otherwise(F.lit(1)).cast("bigint")
    return value_or_fail(column, column.rlike(_WHOLE), problem, signed(magnitude * sign))


def decimal_text(column: Column) -> Column:
    """Return the hash of a BigDecimal of any length and scale, from its text in Java's format."""
    problem = "a key is not a BigDecimal: write it as Java does, for example 1.50, -0.5 or 1E+3"
    mantissa = F.regexp_replace(column, "E.*$", "")
    power = F.regexp_extract(column, "E[+]?(-?[0-9]{1,10})$", 1)
    exponent = F.when(power == "", F.lit("0")).otherwise(power).cast("bigint")
    fraction = F.length(F.regexp_replace(mantissa, "^[^.]*[.]?", "")).cast("bigint")
    scale = fraction - exponent
    digits = F.replace(mantissa, F.lit("."), F.lit(""))
    unscaled = F.regexp_replace(digits, "^(-?)0+([0-9])", "$1$2")
    good = column.rlike(DECIMAL_TEXT) & ((scale < 0) == column.contains("E+"))
    hashed = let(unscaled, lambda whole: signed(whole_text(whole) * 31 + scale))
    return value_or_fail(column, good, problem, hashed)


def _append_digits(limbs: Column, chunk: Column) -> Column:
    """Return ``limbs * 10**9 + chunk``; limbs have 32 bits, the lowest first."""
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
    """Return the hash of a LocalDate of any year, from days since 1970."""
    civil = F.date_from_unix_date(F.pmod(days, F.lit(_ERA)).cast("int"))
    years = floor_divide(days, _ERA) * 400
    parts = [part(civil).cast("bigint") for part in (F.year, F.month, F.day)]
    return date_hash(parts[0] + years, parts[1], parts[2])


def _local_date(days: Column) -> Column:
    problem = "a key is not a LocalDate: its days since 1970 are out of range"
    return value_or_fail(days, days.between(-_MOST_DAYS, _MOST_DAYS), problem, _date_of_days(days))


def _local_time(nanos: Column) -> Column:
    problem = "a key is not a LocalTime: that is 0 to 86,399,999,999,999 nanoseconds of the day"
    good = nanos.between(0, _NANOS_PER_DAY - 1)
    return value_or_fail(nanos, good, problem, long_hash(nanos))


def _local_datetime_of_nanos(nanos: Column) -> Column:
    of_day = F.pmod(nanos, F.lit(_NANOS_PER_DAY))
    return _date_of_days(floor_divide(nanos, _NANOS_PER_DAY)).bitwiseXOR(long_hash(of_day))


def _code_unit(value: Column) -> Column:
    return value_or_fail(
        value, value.between(0, 0xFFFF), "a key is not a Character: 0 to 65535", value
    )


WHOLE_RULES: Final[dict[str, Callable[[Column], Column]]] = {
    "LocalDate": _local_date,
    "LocalTime": _local_time,
    "LocalDateTime": _local_datetime_of_nanos,
    "Instant": instant_hash,
    "Duration": instant_hash,
    "java.sql.Timestamp": long_hash,
    "Character": _code_unit,
}
"""The hash of an integer by Java type: days, nanoseconds, milliseconds, or a code unit."""

_U32: Final = 0xFFFFFFFF
_INTEGERS: Final = {"Byte": "tinyint", "Short": "smallint", "Integer": "int"}


def java_hash_column(column: Column, data_type: T.DataType, java_type: JavaType) -> Column:
    """Return ``hashCode()`` of ``column`` as a Java type; 0 for null.

    A value that the type cannot hold fails the query when it runs.
    """
    hashed = _hash_value(column, data_type, java_type)
    return F.when(column.isNull(), F.lit(0).cast("bigint")).otherwise(hashed)


def deep_hash_column(column: Column, data_type: T.DataType, java_type: JavaType) -> Column:
    """Return the hash of ``column`` as a field of a Flink ``Row``; 0 for null."""
    if java_type.name in ("List", "Array"):
        hashed = _list(column, data_type, java_type, deep_hash_column)
    elif java_type.name == "Map":
        hashed = signed(_map(column, data_type, java_type, deep_hash_column) + 1)
    else:
        hashed = signed(_hash_value(column, data_type, java_type) + 31)
    return F.when(column.isNull(), F.lit(0).cast("bigint")).otherwise(hashed)


def _hash_value(column: Column, data_type: T.DataType, java_type: JavaType) -> Column:
    whole = isinstance(data_type, T.IntegralType)
    name = java_type.name
    if java_type.primitive is not None and name != "byte[]":
        return _list(column, data_type, java_type, java_hash_column)
    if name in _INTEGERS:
        return column.cast(_INTEGERS[name]).cast("bigint")
    if name in ("Long", "java.sql.Date", "java.sql.Time"):
        return long_hash(column.cast("bigint"))
    if whole and name in WHOLE_RULES:
        return WHOLE_RULES[name](column.cast("bigint"))
    if name in COMPOSITES:
        return _COMPOSED[name](column, data_type, java_type)
    if name == "BigDecimal" and isinstance(data_type, T.StringType | T.CharType | T.VarcharType):
        return decimal_text(column)
    if name == "BigDecimal":
        assert java_type.digits is not None
        return _decimal(
            exact_decimal(column, data_type, java_type, *java_type.digits), *java_type.digits
        )
    if name == "BigInteger":
        return _big_integer(column, data_type)
    return _RULES[name](column)


def tuple_hash_column(fields: Sequence[Column]) -> Column:
    """Return the hash of a Java Tuple from the hashes of its fields."""
    h = fields[0] if fields else F.lit(0).cast("bigint")
    for field in fields[1:]:
        h = signed(h * 31 + field)
    return h


def _string(column: Column) -> Column:
    return reflect("java.util.Objects", "hashCode", column)


def _byte_array(column: Column) -> Column:
    """Return ``Arrays.hashCode(byte[])`` from two string hashes.

    In ISO-8859-1 every byte is one code unit, 0..255, but Java's bytes are signed. A second text
    has a 1 for each byte that is negative in Java. The first hash is too large by 256 times the
    second. The leading 1 is the initial value of an array's hash.
    """
    text = F.decode(column, "ISO-8859-1")
    ascii_gone = F.regexp_replace(text, "[\\x00-\\x7f]", "\0")
    negative = F.regexp_replace(ascii_gone, "[\\x80-\\xff]", "\1")
    return signed(_string(F.concat(F.lit("\1"), text)) - _string(negative) * 256)


def _boolean(column: Column) -> Column:
    return F.when(column, F.lit(1231)).otherwise(F.lit(1237)).cast("bigint")


def _float(column: Column) -> Column:
    # Reflection fails on a null for a primitive parameter; the caller replaces this result.
    present = F.coalesce(column, F.lit(0).cast("float"))
    return reflect("java.lang.Float", "floatToIntBits", present)


def _double(column: Column) -> Column:
    return reflect("java.lang.Double", "hashCode", F.coalesce(column, F.lit(0).cast("double")))


def _decimal(column: Column, precision: int, scale: int) -> Column:
    sign = F.when(is_negative(column), F.lit(-31)).otherwise(F.lit(31)).cast("bigint")
    return signed(_magnitude(unscaled_digits(column), precision) * sign + scale)


def _magnitude(digits: Column, precision: int) -> Column:
    if precision <= 18:
        return let(
            digits.cast("bigint"),
            lambda m: F.shiftright(m, 32) * 31 + m.bitwiseAND(_U32),
        )
    return let(digits.cast("decimal(38,0)"), _magnitude_hash)


def _big_integer(column: Column, data_type: T.DataType) -> Column:
    if isinstance(data_type, T.StringType | T.CharType | T.VarcharType):
        return whole_text(column)
    precision = data_type.precision if isinstance(data_type, T.DecimalType) else 19
    whole = column.cast(f"decimal({precision},0)")
    sign = F.when(is_negative(whole), F.lit(-1)).otherwise(F.lit(1)).cast("bigint")
    return signed(_magnitude(unscaled_digits(whole), max(precision, 19)) * sign)


def _magnitude_hash(magnitude: Column) -> Column:
    high, middle, low = words_of(magnitude)
    upper = F.shiftright(high, 32) * 31 + high.bitwiseAND(_U32)
    return signed((upper * 31 + middle) * 31 + low)


def _date(column: Column) -> Column:
    year, month, day = (part(column).cast("bigint") for part in (F.year, F.month, F.day))
    return date_hash(year, month, day)


def _instant(column: Column) -> Column:
    nanos = F.pmod(F.unix_micros(column), F.lit(1_000_000)) * 1000
    return signed(long_hash(F.unix_seconds(column)) + nanos * 51)


def _local_datetime(column: Column) -> Column:
    return _date(column).bitwiseXOR(long_hash(micros_of_day(column) * 1000))


_Hash: TypeAlias = "Callable[[Column, T.DataType, JavaType], Column]"


def _fields(
    column: Column, data_type: T.DataType, java_type: JavaType, of_field: _Hash
) -> list[Column]:
    assert isinstance(data_type, T.StructType)
    parts = zip(data_type.fields, java_type.parts or (), strict=True)
    return [of_field(column.getField(field.name), field.dataType, part) for field, part in parts]


def _tuple(column: Column, data_type: T.DataType, java_type: JavaType) -> Column:
    return tuple_hash_column(_fields(column, data_type, java_type, java_hash_column))


def _row(column: Column, data_type: T.DataType, java_type: JavaType) -> Column:
    h: Column = F.lit(1).cast("bigint")
    for field in _fields(column, data_type, java_type, deep_hash_column):
        h = signed(h * 31 + field)
    return h


def _named_row(column: Column, data_type: T.DataType, java_type: JavaType) -> Column:
    assert isinstance(data_type, T.StructType)
    h: Column = F.lit(1).cast("bigint")
    fields = _fields(column, data_type, java_type, deep_hash_column)
    for name, field in zip(data_type.names, fields, strict=True):
        of_name = signed_int(31 + string_hash(name))
        h = signed(h + field.bitwiseXOR(F.lit(of_name).cast("bigint")))
    return h


def _list(
    column: Column, data_type: T.DataType, java_type: JavaType, of_element: _Hash = java_hash_column
) -> Column:
    assert isinstance(data_type, T.ArrayType)
    element = java_type.primitive or (java_type.parts or ())[0]
    inner = data_type.elementType

    def grown(h: Column, item: Column) -> Column:
        return signed(h * 31 + of_element(item, inner, element))

    hashed = F.aggregate(column, F.lit(1).cast("bigint"), grown)
    if java_type.primitive is None:
        return hashed
    problem = f"an element of {java_type} is null, which this type does not allow"
    return value_or_fail(column, ~F.exists(column, lambda item: item.isNull()), problem, hashed)


def _map(
    column: Column, data_type: T.DataType, java_type: JavaType, of_part: _Hash = java_hash_column
) -> Column:
    assert isinstance(data_type, T.MapType)
    assert java_type.parts is not None
    key, value = data_type.keyType, data_type.valueType
    of_key, of_value = java_type.parts

    def grown(h: Column, entry: Column) -> Column:
        left = of_part(entry["key"], key, of_key)
        return signed(h + left.bitwiseXOR(of_part(entry["value"], value, of_value)))

    return F.aggregate(F.map_entries(column), F.lit(0).cast("bigint"), grown)


_COMPOSED: Final[dict[str, _Hash]] = {
    "Tuple": _tuple,
    "Row": _row,
    "NamedRow": _named_row,
    "List": _list,
    "Map": _map,
}

_RULES: Final[dict[str, Callable[[Column], Column]]] = {
    "String": _string,
    "Boolean": _boolean,
    "Float": _float,
    "Double": _double,
    "LocalDate": _date,
    "Instant": _instant,
    "LocalDateTime": _local_datetime,
    "LocalTime": lambda column: long_hash(micros_of_day(column) * 1000),
    "Duration": lambda column: instant_hash(micros_of_interval(column) * 1000),
    "java.sql.Timestamp": lambda column: long_hash(F.unix_millis(column)),
    "byte[]": _byte_array,
    "UUID": uuid,
    "Character": character,
}
