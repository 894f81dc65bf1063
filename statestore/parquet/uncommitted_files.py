"""Files that were written but are not committed yet, so that they can be deleted after an error."""

from __future__ import annotations

from collections.abc import Iterable

from statestore.errors import StorageError
from statestore.format.handles import Handle
from statestore.storage import Storage

__all__ = ["UncommittedFiles"]


class UncommittedFiles:
    """The names of files in a storage, in the order in which they were written."""

    def __init__(self, storage: Storage, names: Iterable[str] = ()) -> None:
        """Start with some names, relative to the storage."""
        self.storage = storage
        self.names = list(names)

    def add(self, folder: str, handles: Iterable[Handle]) -> list[str]:
        """Add the files of some handles in ``folder``; return their names."""
        names = [f"{folder}/{handle.path}" for handle in handles]
        self.names += names
        return names

    def delete(self, reason: BaseException) -> None:
        """Delete all files; failures are noted on ``reason``, and left to ``gc``."""
        for name in self.names:
            try:
                self.storage.delete(name)
            except StorageError as error:
                reason.add_note(
                    "cannot delete an uncommitted file, which 'statestore gc' deletes later: "
                    f"{error}"
                )
