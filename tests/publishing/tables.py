"""Publish a state, and read the table as pyiceberg does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore import IcebergTable
from statestore.publishing.iceberg_table import PublishedState, UnpublishedTable

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from statestore import StateStore

TABLE = "db.totals"


def take(store: StateStore, rows: Any = 100, **options: Any) -> int:
    """Take a checkpoint of the state ``totals`` with these rows, or this number of rows."""
    if isinstance(rows, int):
        rows = pa.table({"k": range(rows), "v": [number * 10 for number in range(rows)]})
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("op", "totals", rows, key="k", max_parallelism=8, **options)
    return checkpoint.id


def publish(
    store: StateStore,
    catalog: Catalog,
    table: str = TABLE,
    *,
    state: str = "totals",
    retain: int = 2,
    store_url: str | None = None,
    **options: Any,
) -> PublishedState:
    """Publish a state of the operator ``op``."""
    wanted = IcebergTable(table, catalog=catalog, retain=retain, store_url=store_url)
    return store.maintenance.publish_iceberg("op", state, wanted, **options)


def unpublish(store: StateStore, catalog: Catalog, **options: Any) -> UnpublishedTable:
    """Remove the table."""
    return store.maintenance.unpublish_iceberg(IcebergTable(TABLE, catalog=catalog), **options)


def load(catalog: Catalog, name: str = TABLE) -> Table:
    """Return the table as it is now."""
    return catalog.load_table(name)


def rows_of(table: Table, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of a table in the order of their keys."""
    found: list[dict[str, Any]] = table.scan(**options).to_arrow().to_pylist()
    return sorted(found, key=lambda row: repr(row.get("k")))


def stored_rows(store: StateStore, checkpoint: int | str = "latest") -> list[dict[str, Any]]:
    """Return the rows of the state as a restore returns them, with their key groups."""
    restored = store.restore(parallelism=1, checkpoint=checkpoint).keyed("op", "totals")
    found: list[dict[str, Any]] = restored.to_arrow(0).to_pylist()
    return sorted(found, key=lambda row: repr(row["k"]))


def data_files(folder: Path) -> set[str]:
    """Return the names of all data files below a folder."""
    return {file.name for file in folder.rglob("*.parquet")}


def files_in(table: Table) -> set[str]:
    """Return the names of the data files in the table's current snapshot."""
    return {task.file.file_path.rpartition("/")[2] for task in table.scan().plan_files()}
