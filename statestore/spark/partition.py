"""Applies a partitioner to a Spark DataFrame: Spark partition i has the rows of subtask i.

The channel of every row is a native Spark column, computed in the JVM by the rules of
:mod:`statestore.jobgraph.partitioners`. Spark then places each row in the partition of its channel.

The source subtasks are the existing Spark partitions of the DataFrame, and a record's index is its
position in its partition. The rows must therefore stay where they are. Spark's optimizer would drop
a sort before a shuffle, treat a small DataFrame as one partition, and perhaps split a large one
differently if a shuffle follows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, StructField, StructType

from statestore.errors import InvalidArgumentError, NullKeyError, ParallelismError
from statestore.jobgraph.partitioners import (
    Broadcast,
    Custom,
    Forward,
    Global,
    KeyGroup,
    Partitioner,
    Rebalance,
    Rescale,
    Shuffle,
    column_names,
    wiring,
)
from statestore.keys.groups import check_parallelism
from statestore.keys.key_types import fields_may_be_null
from statestore.spark.arithmetic import divide
from statestore.spark.compat import in_partitions, refuse_connect, with_fixed_partitions
from statestore.spark.error_cause import example_rows
from statestore.spark.hashing import (
    check_spark_key,
    column_of,
    key_group_column,
    owner_column,
)

_INDEX_BITS: Final = (1 << 33) - 1
"""The part of ``monotonically_increasing_id()`` that counts rows within a Spark partition."""


def partition(df: DataFrame, partitioner: Partitioner, *, parallelism: int) -> DataFrame:
    """Return ``df`` in exactly ``parallelism`` Spark partitions, one per downstream subtask.

    Columns and schema stay unchanged. In each target partition, rows of one source partition keep
    their order. Forward returns the same partitions without a shuffle.

    There is no guarantee about the order between rows of different source partitions, nor about the
    channels that a Shuffle or a Rebalance without ``first`` chooses. They are chosen once, now.
    Evaluating the result again gives the same channels if each source partition has its rows in the
    same order. After a shuffle that order may change. A Rebalance, Rescale or Shuffle can then even
    lose or repeat rows if an executor is lost before the end. To avoid this, sort within the
    partitions first, or checkpoint.

    Shuffles inside ``df`` run now. Filters and column selections that are added afterwards are not
    moved before the shuffle. KeyGroup counts null keys now, unless the schema or a filter in ``df``
    excludes nulls. ``df`` must belong to a classic session, and must not be a stream (in
    ``foreachBatch`` it is a batch).

    Raises:
        ParallelismError: ``parallelism`` is not in 1..32768, or Forward gets another number of
            Spark partitions.
        NullKeyError: a key is null; it has the number of rows.
        UnsupportedTypeError: a key column's type has no hash.
        InvalidArgumentError: any other argument does not fit. A Custom column that returns null or
            an invalid channel fails the query when it runs.
    """
    check_parallelism(parallelism)
    rows, sources = with_fixed_partitions(_batch(df))
    match partitioner:
        case Forward():
            _check_wiring(partitioner, sources, parallelism)
            return rows
        case Broadcast():
            return _copy_to_all(rows, parallelism)
        case Global():
            channel = F.lit(0)
        case Shuffle():
            drawn = F.rand(_draw_if_none(partitioner.seed))
            channel = F.floor(drawn * parallelism).cast("int")
        case Rebalance():
            channel = _rebalance_column(partitioner, parallelism)
        case Rescale():
            # A DataFrame without partitions has no rows, so any wiring is correct.
            channel = _rescale_column(
                _check_wiring(partitioner, max(sources, 1), parallelism), parallelism
            )
        case KeyGroup():
            channel = _owner(df, rows, partitioner, parallelism)
        case Custom():
            channel = _answer(rows, partitioner, parallelism)
        case _:
            raise InvalidArgumentError(
                f"a DataFrame cannot be partitioned by {partitioner!r}: use a partitioner of "
                "statestore, for example Rebalance()"
            )
    return in_partitions(rows, parallelism, channel)


def _batch(df: Any) -> DataFrame:
    refuse_connect(
        df,
        "partitioning a DataFrame",
        "pass df to checkpoint.write_keyed(…), which places rows by key itself, or df.toArrow() to "
        "statestore.split_by_subtask(…)",
    )
    if isinstance(df, DataFrame) and not df.isStreaming:
        return df
    raise InvalidArgumentError(
        f"partition requires a batch Spark DataFrame, not {type(df).__name__}: for a stream, "
        "call it in foreachBatch"
    )


def _check_wiring(partitioner: Partitioner, sources: int, parallelism: int) -> int:
    """Return ``sources``; ParallelismError when the partitioner cannot connect this many."""
    try:
        check_parallelism(sources, "upstream parallelism")
        if isinstance(partitioner, Forward):
            wiring(partitioner, sources, parallelism)
    except ParallelismError as error:
        error.add_note(f"the DataFrame has {sources} Spark partitions, its upstream parallelism")
        raise
    return sources


def _copy_to_all(rows: DataFrame, parallelism: int) -> DataFrame:
    temporary = "channel"
    taken = {name.lower() for name in rows.columns}
    while temporary in taken:
        temporary += "_"
    each = F.explode(F.sequence(F.lit(0), F.lit(parallelism - 1)))
    copies = rows.select("*", each.alias(temporary))
    return in_partitions(copies, parallelism, F.col(temporary)).drop(temporary)


def _index() -> Column:
    return F.monotonically_increasing_id().bitwiseAND(_INDEX_BITS)


def _draw_if_none(seed: int | None) -> int:
    return random.getrandbits(63) if seed is None else seed


def _rebalance_column(partitioner: Rebalance, parallelism: int) -> Column:
    first_channel = partitioner.start(parallelism)
    if first_channel is None:
        # One seed gives every source partition its own start. The partitions need not be
        # counted, and a repeated task gets the same start again.
        seed = F.lit(_draw_if_none(None))
        first = F.pmod(F.xxhash64(seed, F.spark_partition_id()), F.lit(parallelism))
    else:
        first = F.lit(first_channel)
    return ((_index() + first + 1) % parallelism).cast("int")


def _rescale_column(up: int, down: int) -> Column:
    """Return the subtask of the record's channel, as ``jobgraph.edge_wiring.pointwise`` does."""
    source = F.spark_partition_id().cast("bigint")
    if up >= down:
        return divide((source + 1) * down - 1, up).cast("int")
    begin = divide(source * down + (up - 1), up)
    consumers = divide((source + 1) * down + (up - 1), up) - begin
    channel = _index() % consumers
    # The consumer whose number modulo the number of consumers equals the channel.
    return (begin + F.pmod(channel - begin, consumers)).cast("int")


