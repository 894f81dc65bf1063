"""Selects the engine for rows: Spark for a Spark DataFrame, Arrow for everything else.

Rows that arrive by key group have an engine of their own, :mod:`statestore.engines.grouped_engine`.

Only this module loads the modules that import pyspark, and only when rows, a session or a table
format require them. ``import statestore``, reading and Arrow snapshots need no Spark and no JVM.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from statestore.engines.arrow_engine import (
    ArrowEngine,
    as_table,
    is_schema,
    refuse_repeated_names,
)
from statestore.engines.grouped_engine import GroupedEngine, GroupedRows
from statestore.extras import needs_extra
from statestore.format.handles import KeyedStateHandle
from statestore.format.rescale_proof import RowSet
from statestore.format.schema import Schema
from statestore.format.state import KeyedState
from statestore.jobgraph.partitioners import Partitioner
from statestore.keys.ranges import Assignment
from statestore.layers.base_comparison import BaseComparison
from statestore.parquet.keyed_writer import KeyedTarget
from statestore.rows.input_rows import StreamedRows, is_dicts, is_lazy, rereadable, streamed
from statestore.rows.pandas_rows import is_pandas
from statestore.rows.python_values import ROWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "Engine",
    "engine_of",
    "is_frame",
    "partition",
    "reread",
    "reread_untyped",
    "rows_on_driver",
    "spark_module",
]


class Engine(Protocol):
    """What an engine does with rows; ``rows`` have the form that :func:`engine_of` returns."""

    @property
    def syncs_later(self) -> bool:
        """Whether files of changes may be synced later; False if other machines may write them."""

    def schema_of(self, rows: Any) -> Schema:
        """Return the stored columns of the rows."""

    def key_types(
        self,
        rows: Any,
        key: tuple[str, ...],
        hash_scheme: str,
        wanted: Sequence[str | None],
    ) -> tuple[str, ...]:
        """Return the type that each key column is hashed as, by default (None) its own type."""

    def rows_known(self, rows: Any) -> int | None:
        """Return the number of rows, or None if it is unknown without a computation."""

    def on_driver(self, rows: Any, names: Sequence[str], most_bytes: int) -> pa.Table | None:
        """Return some columns in this process; None if a part of them exceeds ``most_bytes``."""

    def refuse_narrowing(self, rows: Any, names: Sequence[str], state: KeyedState) -> None:
        """Refuse columns whose types have values that the state's types cannot represent.

        An engine that checks each value before it is written does not need to.
        """

    def ungrouped(self, rows: Any) -> Any:
        """Return the rows without ``key_group``, which a new key grouping invalidates."""

    def with_time(self, rows: Any, column: str, time_type: str, now_ms: int) -> Any:
        """Return the rows with a ``long`` or ``timestamp`` column added that holds one time."""

    def write_keyed(
        self, rows: Any, owners: Assignment, target: KeyedTarget
    ) -> tuple[KeyedStateHandle, ...]:
        """Write a keyed state; return its handles in order of key group."""

    def write_against(
        self, rows: Any, owners: Assignment, against: BaseComparison, target: KeyedTarget
    ) -> tuple[tuple[KeyedStateHandle, ...], RowSet]:
        """Compare ``rows`` with the stored rows, and write the changes to ``target``.

        Return the handles of the written files, and the number and digest of ``rows``.
        """


def engine_of(rows: Any, subject: str = ROWS) -> tuple[Engine, Any]:
    """Return the engine for these rows, and the rows in the form that the engine takes.

    The values of a table were checked by :func:`reread`. ``subject`` names the rows in messages.
    """
    if _is_spark(rows):
        return _spark_engine(), rows
    if isinstance(rows, GroupedRows):
        return GroupedEngine(), rows
    if isinstance(rows, StreamedRows):
        return ArrowEngine(), rows
    return ArrowEngine(), as_table(rows, subject, is_valid=isinstance(rows, pa.Table))


def reread(rows: Any, subject: str = ROWS, most_bytes: int | None = None) -> Any:
    """Return rows that can be read any number of times.

    A Spark DataFrame, a schema, None, a list of dictionaries and rows by key group are returned
    unchanged. Other rows become an Arrow table. With ``most_bytes`` a longer Arrow stream is
    returned as :class:`StreamedRows`.
    """
    if rows is None or _is_spark(rows) or is_schema(rows):
        return rows
    if isinstance(rows, GroupedRows):
        return rows
    if most_bytes is not None:
        rows = streamed(rows, subject, most_bytes)
        if isinstance(rows, StreamedRows):
            refuse_repeated_names(rows.schema, subject)
            return rows
    rows = rereadable(rows)
    return rows if is_dicts(rows) else as_table(rows, subject)


def reread_untyped(rows: Any, subject: str, most_bytes: int) -> Any:
    """Return rows as :func:`reread` does, and a pandas DataFrame unchanged.

    Some of its columns have no type of their own: its objects, and integers next to missing values.
    """
    return rows if is_pandas(rows) else reread(rows, subject, most_bytes)


def is_frame(rows: Any) -> bool:
    """Return whether the value is a table of rows, and not a list of lists of elements."""
    return _is_spark(rows) or is_lazy(rows) or hasattr(rows, "__arrow_c_stream__")


def rows_on_driver(rows: Any, subject: str = ROWS) -> pa.Table:
    """Collect few rows as an Arrow table in this process, whichever engine has them."""
    if _is_spark(rows):
        table: pa.Table = spark_module("state_writer").collect(rows)
        return table
    return as_table(rows, subject)


def spark_module(name: str) -> Any:
    """Return ``statestore.spark.<name>``, a module that imports pyspark.

    Raises MissingDependencyError, which names the extra, when pyspark is not installed.
    """
    with needs_extra("spark", "Spark's rows and sessions"):
        return importlib.import_module(f"statestore.spark.{name}")


def _spark_engine() -> Engine:
    engine: Engine = spark_module("state_writer").SparkEngine()
    return engine


def _is_spark(rows: Any) -> bool:
    return type(rows).__module__.startswith("pyspark.")


def partition(df: DataFrame, partitioner: Partitioner, *, parallelism: int) -> DataFrame:
    """Return ``df`` in exactly ``parallelism`` Spark partitions.

    Partition i has the rows that downstream subtask i gets from ``partitioner``, computed by Spark
    itself. Columns and schema stay unchanged. Rows of one source partition keep their order. For
    details, see :func:`statestore.spark.partition.partition`.

    Args:
        df: a Spark DataFrame.
        partitioner: decides which subtask gets which row.
        parallelism: the number of downstream subtasks.

    Returns:
        The DataFrame with its new partitions.

    Raises:
        ParallelismError, NullKeyError, UnsupportedTypeError or InvalidArgumentError: for arguments
            or rows that cannot be partitioned this way.
        MissingDependencyError: without pyspark.
    """
    parts: DataFrame = spark_module("partition").partition(df, partitioner, parallelism=parallelism)
    return parts
