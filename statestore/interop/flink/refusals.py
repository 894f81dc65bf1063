"""What of a savepoint is not read: refused by its name, or dropped where that is told.

Each of it is state that a job would miss, or act upon twice; so nobody loses it without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from enum import StrEnum

from statestore.errors import IncompatibleStateError, InvalidArgumentError
from statestore.interop.flink.metadata import ChangelogHandle, Subtask

__all__ = ["Refused", "kept", "refused_kinds", "unread_parts"]


class Refused(StrEnum):
    """A kind of state that is not read, by the name with which it can be dropped."""

    IN_FLIGHT = "in-flight"
    """Records between operators, of unaligned checkpoints (``ChannelStateHandle``)."""

    CHANGELOG = "changelog"
    """Keyed state of the changelog backend (``ChangelogStateBackendHandle``)."""

    RAW = "raw"
    """Streams that an operator wrote by itself, as timers on the heap beside RocksDB."""

    ASYNC = "async"
    """Keyed states of the asynchronous API (``state.v2``, ``BackendStateType.KEY_VALUE_V2``)."""

    TRANSACTIONS = "transactions"
    """What sinks have written and not committed (``CommitterOperator``, sinks in two phases)."""


def refused_kinds(names: Collection[str]) -> frozenset[Refused]:
    """Return the kinds of some names; InvalidArgumentError for one that is none."""
    known = [*Refused]
    for name in names:
        if name not in known:
            raise InvalidArgumentError(
                f"{name!r} is nothing that can be dropped: that is {', '.join(known)}"
            )
    return frozenset(map(Refused, names))


def kept(subtask: Subtask, drop: Collection[Refused]) -> Subtask:
    """Return a subtask without what is to be dropped.

    IncompatibleStateError when it has more that is not read.
    """
    for kind, what in unread_parts(subtask):
        if kind not in drop:
            raise IncompatibleStateError(
                f"subtask {subtask.index} has {what}, or drop it (--drop {kind})"
            )
    is_changelog = isinstance(subtask.keyed, ChangelogHandle)
    return replace(
        subtask,
        channels=(),
        raw_operator=None,
        raw_keyed=None,
        keyed=None if is_changelog else subtask.keyed,
    )


def unread_parts(subtask: Subtask) -> Iterator[tuple[Refused, str]]:
    """Yield each kind of state of a subtask that is not read, and the words for it."""
    if subtask.channels:
        records = f"{len(subtask.channels)} handles of records in flight"
        yield Refused.IN_FLIGHT, f"{records}, of an unaligned checkpoint: take a savepoint"
    if isinstance(subtask.keyed, ChangelogHandle):
        what = "its state in the changelog state backend"
        yield Refused.CHANGELOG, f"{what}: take a canonical savepoint"
    if subtask.raw_keyed is not None or subtask.raw_operator is not None:
        what = "raw state, as timers on the heap of a job with RocksDB are in a checkpoint"
        yield Refused.RAW, f"{what}: take a canonical savepoint"
