"""The number of bytes of a batch input, file by file, without reading its rows and without Spark.

A job needs it to choose its parallelism before it starts. A Delta table's files are the files of
its newest version, according to its log. In any other folder, they are all files that Spark would
read as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from statestore.delta.log_entry import missing_part
from statestore.sources.table_files import (
    find_table,
    open_delta_table,
    parquet_bytes,
    reading_delta,
)
from statestore.storage import Storage

__all__ = ["InputFiles", "input_files"]


@dataclass(frozen=True)
class InputFiles:
    """The bytes of each data file of an input.

    ``missing`` is the part of the state that a Delta table lacks according to its description; None
    if the description mentions no such part.
    """

    sizes: tuple[int, ...]
    missing: str | None = None


def input_files(url: str, storage_options: Mapping[str, Any] | None = None) -> InputFiles:
    """Return the data files of a Parquet file, a folder of them, or a Delta table.

    The files are in order of path. In a folder, files and folders that begin with ``_`` or ``.``
    are not data (a folder ``_x=1`` is a partition). A Delta table without rows returns none.

    It costs one short read per file; for a Delta table, only its log is read.

    Raises:
        NotFoundError: there is nothing at ``url``.
        InvalidArgumentError: a folder has no data files, a file is not Parquet, or delta-rs would
            unescape the path of a Delta table.
        CorruptionError: delta-rs cannot read a Delta log.
        StorageError: reading fails.
    """
    table = find_table(url, storage_options)
    if table.is_delta:
        return _delta_files(table.storage)
    return InputFiles(tuple(parquet_bytes(table.storage, name) for name in table.names))


def _delta_files(storage: Storage) -> InputFiles:
    """Return the files of a table's newest version."""
    table = open_delta_table(storage)
    with reading_delta(storage):
        actions = pa.table(table.get_add_actions(flatten=False))
        missing = missing_part(table.metadata().description)
    files = zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)
    return InputFiles(tuple(size for _, size in sorted(files)), missing)
