"""The port: a state's table. Two backends keep it, under one conformance suite.

``parquet`` is data files and nothing else. ``delta`` is the same files and a Delta log that names
those of the newest checkpoint, so that any Delta reader sees the state as a table. Files come from
Spark tasks, from Arrow, from any process that returns handles: :meth:`StateTable.publish` takes
them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from statestore.errors import InvalidArgumentError
from statestore.files.delta import DeltaTables
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import TABLE_FORMATS, Entry, Manifest, TableRef
from statestore.storage import Storage

__all__ = [
    "TABLE_FORMATS",
    "ParquetTable",
    "StateTable",
    "TablesAsStored",
    "open_table",
    "refuse_tables",
]


class StateTable(Protocol):
    """The table of one state, in one store."""

    format: str

    def publish(
        self, entry: Entry, checkpoint_id: int, left_out: Sequence[LeftOutState] = ()
    ) -> TableRef:
        """Make the entry's files the table's content, if the format keeps a log; return the table.

        Doing it again for the same checkpoint and files changes nothing and returns the same
        version. If the format has a place for it, the table says which part of the state is in
        ``left_out``, which the checkpoint lacks. Raises CommitConflictError when another writer
        changed the table meanwhile.
        """


class ParquetTable:
    """Data files without a log: there is nothing to publish."""

    format = "parquet"

    def publish(
        self, entry: Entry, checkpoint_id: int, left_out: Sequence[LeftOutState] = ()
    ) -> TableRef:
        """Return the table as the entry names it."""
        return entry.table


class TablesAsStored:
    """Each table in the format that it has."""

    format = "parquet"

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        """Take the storage, which is not used yet, and the checkpoint whose tables are published.

        Raises InvalidArgumentError as :func:`refuse_tables`.
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

    Raises InvalidArgumentError as :func:`open_table`.
    """
    for table_format in {entry.table.format for entry in manifest.parts}:
        open_table(table_format, storage)


def open_table(table_format: str, storage: Storage) -> StateTable:
    """Return the backend of a table format.

    Raises InvalidArgumentError for an unknown format, and where no Delta table can be written: at
    such a path, or in such a process.
    """
    if table_format == "parquet":
        return ParquetTable()
    if table_format != "delta":
        raise InvalidArgumentError(
            f"no table format {table_format!r}; there is {' and '.join(TABLE_FORMATS)}"
        )
    return DeltaTables(storage)
