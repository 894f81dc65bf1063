"""Remove a published table from its catalog, and release the checkpoints that it kept.

The table goes first. After a crash, the savepoints are left without a table, and the command can be
run again. It then finds them by the table's name.
"""

from __future__ import annotations

from contextlib import suppress

from statestore.catalog.catalog import Catalog
from statestore.errors import InvalidArgumentError, NotFoundError
from statestore.publishing.iceberg_catalog import (
    STORE,
    STORE_URL,
    catalog_errors,
    full_name,
    load_table,
    open_catalog,
    refuse_changed,
)
from statestore.publishing.iceberg_table import IcebergTable, UnpublishedTable
from statestore.publishing.publish import holds_of_name, holds_of_table
from statestore.publishing.table_metadata import delete_metadata, metadata_files

__all__ = ["unpublish"]


def unpublish(
    store: Catalog, wanted: IcebergTable, *, replace: bool, dry_run: bool
) -> UnpublishedTable:
    """Remove a published table and its savepoints; no data file is deleted.

    Args:
        store: The store.
        wanted: The table.
        replace: Removes the table even if another program has changed it.
        dry_run: Changes nothing.

    Returns:
        The removed table.

    Raises:
        NotFoundError: The catalog has no such table, and the store has no savepoint for it.
        InvalidArgumentError: The table was not published from this store.
        CommitConflictError: Another program changed the table, and ``replace`` is false.
        StorageError: The catalog or the store failed.
    """
    catalog = open_catalog(wanted.catalog, wanted.catalog_options)
    name = full_name(catalog, wanted.name)
    table = load_table(catalog, wanted.name)
    left = 0
    if table is None:
        holds = holds_of_name(store, name)
        if not holds:
            raise NotFoundError(
                f"the catalog has no Iceberg table {name}, and {store.storage.url} has no "
                f"savepoint for it; 'statestore list' shows the savepoints"
            )
    else:
        properties = table.metadata.properties
        if properties.get(STORE) != store.store_id:
            shown = properties.get(STORE_URL, "another program's data")
            raise InvalidArgumentError(
                f"the Iceberg table {name} shows {shown}, not a state of {store.storage.url}; name "
                "the table's own store"
            )
        if not replace:
            refuse_changed(table, name, "pass replace (--replace) to remove the table with them")
        holds = holds_of_table(store, table.metadata.table_uuid.hex)
    if not dry_run:
        if table is not None:
            with catalog_errors(name):
                own = metadata_files(table, table.metadata.snapshots)
                own |= {table.metadata_location}
                own |= {entry.metadata_file for entry in table.metadata.metadata_log}
                catalog.drop_table(wanted.name)
                left = delete_metadata(table.io, own)
        for savepoint in holds:
            with suppress(NotFoundError):  # another process deleted it
                store.holds.delete_savepoint(savepoint.name)
    return UnpublishedTable(
        store=store.storage.url,
        table=name,
        dry_run=dry_run,
        is_missing=table is None,
        released=tuple(savepoint.name for savepoint in holds),
        leftover_metadata=left,
    )
