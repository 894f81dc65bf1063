"""The record of what was deleted from a store, by whom and why (expire, gc, forget).

A record is an empty file whose name contains all of it. So one listing reads every record, a record
needs hardly any space on a full disk, and older releases treat it as a file without values.

A record is put before the first deletion, under a name that no other process uses. So nobody waits
for it or replaces it. A process that dies afterwards has deleted less than its record says, and the
next run deletes and records the rest. A garbage collection keeps the newest records of each
command. No record contains a key or a value.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from statestore.catalog.fence import actor_name
from statestore.errors import StorageError
from statestore.format.names import DELETIONS, deletion_of, deletion_path
from statestore.storage import Storage, is_full_disk, put_once

KEPT_RECORDS = 1000
"""The number of newest records of each command that a garbage collection keeps."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Deletion:
    """What a command deleted, or was about to delete before it was interrupted.

    ``checkpoints`` is the number of checkpoints, from ``first`` to ``last``, which are None if
    there are none. ``files`` with ``size_bytes`` are the deleted files of a collection, the files
    that no kept checkpoint needs since an expiry, and the files from which ``forget`` removed rows.
    """

    deleted_at_ms: int
    command: str
    actor: str
    why: str
    checkpoints: int
    first: int | None
    last: int | None
    files: int
    size_bytes: int

    @property
    def numbers(self) -> str:
        """The checkpoints as text: ``none``, ``7``, ``1 to 9``, or ``5 of 1 to 9``."""
        if self.first is None or self.last is None:
            return "none"
        if self.first == self.last:
            return str(self.first)
        span = f"{self.first} to {self.last}"
        is_whole = self.checkpoints == self.last - self.first + 1
        return span if is_whole else f"{self.checkpoints} of {span}"


@contextmanager
def recorded(
    storage: Storage,
    command: str,
    why: str,
    checkpoints: Iterable[int],
    sizes: Iterable[int],
    now_ms: int,
) -> Iterator[None]:
    """Record a deletion before the block deletes; on a full disk after it, if there is room then.

    ``sizes`` has the bytes of each deleted file. Nothing is recorded if there are neither
    checkpoints nor files. Raises InvalidArgumentError for an invalid actor, or StorageError.
    """
    numbers, bytes_of_files = sorted(checkpoints), list(sizes)
    if not numbers and not bytes_of_files:
        yield
        return
    first, last = (numbers[0], numbers[-1]) if numbers else (0, 0)
    counts = (len(numbers), first, last, len(bytes_of_files), sum(bytes_of_files))
    name = deletion_path(now_ms, command, counts, actor_name(), why, uuid.uuid4().hex[:8])
    is_known = _put(storage, name)
    yield
    if not is_known and not _put(storage, name):
        _log.warning("the disk of %s is full: %s is not recorded", storage.url, command)


def _put(storage: Storage, name: str) -> bool:
    """Put a record; return False if the disk is full."""
    try:
        return put_once(storage, name, b"")
    except StorageError as error:
        if is_full_disk(error):
            return False
        raise


def read_deletions(storage: Storage) -> tuple[Deletion, ...]:
    """Return the recorded deletions, oldest first. Raises StorageError."""
    return tuple(
        Deletion(
            deleted_at_ms=deleted_at_ms,
            command=command,
            actor=actor,
            why=why,
            checkpoints=checkpoints,
            first=first or None,
            last=last or None,
            files=files,
            size_bytes=size_bytes,
        )
        for deleted_at_ms, command, (checkpoints, first, last, files, size_bytes), actor, why in (
            filter(None, map(deletion_of, sorted(storage.list(DELETIONS))))
        )
    )


def surplus_records(names: Iterable[str]) -> list[str]:
    """Return the names of the records, among all files, that a garbage collection deletes."""
    by_command: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        if (deletion := deletion_of(name)) is not None:
            by_command[deletion[1]].append(name)
    return [name for own in by_command.values() for name in own[:-KEPT_RECORDS]]
