"""Find the files of a table and their sizes: a Parquet file, a folder of them, or a Delta table.

In a folder, the files are all those that Spark would read as data. :func:`find_table` does not list
a Delta table, because its log says which files its newest version has.

:func:`input_files` returns the number of bytes of a batch input, file by file, without reading its
rows and without Spark. A job needs it to choose its parallelism before it starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError

from statestore.delta.backend import error_text, refuse_escaped
from statestore.delta.delta_rs import refuse_forked, retry_broken_answers
from statestore.delta.log_entry import missing_part
from statestore.errors import CorruptionError, InvalidArgumentError, NotFoundError, StorageError
from statestore.format.names import STORE_FILE
from statestore.storage import Storage, open_storage

_MAGIC = (b"PAR1", b"PARE")  # PARE: with an encrypted footer
_LOG = re.compile(
    r"(^|/)((_delta_log|_spark_metadata|\.hoodie)/|statestore\.json$|metadata/[^/]+\.metadata\.json$)"
)
"""Parts of a Delta table, an output of Spark's streams, a Hudi table, a store, an Iceberg table."""
_UNSUPPORTED = re.compile("[Uu]nsupported|not supported|catalogManaged")
"""delta-rs has no class of its own for most features that it does not support."""
_SHORTEST = 12  # the magic twice, and the length of the footer


@dataclass(frozen=True)
class TableFiles:
    """The folder of a table, and the names of its data files in order; empty for a Delta table.

    ``log`` is the file or folder of another table's log, which says which of the files are data.
    """

    storage: Storage
    names: tuple[str, ...]
    is_delta: bool = False
    log: str | None = None


def find_table(url: str, storage_options: Mapping[str, Any] | None = None) -> TableFiles:
    """Return the files of a table.

    In a folder, files and folders that begin with ``_`` or ``.`` are not data (a folder ``_x=1`` is
    a partition).

    Args:
        url: a file, or a folder of files, or a Delta table.
        storage_options: options for the service's fsspec file system.

    Returns:
        The files; for a single file, its folder and its name.

    Raises:
        NotFoundError: there is nothing at ``url``.
        InvalidArgumentError: a folder has no data files.
        StorageError: listing fails.
    """
    storage = open_storage(url, storage_options)
    path = storage.native_path("")
    if path is not None and not Path(path).exists():
        raise _missing_error(url)
    above = None if path is None else _log_above(Path(path))
    if path is not None and not Path(path).is_dir():
        return replace(_single_file(Path(path).as_posix(), storage_options), log=above)
    if storage.list("_delta_log"):
        return TableFiles(storage, (), is_delta=True)
    names = storage.list("")
    if not names and path is None:
        return _single_file(storage.url, storage_options)
    data = tuple(name for name in names if _is_data(name))
    if not data:
        raise InvalidArgumentError(f"{url} contains no data files: name a folder of Parquet files")
    inside = next((name for name in names if _LOG.search(name)), None)
    return TableFiles(storage, data, log=above if inside is None else f"{storage.url}/{inside}")


def _log_above(path: Path) -> str | None:
    """Return the log of a table that a local path is a part of."""
    for folder in path.absolute().parents:
        for name in ("_delta_log", "_spark_metadata", ".hoodie", "metadata/*.metadata.json"):
            if log := next(folder.glob(name), None):
                return str(log)
        if (folder / STORE_FILE).exists():
            return str(folder / STORE_FILE)
    return None


def _missing_error(url: str) -> NotFoundError:
    return NotFoundError(f"{url} does not exist: check the path")


def _single_file(url: str, storage_options: Mapping[str, Any] | None) -> TableFiles:
    folder, _, name = url.rpartition("/")
    if folder.endswith(":/"):  # a bucket, and nothing in it
        raise _missing_error(url)
    return TableFiles(open_storage(folder or "/", storage_options), (name,))


def _is_data(name: str) -> bool:
    """Return whether Spark reads a file as data, by its name and the names of its folders."""
    return not any(
        part.startswith(".") or (part.startswith("_") and "=" not in part)
        for part in name.split("/")
    )


def parquet_bytes(storage: Storage, name: str) -> int:
    """Return the size of a Parquet file in bytes.

    Raises:
        NotFoundError: the file does not exist.
        InvalidArgumentError: it is not a Parquet file.
        StorageError: reading fails.
    """
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


def open_delta_table(storage: Storage) -> DeltaTable:
    """Return the newest version of a Delta table.

    Raises:
        InvalidArgumentError: delta-rs would unescape its path; also as :func:`reading_delta`.
        CorruptionError or StorageError: as :func:`reading_delta`.
    """
    refuse_escaped(storage.url, "choose a path of the table without these characters")
    refuse_forked(storage.url)
    with reading_delta(storage):
        return retry_broken_answers(
            lambda: DeltaTable(storage.url, storage_options=storage.delta_options())
        )


@contextmanager
def reading_delta(storage: Storage) -> Iterator[None]:
    """Convert the errors of delta-rs while it reads a table.

    Raises:
        InvalidArgumentError: the log has no commit, or delta-rs does not support a feature of the
            table, which the message names.
        CorruptionError: delta-rs cannot read the log.
        StorageError: a request failed.
    """
    try:
        yield
    except TableNotFoundError as error:
        raise InvalidArgumentError(
            f"{storage.url}/_delta_log contains no commit, so this is not a Delta table; "
            "pass the folder of one"
        ) from error
    except DeltaError as error:
        text = error_text(error, storage).replace("catalog-managed", "catalogManaged")
        if isinstance(error, DeltaProtocolError) or _UNSUPPORTED.search(text):
            raise unsupported_error(storage, text) from error
        raise CorruptionError(
            f"cannot read the Delta log of {storage.url}: {text}; "
            "read the table with Spark, or name another input"
        ) from error
    except OSError as error:
        raise StorageError(
            f"cannot read the Delta log of {storage.url}: {error_text(error, storage)}"
        ) from error


def unsupported_error(storage: Storage, feature: str) -> InvalidArgumentError:
    """Return the error for a Delta table with a feature that cannot be read here."""
    return InvalidArgumentError(
        f"{storage.url} uses a feature of Delta that is not supported here: {feature}; read the "
        "table with Spark, and pass a DataFrame or a copy of the table"
    )


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
