"""One file under two names: what two stores on one file system may share, without a copy."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from statestore.storage.base import Storage, named

__all__ = ["can_link", "link", "young_link"]

# What a file system says that has no hard links, when the two names are on different ones, or when
# the file is somebody else's.
_CANNOT = (
    *(errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS),
    *(errno.EMLINK, errno.EACCES, errno.EROFS),
)


def can_link(source: Storage, target: Storage) -> bool:
    """Return whether files of the one can be given names in the other, as far as can be told
    without trying: both are folders of one file system. A bucket has no names to share.
    """
    old, new = source.native_path(""), target.native_path("")
    if old is None or new is None:
        return False
    with named("look at", target.url):
        return _device_of(Path(old)) == _device_of(Path(new))


def _device_of(path: Path) -> int:
    there = next(each for each in (path, *path.parents) if each.exists())
    return there.stat().st_dev


def link(source: Storage, old: str, target: Storage, new: str) -> bool:
    """Give a file of ``source`` a name in ``target`` too: one file, which stays until both are
    deleted, and whose time is now. False where the file system cannot, or the name is taken.

    Raises FileNotFoundError when the source has none, or StorageError.
    """
    here, there = source.native_path(old), target.native_path(new)
    if here is None or there is None:
        return False
    with named("read", f"{target.url}/{new}"):
        return young_link(Path(here), Path(there))


def young_link(old: Path, new: Path) -> bool:
    """Give a file a second name, its folders made; False where the file system cannot, or the name
    is taken. Raises OSError.

    A collection that lists the new name must find it young, so the time of the file, which is that
    of both names, is set before there is a second one.
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