def _owner(df: DataFrame, rows: DataFrame, partitioner: KeyGroup, parallelism: int) -> Column:
    key = column_names(partitioner.key)
    types = partitioner.key_types
    maximum = partitioner.max_at(parallelism)
    group = key_group_column(
        df.schema,
        key,
        max_parallelism=maximum,
        hash_scheme=partitioner.hash_scheme,
        key_types=types,
    )
    # If there are fewer key groups than subtasks, some subtasks get no rows.
    owner = owner_column(group, max_parallelism=maximum, parallelism=parallelism)
    leaves = [] if partitioner.hash_scheme == "flink-sql" else _columns_not_null(df, partitioner)
    if not leaves:  # in Flink SQL, NULL is an ordinary key
        return owner
    is_null = reduce(or_, [leaf.isNull() for leaf in leaves])
    if not _is_known_empty(df.where(is_null)):
        _refuse_null_keys(rows.where(is_null), key)
    # The query may see other rows when it runs.
    stop = F.raise_error(
        F.lit(
            f"a row has a null key ({', '.join(key)}), which has no key group; remove the row or "
            "fill the key"
        )
    )
    return F.when(is_null, stop.cast("int")).otherwise(owner)


def _columns_not_null(df: DataFrame, partitioner: KeyGroup) -> list[Column]:
    """Return the nullable columns that must not be null in a valid key."""
    key = column_names(partitioner.key)
    kinds = check_spark_key(df.schema, key, partitioner.hash_scheme, partitioner.key_types)
    columns: list[Column] = []
    for name, key_type in zip(key, kinds, strict=True):
        if not fields_may_be_null(key_type):
            columns += _nullable_leaves(column_of(name), df.schema[name])
        elif df.schema[name].nullable:
            columns.append(column_of(name))
    return columns


def _nullable_leaves(
    column: Column, field: StructField, nullable: bool = False
) -> Iterator[Column]:
    """Yield the leaf columns that may be null."""
    nullable = nullable or field.nullable
    if isinstance(field.dataType, StructType):
        for inner in field.dataType.fields:
            yield from _nullable_leaves(column.getField(inner.name), inner, nullable)
    elif nullable:
        yield column


def _is_known_empty(df: DataFrame) -> bool:
    """Return whether Spark's optimized plan shows that the DataFrame is empty."""
    most = df._jdf.queryExecution().optimizedPlan().maxRows()
    return bool(most.isDefined()) and int(most.get()) == 0


def _refuse_null_keys(rows: DataFrame, key: tuple[str, ...]) -> None:
    """Refuse rows, all of which have a null key."""
    number = rows.count()
    if number:
        wanted = " AND ".join(f"{name} IS NOT NULL" for name in key)
        examples = example_rows(rows)
        raise NullKeyError(
            (
                f"{number} row{'s have' if number > 1 else ' has'} a null key ({', '.join(key)}), "
                f"which has no key group, such as {'; '.join(examples)}. Remove these rows, for "
                f"example with df.where('{wanted}')"
            ),
            number,
            examples,
        )


def _answer(rows: DataFrame, partitioner: Custom, parallelism: int) -> Column:
    key = _custom_key(rows, column_names(partitioner.key))
    answer = partitioner.function(key, parallelism)
    if not isinstance(answer, Column):
        raise InvalidArgumentError(
            f"on a DataFrame, the function of Custom must return a Column, not {answer!r}: "
            "its argument is the key as a Column"
        )
    answered = rows.select(answer).schema[0].dataType
    if not isinstance(answered, IntegralType):
        raise InvalidArgumentError(
            f"the column of the custom partitioner must be an integer, not "
            f"{answered.simpleString()}: cast it"
        )
    message = F.concat(
        F.lit("the custom partitioner returned "),
        F.coalesce(answer.cast("string"), F.lit("null")),
        F.lit(" for key "),
        F.coalesce(key.cast("string"), F.lit("null")),
        F.lit(f": with {parallelism} channels it must return an integer in 0..{parallelism - 1}"),
    )
    wrong = F.raise_error(message).cast("int")
    return F.when(answer.between(0, parallelism - 1), answer.cast("int")).otherwise(wrong)


def _custom_key(rows: DataFrame, key: tuple[str, ...]) -> Column:
    for name in key:
        if name not in rows.columns:
            raise InvalidArgumentError(
                f"no column {name!r}: the columns are {', '.join(rows.columns)}"
            )
    if not key:
        raise InvalidArgumentError("on a DataFrame, Custom requires the key column: key='id'")
    columns = [column_of(name) for name in key]
    return columns[0] if len(columns) == 1 else F.struct(*columns)
