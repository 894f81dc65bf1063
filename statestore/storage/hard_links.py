"""Give a file a second name, so that two stores on one file system share it without a copy."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from statestore.storage.base import Storage, report_os_errors

__all__ = ["can_link", "link", "young_link"]


# Errors of a file system without hard links, of two names on different file systems, and of files
# that belong to another user.
_CANNOT = (
    *(errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS),
    *(errno.EMLINK, errno.EACCES, errno.EROFS),
)


def can_link(source: Storage, target: Storage) -> bool:
    """Return whether files of ``source`` can probably be hard-linked into ``target``.

    Both must be folders of the same file system. Object stores cannot share files.
    """
    old, new = source.native_path(""), target.native_path("")
    if old is None or new is None:
        return False
    with report_os_errors("access", target.url):
        return _device_of(Path(old)) == _device_of(Path(new))


def _device_of(path: Path) -> int:
    existing = next(each for each in (path, *path.parents) if each.exists())
    return existing.stat().st_dev


def link(source: Storage, old: str, target: Storage, new: str) -> bool:
    """Give a file of ``source`` a second name in ``target``, with the current time.

    The file stays until both names are deleted. False if the file system cannot do it, or the name
    is taken. Raises FileNotFoundError if the source does not have the file, or StorageError.
    """
    old_path, new_path = source.native_path(old), target.native_path(new)
    if old_path is None or new_path is None:
        return False
    with report_os_errors("read", f"{target.url}/{new}"):
        return young_link(Path(old_path), Path(new_path))


def young_link(old: Path, new: Path) -> bool:
    """Give a file a second name and create its folders.

    False if the file system cannot do it, or the name is taken. Raises OSError.

    A garbage collection that lists the new name must see a recent time. Both names share one time,
    so it is set before the second name is created.
    """
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.utime(old)
        os.link(old, new)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _CANNOT:
            return False
        raise
    return True
