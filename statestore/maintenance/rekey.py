"""Rekey: the keyed states of an operator over other key groups, as a new checkpoint.

Any other max parallelism, another hash scheme, or for a single state another key, made of columns
that it has. Each row is read once; the digest of all rows is the same before and after, because it
does not depend on which of their columns are the key. With a working folder a run that was ended
goes on where it was: files that it has written get names of the next run, and nobody deletes them.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from statestore.errors import CorruptionError, InvalidArgumentError, StorageError
from statestore.files.keyed import KeyedTarget
from statestore.format.documents import converted
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.format.manifest_json import keyed_from_json, keyed_to_json
from statestore.format.state import KeyedState
from statestore.maintenance.derive import Deriver, new_name
from statestore.maintenance.edit import carry_others
from statestore.maintenance.rekey_plan import (
    RekeyRequest,
    Spread,
    chosen,
    graph_wanted,
    refuse_mixed,
    spread,
    state_wanted,
    write_range,
)
from statestore.snapshot.writer import CheckpointWriter
from statestore.storage.base import named
from statestore.storage.temporary import temporary_folder

__all__ = [
    "RekeyReport",
    "RekeyRequest",
    "RekeyedState",
    "WorkingFolder",
    "rekey",
    "working_folder",
]


# The working folder of a rekey: of one run at a time, and what an ended one leaves for the next.
#
# A run holds the lock of a file in the folder. The system lets go of it when the process dies,
# however that happens, and not before: who stalls keeps the folder, and nobody has to guess whether
# a run is dead. A file system that has no locks is refused. Where a network file system is mounted
# with locks of each host alone, runs of two hosts could still meet: they would find by digest what
# they do to each other's rows, and neither deletes a file of the store that the other one has
# named.


_LOCK, _JOB = "rekey.lock", "rekey.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkingFolder:
    """A folder, and the documents in it; ``kept`` says that another run may go on from it."""

    path: Path
    kept: bool

    def below(self, name: str) -> WorkingFolder:
        """Return a folder inside it, made if it is to be made."""
        (self.path / name).mkdir(exist_ok=True)
        return WorkingFolder(self.path / name, self.kept)

    def read(self, name: str) -> Any:
        """Return a document, None when there is none; CorruptionError when it is cut off."""
        path = self.path / name
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CorruptionError(
                f"{path} was not written to its end; give an empty working folder"
            ) from error

    def put(self, name: str, content: Any) -> None:
        """Write a document whole or not at all."""
        beside = (self.path / name).with_suffix(".new")
        beside.write_text(json.dumps(content))
        beside.replace(self.path / name)


@contextmanager
def working_folder(path: Path | None, job: dict[str, Any]) -> Iterator[WorkingFolder]:
    """Yield the working folder, or a temporary one, for a block that does ``job``; it is empty when
    the block has ended without an error.

    Raises InvalidArgumentError for a folder that another run holds, that is of another job, or that
    holds anything else, and StorageError for one that cannot be used, also within the block.
    """
    with ExitStack() as held:
        if path is None:
            folder = WorkingFolder(held.enter_context(temporary_folder("rekey")), kept=False)
        else:
            folder = WorkingFolder(path, kept=True)
        with named("use the working folder", str(folder.path)):
            if folder.kept:
                _take(folder, job, held)
            yield folder
        if folder.kept:
            _clear(folder.path)


def _take(folder: WorkingFolder, job: dict[str, Any], held: ExitStack) -> None:
    """Hold the folder, and say in it what it is for."""
    folder.path.mkdir(parents=True, exist_ok=True)
    _refuse_strangers(folder)
    _lock(folder.path / _LOCK, held)
    _refuse_strangers(folder)
    known = folder.read(_JOB)
    if known is None:
        folder.put(_JOB, job)
    elif known != job:
        raise InvalidArgumentError(
            f"{folder.path} is the working folder of another rekey; give an empty folder"
        )


def _refuse_strangers(folder: WorkingFolder) -> None:
    """Refuse a folder that is no working folder yet, and is not empty."""
    own = {_LOCK, Path(_JOB).with_suffix(".new").name}
    others = {path.name for path in folder.path.iterdir()} - own
    if others and _JOB not in others:
        raise InvalidArgumentError(f"{folder.path} is not empty; give an empty working folder")


def _lock(path: Path, held: ExitStack) -> None:
    """Hold a file against every other process, and say in it who does."""
    while True:
        # Opened to be written: a network file system locks no other.
        file: BinaryIO = held.enter_context(path.open("a+b"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read(200).decode(errors="replace") or "another process"
            raise InvalidArgumentError(
                f"another rekey is at work in {path.parent}: {holder}; wait until it has ended, or "
                "end it, or give another working folder"
            ) from None
        except OSError as error:
            raise StorageError(
                f"cannot lock {path}: {error.strerror}; give a working folder on a file system "
                "that has locks"
            ) from error
        if _is_named(path, file):
            break
    file.truncate(0)
    file.write(f"{socket.gethostname()}:{os.getpid()}".encode())
    file.flush()


def _is_named(path: Path, file: BinaryIO) -> bool:
    """Return whether the file is there still: who held it before may have deleted it at its end."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _clear(work: Path) -> None:
    """Empty the folder, the lock last; what has been committed is not taken back by a failure."""
    try:
        for path in sorted(work.rglob("*"), reverse=True):
            if path.name != _LOCK:
                path.rmdir() if path.is_dir() else path.unlink()
        (work / _LOCK).unlink()
    except OSError as error:
        _log.warning("the working folder %s could not be emptied: %s; delete it", work, error)


