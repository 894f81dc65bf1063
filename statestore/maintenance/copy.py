"""Copy: a checkpoint or savepoint to another store, verified, and able to go on after a kill.

Data files get new names in the target. What the target has already, with the right length and
SHA-256, is not copied again: a copy, whole or killed, left it there (``copy_files.py``). Bytes are
hashed while they are copied, and the target's manifest is put after the last of them, so what the
target shows is what the source's manifest promised.

The new checkpoint has the target's next id, and its ``origin`` names the store, the checkpoint and
the writer that it was copied from: by that a second copy finds the first. A number alone is not
enough: of a store that was copied as files, or brought back from a backup, there are two that went
on by themselves. Tables get the target's format, and a Delta log of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from statestore.catalog.catalog import Catalog
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    MalformedManifestError,
    ParallelismError,
    SchemaMismatchError,
    StoreNotFoundError,
)
from statestore.format.documents import Savepoint, check_savepoint_name, is_savepoint_name
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Entry, KeyedEntry, Manifest, TableRef
from statestore.maintenance.copy_files import FileCopy, Progress, data_files
from statestore.maintenance.derive import Deriver
from statestore.snapshot.attempt import History
from statestore.storage import Storage

__all__ = [
    "CopiedCheckpoint",
    "copy",
    "fork",
]


@dataclass(frozen=True, kw_only=True)
class CopiedCheckpoint:
    """What was copied, or with ``dry_run`` would be.

    ``new_id`` is the checkpoint in the target, None in a dry run that found none; ``found`` says
    that an earlier copy had made it. ``left_out`` is what the checkpoint lacks of its source, and
    so does the copy. ``copied_files`` and ``copied_bytes`` are those that the
    target lacked.
    """

    store: str
    target: str
    dry_run: bool
    checkpoint_id: int
    new_id: int | None
    found: bool
    savepoint: str | None
    files: int
    size_bytes: int
    copied_files: int
    copied_bytes: int
    left_out: tuple[LeftOutState, ...] = ()


def copy(
    source: Catalog,
    checkpoint: int | str,
    target: Storage,
    deriver: Callable[[Catalog], Deriver],
    *,
    table_format: str | None = None,
    layout: str | None = None,
    as_savepoint: str | None,
    dry_run: bool,
    progress: Progress,
    linked: bool = False,
) -> CopiedCheckpoint:
    """Copy a checkpoint, and if it was named by a savepoint the savepoint; return what was done.

    ``deriver`` makes the writer of the target. A store that is made remembers ``table_format`` and
    ``layout``, by default the source's. ``linked`` gives files a second name where it can, instead
    of copying them. ``progress`` hears of bytes, and of how many. Raises CheckpointNotFoundError,
    InvalidArgumentError for the source itself, a savepoint's name that the target has for another
    checkpoint or a table format that is not the target's, ParallelismError or SchemaMismatchError
    when the target has a state of that name with other keys, MissingFileError or DamagedFileError
    for a file of the source that is not what was written, CommitConflictError, or StorageError.
    After any of them it can be run again, and goes on.
    """
    if _is_same_place(source.storage, target):
        raise InvalidArgumentError(f"{target.url} is the store itself; name another one")
    name = as_savepoint
    if name is None and isinstance(checkpoint, str) and is_savepoint_name(checkpoint):
        name = checkpoint
    if name is not None:
        check_savepoint_name(name)
    manifest = source.load(checkpoint)
    making = _begun(source, target, deriver, table_format, layout, dry_run)
    new_id = None if making is None else _first_copy(making.catalog, manifest)
    found = new_id is not None
    if making is not None:
        _refuse_taken_name(making.catalog, name, new_id)
        if not found:
            _refuse_other_keys(making.catalog, manifest)
    files = data_files(manifest)
    work = FileCopy(source.storage, target, progress, () if found else files, linked=linked)
    if making is not None and not found:
        work.learn(making.catalog)
    if dry_run:
        work.look()
    elif making is not None:
        if new_id is None:
            new_id = _make(making, manifest, work, name)
        if name is not None:
            _keep(making.catalog, name, new_id)
    return CopiedCheckpoint(
        store=source.storage.url,
        target=target.url,
        dry_run=dry_run,
        checkpoint_id=manifest.checkpoint_id,
        new_id=new_id,
        found=found,
        savepoint=name,
        files=len(files),
        size_bytes=sum(file.handle.size_bytes for file in files),
        copied_files=work.copied_files,
        copied_bytes=work.copied_bytes,
        left_out=manifest.left_out,
    )


def _begun(
    source: Catalog,
    target: Storage,
    deriver: Callable[[Catalog], Deriver],
    table_format: str | None,
    layout: str | None,
    dry_run: bool,
) -> Deriver | None:
    """Open the target, making it if it is to be made; None when there is no store."""
    try:
        catalog = Catalog.open(
            target,
            create=not dry_run,
            table_format=table_format or source.table_format(None),
            layout=layout or source.layout(None),
        )
    except StoreNotFoundError:
        if not dry_run:
            raise
        return None
    if table_format is not None:
        catalog.table_format(table_format)
    return deriver(catalog)


def _make(deriver: Deriver, manifest: Manifest, work: FileCopy, savepoint: str | None) -> int:
    """Copy what the target lacks and commit; return the id of the new checkpoint."""
    with deriver.begin(manifest, seen=None) as writer:
        names = work.copy(writer.planned[0])
        table_format = deriver.catalog.table_format(None)
        for entry in manifest.entries:
            writer.collected.carry_entry(_moved(entry, names, table_format))
        origin: dict[str, object] = {
            "command": "fork" if work.linked else "copy",
            "store": manifest.store_id,
            "checkpoint": manifest.checkpoint_id,
            "writer": manifest.writer.token,
            "created_at_ms": manifest.created_at_ms,
        }
        writer.say_origin(origin | ({"savepoint": savepoint} if savepoint else {}))
    return writer.id


def _moved(entry: Entry, names: Mapping[str, str], table_format: str) -> Entry:
    """Return a state as the target has it: its files by their new names, no log yet, and no copies
    in any local cache.
    """
    table = TableRef(table_format, entry.table.path)
    if not isinstance(entry, KeyedEntry):
        handles = (replace(one, path=names[table.name_of(one)]) for one in entry.handles)
        return replace(entry, table=table, handles=tuple(handles))
    layers = (replace(one, entry=_renamed(one.entry, names)) for one in entry.layers)
    return replace(_renamed(entry, names), table=table, layers=tuple(layers))


def _renamed(entry: KeyedEntry, names: Mapping[str, str]) -> KeyedEntry:
    folder = entry.table.path
    handles = (replace(h, path=names[f"{folder}/{h.path}"], host="") for h in entry.handles)
    return replace(entry, handles=tuple(handles))


def _first_copy(target: Catalog, manifest: Manifest) -> int | None:
    """Return the checkpoint of the target that was copied from this one, if there is one.

    Raises InvalidArgumentError when there is only one that was copied from another of its number.
    """
    others = []
    held = {one.checkpoint_id for one in target.holds.savepoints()}
    for number in sorted({*target.checkpoint_ids(), *held}, reverse=True):
        try:
            origin = target.outline(number).origin or {}
        except (CheckpointNotFoundError, MalformedManifestError):
            continue  # it was collected since it was listed, or says nothing any more
        told = (origin.get("store"), origin.get("checkpoint"))
        brought = origin.get("command") in ("copy", "fork")
        if brought and told == (manifest.store_id, manifest.checkpoint_id):
            if _is_of(manifest, origin):
                return number
            others.append((number, origin))
    if others:
        raise _other(target, manifest, *others[0])
    return None


def _is_of(manifest: Manifest, origin: Mapping[str, Any]) -> bool:
    """Return whether what was copied is this checkpoint; older releases did not note its writer."""
    writer = origin.get("writer", manifest.writer.token)
    told = writer, origin.get("created_at_ms")
    return told == (manifest.writer.token, manifest.created_at_ms)


def _other(
    target: Catalog, manifest: Manifest, number: int, origin: Mapping[str, Any]
) -> InvalidArgumentError:
    which, where = f"checkpoint {manifest.checkpoint_id}", target.storage.url
    return InvalidArgumentError(
        f"{where} has a copy of another {which} of store {manifest.store_id}: its checkpoint "
        f"{number} was copied from the {which} that writer {origin.get('writer', 'unknown')} made "
        f"at {_time(origin.get('created_at_ms'))}, and the one to be copied is that of writer "
        f"{manifest.writer.token} ({manifest.writer.name}), made at "
        f"{_time(manifest.created_at_ms)}. The store was copied as files, or brought back from a "
        "backup, and both went on: copy to another store, or give that copy up first (expire "
        f"checkpoint {number} of {where}, and delete the savepoints that keep it)"
    )


def _time(at_ms: object) -> str:
    if not isinstance(at_ms, int):
        return "an unknown time"
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _refuse_taken_name(target: Catalog, name: str | None, first: int | None) -> None:
    for savepoint in target.holds.savepoints() if name is not None else ():
        if savepoint.name == name and savepoint.checkpoint_id != first:
            raise InvalidArgumentError(
                f"{target.storage.url} has a savepoint {name!r} already, checkpoint "
                f"{savepoint.checkpoint_id}; give another name with as_savepoint (--as-savepoint), "
                "or delete that one first"
            )


def _refuse_other_keys(target: Catalog, manifest: Manifest) -> None:
    """Max parallelism and key of a state never change within a store (I3)."""
    history = History(target, manifest.operators)
    for entry in manifest.keyed:
        state, stored = entry.state, history.keyed(entry.state.uid, entry.state.name)
        groups = history.max_parallelism(state.uid)
        if groups is not None and groups != state.max_parallelism:
            raise ParallelismError(
                f"operator {state.uid!r} has max parallelism {groups} in {target.storage.url}, and "
                f"{state.max_parallelism} in the checkpoint to be copied; use another store"
            )
        if stored is None:
            continue
        for what in ("kind", "key", "key_types", "namespace", "entry", "hash_scheme"):
            old, new = getattr(stored, what), getattr(state, what)
            if old != new:
                raise SchemaMismatchError(
                    f"{state} has {what.replace('_', ' ')} {old} in {target.storage.url}, and "
                    f"{new} in the checkpoint to be copied; use another store"
                )


def _keep(target: Catalog, name: str, number: int) -> None:
    savepoint = Savepoint(name, number, time.time_ns() // 1_000_000)
    if number not in {s.checkpoint_id for s in target.holds.savepoints() if s.name == name}:
        target.holds.put_savepoint(savepoint, visible=lambda: target.check_visible(number))


# Fork: a new store that begins with a checkpoint of another one, and shares its files.
#
# On one file system a file gets a second name, so nothing is copied, and a collection in either
# store takes away its own name alone. Files are never changed in place, so neither store sees what
# the other one does; but damage to the bytes of a file is damage in both. Where names cannot be
# shared (a bucket, another disk) files are copied.


def fork(
    source: Catalog,
    checkpoint: int | str,
    target: Storage,
    deriver: Callable[[Catalog], Deriver],
    *,
    dry_run: bool,
    progress: Progress,
) -> CopiedCheckpoint:
    """Make a store at ``target`` whose first checkpoint is the given one; return what was done:
    ``copied_files`` are those that could not be shared.

    A fork that was ended goes on where it was. Raises InvalidArgumentError when there is a store
    with checkpoints at ``target`` already, or a folder with anything else, and what a copy raises.
    """
    _refuse_taken(target)
    return copy(
        source,
        checkpoint,
        target,
        deriver,
        as_savepoint=None,
        dry_run=dry_run,
        progress=progress,
        linked=True,
    )


def _refuse_taken(target: Storage) -> None:
    """Refuse a place that is not free; a store without a checkpoint is a fork that was ended."""
    if target.is_empty():
        return
    advice = "a fork is a new store: give a path where nothing is yet"
    try:
        numbers = Catalog.open(target, create=False).checkpoint_ids()
    except StoreNotFoundError as error:
        raise InvalidArgumentError(
            f"{target.url} is no store, and there are other files in it; {advice}"
        ) from error
    if numbers:
        raise InvalidArgumentError(
            f"{target.url} is a store already, with checkpoints {', '.join(map(str, numbers))}; "
            f"{advice}, or use 'statestore copy'"
        )


def _is_same_place(one: Storage, other: Storage) -> bool:
    """Return whether two storages are one folder: by URL, or by their real paths."""
    paths = [storage.native_path("") for storage in (one, other)]
    real = [None if path is None else Path(path).resolve() for path in paths]
    return one.url == other.url or (real[0] is not None and real[0] == real[1])
