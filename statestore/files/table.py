"""The port: a state's table. Two backends keep it, under one conformance suite.

``parquet`` is data files and nothing else. ``delta`` is the same files and a Delta log that names
those of the newest checkpoint, so that any Delta reader sees the state as a table. Files come from
Spark tasks, from Arrow, from any process that returns handles: :meth:`StateTable.publish` takes
them all.
"""

from __future__ import annotations

from typing import Any, Protocol

from statestore.errors import InvalidArgumentError
from statestore.files.engines import spark_module
from statestore.format.manifest import TABLE_FORMATS, Entry, TableRef
from statestore.storage import Storage

__all__ = ["TABLE_FORMATS", "ParquetTable", "StateTable", "TablesAsStored", "open_table"]


class StateTable(Protocol):
    """The table of one state, in one store."""

    format: str
    keeps_log: bool

    def publish(self, entry: Entry, checkpoint_id: int) -> TableRef:
        """Make the entry's files the table's content, if the format keeps a log; return the table.

        Doing it again for the same checkpoint and files changes nothing and returns the same
        version. Raises CommitConflictError when another writer changed the table meanwhile.
        """


class ParquetTable:
    """Data files without a log: there is nothing to publish."""

    format = "parquet"
    keeps_log = False

    def publish(self, entry: Entry, checkpoint_id: int) -> TableRef:
        """Return the table as the entry names it."""
        return entry.table


class TablesAsStored:
    """Each table in the format that it has: a Delta table through Spark, if there is Spark."""

    format = "parquet"

    def __init__(self, storage: Storage, spark: Any) -> None:
        """Take the storage and the Spark session or None; neither is used yet."""
        self._storage, self._spark = storage, spark
        self._delta: StateTable | None = None
        self.keeps_log = spark is not None

    def publish(self, entry: Entry, checkpoint_id: int) -> TableRef:
        """Make the entry's files the content of its Delta table; else, and without Spark, return
        the table as the entry names it.
        """
        if entry.table.format != "delta" or self._spark is None:
            return entry.table
        if self._delta is None:
            self._delta = open_table("delta", self._storage, self._spark)
        return self._delta.publish(entry, checkpoint_id)


def open_table(table_format: str, storage: Storage, spark: Any) -> StateTable:
    """Return the backend of a table format.

    Raises InvalidArgumentError for an unknown format, or for ``delta`` without a Spark session.
    """
    if table_format == "parquet":
        return ParquetTable()
    if table_format != "delta":
        raise InvalidArgumentError(
            f"no table format {table_format!r}; there is {' and '.join(TABLE_FORMATS)}"
        )
    if spark is None:
        raise InvalidArgumentError(
            "a Delta table is written with Spark: open the store with spark=…, or with "
            "table_format='parquet', which needs neither Spark nor a jar"
        )
    table: StateTable = spark_module("delta").DeltaTable(spark, storage)
    return table
