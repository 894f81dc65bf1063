"""Append rows to a Delta table exactly once; a power failure leaves all of them or none.

delta-rs does not sync what it writes to a local disk. After a power failure an entry of the log can
be there without its files, or with only some of its own actions. So delta-rs writes a local append
into a temporary folder, which has links to the table's log. The new files are then copied and
synced, and the entry is put into the log last, if no other writer has that version.

In an object store every object that exists is durable, and delta-rs writes there itself.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from statestore.delta.backend import refuse_escaped
from statestore.delta.delta_rs import retry_broken_answers
from statestore.errors import CommitConflictError
from statestore.storage import LocalStorage
from statestore.storage.base import report_os_errors
from statestore.storage.local import sync_parents
from statestore.storage.locks import temporary_folder

_LOG, _LAST = "_delta_log", "_last_checkpoint"
_ENTRY = re.compile(r"[0-9]{20}\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\..*parquet")
_ATTEMPTS = 10


def append_once(
    url: str,
    rows: Callable[[], pa.Table],
    *,
    application: str,
    number: int,
    options: Mapping[str, str],
) -> None:
    """Append rows durably, unless the table has the application's ``number`` or a greater one.

    The number is recorded as Delta's application transaction (Delta protocol, "Transaction
    Identifiers"). The table is created if it does not exist.

    Args:
        url: the table, a path or URL.
        rows: returns the rows; it is called only if they are needed.
        application: the application.
        number: the number of these rows.
        options: options for delta-rs to access the table.

    Raises:
        CommitConflictError: if other writers always commit first.
        InvalidArgumentError: for a local path that delta-rs would unescape.
        StorageError: if a local file cannot be written.
        DeltaError: as delta-rs.
    """
    properties = CommitProperties(app_transactions=[Transaction(application, number)])
    storage = _local(url)
    if storage is None:
        _append_to_objects(
            url, rows, properties, lambda: _has(url, application, number, options), options
        )
        return
    refuse_escaped(storage.url, "choose another folder")
    table: pa.Table | None = None
    for _ in range(_ATTEMPTS):
        with temporary_folder("append") as folder:
            is_new = not _link_log(storage, folder)
            if _has(str(folder), application, number, {}):
                # Its writer may have died before it was durable.
                storage.sync([f"{_LOG}/"])
                return
            table = rows() if table is None else table
            write_deltalake(str(folder), table, mode="append", commit_properties=properties)
            if _publish(storage, folder, is_new=is_new):
                return
    raise CommitConflictError(
        f"cannot append to the Delta table {storage.url}: other writers committed first "
        f"{_ATTEMPTS} times in a row; try again when fewer of them write to it"
    )


def _append_to_objects(
    url: str,
    rows: Callable[[], pa.Table],
    properties: CommitProperties,
    is_done: Callable[[], bool],
    options: Mapping[str, str],
) -> None:
    """Append rows to a table in an object store, even if the connection breaks during a request."""
    if retry_broken_answers(is_done):
        return
    table = rows()

    def append() -> None:
        if not is_done():  # by an earlier attempt whose answer broke off
            write_deltalake(
                url,
                table,
                mode="append",
                storage_options=dict(options),
                commit_properties=properties,
            )

    retry_broken_answers(append)


def _has(url: str, application: str, number: int, options: Mapping[str, str]) -> bool:
    if not DeltaTable.is_deltatable(url, dict(options)):
        return False
    table = DeltaTable(url, storage_options=dict(options))
    done = table.transaction_version(application)
    return done is not None and done >= number


def _local(url: str) -> LocalStorage | None:
    """Return the folder of a local table, or None for a table in an object store."""
    is_local = "://" not in url or url.startswith("file://")
    return LocalStorage(url, follow_links=True) if is_local else None


def _publish(storage: LocalStorage, folder: Path, *, is_new: bool) -> bool:
    """Copy a folder's new files into the table, the log entry last; False if its name is taken."""
    new = [path for path in sorted(folder.rglob("*")) if not path.is_symlink()]
    files = {path.relative_to(folder).as_posix(): path for path in new if path.is_file()}
    data = [name for name in files if not name.startswith(f"{_LOG}/")]
    for name in data:
        with files[name].open("rb") as source, storage.open_write(name) as target:
            shutil.copyfileobj(source, target)
    storage.sync(data)
    if is_new:
        with report_os_errors("sync", root := Path(storage.url)):
            root.mkdir(parents=True, exist_ok=True)
            sync_parents(root)
    # delta-rs began with the newest version that was linked, so this is the next one.
    [entry] = [name for name in files if _ENTRY.fullmatch(Path(name).name)]
    if not storage.put_if_absent(entry, files[entry].read_bytes()):
        for name in data:
            storage.delete(name)
        return False
    _add_checkpoint(storage, files)
    return True


def _link_log(storage: LocalStorage, folder: Path) -> bool:
    """Link the part of a table's log that defines its newest version; False if it has no log."""
    (folder / _LOG).mkdir()
    names = storage.list(_LOG)
    bases = [name.rpartition("/")[2] for name in names]
    found = [match[1] for base in bases if (match := _CHECKPOINT.fullmatch(base))]
    newest = max(found, default="")
    for name, base in zip(names, bases, strict=True):
        if not base[:20].isdigit() or base[:20] >= newest:
            link = folder / name
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(Path(storage.url) / name)
    return bool(names)


def _add_checkpoint(storage: LocalStorage, files: Mapping[str, Path]) -> None:
    """Give the log the checkpoint that delta-rs has written after the entry, if there is one."""
    checkpoints = [name for name in files if _CHECKPOINT.fullmatch(Path(name).name)]
    if not checkpoints:
        return
    for name in checkpoints:
        storage.put_if_absent(name, files[name].read_bytes())
    # A hint for readers. Without it they search the listing for a checkpoint.
    storage.delete(f"{_LOG}/{_LAST}")
    storage.put_if_absent(f"{_LOG}/{_LAST}", files[f"{_LOG}/{_LAST}"].read_bytes())
    DeltaTable(storage.url).cleanup_metadata()
