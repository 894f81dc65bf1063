"""Delete the files under a Flink checkpoint folder that no checkpoint or savepoint names.

The folder is ``execution.checkpointing.dir`` of some jobs. Each job writes below its id
(``AbstractFsCheckpointStorageAccess``, ``StateChangeFsUploader``)::

    <job>/chk-<n>/_metadata     a completed checkpoint: the names of all its files
    <job>/chk-<n>/<uuid>        files of this checkpoint only
    <job>/shared/<uuid>         files of several checkpoints: SST files of RocksDB and ForSt
    <job>/taskowned/<uuid>      files that tasks write: materialized changelogs, write-ahead logs
    <job>/dstl/<uuid>           changelogs
    <job>/shared/<x>/…          merged files, and the working files of ForSt

**Why a running job is not harmed.**

* *A checkpoint in progress* has files that no metadata names yet. They are younger than the minimum
  age, which must exceed the longest checkpoint.
* *A changelog, or its materialization,* is written long before a checkpoint names it if checkpoints
  fail meanwhile. So a file must also be older, by the minimum age, than the newest completed
  checkpoint of its job. A later checkpoint needs no older file that this one lacks: an SST file or
  a change that exists at two checkpoints is in each one between them. Both times are the file
  system's, so its clock does not matter. Without a completed checkpoint all files of the job stay.
* *Merged files, and ForSt's working files,* may be open at any age (``PhysicalFilePool``).
* *Write-ahead logs* are named in the content of operator state (``GenericWriteAheadSink``). While a
  checkpoint has such state, all plain files in ``taskowned`` stay.
* *Another job* may use files of this one if it claimed its checkpoint (CLAIM), or was restored with
  LEGACY. So all metadata below the folder is read, and the folder of one job is refused. With
  NO_CLAIM the first checkpoint is a full one, and until then the restored one must stay, as Flink
  demands.
* *A checkpoint that is completed or subsumed meanwhile:* files and metadata are listed at least
  twice, and all metadata of the last listing was read. All names that were ever read count.

A file is named if some metadata names a file with the same last part of the path, which is a UUID.
So it does not matter by which URL, link or mount a job reaches the folder, or whether it was moved.
No metadata is deleted, and no folder.
"""

from __future__ import annotations

import posixpath
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Literal

from statestore.durations import Duration, milliseconds_of
from statestore.errors import InvalidArgumentError, StateStoreError, StorageError
from statestore.interop.flink.metadata.metadata_file import read_metadata
from statestore.interop.flink.read.refusals import WRITE_AHEAD, transactions
from statestore.interop.flink.read.savepoint_files import (
    METADATA,
    open_location,
    read_metadata_file,
)
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance.gc import FileAmount, amount_of_files, delete_files
from statestore.maintenance.gc_mark import is_old
from statestore.storage import Listed, Storage

Kind = Literal["checkpoint", "shared", "taskowned", "changelog", "nested", "other"]
_ReadError = StateStoreError | FileNotFoundError
Kept = Literal["named", "young", "no checkpoint", "may be open", "write-ahead log", "unknown file"]

DEFAULT_MINIMUM_AGE = "7d"
_JOB = re.compile(r"[0-9a-f]{32}")
_KINDS: dict[str, Kind] = {"shared": "shared", "taskowned": "taskowned", "dstl": "changelog"}
_CHECKPOINT = re.compile(r"chk-\d+")
_LOOKS = 5
_READERS = 4
_DAY_MS = 24 * 3_600_000
_AGES_DAYS = (0, 1, 7, 30, 90, 365)


@dataclass(frozen=True, kw_only=True)
class FlinkFiles:
    """Files of one kind in the folder of a job, with the same outcome.

    ``job`` is None for files outside of such folders. ``kept`` is the reason why they stay; None if
    they were deleted, or would be in a dry run. ``oldest_ms`` is the time of the oldest one.
    """

    job: str | None
    kind: Kind
    kept: Kept | None
    files: int
    size_bytes: int
    oldest_ms: int


@dataclass(frozen=True, kw_only=True)
class FilesByAge:
    """Deleted files that are at least ``days`` old, and younger than the next entry's files."""

    days: int
    files: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class CollectedFlinkFiles:
    """The files under a checkpoint folder, and which of them were deleted, or would be.

    ``checkpoints`` is the number of ``_metadata`` files that were read, of checkpoints and
    savepoints. ``removed`` are the deleted files, which ``by_age`` and ``names`` list.
    """

    folder: str
    dry_run: bool
    checkpoints: int
    removed: FileAmount
    by_age: tuple[FilesByAge, ...]
    groups: tuple[FlinkFiles, ...]
    names: tuple[str, ...]


