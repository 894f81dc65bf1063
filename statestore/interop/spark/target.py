"""A new checkpoint location, which Spark cannot start with until all of it is there.

Until then it has a file in ``offsets`` that Spark refuses. It is put first, and its removal is the
commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from statestore.catalog.catalog import refuse_inside_store
from statestore.errors import CommitConflictError, InvalidArgumentError
from statestore.interop.spark.location import UNFINISHED, CheckpointLocation
from statestore.storage import Storage, put_once

__all__ = ["Target"]

_NOTE = UNFINISHED + (
    b": an export of statestore is being written here, or "
    b"did not finish. If none is running, delete the folder and export again.\n"
)


@dataclass(frozen=True)
class Target:
    """A location that a micro-batch is exported to."""

    storage: Storage
    batch: int

    def refuse_used(self, others: Iterable[str]) -> None:
        """Raise InvalidArgumentError when it is not empty, or within one of others, or in a store.

        CommitConflictError when another export is being written there, or did not finish.
        """
        if not self.storage.is_empty():
            if CheckpointLocation(self.storage).is_unfinished:
                raise self._under_way()
            raise InvalidArgumentError(
                f"{self.storage.url} is not empty: a query's state is exported to a new folder, "
                "and never over that of a query"
            )
        for other in filter(None, others):
            if self.storage.url.startswith(f"{other.rstrip('/')}/"):
                raise InvalidArgumentError(
                    f"{self.storage.url} is within {other}: a query's state is exported to a "
                    "folder of its own"
                )
        refuse_inside_store(self.storage, "a query's state")

    def begin(self) -> None:
        """Make it unusable; CommitConflictError when somebody else does, or has done.

        Whoever was first may have finished since it was found empty: it is left as it is.
        """
        if not self.storage.put_if_absent(self._marker, _NOTE):
            raise self._under_way()
        if self.storage.list("") != (self._marker,):
            self.storage.delete(self._marker)
            raise CommitConflictError(
                f"{self.storage.url} was empty, and another has written to it since"
            )

    def put(self, name: str, content: bytes) -> None:
        """Write a file; CommitConflictError when another has written it."""
        if not put_once(self.storage, name, content):
            raise CommitConflictError(f"{self.storage.url}/{name} was written by another meanwhile")

    def finish(self) -> None:
        """Let Spark use it: all of it is on disk then."""
        self.storage.sync(self.storage.list(""))
        self.storage.delete(self._marker)

    @property
    def _marker(self) -> str:
        # Greater than all that was planned, which is batch + 1 at most, and no more than that:
        # Spark counts the numbers that are missing.
        return f"offsets/{self.batch + 2}"

    def _under_way(self) -> CommitConflictError:
        return CommitConflictError(
            f"another export is being written to {self.storage.url}, or did not finish. If none is "
            "running, delete the folder and export again"
        )
