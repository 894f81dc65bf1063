"""The interface of a state's table, with two backends that pass the same conformance tests.

``parquet`` consists only of data files. ``delta`` has the same files and a Delta log that names the
files of the newest checkpoint, so that any Delta reader sees the state as a table. Files come from
Spark tasks, from Arrow, or from any process that returns handles: :meth:`StateTable.publish`
accepts all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from statestore.delta.backend import DeltaTables
from statestore.errors import InvalidArgumentError
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import TABLE_FORMATS, Entry, Manifest, TableRef
from statestore.storage import Storage


class StateTable(Protocol):
    """The table of one state, in one store."""

    format: str

    def publish(
        self, entry: Entry, checkpoint_id: int, left_out: Sequence[LeftOutState] = ()
    ) -> TableRef:
        """Make the entry's files the table's content, if the format keeps a log; return the table.

        Repeating it for the same checkpoint and files changes nothing and returns the same version.
        If the format supports it, the table's description mentions the parts of the state in
        ``left_out``, which the checkpoint lacks. Raises CommitConflictError when another writer
        changed the table in the meantime.
        """


class ParquetTable:
    """Data files without a log: there is nothing to publish."""

    format = "parquet"

    def publish(
        self, entry: Entry, checkpoint_id: int, left_out: Sequence[LeftOutState] = ()
    ) -> TableRef:
        """Return the table that the entry names."""
        return entry.table


class TablesAsStored:
    """Publishes each table in its existing format."""

    format = ParquetTable.format

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        """Take the storage, which is not used yet, and the checkpoint whose tables are published.

        Raises the InvalidArgumentError of :func:`refuse_tables`.
        """
        refuse_tables(storage, manifest)
        self._storage = storage

    def publish(
        self, entry: Entry, checkpoint_id: int, left_out: Sequence[LeftOutState] = ()
    ) -> TableRef:
        """Make the entry's files the content of its table; return the table with its version."""
        return open_table(entry.table.format, self._storage).publish(entry, checkpoint_id, left_out)


def refuse_tables(storage: Storage, manifest: Manifest) -> None:
    """Refuse a checkpoint whose tables cannot be written here, before the store is claimed.

    Raises the InvalidArgumentError of :func:`open_table`.
    """
    for table_format in sorted({entry.table.format for entry in manifest.parts}):
        open_table(table_format, storage)


def open_table(table_format: str, storage: Storage) -> StateTable:
    """Return the backend of a table format.

    Raises InvalidArgumentError for an unknown format, and if the path or the process does not allow
    Delta tables.
    """
    if table_format == "parquet":
        return ParquetTable()
    if table_format != "delta":
        raise InvalidArgumentError(
            f"unknown table format {table_format!r}; the table formats are "
            f"{' and '.join(TABLE_FORMATS)}"
        )
    return DeltaTables(storage)
