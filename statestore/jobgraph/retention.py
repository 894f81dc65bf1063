"""Checkpoint retention: which checkpoints are kept, subsumed and deleted, as an immutable value.

It follows Flink 2.3's ``CheckpointSubsumeHelper`` and ``CheckpointsCleaner``, as used by
``StandaloneCompletedCheckpointStore``. Snapshots are queued in order of arrival. While more than
``limit`` are kept, the oldest one that may be dropped is dropped. The newest snapshot may not be
dropped. Neither may the latest *checkpoint*, unless the newest snapshot is a synchronous savepoint,
which ends the job. So the number of kept snapshots can exceed the limit.

A dropped checkpoint is not deleted immediately. It waits until the oldest kept checkpoint has a
greater id, and while files in its directory are in use. Dropped savepoints and unclaimed snapshots
belong to the user and are never deleted.

Deliberate differences: Flink deletes in the background. Here the caller gets the files to delete
once, before any file is touched. A repeated id is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, NamedTuple

from statestore.errors import InvalidArgumentError, NotFoundError

__all__ = [
    "Added",
    "ClaimMode",
    "Discarded",
    "Ended",
    "ExternalizedRetention",
    "JobEnd",
    "Released",
    "RetainedCheckpoint",
    "Retention",
    "SharedFile",
    "SharedFiles",
    "SnapshotKind",
    "Used",
    "deletes_at_end",
    "restored_kind",
]


# The registry of files that several checkpoints share, and when a file may be deleted.
#
# It follows Flink 2.3's ``SharedStateRegistryImpl``. It does not count references: per key the
# registry has the file, the checkpoint that created it and the last one that used it. Once the
# oldest kept checkpoint is newer than that last use, the file is removed from the registry. It is
# also deleted, unless it belongs to a snapshot that the job did not claim.
#
# Every function returns a new registry; an error leaves the old one unchanged.
#
# Not implemented: Flink's placeholders and confirmations of single files, which handle checkpoints
# that are still being written. Register a checkpoint's files when it is complete.


class ClaimMode(StrEnum):
    """The owner of the snapshot that a job starts from: ``execution.state-recovery.claim-mode``."""

    NO_CLAIM = "NO_CLAIM"
    """The user. The job's first checkpoint is full, so the job does not depend on it afterwards."""

    CLAIM = "CLAIM"
    """The job, which deletes it when it is subsumed."""

    LEGACY = "LEGACY"
    """Nobody: the job never deletes it, but keeps using its files, which must stay forever."""

    @classmethod
    def _missing_(cls, value: object) -> ClaimMode:
        known = ", ".join(repr(mode.value) for mode in cls)
        raise InvalidArgumentError(f"unknown claim mode {value!r}: use one of {known}")

    @property
    def deletes(self) -> bool:
        """True if the job may delete the snapshot and its files."""
        return self is ClaimMode.CLAIM

    @property
    def first_is_full(self) -> bool:
        """True if checkpoints must be full until the first one, except savepoints, is complete."""
        return self is ClaimMode.NO_CLAIM


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file, the checkpoint that created it, and the latest one that used it.

    If ``in_directory`` is true, the file is in the directory of the checkpoint that created it.
    That directory must then be kept as long as the file.
    """

    handle: str
    created_by: int
    last_used_by: int
    in_directory: bool = False


class Used(NamedTuple):
    """The registry after a checkpoint used files, and per key the handle to store."""

    registry: SharedFiles
    handles: dict[str, str]


class Released(NamedTuple):
    """The registry without the files that no kept checkpoint uses.

    ``deleted`` are the handles to delete, sorted. ``in_use`` are the checkpoints, ascending, whose
    directory must be kept even if they are dropped, because a file in it is used.
    """

    registry: SharedFiles
    deleted: tuple[str, ...]
    in_use: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """The files of the kept checkpoints, by key. Start with ``SharedFiles()``.

    Files created by a checkpoint up to ``unclaimed_up_to`` are never deleted; -1 means that all
    files may be deleted. ``native_savepoints`` are restored savepoints with files in their own
    directory.
    """

    files: Mapping[str, SharedFile] = field(default_factory=dict, hash=False)
    unclaimed_up_to: int = -1
    native_savepoints: frozenset[int] = frozenset()

    def use(
        self,
        checkpoint_id: int,
        handles: Mapping[str, str | None],
        *,
        in_directory: bool = False,
    ) -> Used:
        """Return the registry after ``checkpoint_id`` used files, and their handles.

        ``handles`` has the file of each key, or None for the known file. If ``in_directory`` is
        true, new files are in the directory of ``checkpoint_id``.

        Raises NotFoundError for None if no file is known, and InvalidArgumentError for a file that
        differs from the known one: a key always refers to the same file.
        """
        _check_id(checkpoint_id)
        files = dict(self.files)
        for key, handle in handles.items():
            known = files.get(key)
            if known is None and handle is None:
                raise NotFoundError(
                    f"checkpoint {checkpoint_id} uses file {key!r}, which no retained "
                    f"checkpoint has: {_hint(key, files)}; write the file again"
                )
            if known is None:
                assert handle is not None
                files[key] = SharedFile(handle, checkpoint_id, checkpoint_id, in_directory)
            elif handle in (None, known.handle):
                files[key] = replace(known, last_used_by=max(known.last_used_by, checkpoint_id))
            else:
                raise InvalidArgumentError(
                    f"checkpoint {checkpoint_id} passes {handle!r} for {key!r}, which has "
                    f"been {known.handle!r} since checkpoint {known.created_by}: use that "
                    "handle, or another key"
                )
        return Used(replace(self, files=files), {key: files[key].handle for key in handles})

    def restored(
        self, checkpoint_id: int, mode: ClaimMode | str, *, native_savepoint: bool = False
    ) -> SharedFiles:
        """Return the registry of a job that starts from ``checkpoint_id`` and uses its files.

        Unless the job claims the snapshot, files created up to it are never deleted. If
        ``native_savepoint`` is true, its files are in its own directory. Raises
        InvalidArgumentError for an unknown claim mode.
        """
        _check_id(checkpoint_id)
        mark = self.unclaimed_up_to
        if not ClaimMode(mode).deletes:
            mark = max(mark, checkpoint_id)
        own = {checkpoint_id} if native_savepoint else set[int]()
        return replace(self, unclaimed_up_to=mark, native_savepoints=self.native_savepoints | own)

    def release(self, lowest: int) -> Released:
        """Return the registry without files last used before ``lowest``, and the files to delete.

        ``lowest`` is the smallest id of a kept checkpoint, from ``Retention.lowest``. Do not call
        it if that is None.
        """
        _check_id(lowest)
        used = {key: file for key, file in self.files.items() if file.last_used_by >= lowest}
        deleted = (
            file.handle
            for key, file in self.files.items()
            if key not in used and file.created_by > self.unclaimed_up_to
        )
        in_use = {
            file.created_by
            for file in used.values()
            if file.in_directory or file.created_by in self.native_savepoints
        }
        return Released(replace(self, files=used), tuple(sorted(deleted)), tuple(sorted(in_use)))


def _hint(key: str, known: Mapping[str, SharedFile]) -> str:
    close = get_close_matches(key, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"{len(known)} files are known"


def _check_id(checkpoint_id: object) -> None:
    # Python's bool is an int, but a bool as an id is always a mistake.
    if not isinstance(checkpoint_id, int) or isinstance(checkpoint_id, bool) or checkpoint_id < 0:
        raise InvalidArgumentError(
            f"a checkpoint id must be an integer of at least 0, not {checkpoint_id!r}"
        )


class SnapshotKind(StrEnum):
    """The role of a snapshot for the job; only a checkpoint is ever deleted."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    SYNC_SAVEPOINT = "sync_savepoint"  # taken to stop the job
    UNCLAIMED = "unclaimed"  # restored, and still owned by the user

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
    """The handling of kept checkpoints when the job ends.

    It is ``execution.checkpointing.externalized-checkpoint-retention``.
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
class RetainedCheckpoint:
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
        """True if this is the job's own checkpoint, which may be deleted."""
        return self.kind is SnapshotKind.CHECKPOINT


