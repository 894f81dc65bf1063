"""Output of a restore or a query: a folder or a file, which appears when it is complete.

A folder::

    DIR/.incomplete/<uid>/…         during the restore
    DIR/.incomplete/.statestore     the list of files to move: name, length and time

The files are durable before they are moved. A killed run leaves ``.incomplete``, and perhaps
folders that it had already moved. The next run deletes the files in that list. If the folder, or
``.incomplete``, contains any other file, the next run refuses it without deleting anything. So
files of others stay.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from statestore.catalog.catalog import refuse_inside_store
from statestore.errors import InvalidArgumentError, StorageError
from statestore.format.digest import RowSet
from statestore.storage import LocalStorage
from statestore.storage.base import report_os_errors
from statestore.storage.local import sync_if_supported, sync_parents, sync_path, sync_paths
from statestore.storage.locks import close_folder, lock, open_folder

INCOMPLETE = ".incomplete"
_IS_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
_LIST, _LIST_BEGUN = ".statestore", ".statestore.new"

Files = dict[str, list[int]]  # by name relative to the folder: length, and time in nanoseconds


@contextmanager
def publish_folder(directory: Path) -> Iterator[Path]:
    """Yield a folder inside ``directory`` whose contents are moved up at the end of the block.

    While the folder exists, the contents of the directory are incomplete. After an error, nothing
    of the block is left. Leftovers of a killed run are deleted first (I10). Raises
    InvalidArgumentError if the directory contains other files, is written by another process, or is
    inside a store; and StorageError.
    """
    folder = directory / INCOMPLETE
    refuse_inside_store(LocalStorage(str(directory)), "what is exported")
    with report_os_errors("write", str(directory)), ExitStack() as held:
        _create_folder(directory)
        _lock(directory, held)
        _refuse_strangers(directory)
        _delete_listed(directory)
        folder.mkdir()
        try:
            _write_list(folder, {})
            yield folder
            _move_up(directory)
        except BaseException:
            with suppress(OSError):
                _delete_listed(directory)
            raise
        _delete_inside(folder)


def _create_folder(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidArgumentError(
            f"{directory} is a file, or a path below a file; choose a new or an empty directory"
        ) from error


def _move_up(directory: Path) -> None:
    """Write the list of the files to move, then move them."""
    folder = directory / INCOMPLETE
    _write_list(
        folder, {path.relative_to(folder).as_posix(): _file_facts(path) for path in _files(folder)}
    )
    with sync_if_supported():  # after a power failure, files moved up must not lack their content
        sync_paths([*_paths_below(folder), folder])
        sync_parents(directory)
    for path in sorted(folder.iterdir()):
        if path.name in (_LIST, _LIST_BEGUN):
            continue
        try:
            path.rename(directory / path.name)
        except OSError as error:
            if error.errno not in _IS_TAKEN:
                raise
            raise StorageError(
                f"cannot write {directory / path.name}: another process created it during "
                "this export, and it was not changed; choose a new or an empty directory"
            ) from error
    with sync_if_supported():
        sync_path(directory)


def _refuse_strangers(directory: Path) -> None:
    """Refuse a directory that contains anything but leftovers of a killed run."""
    own = _read_list(directory / INCOMPLETE)
    if own is None:
        others: Iterable[Path] = sorted(directory.iterdir())
    else:
        folders = _folders(own)
        others = (
            path
            for path in _paths_below(directory)
            if (name := path.relative_to(directory)).parts[0] != INCOMPLETE
            and (
                name not in folders
                if _is_folder(path)
                else own.get(name.as_posix()) != _file_facts(path)
            )
        )
    stranger = next(iter(others), None)
    if stranger is not None:
        raise InvalidArgumentError(
            f"{directory} is not empty: it contains {stranger.relative_to(directory)}, which "
            "is not from an interrupted restore; choose a new or an empty directory"
        )


def _delete_listed(directory: Path) -> None:
    """Delete the files in the list of the run that wrote it, and the list last."""
    folder = directory / INCOMPLETE
    own = _read_list(folder)
    if own is None:
        return
    folders = _folders(own)
    for path in _paths_below(directory):
        name = path.relative_to(directory)
        if name.parts[0] == INCOMPLETE:
            continue
        if not _is_folder(path):
            if own.get(name.as_posix()) == _file_facts(path):
                path.unlink()
        elif name in folders:
            with suppress(OSError):  # another process has put something there
                path.rmdir()
    _delete_inside(folder)


def _delete_inside(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.name not in (_LIST, _LIST_BEGUN):
            shutil.rmtree(path) if _is_folder(path) else path.unlink()
    for name in (_LIST_BEGUN, _LIST):
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def _read_list(folder: Path) -> Files | None:
    """Return the list of files; None for a folder that no restore created."""
    try:
        noted: Any = json.loads((folder / _LIST).read_text())
    except FileNotFoundError:
        begun = folder.is_dir() and {path.name for path in folder.iterdir()} <= {_LIST_BEGUN}
        return {} if begun else None
    except ValueError:  # not a restore's file, or lost in a power failure
        return None
    return noted if isinstance(noted, dict) else None


def _write_list(folder: Path, files: Files) -> None:
    (folder / _LIST_BEGUN).write_text(json.dumps(files))
    (folder / _LIST_BEGUN).replace(folder / _LIST)


def _paths_below(directory: Path) -> list[Path]:
    """Return all paths below a directory, without following links; contents before folders.

    The order is the same on every file system.
    """
    walk = os.walk(directory)
    found = (Path(parent, name) for parent, *lists in walk for names in lists for name in names)
    return sorted(found, reverse=True)


def _files(folder: Path) -> Iterator[Path]:
    own = (_LIST, _LIST_BEGUN)
    return (path for path in _paths_below(folder) if path.is_file() and path.name not in own)


def _folders(files: Files) -> set[Path]:
    return {parent for name in files for parent in Path(name).parents}


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _file_facts(path: Path) -> list[int]:
    status = path.lstat()
    return [status.st_size, status.st_mtime_ns]


def _lock(directory: Path, held: ExitStack) -> None:
    """Lock the directory against other runs; the system unlocks it when this process ends."""
    descriptor = open_folder(directory)
    held.callback(close_folder, directory, descriptor)
    try:
        lock(descriptor)
    except BlockingIOError:
        raise InvalidArgumentError(
            f"another process is writing to {directory}; choose another directory"
        ) from None


"""Called with the number of rows written so far, and the total."""

Contents = Mapping[tuple[str, str], RowSet]


def check_output_file(path: Path, *, replace: bool) -> None:
    """Check the place of a file before any work is done for its contents.

    Args:
        path: The file.
        replace: Whether the file may exist.

    Raises:
        InvalidArgumentError: the place is inside a store or in no existing folder, or it is taken.
    """
    refuse_inside_store(LocalStorage(str(path)), "the file")
    if not path.parent.is_dir():
        raise InvalidArgumentError(
            f"cannot write {path}: there is no folder {path.parent}; create it, or choose another"
        )
    if path.is_dir():
        raise InvalidArgumentError(f"cannot write {path}: it is a folder; add the name of a file")
    if not replace and path.exists():
        raise InvalidArgumentError(f"{path} exists; remove it, or choose another name")


@contextmanager
def output_file(path: Path, *, replace: bool) -> Iterator[IO[bytes]]:
    """Yield a file that gets its name when the block ends without an error; it is durable then.

    Args:
        path: The file.
        replace: Whether the file may exist.

    Yields:
        The open file, under another name.

    Raises:
        InvalidArgumentError: as :func:`check_output_file`.
        StorageError: the file cannot be written.
    """
    check_output_file(path, replace=replace)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with part.open("xb") as file:
            yield file
        with sync_if_supported():
            sync_path(part)
        part.replace(path)
        with sync_if_supported():
            sync_path(path.parent)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
