"""A new checkpoint location, which Spark cannot start with until it is complete.

Until then, ``offsets`` contains a file that Spark refuses. It is written first, and its removal is
the commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from statestore.catalog.catalog import refuse_inside_store
from statestore.errors import CommitConflictError, InvalidArgumentError
from statestore.interop.spark.location import UNFINISHED, CheckpointLocation
from statestore.storage import Storage, put_once

_NOTE = UNFINISHED + (
    b": an export of statestore is being written here, or "
    b"did not finish. If none is running, delete the folder and export again.\n"
)


@dataclass(frozen=True)
class Target:
    """The location to which a micro-batch is exported."""

    storage: Storage
    batch: int

    def refuse_used(self, others: Iterable[str]) -> None:
        """Raise InvalidArgumentError if it is not empty, or is inside of a store or of ``others``.

        Raises CommitConflictError if another export to it is running or did not finish.
        """
        if not self.storage.is_empty():
            if CheckpointLocation(self.storage).is_unfinished:
                raise self._other_export_error()
            raise InvalidArgumentError(
                f"{self.storage.url} is not empty; choose a new folder for the exported query state"
            )
        for other in filter(None, others):
            if self.storage.url.startswith(f"{other.rstrip('/')}/"):
                raise InvalidArgumentError(
                    f"{self.storage.url} is inside {other}; choose another folder for the "
                    "exported query state"
                )
        refuse_inside_store(self.storage, "a query's state")

    def begin(self) -> None:
        """Block the location for Spark; CommitConflictError if another export did so before.

        Another export may have finished after the location was found empty. Then nothing is
        changed.
        """
        if not self.storage.put_if_absent(self._marker, _NOTE):
            raise self._other_export_error()
        if self.storage.list("") != (self._marker,):
            self.storage.delete(self._marker)
            raise CommitConflictError(
                f"{self.storage.url} was empty, but another process has written to it since; "
                "choose another folder"
            )

    def put(self, name: str, content: bytes) -> None:
        """Write a file; CommitConflictError if another export has already written it."""
        if not put_once(self.storage, name, content):
            raise CommitConflictError(
                f"another process wrote {self.storage.url}/{name} during the export; choose "
                "another folder"
            )

    def finish(self) -> None:
        """Sync all files to disk, and then unblock the location for Spark, durably.

        Hidden files are synced, too: on a local disk, Spark compares a file with Hadoop's checksums
        in one.
        """
        self.storage.sync(item.name for item in self.storage.listed(""))
        self.storage.delete(self._marker)
        self.storage.sync(["offsets/"])

    @property
    def _marker(self) -> str:
        # It must be greater than all planned batches, which are at most batch + 1. It must not be
        # greater than necessary, because Spark counts the missing numbers before it.
        return f"offsets/{self.batch + 2}"

    def _other_export_error(self) -> CommitConflictError:
        return CommitConflictError(
            f"another export to {self.storage.url} is running or did not finish. If none is "
            "running, delete the folder and export again"
        )
