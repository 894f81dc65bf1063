"""Make local files and folders durable, so that a power failure does not undo them."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["sync_if_supported", "sync_parents", "sync_path", "sync_paths"]

_SYNCED_AT_ONCE = 8
_OPENS_FOLDERS = hasattr(os, "O_DIRECTORY")
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def sync_if_supported() -> Iterator[None]:
    """Allow a file system that cannot sync files or folders, as some mounted services."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def sync_path(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable.

    Windows cannot open folders, and syncs only files that are open for writing.
    """
    if not _OPENS_FOLDERS and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if _OPENS_FOLDERS else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_paths(paths: Sequence[Path]) -> None:
    """Make many files and folders durable.

    Threads sync them in parallel, so that one commit of the file system's journal covers several.
    """
    with ThreadPoolExecutor(_SYNCED_AT_ONCE) as pool:
        deque(pool.map(sync_path, paths), maxlen=0)


def sync_parents(folder: Path) -> None:
    """Make the name of a folder durable, and those of its parents up to the mount point."""
    device = folder.stat().st_dev
    for above in folder.parents:
        if above.stat().st_dev != device:
            return  # nothing was created above the mount point
        with suppress(PermissionError):  # nor in folders that this user cannot read
            sync_path(above)