Progress = Callable[[int, int], None]
_SPREAD, _WRITTEN = "spread.json", "written.json"


@dataclass(frozen=True, kw_only=True)
class RekeyedState:
    """A state before and after. ``digest`` is that of its rows, which did not change; it, ``files``
    and ``size_bytes`` are None in a dry run, where ``rows`` are those in files, changes with them.
    """

    state: str
    rows: int
    digest: int | None
    key_before: tuple[str, ...]
    key: tuple[str, ...]
    max_parallelism_before: int
    max_parallelism: int
    hash_scheme_before: str
    hash_scheme: str
    files: int | None
    size_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class RekeyReport:
    """What was done, or with ``dry_run`` would be: the checkpoint that it was done to, the new one
    (None in a dry run), and the states. ``read_bytes`` are those of the files that were read.
    ``left_out`` is what the new checkpoint lacks of its source.
    """

    store: str
    dry_run: bool
    checkpoint_id: int
    new_checkpoint_id: int | None
    uid: str
    read_bytes: int
    states: tuple[RekeyedState, ...]
    left_out: tuple[LeftOutState, ...] = ()


def rekey(
    deriver: Deriver,
    wanted: RekeyRequest,
    *,
    checkpoint: int | str,
    work: Path | None,
    dry_run: bool,
    progress: Progress,
) -> RekeyReport:
    """Make a new checkpoint with an operator's states over other key groups.

    ``work`` is an empty folder, or that of a run of the same that was ended, and of one run at a
    time; by default a temporary one, from which nothing goes on, and then a run that fails leaves
    no file in the store.
    ``progress`` hears of rows read and written, of twice as many. A dry run reads no rows. Raises
    CheckpointNotFoundError, StateNotFoundError, InvalidArgumentError, UnsupportedTypeError,
    ParallelismError, NullKeyError or DuplicateKeyError for what the new key makes of the rows,
    CorruptionError, CommitConflictError or StorageError. Nothing is visible of a run that fails.
    """
    manifest, seen = deriver.look(checkpoint)
    entries = chosen(manifest, wanted)
    states = [state_wanted(manifest, entry, wanted) for entry in entries]
    refuse_mixed(manifest, entries, states)
    ranges = {uid: own for uid, own in manifest.ranges.items() if uid != wanted.uid}
    # The rows of a missing key group belong to several of the new ones.
    last_group = states[0].max_parallelism - 1
    left_out = tuple(
        replace(one, first=0, last=last_group)
        if one.operator == wanted.uid and one.first is not None
        else one
        for one in manifest.left_out
    )
    like = replace(
        manifest, graph=graph_wanted(manifest, states[0]), ranges=ranges, left_out=left_out
    )
    done: list[KeyedEntry] = []
    new_id = None
    if not dry_run:
        job = _job(manifest, wanted, entries)
        # The folder is held until the checkpoint is committed, or given up.
        with working_folder(work, job) as folder, deriver.begin(like, seen=seen) as writer:
            counter = _Counter(2 * sum(entry.rows for entry in entries), progress)
            for place, (entry, state) in enumerate(zip(entries, states, strict=True)):
                own = folder.below(str(place))
                done.append(_Run(deriver, writer, entry, state, own, counter).finish())
            names = [name for entry in done for name in _names(entry)]
            writer.collected.carry_written(done, names, kept=folder.kept)
            carry_others(writer, manifest, {(e.state.uid, e.state.name) for e in done})
            writer.say_origin(_origin(manifest, wanted, done))
        new_id = writer.id
    after = done or [KeyedEntry(state, entries[0].table, ()) for state in states]
    return RekeyReport(
        store=deriver.catalog.storage.url,
        dry_run=dry_run,
        checkpoint_id=manifest.checkpoint_id,
        new_checkpoint_id=new_id,
        uid=wanted.uid,
        read_bytes=sum(entry.size_bytes for entry in entries),
        states=tuple(_reported(a, b, dry_run) for a, b in zip(entries, after, strict=True)),
        left_out=left_out,
    )


