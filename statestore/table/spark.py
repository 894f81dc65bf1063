"""Keyed state from a Spark DataFrame: hashed, exchanged and sorted in the JVM, written by pyarrow.

One shuffle, to the subtask that owns the row's key group (``repartitionById`` on a native column),
and one sort by key group within each Spark partition, which spills to disk when memory is short. A
Python task then takes the Arrow batches of one key group after another, sorts and writes them. No
row passes through a Python function.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from statestore.errors import InvalidArgumentError, NullKeyError, StateStoreError
from statestore.model.handles import KeyedStateHandle
from statestore.model.keygroups import KeyGroupAssignment
from statestore.model.paths import KEY_GROUP
from statestore.model.schema import Schema, schema_from_json
from statestore.model.state import KeyedState
from statestore.table.keyed import KeyedTarget, null_key_error, write_grouped
from statestore.table.spark_hashing import check_spark_key, key_group_column, subtask_column

__all__ = [
    "collect",
    "grouped_rows",
    "key_types",
    "rows_known",
    "schema_of",
    "spark_schema",
    "write_keyed",
]

_OUTCOME = "outcome binary"


def schema_of(df: DataFrame) -> Schema:
    """Return the stored columns of a DataFrame; UnsupportedTypeError for types Delta has not."""
    return schema_from_json(df.schema.jsonValue())


def spark_schema(schema: Schema) -> StructType:
    """Return what a restored state looks like in Spark: ``key_group``, then the stored columns."""
    stored = StructType.fromJson(schema.to_json())
    return StructType([StructField(KEY_GROUP, IntegerType()), *stored.fields])


def key_types(df: DataFrame, key: tuple[str, ...], hash_scheme: str) -> tuple[str, ...]:
    """Return per key column the type whose hash is taken; UnsupportedTypeError when there is
    none.
    """
    names: tuple[str, ...] = check_spark_key(df.schema, key, hash_scheme)
    return names


def rows_known(df: DataFrame) -> int | None:
    """Return None: counting would run the query twice."""
    return None


def collect(df: DataFrame) -> pa.Table:
    """Return the rows of a small DataFrame on the driver."""
    return df.toArrow()


def write_keyed(
    df: DataFrame, parallelism: int, target: KeyedTarget
) -> tuple[KeyedStateHandle, ...]:
    """Write a keyed state with ``parallelism`` tasks; return its handles in order of key group.

    Raises NullKeyError with the number of rows, DuplicateKeyError, or StorageError; the files of
    all tasks are then deleted. An error of the DataFrame itself comes out as Spark raised it.
    """
    outcomes = [
        pickle.loads(row.outcome)
        for row in grouped_rows(df, parallelism, target)
        .mapInArrow(_task(target, parallelism), _OUTCOME)
        .collect()
    ]
    errors = [outcome for outcome in outcomes if isinstance(outcome, StateStoreError)]
    written = [outcome for outcome in outcomes if not isinstance(outcome, StateStoreError)]
    handles = sorted((h for hs in written for h in hs), key=lambda h: h.key_groups.first)
    if errors:
        for handle in handles:
            target.storage.delete(f"{target.folder}/{handle.path}")
        raise _one_of(errors, target.state)
    return tuple(handles)


def grouped_rows(df: DataFrame, parallelism: int, target: KeyedTarget) -> DataFrame:
    """Return the rows with their key group, in its order, Spark partition i being subtask i."""
    state = target.state
    key_group = key_group_column(
        df.schema, state.key, max_parallelism=state.max_parallelism, hash_scheme=state.hash_scheme
    )
    rows = df.select(key_group.alias(KEY_GROUP), *(_column(name) for name in state.schema.names))
    subtask = subtask_column(
        F.col(KEY_GROUP), max_parallelism=state.max_parallelism, parallelism=parallelism
    )
    lying = rows if target.placed else rows.repartitionById(parallelism, subtask)
    # By one small number alone, which Spark sorts by radix; each key group's rows are brought into
    # order where they are written, without a comparison of strings in the JVM.
    return lying.sortWithinPartitions(KEY_GROUP)


def _task(
    target: KeyedTarget, parallelism: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome: tuple[KeyedStateHandle, ...] | StateStoreError
        try:
            own = _checked_place(batches, target, parallelism) if target.placed else batches
            outcome = write_grouped(own, target)
        except StateStoreError as error:  # raised on the driver, as itself
            outcome = error
        yield pa.RecordBatch.from_pydict({"outcome": [pickle.dumps(outcome)]})

    return write


def _checked_place(
    batches: Iterable[pa.RecordBatch], target: KeyedTarget, parallelism: int
) -> Iterator[pa.RecordBatch]:
    """Pass rows on; InvalidArgumentError for one that another subtask owns."""
    context = TaskContext.get()
    assert context is not None  # this runs in a task
    here, state = context.partitionId(), target.state
    assignment = KeyGroupAssignment(max_parallelism=state.max_parallelism, parallelism=parallelism)
    for batch in batches:
        for group in pc.min_max(batch.column(KEY_GROUP)).as_py().values():
            if group is not None and assignment.subtask_of(group) != here:
                raise InvalidArgumentError(
                    f"{state} is said to be placed, and Spark partition {here} has a row of key "
                    f"group {group}, which belongs to subtask {assignment.subtask_of(group)} of "
                    f"{parallelism}; leave out placed=True"
                )
        yield batch


def _one_of(errors: list[StateStoreError], state: KeyedState) -> StateStoreError:
    """Return the error to raise; null keys are counted over all tasks."""
    null_keys = sum(error.rows for error in errors if isinstance(error, NullKeyError))
    return null_key_error(state, null_keys) if null_keys else errors[0]


def _column(name: str) -> Column:
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")
