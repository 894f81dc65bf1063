"""Pin: keep a checkpoint while somebody reads it, at most as long as the lease (I9).

A reader that dies leaves its pin behind; when the lease is over it holds no more, and the next
collection removes it. A pin is not made longer: who needs more time takes another one before.
"""

from __future__ import annotations

import os
import socket
import uuid
from types import TracebackType

from statestore.catalog.catalog import Catalog
from statestore.catalog.holds import Holds
from statestore.commands.savepoint import holdable
from statestore.errors import InvalidArgumentError, StorageError
from statestore.format.documents import Pin

__all__ = ["PinnedCheckpoint", "pin", "unpin"]

_LONGEST_S = 3_000_000_000


class PinnedCheckpoint:
    """A pin; used with ``with``, it is let go of at the end of the block.

    ``token`` is its name, ``checkpoint_id`` what it keeps, ``until_ms`` when its lease ends, in
    milliseconds since 1970 by the clock of who pinned.
    """

    def __init__(self, holds: Holds, held: Pin) -> None:
        """Use ``StateStore.pin``."""
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
