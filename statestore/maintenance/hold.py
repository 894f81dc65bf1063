"""Hold a checkpoint: by name as a savepoint, or while it is being read as a pin (I9).

A savepoint is a small document stored next to the checkpoints. Its checkpoint is neither expired
nor collected. If it expired at the same moment, it still exists under the savepoint's name.

A reader that dies leaves its pin behind. When the lease has ended, the pin no longer holds the
checkpoint, and the next collection removes it. A pin cannot be extended: a reader that needs more
time must take another pin first.
"""

from __future__ import annotations

import os
import socket
import uuid
from types import TracebackType

from statestore.catalog.catalog import Catalog, Checkpoint, CheckpointRef
from statestore.catalog.holds import Holds
from statestore.durations import duration_text
from statestore.errors import CheckpointNotFoundError, InvalidArgumentError, StorageError
from statestore.format.hold_documents import Pin, Savepoint, check_savepoint_name

__all__ = [
    "PinnedCheckpoint",
    "check_holdable",
    "make_savepoint",
    "pin",
    "unpin",
]


def make_savepoint(
    catalog: Catalog, name: str, checkpoint: CheckpointRef, *, now_ms: int
) -> Savepoint:
    """Keep a checkpoint under a name; do nothing if that savepoint already exists.

    Raises CheckpointNotFoundError, MalformedManifestError for an unreadable checkpoint, or
    InvalidArgumentError for a name that is invalid or taken.
    """
    check_savepoint_name(name)
    found = catalog.checkpoint(checkpoint, read_lists=True)
    if found.name == name:
        return catalog.holds.savepoint(name)
    check_holdable(catalog, found)
    wanted = Savepoint(name, found.checkpoint_id, now_ms)
    catalog.holds.put_savepoint(wanted, visible=lambda: catalog.check_visible(found.checkpoint_id))
    return catalog.holds.savepoint(name)


def check_holdable(catalog: Catalog, checkpoint: Checkpoint) -> None:
    """Raise an error if a checkpoint cannot be held.

    Raises InvalidArgumentError for a checkpoint that only a savepoint keeps (``holds.py`` gives the
    reason), or CheckpointNotFoundError for one that has expired since it was found.
    """
    try:
        catalog.check_visible(checkpoint.checkpoint_id)
    except CheckpointNotFoundError as error:
        if checkpoint.name is None:
            raise
        raise InvalidArgumentError(
            f"checkpoint {checkpoint.checkpoint_id} has expired and is kept only by savepoint "
            f"{checkpoint.name!r}, so no other hold can be added; it stays until that savepoint is "
            "deleted"
        ) from error


_LONGEST_MS = 1000 * 3_000_000_000


class PinnedCheckpoint:
    """A pin; as a context manager, it is released at the end of the ``with`` block.

    ``token`` is its name, and ``checkpoint_id`` the held checkpoint. ``until_ms`` is the end of the
    lease, in milliseconds since 1970 by the clock of the process that made the pin.
    """

    def __init__(self, holds: Holds, held: Pin) -> None:
        """Create pins with ``StateStore.maintenance.pin``."""
        self._holds = holds
        self.token, self.checkpoint_id = held.token, held.checkpoint_id
        self.holder, self.until_ms = held.holder, held.until_ms

    def __enter__(self) -> PinnedCheckpoint:
        """Return the pin, which holds its checkpoint since it was created."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the pin.

        If the block raised an error, a failed release is added to that error as a note.
        """
        try:
            self._holds.delete_pin(self.token)
        except StorageError as failure:
            if error is None:
                raise
            error.add_note(
                f"pin {self.token} could not be deleted and stays until its lease ends: {failure}"
            )


def pin(
    catalog: Catalog, checkpoint: CheckpointRef, *, lease_ms: int, holder: str | None, now_ms: int
) -> PinnedCheckpoint:
    """Keep a checkpoint for ``lease_ms`` milliseconds.

    ``holder`` names the holder, by default host and pid.

    Raises CheckpointNotFoundError, MalformedManifestError for an unreadable checkpoint, or
    InvalidArgumentError for an invalid lease.
    """
    if not 1 <= lease_ms <= _LONGEST_MS:
        raise InvalidArgumentError(
            f"a lease must last between 1ms and {duration_text(_LONGEST_MS)}, not "
            f"{duration_text(lease_ms)}; to keep a checkpoint longer, use a savepoint"
        )
    found = catalog.checkpoint(checkpoint, read_lists=True)
    check_holdable(catalog, found)
    wanted = Pin(
        token=uuid.uuid4().hex,
        checkpoint_id=found.checkpoint_id,
        holder=f"{socket.gethostname()}:{os.getpid()}" if holder is None else holder,
        until_ms=now_ms + lease_ms,
    )
    catalog.holds.put_pin(wanted, visible=lambda: catalog.check_visible(found.checkpoint_id))
    return PinnedCheckpoint(catalog.holds, wanted)


def unpin(catalog: Catalog, token: str) -> None:
    """Release a pin.

    Raises CheckpointNotFoundError, which lists the existing pins, for an unknown one.
    """
    catalog.holds.refuse_unknown_pin(token)
    catalog.holds.delete_pin(token)
