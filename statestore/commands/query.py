"""Query: SQL over the states of one checkpoint, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.catalog.catalog import Catalog
from statestore.files.merge import clock_ms
from statestore.table.query import View, run_query, views_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["query", "views"]


def query(
    catalog: Catalog,
    sql: str,
    *,
    checkpoint: int | str,
    now_ms: int | None = None,
    verify: bool = False,
) -> pa.RecordBatchReader:
    """Return the answer to a statement over a checkpoint's states; see ``StateStore.query``."""
    now_ms = clock_ms(now_ms)
    manifest = catalog.load(checkpoint)
    return run_query(catalog.storage, manifest, sql, now_ms=now_ms, verify=verify)


def views(catalog: Catalog, *, checkpoint: int | str) -> tuple[View, ...]:
    """Return what a query of a checkpoint can name; reads the manifest alone."""
    return views_of(catalog.load(checkpoint))
