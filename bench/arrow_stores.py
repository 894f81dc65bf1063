"""The measured state, stored without Spark in either layout."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from bench.state import state_table
from statestore import StateStore
from statestore.format.manifest import KeyedEntry
from statestore.parquet.writer import ParquetOptions

__all__ = ["MAX_PARALLELISM", "NAME", "UID", "WRITTEN_AT", "store_rows", "stored"]

UID, NAME = "bench", "state"
MAX_PARALLELISM, WRITTEN_AT = 128, 4
# Compression halves the size of a row compared with its size in Arrow.
_COMPRESSED = 2


def stored(folder: Path, rows: int, *, ranged: bool) -> KeyedEntry:
    """Store rows of the measured state, with a file per key group, or in four ranged files."""
    table = state_table(rows)
    file_bytes = table.nbytes // _COMPRESSED // WRITTEN_AT if ranged else None
    return store_rows(folder, table, file_bytes=file_bytes)


def store_rows(folder: Path, rows: pa.Table, *, file_bytes: int | None) -> KeyedEntry:
    """Store rows as one keyed state: in ranged files of about this many bytes, or partitioned."""
    layout, options = None, ParquetOptions()
    if file_bytes is not None:
        layout, options = "ranged", ParquetOptions(file_bytes=max(file_bytes, 1))
    store = StateStore.open(str(folder), table_format="parquet", layout=layout, parquet=options)
    with store.snapshot(parallelism=WRITTEN_AT) as checkpoint:
        entry: KeyedEntry = checkpoint.write_keyed(
            UID, NAME, rows, key="user", max_parallelism=MAX_PARALLELISM
        )
    return entry
