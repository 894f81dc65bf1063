"""How many bytes a batch input has, file by file, without reading its rows and without Spark.

What a job needs to choose its own parallelism before it starts. A Delta table's files are those
of its newest version, by its log; any other folder's are all that Spark would read as data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from statestore.errors import CorruptionError, InvalidArgumentError, NotFoundError
from statestore.files.delta import refuse_escaped, said
from statestore.files.delta_entry import missing_part
from statestore.files.delta_process import refuse_forked
from statestore.storage import Storage, open_storage

__all__ = ["InputFiles", "input_files"]

_MAGIC = (b"PAR1", b"PARE")  # PARE: with an encrypted footer
_SHORTEST = 12  # the magic twice, and the length of the footer


@dataclass(frozen=True)
class InputFiles:
    """The bytes of each data file of an input.

    ``missing`` names what a Delta table lacks of the state that it shows, as its description says;
    None if that says nothing.
    """

    sizes: tuple[int, ...]
    missing: str | None = None


def input_files(url: str, storage_options: Mapping[str, Any] | None = None) -> InputFiles:
    """Return the data files of a Parquet file, a folder of them, or a Delta table.

    In order of path; below a folder, files and folders that begin with ``_`` or ``.`` are not data
    (a folder ``_x=1`` is a partition). A Delta table without rows gives none.

    Costs one short read per file, of a Delta table its log alone. Raises NotFoundError when there
    is nothing at ``url``, InvalidArgumentError for a folder without data files, a file that is not
    Parquet and a Delta table on a path that delta-rs takes for another one, CorruptionError for a
    Delta log that delta-rs cannot read, and StorageError when reading fails.
    """
    storage = open_storage(url, storage_options)
    path = storage.native_path("")
    if path is not None and not Path(path).exists():
        raise _missing(url)
    if path is not None and not Path(path).is_dir():
        return InputFiles(_single(path, storage_options))
    if storage.list("_delta_log"):
        return _delta_files(storage)
    names = storage.list("")
    if not names and path is None:
        return InputFiles(_single(storage.url, storage_options))
    data = [name for name in names if _is_data(name)]
    if not data:
        raise InvalidArgumentError(f"{url} holds no data files: name a folder of Parquet files")
    return InputFiles(tuple(_parquet_bytes(storage, name) for name in data))


def _missing(url: str) -> NotFoundError:
    return NotFoundError(f"there is nothing at {url}: check the path")


def _single(url: str, storage_options: Mapping[str, Any] | None) -> tuple[int, ...]:
    folder, _, name = url.rpartition("/")
    if folder.endswith(":/"):  # a bucket, and nothing in it
        raise _missing(url)
    return (_parquet_bytes(open_storage(folder or "/", storage_options), name),)


def _is_data(name: str) -> bool:
    """Whether Spark reads a file as data, by its name and those of the folders above it."""
    return not any(
        part.startswith(".") or (part.startswith("_") and "=" not in part)
        for part in name.split("/")
    )


def _parquet_bytes(storage: Storage, name: str) -> int:
    where = f"{storage.url}/{name}"
    try:
        with storage.open_read(name) as file:
            size = file.seek(0, os.SEEK_END)
            if size >= _SHORTEST:
                file.seek(size - 4)
                if file.read(4) in _MAGIC:
                    return size
    except FileNotFoundError as error:
        raise _missing(where) from error
    raise InvalidArgumentError(
        f"{where} is not a Parquet file ({size} bytes, without Parquet's mark at their end): "
        "remove it, or name what is"
    )


def _delta_files(storage: Storage) -> InputFiles:
    """Return the files of a table's newest version."""
    refuse_escaped(storage.url, "name the table by a path without them")
    refuse_forked(storage.url)
    try:
        table = DeltaTable(storage.url, storage_options=storage.delta_options())
        actions = pa.table(table.get_add_actions(flatten=False))
        missing = missing_part(table.metadata().description)
    except TableNotFoundError as error:
        raise InvalidArgumentError(
            f"{storage.url}/_delta_log holds no commit: this is no Delta table"
        ) from error
    except DeltaError as error:
        raise CorruptionError(
            f"the Delta log of {storage.url} cannot be read: {said(error)}; read the table with "
            "Spark, or name another input"
        ) from error
    files = zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)
    return InputFiles(tuple(size for _, size in sorted(files)), missing)
