"""Unsupported kinds of state: an operator with such state is refused, unless the user drops it.

A job would miss this state, or apply it twice. So it is never lost silently.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from enum import StrEnum

from statestore.errors import IncompatibleStateError, InvalidArgumentError
from statestore.interop.flink.metadata.handles import CHANGELOG_HANDLES, OperatorHandles, Subtask

WRITE_AHEAD = "pending-checkpoints"
"""The state of a write-ahead sink, which has names of files (``GenericWriteAheadSink``)."""

_RAW_STATES = (
    *("writer_raw_states", "streaming_committer_raw_states", "global_committer_raw_states"),
    *(WRITE_AHEAD, "next-transactional-id-hint", "next-transactional-id-hint-v2"),
)
"""Operator states of sinks that hold transactions: of ``SinkWriterOperator``,
``CommitterOperator``, write-ahead sinks, and the Kafka sink before ``KafkaSink``.
"""


class Refused(StrEnum):
    """A kind of state that cannot be read; its value is the name with which it can be dropped."""

    IN_FLIGHT = "in-flight"
    """In-flight records between operators, of unaligned checkpoints (``ChannelStateHandle``)."""

    CHANGELOG = "changelog"
    """Keyed state of the changelog backend (``ChangelogStateBackendHandle``)."""

    RAW = "raw"
    """Streams that an operator wrote itself, in a format that only it knows."""

    ASYNC = "async"
    """Map states of ForSt without the type of their keys, as Flink 2.0 writes them."""

    TRANSACTIONS = "transactions"
    """Uncommitted transactions of sinks (``CommitterOperator``, two-phase-commit sinks)."""


def refused_kinds(names: Collection[str]) -> frozenset[Refused]:
    """Return the kinds with these names; InvalidArgumentError for an unknown name."""
    known = [*Refused]
    for name in names:
        if name not in known:
            raise InvalidArgumentError(
                f"{name!r} cannot be dropped; the kinds to drop are {', '.join(known)}"
            )
    return frozenset(map(Refused, names))


def drop_refused(subtask: Subtask, drop: Collection[Refused]) -> Subtask:
    """Return a subtask without the kinds of state in ``drop``.

    Raises IncompatibleStateError if it has other unsupported state.
    """
    for refused, what in unread_parts(subtask):
        if refused not in drop:
            raise IncompatibleStateError(
                f"subtask {subtask.index} has {what}, or drop it (--drop {refused})"
            )
    is_changelog = isinstance(subtask.keyed, CHANGELOG_HANDLES)
    return replace(
        subtask,
        channels=(),
        raw_operator=None,
        raw_keyed=None,
        keyed=None if is_changelog else subtask.keyed,
    )


def unread_parts(subtask: Subtask) -> Iterator[tuple[Refused, str]]:
    """Yield each unsupported kind of state of a subtask, and its description."""
    if subtask.channels:
        records = f"{len(subtask.channels)} handles of in-flight records"
        yield Refused.IN_FLIGHT, f"{records} of an unaligned checkpoint: take a savepoint"
    if isinstance(subtask.keyed, CHANGELOG_HANDLES):
        what = "its state in the changelog state backend"
        carry = "carry the operator in the export (--carry)"
        yield Refused.CHANGELOG, f"{what}: take a canonical savepoint, {carry}"
    if subtask.raw_keyed is not None or subtask.raw_operator is not None:
        what = "raw state in a format that only the operator knows"
        yield Refused.RAW, f"{what}: carry the operator in the export (--carry)"


def transactions(operator: OperatorHandles) -> Iterator[str]:
    """Yield the names of operator states that hold a sink's transactions."""
    for subtask in operator.subtasks:
        for part in subtask.operator.parts if subtask.operator is not None else ():
            if part.name in _RAW_STATES and part.offsets:
                yield part.name


def transactions_reason(names: str) -> str:
    """Return the reason why these states are refused."""
    return (
        f"{names} has open sink transactions, which a copy would commit again or miss: stop "
        "the job with a savepoint so that they are committed, or drop them (--drop "
        f"{Refused.TRANSACTIONS})"
    )