@dataclass
class _Counter:
    total: int
    progress: Progress
    done: int = 0

    def add(self, rows: int) -> None:
        self.done += rows
        self.progress(min(self.done, self.total), self.total)


@dataclass(frozen=True)
class _Run:
    """One state under way: what of it is in the working folder is not done again."""

    deriver: Deriver
    writer: CheckpointWriter
    entry: KeyedEntry
    state: KeyedState
    work: WorkingFolder
    counter: _Counter

    def finish(self) -> KeyedEntry:
        """Return the state with its new files; CorruptionError unless its rows are the same."""
        spilled = self._spilled()
        known = self._known()
        for place in range(len(known), spilled.ranges):
            handles = write_range(self.work.path, place, self._target())
            known.append(replace(self._empty(), handles=handles))
            if not self.work.kept:
                # Nobody can go on from here, so an error deletes what was written.
                self.writer.collected.carry_written((), _names(known[-1]))
            self._note(known)
            self.counter.add(known[-1].rows)
        handles = tuple(handle for one in known for handle in one.handles)
        done = replace(self._empty(), handles=handles)
        self._prove(spilled, done)
        return done

    def _prove(self, spilled: Spread, done: KeyedEntry) -> None:
        """Refuse rows that are not those that were stored; with changes that is known of what was
        read, because what they leave is.
        """
        sets = [(spilled.rows, spilled.digest), (done.rows, done.digest)]
        if not self.entry.layers:
            sets.insert(0, (self.entry.rows, self.entry.digest))
        if len(set(sets)) > 1:
            told = ", then ".join(f"{rows} rows with digest {digest:016x}" for rows, digest in sets)
            raise CorruptionError(
                f"{self.state} has stored, read and written rows that are not the same: {told}; "
                "nothing was committed. Verify the checkpoint, and give an empty working folder"
            )

    def _empty(self) -> KeyedEntry:
        return KeyedEntry(self.state, self.entry.table.without_version(), ())

    def _target(self) -> KeyedTarget:
        storage, options = self.deriver.catalog.storage, self.deriver.parquet
        number, _ = self.writer.planned
        return KeyedTarget.of(storage, self._empty(), number, options)

    def _spilled(self) -> Spread:
        known = self.work.read(_SPREAD)
        if known is not None:
            self.counter.add(self.entry.rows)
            return Spread(**known)
        storage = self.deriver.catalog.storage
        most_bytes = self.deriver.parquet.rekey_bytes
        found = spread(
            storage, self.entry, self.state, self.work.path, self.counter.add, most_bytes
        )
        self.work.put(_SPREAD, vars(found))
        return found

    def _known(self) -> list[KeyedEntry]:
        """Return the ranges that were written before, as far as their files are still there, under
        names of this run.
        """
        written = self.work.read(_WRITTEN)
        if written is None:
            return []
        known: list[KeyedEntry] = []
        name = str(self.work.path / _WRITTEN)
        for at, item in enumerate(converted(written, list[Any], name)):
            one = self._adopted(keyed_from_json(item, self.state.uid, name, f"[{at}]"))
            if one is None:
                break
            known.append(one)
            self.counter.add(one.rows)
        self.deriver.catalog.storage.sync([name for one in known for name in _names(one)])
        self._note(known)
        return known

    def _adopted(self, entry: KeyedEntry) -> KeyedEntry | None:
        """Return a range with new names for its files; None when they cannot be had."""
        storage, folder = self.deriver.catalog.storage, entry.table.path
        handles = []
        for handle in entry.handles:
            new = new_name(handle, self.writer.planned[0])
            old, adopted = f"{folder}/{handle.path}", f"{folder}/{new}"
            try:
                whole = storage.size(old) == handle.size_bytes
                if not (whole and storage.renew(old, adopted)):
                    return None
            except FileNotFoundError:
                return None
            handles.append(replace(handle, path=new, host=""))
        return replace(entry, handles=tuple(handles))

    def _note(self, known: Sequence[KeyedEntry]) -> None:
        self.work.put(_WRITTEN, [keyed_to_json(one) for one in known])


