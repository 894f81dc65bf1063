"""Which files several checkpoints share, and when one of them may be deleted, as a value.

Follows Flink 2.3's ``SharedStateRegistryImpl``. There are no reference counts: per key the registry
knows the file, the checkpoint that created it and the last one that used it. Once the oldest
checkpoint that is kept is newer than that last use, the file is forgotten, and deleted unless it
came with a history that the job did not claim.

Every function returns a new registry; an error leaves the old one as it was.

Left out on purpose: the placeholders and the confirmation of single files, with which Flink covers
checkpoints that are still being written. Register a checkpoint's files when it is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import NamedTuple

from statestore.errors import InvalidArgumentError, NotFoundError

__all__ = ["ClaimMode", "Released", "SharedFile", "SharedFiles", "Used"]


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
