"""How many bytes a batch input has, file by file, without reading its rows and without Spark.

What a job needs to choose its own parallelism before it starts. A Delta table's files are those of
its newest version, by its log; any other folder's are all that Spark would read as data.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statestore.errors import CorruptionError, InvalidArgumentError, NotFoundError
from statestore.storage import Storage, open_storage

__all__ = ["input_bytes"]

_LOG = "_delta_log"
_COMMIT = re.compile(rf"{_LOG}/(\d{{20}})\.json")
_CHECKPOINT = re.compile(rf"{_LOG}/(\d{{20}})\.checkpoint(?:\.(\d{{10}})\.(\d{{10}}))?\.parquet")
_MAGIC = (b"PAR1", b"PARE")  # PARE: with an encrypted footer
# Those that a checkpoint has not are passed over.
_CHECKPOINT_COLUMNS = ["add.path", "add.size", "add.deletionVector", "sidecar.path"]
_SHORTEST = 12  # the magic twice, and the length of the footer


def input_bytes(url: str, storage_options: Mapping[str, Any] | None = None) -> tuple[int, ...]:
    """The bytes of each data file of a Parquet file, a folder of them, or a Delta table.

    In order of path; below a folder, files and folders that begin with ``_`` or ``.`` are not data
    (a folder ``_x=1`` is a partition). A Delta table without rows gives none.

    Costs one short read per file, of a Delta table its log alone. Raises NotFoundError when there
    is nothing at ``url``, InvalidArgumentError for a folder without data files, a file that is not
    Parquet, and a Delta log that only Spark can read (checkpoints of version 2), CorruptionError
    for a log with a gap, and StorageError when reading fails.
    """
    storage = open_storage(url, storage_options)
    path = storage.native_path("")
    if path is not None and not Path(path).exists():
        raise _missing(url)
    if path is not None and not Path(path).is_dir():
        return _single(path, storage_options)
    if log := storage.list(_LOG):
        return _delta_bytes(storage, log)
    names = storage.list("")
    if not names and path is None:
        return _single(storage.url, storage_options)
    data = [name for name in names if _is_data(name)]
    if not data:
        raise InvalidArgumentError(f"{url} holds no data files: name a folder of Parquet files")
    return tuple(_parquet_bytes(storage, name) for name in data)


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


def _delta_bytes(storage: Storage, log: Iterable[str]) -> tuple[int, ...]:
    """The sizes of a table's active files: the newest checkpoint, then the commits after it."""
    commits = {int(found[1]): name for name in log if (found := _COMMIT.fullmatch(name))}
    version, parts = _newest_checkpoint(log)
    if not commits and not parts:
        raise InvalidArgumentError(f"{storage.url}/{_LOG} holds no commit: this is no Delta table")
    active: dict[tuple[str, str], int] = {}
    for name in parts:
        _apply(active, _checkpoint_actions(storage, name), f"{storage.url}/{name}")
    newest = max(commits, default=version)
    for number in range(version + 1, newest + 1):
        if number not in commits:
            raise CorruptionError(
                f"the Delta log {storage.url}/{_LOG} lacks version {number}, and has no checkpoint "
                "after it that can be read here: read the table with Spark"
            )
        name = commits[number]
        _apply(active, _commit_actions(storage, name), f"{storage.url}/{name}")
    return tuple(size for _, size in sorted(active.items()))


def _newest_checkpoint(log: Iterable[str]) -> tuple[int, list[str]]:
    """The version and the files of the newest checkpoint that is complete; -1 without one."""
    found: dict[tuple[int, int], list[str]] = {}
    for name in log:
        if match := _CHECKPOINT.fullmatch(name):
            found.setdefault((int(match[1]), int(match[3] or 1)), []).append(name)
    whole = [(version, names) for (version, count), names in found.items() if len(names) == count]
    return max(whole, default=(-1, []))


def _checkpoint_actions(storage: Storage, name: str) -> Iterator[dict[str, Any]]:
    try:
        with storage.open_read(name) as file, pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(columns=_CHECKPOINT_COLUMNS):
                for action in batch.to_pylist():
                    if action.get("sidecar"):
                        raise InvalidArgumentError(
                            f"{storage.url}/{name} is a checkpoint of version 2: read the table "
                            "with Spark"
                        )
                    yield action
    except pa.ArrowException as error:
        raise CorruptionError(f"{storage.url}/{name} cannot be read: {error}") from error


def _commit_actions(storage: Storage, name: str) -> Iterator[dict[str, Any]]:
    try:
        lines = storage.read(name).decode().splitlines()
        yield from (json.loads(line) for line in lines if line.strip())
    except ValueError as error:
        raise CorruptionError(f"{storage.url}/{name} cannot be read: {error}") from error


def _apply(
    active: dict[tuple[str, str], int], actions: Iterable[dict[str, Any]], where: str
) -> None:
    for action in actions:
        try:
            if add := action.get("add"):
                active[_file_key(add)] = _size(add["size"])
            elif remove := action.get("remove"):
                active.pop(_file_key(remove), None)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptionError(
                f"{where} is no Delta log ({error!r} in {action!s:.60}): read the table with "
                "Spark, or name another input"
            ) from error


def _size(value: Any) -> int:
    size = int(value)
    if size < 0:
        raise ValueError(f"a file of {size} bytes")
    return size


def _file_key(action: Mapping[str, Any]) -> tuple[str, str]:
    """What Delta knows a file by: its path, and which of its rows are marked deleted."""
    vector = action.get("deletionVector") or {}
    parts = (vector.get(part) for part in ("storageType", "pathOrInlineDv", "offset"))
    return action["path"], "/".join(str(part) for part in parts if part is not None)
