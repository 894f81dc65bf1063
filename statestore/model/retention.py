"""Which checkpoints are kept, subsumed and deleted, as a value that every new one moves on.

Follows Flink 2.3's ``CheckpointSubsumeHelper`` and ``CheckpointsCleaner``, as
``StandaloneCompletedCheckpointStore`` uses them. Snapshots queue in the order of arrival. While
more than ``limit`` are kept, the oldest that may go is dropped; the newest may not, and neither may
the latest *checkpoint*, unless the newest is a synchronous savepoint, which ends the job. So the
number kept can exceed the limit.

A dropped checkpoint is not deleted at once: it waits until the oldest kept checkpoint has a greater
id, and while files in its directory are in use. Dropped savepoints and unclaimed snapshots belong
to the user and are never deleted.

Differs on purpose: Flink deletes in the background; here the caller is told once what to delete,
before any file is touched. An id that repeats is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from statestore.errors import InvalidArgumentError
from statestore.model.shared_files import ClaimMode

__all__ = [
    "Added",
    "Discarded",
    "Ended",
    "ExternalizedRetention",
    "JobEnd",
    "Retention",
    "Snapshot",
    "SnapshotKind",
    "deletes_at_end",
    "restored_kind",
]


class SnapshotKind(StrEnum):
    """What a snapshot is to the job; only a checkpoint is ever deleted."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    SYNC_SAVEPOINT = "sync_savepoint"  # taken to stop the job
    UNCLAIMED = "unclaimed"  # restored, and still its owner's

    @classmethod
    def _missing_(cls, value: object) -> SnapshotKind:
        raise InvalidArgumentError(f"unknown snapshot kind {value!r}: use one of {_names(cls)}")


class JobEnd(StrEnum):
    """How a job ended."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    SUSPENDED = "suspended"

    @classmethod
    def _missing_(cls, value: object) -> JobEnd:
        raise InvalidArgumentError(f"unknown end of a job {value!r}: use one of {_names(cls)}")


class ExternalizedRetention(StrEnum):
    """What becomes of kept checkpoints when the job ends:
    ``execution.checkpointing.externalized-checkpoint-retention``.
    """

    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"
    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"

    @classmethod
    def _missing_(cls, value: object) -> ExternalizedRetention:
        raise InvalidArgumentError(f"unknown retention {value!r}: use one of {_names(cls)}")


_ABOVE_ALL: Final = 2**63 - 1

_KEPT_AT: Final = {
    ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS: frozenset[JobEnd](),
    ExternalizedRetention.DELETE_ON_CANCELLATION: {JobEnd.FAILED},
    ExternalizedRetention.RETAIN_ON_CANCELLATION: set(JobEnd) - {JobEnd.FINISHED},
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A completed snapshot; ``kind`` may be given by its name.

    Raises InvalidArgumentError for a negative id or an unknown kind.
    """

    checkpoint_id: int
    kind: SnapshotKind = SnapshotKind.CHECKPOINT

    def __post_init__(self) -> None:
        _check_at_least(0, "checkpoint id", self.checkpoint_id)
        object.__setattr__(self, "kind", SnapshotKind(self.kind))

    @property
    def is_checkpoint(self) -> bool:
        """Whether this is the job's own checkpoint, and so may be deleted."""
        return self.kind is SnapshotKind.CHECKPOINT


class Added(NamedTuple):
    """What a new snapshot leads to: the retention after it, and the ids it dropped, oldest first.

    Dropped is not deleted: :meth:`Retention.discard` says what to delete.
    """

    retention: Retention
    subsumed: tuple[int, ...]


class Discarded(NamedTuple):
    """The retention without what is to be deleted now, and the ids of that, ascending."""

    retention: Retention
    deleted: tuple[int, ...]


class Ended(NamedTuple):
    """What stays after the job, the ids to delete, ascending, and the mark for shared files.

    ``release_below`` is to be passed to ``SharedFiles.release``: the smallest id that stays, or
    2**63 - 1 if nothing does.
    """

    kept: tuple[Snapshot, ...]
    deleted: tuple[int, ...]
    release_below: int


