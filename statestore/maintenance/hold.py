"""Hold: keep a checkpoint by name, as a savepoint, or while somebody reads it, as a pin (I9)."""

from __future__ import annotations

import os
import socket
import uuid
from types import TracebackType

from statestore.catalog.catalog import Catalog
from statestore.catalog.holds import Holds
from statestore.errors import CheckpointNotFoundError, InvalidArgumentError, StorageError
from statestore.format.documents import Pin, Savepoint, check_savepoint_name

__all__ = [
    "PinnedCheckpoint",
    "holdable",
    "make_savepoint",
    "pin",
    "unpin",
]


# Savepoint: keep a checkpoint under a name, until the savepoint is deleted (I9).
#
# A savepoint is a small document beside the checkpoints. What it names is neither expired nor
# collected; and if it expired at the same moment, it is still there under its name.


def make_savepoint(catalog: Catalog, name: str, checkpoint: int | str, *, now_ms: int) -> Savepoint:
    """Keep a checkpoint under a name; nothing happens when it is kept under that name already.

    Raises CheckpointNotFoundError, MalformedManifestError for a checkpoint that cannot be read, or
    InvalidArgumentError for a name that is taken or is none.
    """
    check_savepoint_name(name)
    checkpoint_id = catalog.resolve(checkpoint)
    if checkpoint == name:
        return catalog.holds.savepoint(name)
    holdable(catalog, checkpoint, checkpoint_id)
    wanted = Savepoint(name, checkpoint_id, now_ms)
    catalog.holds.put_savepoint(wanted, visible=lambda: catalog.check_visible(checkpoint_id))
    return catalog.holds.savepoint(name)


def holdable(catalog: Catalog, checkpoint: int | str, checkpoint_id: int) -> None:
    """Raise when a checkpoint cannot be held any more, or is not worth it: its manifest is read.

    Raises InvalidArgumentError for one that a savepoint alone keeps (``holds.py`` says why),
    CheckpointNotFoundError, or MalformedManifestError.
    """
    try:
        catalog.check_visible(checkpoint_id)
    except CheckpointNotFoundError as error:
        raise InvalidArgumentError(
            f"checkpoint {checkpoint_id} has expired, and savepoint {checkpoint!r} alone keeps it: "
            "nothing else can hold it any more; it stays until that savepoint is deleted"
        ) from error
    catalog.manifest(checkpoint_id)


# Pin: keep a checkpoint while somebody reads it, at most as long as the lease (I9).
#
# A reader that dies leaves its pin behind; when the lease is over it holds no more, and the next
# collection removes it. A pin is not made longer: who needs more time takes another one before.


_LONGEST_S = 3_000_000_000


class PinnedCheckpoint:
    """A pin; used with ``with``, it is let go of at the end of the block.

    ``token`` is its name, ``checkpoint_id`` what it keeps, ``until_ms`` when its lease ends, in
    milliseconds since 1970 by the clock of who pinned.
    """

    def __init__(self, holds: Holds, held: Pin) -> None:
        """Use ``StateStore.maintenance.pin``."""
        self._holds = holds
        self.token, self.checkpoint_id = held.token, held.checkpoint_id
        self.holder, self.until_ms = held.holder, held.until_ms

    def __enter__(self) -> PinnedCheckpoint:
        """Return the pin, which holds since it was made."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go; after an error in the block one that cannot be let go of is only noted there."""
        try:
            self._holds.delete_pin(self.token)
        except StorageError as failure:
            if error is None:
                raise
            error.add_note(f"pin {self.token} stays until its lease is over: {failure}")


def pin(
    catalog: Catalog, checkpoint: int | str, *, lease_s: float, holder: str | None, now_ms: int
) -> PinnedCheckpoint:
    """Keep a checkpoint for ``lease_s`` seconds; ``holder`` says who does, by default host and pid.

    Raises CheckpointNotFoundError, MalformedManifestError for a checkpoint that cannot be read, or
    InvalidArgumentError for a lease that is none.
    """
    if isinstance(lease_s, bool) or not isinstance(lease_s, int | float):
        raise InvalidArgumentError(f"a lease is a number of seconds, not {lease_s!r}")
    if not 0.001 <= lease_s <= _LONGEST_S:
        raise InvalidArgumentError(
            f"a lease lasts a millisecond to {_LONGEST_S:,} seconds, not {lease_s}; what "
            "is to stay for longer is a savepoint"
        )
    checkpoint_id = catalog.resolve(checkpoint)
    holdable(catalog, checkpoint, checkpoint_id)
    wanted = Pin(
        token=uuid.uuid4().hex,
        checkpoint_id=checkpoint_id,
        holder=f"{socket.gethostname()}:{os.getpid()}" if holder is None else holder,
        until_ms=now_ms + int(lease_s * 1000),
    )
    catalog.holds.put_pin(wanted, visible=lambda: catalog.check_visible(checkpoint_id))
    return PinnedCheckpoint(catalog.holds, wanted)


def unpin(catalog: Catalog, token: str) -> None:
    """Let go of a pin; CheckpointNotFoundError names those that there are."""
    catalog.holds.refuse_unknown_pin(token)
    catalog.holds.delete_pin(token)
