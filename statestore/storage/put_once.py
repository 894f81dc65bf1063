"""The put that commits, and the probe of a file system before its first store is created.

Every commit depends on put-if-absent (I4). S3-compatible servers without conditional puts ignore
the header and overwrite. Some mounted file systems have no hard links. On both, one of two writers
would silently lose a checkpoint, so no store is created there.
"""

from __future__ import annotations

import uuid

from statestore.errors import StorageError
from statestore.storage.base import Storage

__all__ = [
    "put_once",
    "refuse_unsafe",
]


def put_once(storage: Storage, name: str, data: bytes) -> bool:
    """Put a file if its name is free; return whether it now contains ``data``, read back.

    The answer of the put alone is not sufficient. If an object store's client loses the answer, it
    puts again, and then finds its own object. A server, or a cache in front of it, may confirm a
    put that did not happen, which would make an invisible checkpoint. StorageError is raised in
    that case.
    """
    done = storage.put_if_absent(name, data)
    try:
        return storage.read(name) == data
    except FileNotFoundError:
        answer = "the file was written" if done else "the file exists"
        raise StorageError(
            f"cannot write {storage.url}/{name}: the file system reported that {answer}, but "
            "the file does not exist; nothing was committed. Try again, and if the error "
            "remains, use another place for the store"
        ) from None


_FIRST, _SECOND = b"first\n", b"second\n"


def refuse_unsafe(storage: Storage) -> None:
    """Put a hidden file twice, check that the second put fails, and delete the file.

    Raises StorageError that names the missing capability or the failed call. Costs six requests on
    S3. A crash leaves a hidden file, which has no effect.
    """
    name = f".probe-{uuid.uuid4().hex[:16]}"
    won_first = storage.put_if_absent(name, _FIRST)
    won_second = storage.put_if_absent(name, _SECOND)
    try:
        kept = storage.read(name)
    except FileNotFoundError:
        raise StorageError(
            f"another process deleted {storage.url}/{name} while the file system was tested; "
            "run the command again"
        ) from None
    storage.delete(name)
    if (won_first, won_second, kept) == (True, False, _FIRST):
        return
    lacks = (
        "its server ignores conditional puts (If-None-Match: *, ifGenerationMatch=0)"
        if storage.native_path(name) is None
        else "its file system lets a hard link replace an existing file"
    )
    raise StorageError(
        f"{storage.url} cannot hold a store: {lacks}, so two writers could both seem to commit the "
        "same checkpoint, and one of them would lose it; use another place for the store"
    )
