"""The key group and the subtask of a row as native Spark columns: no Python runs on the executors.

The hashes are the same as in :mod:`statestore.keys.hashing` (invariant I1), with the types of
:mod:`statestore.keys.arrow_types`: string, byte to long, float, double, boolean, decimal, date
(LocalDate), timestamp (Instant), timestamp_ntz (LocalDateTime), binary if the scheme supports it,
struct (a Tuple), and several columns.

Spark's own ``hash()`` is the same Murmur3 with the fixed seed 42. Hashing several columns chains
them: the hash of the first is the seed of the second. There is exactly one int whose hash with seed
42 is 0. As the first column, it provides the seed 0 that key groups need.

A row with a null key has the key group null (java, pyflink): the column never fails a query because
of a null. Results depend on no session setting, such as the time zone or ANSI mode.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.keys.arrow_types import check_key_type, check_tuple
from statestore.keys.groups import key_group_of_hash
from statestore.keys.key_types import DEFAULT_HASH_SCHEME, check_hash_scheme, java_type
from statestore.spark.arithmetic import divide, signed
from statestore.spark.compat import TIME_TYPES
from statestore.spark.hashing_java import (
    deep_hash_column,
    java_hash_column,
    tuple_hash_column,
)
from statestore.spark.hashing_sql import sql_hash_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

_SEED_ZERO: Final = -1_693_959_553
"""``hash(this)`` is 0; see the module's docstring."""


def key_group_column(
    schema: T.StructType,
    key: Sequence[str],
    *,
    max_parallelism: int,
    hash_scheme: str = DEFAULT_HASH_SCHEME,
    key_types: Sequence[str | None] | None = None,
) -> Column:
    """Return the key group, 0 .. ``max_parallelism`` - 1, of every row, as an int column.

    ``key`` names top-level columns of ``schema``, in the order of the key. Names are literal: dots
    and spaces have no special meaning. ``key_types`` is as for :func:`check_spark_key`. The result
    is null if a key column is null (java, pyflink). Raises the errors of :func:`check_spark_key`,
    and ParallelismError when ``max_parallelism`` is not in 1..32768.
    """
    key_group_of_hash(0, max_parallelism)  # checks the bounds
    hashed = key_hash_column(schema, key, hash_scheme=hash_scheme, key_types=key_types)
    mixed = F.hash(F.lit(_SEED_ZERO), hashed).cast("bigint")
    # As a bigint, abs(-2^31) does not overflow, and the remainder turns it into 0.
    group = (F.abs(mixed) % (1 << 31) % max_parallelism).cast("int")
    if hash_scheme == "flink-sql":
        return group
    return F.when(reduce(and_, [column_of(name).isNotNull() for name in key]), group)


def key_hash_column(
    schema: T.StructType,
    key: Sequence[str],
    *,
    hash_scheme: str = DEFAULT_HASH_SCHEME,
    key_types: Sequence[str | None] | None = None,
) -> Column:
    """Return each row's signed 32-bit key hash as an int column; undefined for a null key."""
    names = check_spark_key(schema, key, hash_scheme, key_types)
    columns = [column_of(name) for name in key]
    types = [schema[name].dataType for name in key]
    typed = list(zip(columns, types, names, strict=True))
    if hash_scheme == "flink-sql":
        return sql_hash_column(typed)
    kinds = [(column, data_type, java_type(name)) for column, data_type, name in typed]
    if hash_scheme == "pyflink" and len(kinds) == 1:
        return signed(deep_hash_column(*kinds[0]) + 31).cast("int")
    fields = [java_hash_column(*field) for field in kinds]
    hashed = fields[0] if len(fields) == 1 else tuple_hash_column(fields)
    # PyFlink wraps a key as Row.of(key): 31 for the row, and 31 for the field.
    return (signed(hashed + 62) if hash_scheme == "pyflink" else hashed).cast("int")


def owner_column(key_group: Column, *, max_parallelism: int, parallelism: int) -> Column:
    """Return ``keys.groups.subtask_of_key_group`` as an int column; arguments are not checked."""
    return divide(key_group.cast("bigint") * parallelism, max_parallelism).cast("int")


def check_spark_key(
    schema: T.StructType,
    key: Sequence[str],
    hash_scheme: str = DEFAULT_HASH_SCHEME,
    key_types: Sequence[str | None] | None = None,
) -> tuple[str, ...]:
    """Return, per key column, the name of the hashed type, as ``check_key_type`` does.

    ``key_types`` requests other types than the columns' own. Raises InvalidArgumentError for a
    column that ``schema`` lacks, UnsupportedTypeError for a column that cannot be a key.
    """
    check_hash_scheme(hash_scheme)
    wanted = [None] * len(key) if key_types is None else list(key_types)
    if not key or len(wanted) != len(key):
        raise InvalidArgumentError(
            f"there are {len(key)} key columns but {len(wanted)} key types: pass one type for "
            "each column"
        )
    names = []
    for name, key_type in zip(key, wanted, strict=True):
        if name not in schema.names:
            raise InvalidArgumentError(
                f"no column {name!r}: the columns are {', '.join(schema.names)}"
            )
        try:
            arrow_type = _arrow_type(schema[name].dataType)
            names.append(check_key_type(arrow_type, hash_scheme, key_type))
        except UnsupportedTypeError as error:
            error.add_note(f"key column {name!r}")
            raise
    if hash_scheme != "flink-sql":
        check_tuple(names)
    return tuple(names)


def column_of(name: str) -> Column:
    """Return the top-level column with exactly this name."""
    return F.col("`" + name.replace("`", "``") + "`")


def _arrow_type(data_type: T.DataType) -> pa.DataType:
    """Return the Arrow type of a Spark type; the rules for key types use Arrow's types only."""
    if isinstance(data_type, T.StringType) and not data_type.isUTF8BinaryCollation():
        raise UnsupportedTypeError(
            f"a string with collation {data_type.collation} cannot be a key, because equal "
            "strings could be in different key groups; cast it to string collate UTF8_BINARY"
        )
    if isinstance(data_type, T.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if isinstance(data_type, T.StructType):
        return pa.struct([(field.name, _arrow_type(field.dataType)) for field in data_type])
    if isinstance(data_type, T.ArrayType):
        return pa.list_(_arrow_type(data_type.elementType))
    if isinstance(data_type, T.MapType):
        return pa.map_(_arrow_type(data_type.keyType), _arrow_type(data_type.valueType))
    for spark_type, arrow_type in _ARROW:
        if isinstance(data_type, spark_type):
            return arrow_type
    raise UnsupportedTypeError(
        f"a column of type {data_type.simpleString()} cannot be a key: cast it to a supported "
        "type, which gives its keys other key groups than Flink's unless the job does the same"
    )


_ARROW: Final[tuple[tuple[type[T.DataType] | tuple[type[T.DataType], ...], pa.DataType], ...]] = (
    ((T.StringType, T.CharType, T.VarcharType), pa.string()),
    (T.BooleanType, pa.bool_()),
    (T.ByteType, pa.int8()),
    (T.ShortType, pa.int16()),
    (T.IntegerType, pa.int32()),
    (T.LongType, pa.int64()),
    (T.FloatType, pa.float32()),
    (T.DoubleType, pa.float64()),
    (T.DateType, pa.date32()),
    (T.TimestampType, pa.timestamp("us", "UTC")),
    (T.TimestampNTZType, pa.timestamp("us")),
    (T.BinaryType, pa.binary()),
    (TIME_TYPES, pa.time64("us")),
    (T.DayTimeIntervalType, pa.duration("us")),
    (T.NullType, pa.null()),
)
