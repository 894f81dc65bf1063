"""One question to a file system before the first store on it: does put-if-absent hold?

Every commit rests on it (I4). Servers that speak S3 but know no conditional put ignore its header
and overwrite; some mounted file systems have no hard links. Both would lose a checkpoint of one of
two writers, in silence; so a store is not made there.
"""

from __future__ import annotations

import uuid

from statestore.errors import StorageError
from statestore.storage.base import Storage

__all__ = ["refuse_unsafe"]

_FIRST, _SECOND = b"first\n", b"second\n"


def refuse_unsafe(storage: Storage) -> None:
    """Put a hidden file twice, see the second put lose, and remove the file.

    Raises StorageError naming what the file system lacks, or that of a call that fails. Costs six
    requests on S3. A file that a crash leaves is hidden, and in nobody's way.
    """
    name = f".probe-{uuid.uuid4().hex[:16]}"
    won_first = storage.put_if_absent(name, _FIRST)
    won_second = storage.put_if_absent(name, _SECOND)
    try:
        kept = storage.read(name)
    except FileNotFoundError:
        raise StorageError(
            f"{storage.url}/{name} was deleted by somebody else, while it was tried whether a "
            "store can lie there; run it again"
        ) from None
    storage.delete(name)
    if (won_first, won_second, kept) == (True, False, _FIRST):
        return
    lacks = (
        "its server does not hold to a conditional put (If-None-Match: *)"
        if storage.native_path(name) is None
        else "a hard link replaces a file that exists, on this file system"
    )
    raise StorageError(
        f"{storage.url} cannot hold a store: {lacks}, so that of two writers both would seem to "
        "commit one checkpoint, and one of them would lose it; use another place for the store"
    )