def _job(manifest: Manifest, wanted: RekeyRequest, entries: Sequence[KeyedEntry]) -> dict[str, Any]:
    files = [[handle.sha256 for part in e.parts for handle in part.handles] for e in entries]
    return {
        "store_id": manifest.store_id,
        "checkpoint": manifest.checkpoint_id,
        "wanted": [
            wanted.uid,
            wanted.name,
            wanted.max_parallelism,
            None if wanted.key is None else list(wanted.key),
            wanted.hash_scheme,
        ],
        "files": files,
    }


def _origin(manifest: Manifest, wanted: RekeyRequest, done: Sequence[KeyedEntry]) -> dict[str, Any]:
    return {
        "command": "rekey",
        "checkpoint": manifest.checkpoint_id,
        "operator": wanted.uid,
        "states": [
            {
                "state": entry.state.name,
                "key": entry.state.key,
                "max_parallelism": entry.state.max_parallelism,
                "hash_scheme": entry.state.hash_scheme,
            }
            for entry in done
        ],
    }


def _names(entry: KeyedEntry) -> list[str]:
    return [entry.table.name_of(handle) for handle in entry.handles]


def _reported(before: KeyedEntry, after: KeyedEntry, dry_run: bool) -> RekeyedState:
    old, new = before.state, after.state
    return RekeyedState(
        state=new.name,
        rows=before.rows if dry_run else after.rows,
        digest=None if dry_run else after.digest,
        key_before=old.key,
        key=new.key,
        max_parallelism_before=old.max_parallelism,
        max_parallelism=new.max_parallelism,
        hash_scheme_before=old.hash_scheme,
        hash_scheme=new.hash_scheme,
        files=None if dry_run else len(after.handles),
        size_bytes=None if dry_run else after.size_bytes,
    )