class Added(NamedTuple):
    """The result of a new snapshot: the retention after it, and the dropped ids, oldest first.

    Dropped is not deleted: :meth:`Retention.discard` returns the ids to delete.
    """

    retention: Retention
    subsumed: tuple[int, ...]


class Discarded(NamedTuple):
    """The retention without the checkpoints to delete now, and their ids, ascending."""

    retention: Retention
    deleted: tuple[int, ...]


class Ended(NamedTuple):
    """The snapshots kept after the job, the ids to delete, and the mark for shared files.

    Pass ``release_below`` to ``SharedFiles.release``. It is the smallest kept id, or 2**63 - 1 if
    no snapshot is kept.
    """

    kept: tuple[RetainedCheckpoint, ...]
    deleted: tuple[int, ...]
    release_below: int


@dataclass(frozen=True, slots=True)
class Retention:
    """The kept snapshots, oldest first, and the dropped checkpoints that wait for deletion.

    Start with ``Retention(limit)``. ``limit`` is ``execution.checkpointing.num-retained``. Raises
    InvalidArgumentError if it is below 1: without a checkpoint a failed job could not restart.
    """

    limit: int = 1
    kept: tuple[RetainedCheckpoint, ...] = ()
    waiting: tuple[RetainedCheckpoint, ...] = ()

    def __post_init__(self) -> None:
        _check_at_least(1, "the number of checkpoints to retain", self.limit)

    @property
    def lowest(self) -> int | None:
        """The id of the oldest kept checkpoint: files last used before it may be deleted.

        Pass it to ``SharedFiles.release``. It is None while no checkpoint is kept; then no file may
        be deleted.
        """
        return next((kept.checkpoint_id for kept in self.kept if kept.is_checkpoint), None)

    def add(self, snapshot: RetainedCheckpoint) -> Added:
        """Return the retention with ``snapshot`` as the newest, and the dropped ids.

        Raises InvalidArgumentError if a snapshot with its id is kept or waits for deletion.
        """
        if any(known.checkpoint_id == snapshot.checkpoint_id for known in self.kept + self.waiting):
            raise InvalidArgumentError(
                f"checkpoint {snapshot.checkpoint_id} was already added: each id can be added "
                "only once"
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
        """Return the checkpoints that may be deleted now, and remove them from the waiting ones.

        ``in_use`` are the checkpoints whose directory must be kept, from ``SharedFiles.release``.
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
        """Return the snapshots to keep and to delete when the job ends.

        Kept checkpoints are deleted if :func:`deletes_at_end` says so. Waiting checkpoints are
        deleted if they are older than all that is kept. Savepoints and unclaimed snapshots are
        kept. ``in_use`` is the same as for :meth:`discard`. Raises InvalidArgumentError for an
        unknown name.
        """
        delete = deletes_at_end(setting, how)
        stay = tuple(old for old in self.kept if not (delete and old.is_checkpoint))
        mark = min((old.checkpoint_id for old in stay), default=_ABOVE_ALL)
        gone = [old for old in self.kept if old not in stay]
        gone += [old for old in self.waiting if old.checkpoint_id < mark]
        return Ended(stay, _ids(old for old in gone if old.checkpoint_id not in in_use), mark)


def deletes_at_end(setting: ExternalizedRetention | str, how: JobEnd | str) -> bool:
    """Return whether kept checkpoints are deleted when the job ends.

    It follows ``CheckpointProperties``.

    NO_EXTERNALIZED_CHECKPOINTS always deletes them. DELETE_ON_CANCELLATION keeps them only for a
    failed job. RETAIN_ON_CANCELLATION deletes them only if the job finished. Raises
    InvalidArgumentError for an unknown name.
    """
    return JobEnd(how) not in _KEPT_AT[ExternalizedRetention(setting)]


def restored_kind(mode: ClaimMode | str) -> SnapshotKind:
    """Return the role of the snapshot that a job was started from.

    A claimed snapshot is the job's first checkpoint and is deleted like one. Otherwise it is never
    deleted. Raises InvalidArgumentError for an unknown claim mode.
    """
    claimed = ClaimMode(mode) is ClaimMode.CLAIM
    return SnapshotKind.CHECKPOINT if claimed else SnapshotKind.UNCLAIMED


def _spared(queue: tuple[RetainedCheckpoint, ...]) -> tuple[RetainedCheckpoint, ...]:
    newest = queue[-1]
    latest = [old for old in queue if old.is_checkpoint][-1:]
    return (newest,) if newest.kind is SnapshotKind.SYNC_SAVEPOINT else (newest, *latest)


def _ids(snapshots: Iterable[RetainedCheckpoint]) -> tuple[int, ...]:
    return tuple(sorted(snapshot.checkpoint_id for snapshot in snapshots))


def _names(names: type[StrEnum]) -> str:
    return ", ".join(repr(name.value) for name in names)


def _check_at_least(low: int, name: str, value: object) -> None:
    # Python's bool is an int, but a bool as an id or a number is always a mistake.
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be an int, not {value!r}")
    if value < low:
        raise InvalidArgumentError(f"{name} must be {low} or more, not {value}")