def collect_flink_files(
    folder: str,
    *,
    minimum_age: Duration = DEFAULT_MINIMUM_AGE,
    dry_run: bool = True,
    also_keep: Collection[str] = (),
    ended: Collection[str] = (),
    on_progress: Progress | None = None,
) -> CollectedFlinkFiles:
    """Delete old files under a checkpoint folder that no checkpoint or savepoint names.

    Args:
        folder: ``execution.checkpointing.dir`` of all jobs that use its files.
        minimum_age: only files above this age are deleted. It must exceed the time of a checkpoint,
            and of the materialization of a changelog.
        dry_run: reports what would be deleted, and deletes nothing.
        also_keep: folders elsewhere with checkpoints and savepoints whose files stay, too.
        ended: ids of jobs that will never run again. Their files need only the minimum age.
        on_progress: called with the number of deleted files and the total.

    Returns:
        The files, by job, kind and outcome.

    Raises:
        InvalidArgumentError: for a minimum age of 0, an empty path, a folder without folders of
            jobs or of one job alone, a folder in ``also_keep`` without metadata, or an unknown job.
        DamagedFileError, FormatVersionError or StorageError: before anything is deleted, if a file
            ``_metadata`` cannot be read. The message names it.
    """
    minimum_age_ms = milliseconds_of(minimum_age)
    if minimum_age_ms == 0:
        raise InvalidArgumentError(
            "the minimum age must not be 0: no metadata names the files of a checkpoint in progress"
        )
    storage = open_location(folder, None)
    if _JOB.fullmatch(posixpath.basename(storage.url)):
        raise InvalidArgumentError(
            f"{storage.url} is the folder of one job, whose files checkpoints of other jobs may "
            "use: pass the folder above it"
        )
    elsewhere = [open_location(re.sub(f"/{METADATA}/*$", "/", each), None) for each in also_keep]
    files, named = _look(storage, elsewhere)
    jobs = {_place(item.name)[0] for item in files} - {None}
    if not jobs:
        raise InvalidArgumentError(
            f"{storage.url} has no folder of a job, whose name is the job's id: pass the folder "
            "of execution.checkpointing.dir"
        )
    if unknown := sorted({*ended} - jobs):
        raise InvalidArgumentError(f"{storage.url} has no folder of the job {', '.join(unknown)}")
    now_ms = time.time_ns() // 1_000_000
    outcomes = [(item, _keep(item, named, {*ended}, minimum_age_ms, now_ms)) for item in files]
    removed = [item for item, kept in outcomes if kept is None]
    if not dry_run:
        delete_files(storage, [item.name for item in removed], on_progress or ignore_progress)
    return CollectedFlinkFiles(
        folder=storage.url,
        dry_run=dry_run,
        checkpoints=named.checkpoints,
        removed=amount_of_files(removed),
        by_age=tuple(_by_age(removed, now_ms)),
        groups=tuple(_group(outcomes)),
        names=tuple(item.name for item in removed),
    )


