"""The folder that a restore writes to: its content appears when all of it is there, and what is
somebody else's stays.

::

    DIR/.incomplete/<uid>/…         while it is written
    DIR/.incomplete/.statestore     what is moved up from there: each file, its length and time

A run that was killed leaves ``.incomplete``, and perhaps folders that were moved up already. The
next one deletes what that list says is of the run, file by file. It refuses a folder with anything
else in it, also in ``.incomplete``, and has deleted nothing then.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from statestore.errors import InvalidArgumentError, StorageError
from statestore.storage.base import named

__all__ = ["appearing"]

INCOMPLETE = ".incomplete"
_IS_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
_LIST, _LIST_BEGUN = ".statestore", ".statestore.new"

Files = dict[str, list[int]]  # by name below the folder: length, and time in nanoseconds


@contextmanager
def appearing(directory: Path) -> Iterator[Path]:
    """Yield a folder inside ``directory`` whose content moves up when the block has ended.

    As long as the folder is there, the content of the directory is not complete. After an error
    nothing of the block is left. What a run that was killed has left is removed first (I10). Raises
    InvalidArgumentError for a directory in which there is anything else, or that another process
    writes, and StorageError.
    """
    folder = directory / INCOMPLETE
    with named("write", str(directory)), ExitStack() as held:
        directory.mkdir(parents=True, exist_ok=True)
        _lock(directory, held)
        _refuse_strangers(directory)
        _clear(directory)
        folder.mkdir()
        try:
            _note(folder, {})
            yield folder
            _move_up(directory)
        except BaseException:
            with suppress(OSError):
                _clear(directory)
            raise
        _clear_inside(folder)


def _move_up(directory: Path) -> None:
    """Say what is moved, then move it."""
    folder = directory / INCOMPLETE
    _note(folder, {path.relative_to(folder).as_posix(): _facts(path) for path in _files(folder)})
    for path in sorted(folder.iterdir()):
        if path.name in (_LIST, _LIST_BEGUN):
            continue
        try:
            path.rename(directory / path.name)
        except OSError as error:
            if error.errno not in _IS_TAKEN:
                raise
            raise StorageError(
                f"cannot write {directory / path.name}: somebody has put something there since "
                "this began, and it was left as it is; name a new or an empty directory"
            ) from error


def _refuse_strangers(directory: Path) -> None:
    """Refuse a directory with anything that is not of a run that was killed."""
    own = _noted(directory / INCOMPLETE)
    if own is None:
        others: Iterable[Path] = directory.iterdir()
    else:
        folders = _folders(own)
        others = (
            path
            for path in _below(directory)
            if (name := path.relative_to(directory)).parts[0] != INCOMPLETE
            and (name not in folders if _is_folder(path) else own.get(str(name)) != _facts(path))
        )
    stranger = next(iter(others), None)
    if stranger is not None:
        raise InvalidArgumentError(
            f"{directory} is not empty: {stranger.relative_to(directory)} is there, and not of a "
            "restore that was ended; name a new or an empty directory"
        )


def _clear(directory: Path) -> None:
    """Delete what the list says is of the run that wrote it, and the list at last."""
    folder = directory / INCOMPLETE
    own = _noted(folder)
    if own is None:
        return
    folders = _folders(own)
    for path in _below(directory):
        name = path.relative_to(directory)
        if name.parts[0] == INCOMPLETE:
            continue
        if not _is_folder(path):
            if own.get(str(name)) == _facts(path):
                path.unlink()
        elif name in folders:
            with suppress(OSError):  # somebody has put something there
                path.rmdir()
    _clear_inside(folder)


def _clear_inside(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in (_LIST, _LIST_BEGUN):
            shutil.rmtree(path) if _is_folder(path) else path.unlink()
    for name in (_LIST_BEGUN, _LIST):
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def _noted(folder: Path) -> Files | None:
    """Return what the list says; None when the folder is none of ours, or not there."""
    try:
        noted: Any = json.loads((folder / _LIST).read_text())
    except FileNotFoundError:
        begun = folder.is_dir() and {path.name for path in folder.iterdir()} <= {_LIST_BEGUN}
        return {} if begun else None
    except ValueError:  # it is not ours, or a loss of power has taken it
        return None
    return noted if isinstance(noted, dict) else None


def _note(folder: Path, files: Files) -> None:
    (folder / _LIST_BEGUN).write_text(json.dumps(files))
    (folder / _LIST_BEGUN).replace(folder / _LIST)


def _below(directory: Path) -> Iterator[Path]:
    """Yield all that is there, in folders that are no links too; first what is inside."""
    for parent, folders, names in os.walk(directory, topdown=False):
        yield from (Path(parent, name) for name in sorted((*names, *folders)))


def _files(folder: Path) -> Iterator[Path]:
    own = (_LIST, _LIST_BEGUN)
    return (path for path in _below(folder) if path.is_file() and path.name not in own)


def _folders(files: Files) -> set[Path]:
    return {parent for name in files for parent in Path(name).parents}


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _facts(path: Path) -> list[int]:
    status = path.lstat()
    return [status.st_size, status.st_mtime_ns]


def _lock(directory: Path, held: ExitStack) -> None:
    """Hold the directory against another run; the system lets go of it when this process dies."""
    descriptor = os.open(directory, os.O_RDONLY)
    held.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidArgumentError(
            f"another process is writing {directory}; name another directory"
        ) from None
