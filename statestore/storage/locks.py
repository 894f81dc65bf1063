"""Exclusive locks between the processes of a host, and temporary folders, which use them.

The system releases a lock when its process ends for any reason. POSIX systems lock a file or a
folder (``flock``). Windows locks bytes of a file, so a folder has a file with its lock beside it. A
system without both has no other processes, and locks nothing.

Temporary folders hold rows that do not fit in memory. A process holds a lock on each of its
folders. So a folder of this host with a free lock is abandoned, and the next process that creates a
temporary folder deletes it, even after a kill.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from statestore.storage.base import report_os_errors


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_fcntl, _msvcrt = _module("fcntl"), _module("msvcrt")
_LOCKED_BYTE = 2**30
"""The byte that Windows locks. No other process can read it, so it is after the contents."""
_RETRY_SECONDS = 0.05


def lock(descriptor: int, *, wait: bool = False) -> None:
    """Lock an open file or folder until it is closed.

    Args:
        descriptor: The file, or the result of :func:`open_folder`.
        wait: Whether to wait for another process.

    Raises:
        BlockingIOError: Another process has the lock.
        OSError: The file system has no locks.
    """
    if _fcntl is not None:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX | (0 if wait else _fcntl.LOCK_NB))
    elif _msvcrt is not None:
        while True:
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            try:
                _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)
            except PermissionError as error:
                if not wait:
                    raise BlockingIOError(*error.args) from None
                time.sleep(_RETRY_SECONDS)
            else:
                return


def open_folder(folder: Path, *, follow_links: bool = True) -> int:
    """Open a folder to lock it. Raises FileNotFoundError if it does not exist.

    Without ``follow_links``, a POSIX system refuses a symbolic link with another OSError.
    """
    if _fcntl is not None:
        no_links = 0 if follow_links else os.O_NOFOLLOW
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | no_links)
    folder.stat()
    return os.open(_lock_file(folder), os.O_RDWR | os.O_CREAT)


def close_folder(folder: Path, descriptor: int) -> None:
    """Close and unlock a folder, which may no longer exist."""
    os.close(descriptor)
    if _fcntl is None:
        with suppress(OSError):  # Windows keeps a file that another process has opened
            _lock_file(folder).unlink()


def _lock_file(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.lock"


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Create a folder below ``TMPDIR`` for a block, and delete it at the end.

    Folders that killed processes of this host and user left behind are deleted first. StorageError
    if the folder cannot be created.
    """
    # The host name is in the prefix, because another host's lock on a shared file system may be
    # invisible.
    own = f"statestore-{re.sub('[^A-Za-z0-9.]', '_', socket.gethostname())}-"
    with report_os_errors("make", "a temporary folder"):
        _delete_abandoned(Path(tempfile.gettempdir()), own)
        path, descriptor = _locked_folder(f"{own}{purpose}-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        close_folder(path, descriptor)


def _locked_folder(prefix: str) -> tuple[Path, int]:
    """Return a new folder and the file descriptor that holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(FileNotFoundError):
            descriptor = open_folder(path, follow_links=False)
            with suppress(OSError):  # without locks no process deletes it
                lock(descriptor, wait=True)
            # Before the lock was acquired, another process could delete the folder as abandoned.
            if path.exists():
                return path, descriptor
            close_folder(path, descriptor)


def _delete_abandoned(parent: Path, prefix: str) -> None:
    for path in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # it is in use, belongs to another user, or is gone
            descriptor = open_folder(path, follow_links=False)
            try:
                lock(descriptor)
                shutil.rmtree(path)
            finally:
                close_folder(path, descriptor)
