"""One file under two names: what two stores on one file system may share, without a copy."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from statestore.storage.base import Storage, named

__all__ = ["can_link", "link"]

# What a file system says that has no hard links, or when the two names are on different ones.
_CANNOT = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK)


def can_link(source: Storage, target: Storage) -> bool:
    """Return whether both have paths of the operating system; a bucket has none."""
    return source.native_path("") is not None and target.native_path("") is not None


def link(source: Storage, target: Storage, name: str) -> bool:
    """Give a file of ``source`` the same name in ``target`` too: one file, which stays until both
    are deleted. False where the file system cannot, or the name is taken.

    Raises FileNotFoundError when the source has none, or StorageError.
    """
    old, new = source.native_path(name), target.native_path(name)
    if old is None or new is None:
        return False
    with named("read", f"{target.url}/{name}"):
        Path(new).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(old, new)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _CANNOT:
                return False
            raise
    return True
