"""Temporary folders for rows that do not fit in memory. They are deleted even after a kill.

A process holds a lock on each of its folders. The operating system releases the lock when the
process ends for any reason. So a folder of this host with a free lock is abandoned, and the next
process that creates a temporary folder deletes it.
"""

from __future__ import annotations

import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from statestore.storage.base import report_os_errors
from statestore.storage.locks import close_folder, lock, open_folder

__all__ = ["temporary_folder"]


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