@dataclass(frozen=True, slots=True)
class Retention:
    """The snapshots that are kept, oldest first, and the dropped checkpoints that wait for
    deletion. Begin with ``Retention(limit)``.

    ``limit`` is ``execution.checkpointing.num-retained``. Raises InvalidArgumentError if it is
    below 1: without a checkpoint a failed job could not restart.
    """

    limit: int = 1
    kept: tuple[Snapshot, ...] = ()
    waiting: tuple[Snapshot, ...] = ()

    def __post_init__(self) -> None:
        _check_at_least(1, "the number of checkpoints to retain", self.limit)

    @property
    def lowest(self) -> int | None:
        """The id of the oldest kept checkpoint: what only smaller ids used may be deleted.

        Pass it to ``SharedFiles.release``. None, and nothing may be deleted, while no checkpoint
        is kept.
        """
        return next((kept.checkpoint_id for kept in self.kept if kept.is_checkpoint), None)

    def add(self, snapshot: Snapshot) -> Added:
        """Return the retention with ``snapshot`` as the newest, and what it drops.

        Raises InvalidArgumentError if a snapshot with its id is kept or waits for deletion.
        """
        if any(known.checkpoint_id == snapshot.checkpoint_id for known in self.kept + self.waiting):
            raise InvalidArgumentError(
                f"checkpoint {snapshot.checkpoint_id} was added before: ids must not repeat"
            )
        queue = (*self.kept, snapshot)
        spared = _spared(queue)
        surplus = max(0, len(queue) - self.limit)
        dropped = [old for old in queue if old not in spared][:surplus]
        after = replace(
            self,
            kept=tuple(old for old in queue if old not in dropped),
            waiting=(*self.waiting, *(old for old in dropped if old.is_checkpoint)),
        )
        return Added(after, tuple(old.checkpoint_id for old in dropped))

    def discard(self, in_use: Collection[int] = ()) -> Discarded:
        """Return what may be deleted now, which then waits no longer.

        ``in_use`` are the checkpoints whose directory must stay, as ``SharedFiles.release`` tells.
        """
        mark = -1 if self.lowest is None else self.lowest
        gone = [
            old
            for old in self.waiting
            if old.checkpoint_id < mark and old.checkpoint_id not in in_use
        ]
        waiting = tuple(old for old in self.waiting if old not in gone)
        return Discarded(replace(self, waiting=waiting), _ids(gone))

    def end(
        self, how: JobEnd | str, setting: ExternalizedRetention | str, in_use: Collection[int] = ()
    ) -> Ended:
        """Return what stays and what is to be deleted when the job ends.

        Kept checkpoints go where :func:`deletes_at_end` says so. Those that wait go if they are
        older than everything that stays. Savepoints and unclaimed snapshots stay. ``in_use`` is as
        for :meth:`discard`. Raises InvalidArgumentError for a name that does not exist.
        """
        delete = deletes_at_end(setting, how)
        stay = tuple(old for old in self.kept if not (delete and old.is_checkpoint))
        mark = min((old.checkpoint_id for old in stay), default=_ABOVE_ALL)
        gone = [old for old in self.kept if old not in stay]
        gone += [old for old in self.waiting if old.checkpoint_id < mark]
        return Ended(stay, _ids(old for old in gone if old.checkpoint_id not in in_use), mark)


def deletes_at_end(setting: ExternalizedRetention | str, how: JobEnd | str) -> bool:
    """Say whether kept checkpoints are deleted when the job ends, as ``CheckpointProperties`` does.

    NO_EXTERNALIZED_CHECKPOINTS always deletes, DELETE_ON_CANCELLATION keeps them for a job that
    failed, RETAIN_ON_CANCELLATION deletes them only when the job finished.
    Raises InvalidArgumentError for a name that does not exist.
    """
    return JobEnd(how) not in _KEPT_AT[ExternalizedRetention(setting)]


def restored_kind(mode: ClaimMode | str) -> SnapshotKind:
    """Return what the snapshot that a job was started from is to it.

    Claimed, it is the job's first checkpoint and deleted like one; else it is never deleted.
    Raises InvalidArgumentError for an unknown claim mode.
    """
    claimed = ClaimMode(mode) is ClaimMode.CLAIM
    return SnapshotKind.CHECKPOINT if claimed else SnapshotKind.UNCLAIMED


def _spared(queue: tuple[Snapshot, ...]) -> tuple[Snapshot, ...]:
    newest = queue[-1]
    latest = [old for old in queue if old.is_checkpoint][-1:]
    return (newest,) if newest.kind is SnapshotKind.SYNC_SAVEPOINT else (newest, *latest)


def _ids(snapshots: Iterable[Snapshot]) -> tuple[int, ...]:
    return tuple(sorted(snapshot.checkpoint_id for snapshot in snapshots))


def _names(names: type[StrEnum]) -> str:
    return ", ".join(repr(name.value) for name in names)


def _check_at_least(low: int, name: str, value: object) -> None:
    # bool is an int to Python; as an id or a number it is always a mistake.
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be an int, not {value!r}")
    if value < low:
        raise InvalidArgumentError(f"{name} must be {low} or more, not {value}")
