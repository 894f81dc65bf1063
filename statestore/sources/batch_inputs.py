"""The number of bytes of a batch input, file by file, without reading its rows and without Spark.

A job needs it to choose its parallelism before it starts. A Delta table's files are the files of
its newest version, according to its log. In any other folder, they are all files that Spark would
read as data.
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

from statestore.delta.backend import error_text, refuse_escaped
from statestore.delta.log_entry import missing_part
from statestore.delta.process_check import refuse_forked
from statestore.errors import CorruptionError, InvalidArgumentError, NotFoundError
from statestore.storage import Storage, open_storage

__all__ = ["InputFiles", "input_files"]

_MAGIC = (b"PAR1", b"PARE")  # PARE: with an encrypted footer
_SHORTEST = 12  # the magic twice, and the length of the footer


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
    storage = open_storage(url, storage_options)
    path = storage.native_path("")
    if path is not None and not Path(path).exists():
        raise _missing_error(url)
    if path is not None and not Path(path).is_dir():
        return InputFiles(_single_file(path, storage_options))
    if storage.list("_delta_log"):
        return _delta_files(storage)
    names = storage.list("")
    if not names and path is None:
        return InputFiles(_single_file(storage.url, storage_options))
    data = [name for name in names if _is_data(name)]
    if not data:
        raise InvalidArgumentError(f"{url} contains no data files: name a folder of Parquet files")
    return InputFiles(tuple(_parquet_bytes(storage, name) for name in data))


def _missing_error(url: str) -> NotFoundError:
    return NotFoundError(f"{url} does not exist: check the path")


def _single_file(url: str, storage_options: Mapping[str, Any] | None) -> tuple[int, ...]:
    folder, _, name = url.rpartition("/")
    if folder.endswith(":/"):  # a bucket, and nothing in it
        raise _missing_error(url)
    return (_parquet_bytes(open_storage(folder or "/", storage_options), name),)


def _is_data(name: str) -> bool:
    """Return whether Spark reads a file as data, by its name and the names of its folders."""
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
        raise _missing_error(where) from error
    raise InvalidArgumentError(
        f"{where} is not a Parquet file ({size} bytes that do not end with the Parquet "
        "marker): remove it, or name only Parquet files"
    )


def _delta_files(storage: Storage) -> InputFiles:
    """Return the files of a table's newest version."""
    refuse_escaped(storage.url, "choose a path of the table without these characters")
    refuse_forked(storage.url)
    try:
        table = DeltaTable(storage.url, storage_options=storage.delta_options())
        actions = pa.table(table.get_add_actions(flatten=False))
        missing = missing_part(table.metadata().description)
    except TableNotFoundError as error:
        raise InvalidArgumentError(
            f"{storage.url}/_delta_log contains no commit, so this is not a Delta table; "
            "pass the folder of one"
        ) from error
    except DeltaError as error:
        raise CorruptionError(
            f"cannot read the Delta log of {storage.url}: {error_text(error, storage)}; "
            "read the table with Spark, or name another input"
        ) from error
    files = zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)
    return InputFiles(tuple(size for _, size in sorted(files)), missing)