class _Named:
    """What the metadata that was read so far names.

    ``newest_ms`` is the time of each job's newest checkpoint. ``has_write_ahead`` is true if a sink
    has names of files in its own state.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.newest_ms: dict[str, int] = {}
        self.has_write_ahead = False
        self._read: set[tuple[str, Listed]] = set()

    @property
    def checkpoints(self) -> int:
        """The number of metadata files that were read."""
        return len(self._read)

    def read(self, storage: Storage, metadata: Iterable[Listed]) -> list[_ReadError]:
        """Read the metadata that was not read before; return the errors."""
        new = [item for item in metadata if (storage.url, item) not in self._read]
        errors = list[_ReadError]()
        with ThreadPoolExecutor(_READERS) as pool:
            for item, found in zip(new, pool.map(partial(_read, storage), new), strict=True):
                if isinstance(found, _Metadata):
                    self._add(item, found)
                    self._read.add((storage.url, item))
                else:
                    errors.append(found)
        return errors

    def _add(self, item: Listed, metadata: _Metadata) -> None:
        self.names |= metadata.names
        self.has_write_ahead |= metadata.has_write_ahead
        job, kind = _place(item.name)
        if job is not None and kind == "checkpoint":
            self.newest_ms[job] = max(item.modified_ms, self.newest_ms.get(job, 0))


@dataclass(frozen=True)
class _Metadata:
    names: frozenset[str]
    has_write_ahead: bool


def _read(storage: Storage, item: Listed) -> _Metadata | _ReadError:
    try:
        data = read_metadata_file(storage, item.name)
        metadata = read_metadata(data, f"{storage.url}/{item.name}")
    except (StateStoreError, FileNotFoundError) as error:
        return error
    names = frozenset(map(posixpath.basename, metadata.paths))
    sinks = chain.from_iterable(map(transactions, metadata.operators))
    return _Metadata(names, WRITE_AHEAD in sinks)


def _look(storage: Storage, elsewhere: Iterable[Storage]) -> tuple[list[Listed], _Named]:
    """Return the files that two listings have, and what all metadata of the later one names."""
    named, before = _Named(), dict[str, Listed]()
    for look in range(_LOOKS):
        listing = storage.listed("")
        errors = named.read(storage, _list_metadata(listing))
        for other in elsewhere:
            metadata = _list_metadata(other.listed(""))
            if not metadata:
                raise InvalidArgumentError(
                    f"{other.url} has no checkpoint or savepoint, so it is unknown what it keeps"
                )
            errors += named.read(other, metadata)
        if look > 0 and not errors:
            return [item for item in listing if before.get(item.name) == item], named
        before = {item.name: item for item in listing}
    error = errors[0]
    if isinstance(error, FileNotFoundError):
        raise StorageError(
            f"nothing was deleted: the checkpoints in {storage.url} come and go before they can be "
            "read; run the command again"
        ) from error
    raise type(error)(
        f"nothing was deleted: {error}. Its files cannot be told from others. If no job needs it, "
        "move it away"
    ) from error


def _list_metadata(listing: Iterable[Listed]) -> list[Listed]:
    return [item for item in listing if posixpath.basename(item.name) == METADATA]


def _place(name: str) -> tuple[str | None, Kind]:
    """Return the job and the kind of a file, by its name below the checkpoint folder."""
    parts = name.split("/")
    at = next((at for at, part in enumerate(parts[:-1]) if _JOB.fullmatch(part)), None)
    if at is None:
        return None, "other"
    job, top, deeper = parts[at], parts[at + 1], parts[at + 2 :]
    if not deeper or deeper[-1].startswith("."):
        return job, "other"
    if len(deeper) > 1:
        is_flinks = top in ("shared", "taskowned") or top.startswith("op_")
        return job, "nested" if is_flinks else "other"
    return job, "checkpoint" if _CHECKPOINT.fullmatch(top) else _KINDS.get(top, "other")


def _keep(
    item: Listed, named: _Named, ended: Collection[str], minimum_age_ms: int, now_ms: int
) -> Kept | None:
    """Return why a file stays; None if nothing needs it."""
    job, kind = _place(item.name)
    name = posixpath.basename(item.name)
    if name == METADATA or name in named.names:
        return "named"
    if job is None or kind == "other":
        return "unknown file"
    if kind == "taskowned" and named.has_write_ahead:
        return "write-ahead log"
    newest_ms = now_ms if job in ended else named.newest_ms.get(job)
    if kind == "nested" and job not in ended:
        return "may be open"
    if newest_ms is None:
        return "no checkpoint"
    return None if is_old(item.modified_ms, minimum_age_ms, min(newest_ms, now_ms)) else "young"


def _group(outcomes: Iterable[tuple[Listed, Kept | None]]) -> Iterator[FlinkFiles]:
    groups = defaultdict[tuple[str | None, Kind, Kept | None], list[Listed]](list)
    for item, kept in outcomes:
        groups[*_place(item.name), kept].append(item)
    for (job, kind, kept), items in sorted(groups.items(), key=lambda group: str(group[0])):
        amount = amount_of_files(items)
        yield FlinkFiles(
            job=job,
            kind=kind,
            kept=kept,
            files=amount.files,
            size_bytes=amount.size_bytes,
            oldest_ms=min(item.modified_ms for item in items),
        )


def _by_age(items: Iterable[Listed], now_ms: int) -> Iterator[FilesByAge]:
    ages = defaultdict[int, list[Listed]](list)
    for item in items:
        age_days = (now_ms - item.modified_ms) // _DAY_MS
        ages[max(days for days in _AGES_DAYS if days <= max(age_days, 0))].append(item)
    for days, found in sorted(ages.items()):
        amount = amount_of_files(found)
        yield FilesByAge(days=days, files=amount.files, size_bytes=amount.size_bytes)
