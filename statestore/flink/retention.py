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
    "Retention",
    "SharedFile",
    "SharedFiles",
    "Snapshot",
    "SnapshotKind",
    "Used",
    "deletes_at_end",
    "restored_kind",
]


# Which files several checkpoints share, and when one of them may be deleted, as a value.
#
# Follows Flink 2.3's ``SharedStateRegistryImpl``. There are no reference counts: per key the
# registry knows the file, the checkpoint that created it and the last one that used it. Once the
# oldest checkpoint that is kept is newer than that last use, the file is forgotten, and deleted
# unless it came with a history that the job did not claim.
#
# Every function returns a new registry; an error leaves the old one as it was.
#
# Left out on purpose: the placeholders and the confirmation of single files, with which Flink
# covers checkpoints that are still being written. Register a checkpoint's files when it is
# complete.


class ClaimMode(StrEnum):
    """Who owns the snapshot that a job starts from: ``execution.state-recovery.claim-mode``."""

    NO_CLAIM = "NO_CLAIM"
    """Its owner. The job's first checkpoint is full, so that nothing depends on it afterwards."""

    CLAIM = "CLAIM"
    """The job, which deletes it when it is subsumed."""

    LEGACY = "LEGACY"
    """Nobody: the job never deletes it, and goes on using its files, which must stay for ever."""

    @classmethod
    def _missing_(cls, value: object) -> ClaimMode:
        known = ", ".join(repr(mode.value) for mode in cls)
        raise InvalidArgumentError(f"unknown claim mode {value!r}: use one of {known}")

    @property
    def deletes(self) -> bool:
        """Whether the job may delete the snapshot and its files."""
        return self is ClaimMode.CLAIM

    @property
    def first_is_full(self) -> bool:
        """Whether checkpoints must be full until the first one, savepoints apart, is complete."""
        return self is ClaimMode.NO_CLAIM


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file, the checkpoint that created it, and the latest one that used it.

    ``in_directory`` says that it lies in the directory of the checkpoint that created it, which
    must then outlive it.
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
    directory must stay although they may be gone, because a file in it is used.
    """

    registry: SharedFiles
    deleted: tuple[str, ...]
    in_use: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """The files of the kept checkpoints, by key. Begin with ``SharedFiles()``.

    Files created by a checkpoint up to ``unclaimed_up_to`` are never deleted; -1 means that all
    may be. ``native_savepoints`` were restored and hold their files in their own directory.
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

        ``handles`` holds per key the file, or None for the one that is known. ``in_directory`` says
        that files new here lie in the directory of ``checkpoint_id``.

        Raises NotFoundError for None where no file is known, and InvalidArgumentError where another
        file is: a key names one file for ever.
        """
        _check_id(checkpoint_id)
        files = dict(self.files)
        for key, handle in handles.items():
            known = files.get(key)
            if known is None and handle is None:
                raise NotFoundError(
                    f"checkpoint {checkpoint_id} uses file {key!r}, which no kept checkpoint has: "
                    f"{_hint(key, files)}; write the file again"
                )
            if known is None:
                assert handle is not None
                files[key] = SharedFile(handle, checkpoint_id, checkpoint_id, in_directory)
            elif handle in (None, known.handle):
                files[key] = replace(known, last_used_by=max(known.last_used_by, checkpoint_id))
            else:
                raise InvalidArgumentError(
                    f"checkpoint {checkpoint_id} gives {handle!r} for {key!r}, which is "
                    f"{known.handle!r} since checkpoint {known.created_by}: use that one, or "
                    "another key"
                )
        return Used(replace(self, files=files), {key: files[key].handle for key in handles})

    def restored(
        self, checkpoint_id: int, mode: ClaimMode | str, *, native_savepoint: bool = False
    ) -> SharedFiles:
        """Return the registry of a job that starts from ``checkpoint_id``, its files being used.

        Unless the job claims the snapshot, no file created up to it is ever deleted.
        ``native_savepoint`` says that its files lie in its own directory.
        Raises InvalidArgumentError for an unknown claim mode.
        """
        _check_id(checkpoint_id)
        mark = self.unclaimed_up_to
        if not ClaimMode(mode).deletes:
            mark = max(mark, checkpoint_id)
        own = {checkpoint_id} if native_savepoint else set[int]()
        return replace(self, unclaimed_up_to=mark, native_savepoints=self.native_savepoints | own)

    def release(self, lowest: int) -> Released:
        """Return the registry without files last used before ``lowest``, and what to delete.

        ``lowest`` is the smallest checkpoint id that is kept, from ``Retention.lowest``; where that
        is None, do not call.
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
    # bool is an int to Python; as an id it is always a mistake.
    if not isinstance(checkpoint_id, int) or isinstance(checkpoint_id, bool) or checkpoint_id < 0:
        raise InvalidArgumentError(f"a checkpoint id is an int from 0 on, not {checkpoint_id!r}")


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
