"""The put that a commit is: done only when the bytes are seen there."""

from __future__ import annotations

from statestore.errors import StorageError
from statestore.storage.base import Storage

__all__ = ["put_once"]


def put_once(storage: Storage, name: str, data: bytes) -> bool:
    """Put a file if its name is free; return whether it holds ``data`` now, which was looked at.

    The answer of the put alone is not enough, either way: the client of an object store that lost
    the answer puts again, and then meets its own object; and a server, or a cache before it, may
    answer that it is done when it is not, which would make a checkpoint that nobody can see.
    Raises StorageError for that.
    """
    done = storage.put_if_absent(name, data)
    try:
        return storage.read(name) == data
    except FileNotFoundError:
        answer = "it was written" if done else "it exists"
        raise StorageError(
            f"cannot write {storage.url}/{name}: the file system answered that {answer}, and it is "
            "not there; nothing is visible of what would have been committed. Try again, and if it "
            "stays so, use another place for the store"
        ) from None
