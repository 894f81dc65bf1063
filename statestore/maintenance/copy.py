"""Copy a checkpoint or savepoint to another store, with verification and resume after a kill.

Data files get new names in the target. A file that the target already has, with the right length
and SHA-256, is not copied again: an earlier copy, complete or killed, left it there
(``copy_files.py``). Bytes are hashed while they are copied, and the target's manifest is put last.
So a checkpoint that the target shows has exactly the bytes that the source's manifest promises.

The new checkpoint has the target's next id. Its ``origin`` names the source's store, checkpoint and
writer, so that a second copy finds the first one. Store and checkpoint id alone are not enough: if
a store was copied as files or restored from a backup, both instances may have continued, and have
different checkpoints under one id. Tables get the target's format, and a Delta log of their own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from statestore.catalog.catalog import Catalog, CheckpointRef
from statestore.catalog.holds import Savepoint, check_savepoint_name
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    MalformedManifestError,
    ParallelismError,
    SchemaMismatchError,
    StoreNotFoundError,
)
from statestore.format.manifest import Entry, KeyedEntry, Manifest, TableRef
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance.copy_files import FileCopy, data_files
from statestore.maintenance.derive import DerivedReport, Deriver, Source
from statestore.maintenance.store_context import HasContext, StoreContext
from statestore.snapshot.pending_checkpoint import PriorCheckpoints
from statestore.storage import Storage, open_storage


@dataclass(frozen=True, kw_only=True)
class CopiedCheckpoint(DerivedReport):
    """The result of a copy, or of a dry run.

    ``new_checkpoint_id`` is the checkpoint in the target. ``found`` is True if an earlier copy had
    made it, also in a dry run. ``copied_files`` and ``copied_bytes`` count only the files that the
    target lacked; a linked copy shares the other files.
    """

    target: str
    found: bool
    savepoint: str | None
    files: int
    size_bytes: int
    copied_files: int
    copied_bytes: int


def copy(
    store: HasContext,
    checkpoint: CheckpointRef,
    target: HasContext | str,
    *,
    linked: bool = False,
    as_savepoint: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> CopiedCheckpoint:
    """Copy a checkpoint, or a savepoint by its name, to another store.

    The copy gets the next id there. If it is copied again, the first copy is found. Files that
    the target already has are not copied, so a killed copy can resume. Tables have the target's
    format.

    A linked copy is a new store that shares the files of this one. On one file system they are
    hard-linked and nothing is copied: a file has a name in each store, and is deleted when both
    stores have released it. Files are never changed in place, so neither store sees the other's
    writes, but damage of a file damages both. Files are copied to and from a bucket, and to another
    disk.

    Args:
        checkpoint: as in :meth:`savepoint`.
        target: an open store, or the path or URL of one. It is created if it does not exist. A
            new store records the table format and layout that it was opened with, or this
            store's.
        linked: makes a new store that shares the files, instead of copying them.
        as_savepoint: the name of the savepoint in the target. By default a savepoint keeps its
            name, and other checkpoints get none.
        storage_options: options for fsspec, if ``target`` is a path or URL.
        dry_run: reports what would be copied, and changes nothing.
        on_progress: called with the number of copied bytes and the total.

    Returns:
        The copied checkpoint.

    Raises:
        CheckpointNotFoundError: if the checkpoint does not exist.
        InvalidArgumentError: for this store itself, for a savepoint name that the target uses
            for another checkpoint, or for a table format that is not the target's. For a linked
            copy, also if ``target`` has a checkpoint, or other files than a store's.
        ParallelismError or SchemaMismatchError: for a state with another key in the target.
        MissingFileError or DamagedFileError: for a missing or damaged file of this store.
        CommitConflictError or StorageError: the copy can be run again.
    """
    source = store.parts.catalog()
    other = _target_context(store.parts, target, storage_options, linked=linked)
    storage = other.storage
    if as_savepoint is not None:
        check_savepoint_name(as_savepoint)
    found = source.checkpoint(checkpoint)
    manifest, name = found.manifest, as_savepoint or found.name
    making = _open_target(source, other, dry_run)
    new_id = None if making is None else _first_copy(making.catalog, manifest)
    is_copied = new_id is not None
    if making is not None:
        _refuse_taken_name(making.catalog, name, new_id)
        if not is_copied:
            _refuse_other_keys(making.catalog, manifest)
    files = data_files(manifest)
    work = FileCopy(
        source.storage,
        storage,
        on_progress or ignore_progress,
        () if is_copied else files,
        linked=linked,
    )
    if making is not None and not is_copied:
        work.index_kept_files(making.catalog)
    if dry_run:
        work.count_missing()
    elif making is not None:
        if new_id is None:
            new_id = _copy_and_commit(making, manifest, work, name)
        if name is not None:
            _put_savepoint(making.catalog, name, new_id)
    return CopiedCheckpoint(
        store=source.storage.url,
        target=storage.url,
        dry_run=dry_run,
        checkpoint_id=manifest.checkpoint_id,
        new_checkpoint_id=new_id,
        found=is_copied,
        savepoint=name,
        files=len(files),
        size_bytes=sum(file.handle.size_bytes for file in files),
        copied_files=work.copied_files,
        copied_bytes=work.copied_bytes,
        left_out=manifest.left_out,
    )


def _target_context(
    source: StoreContext,
    target: HasContext | str,
    storage_options: Mapping[str, Any] | None,
    *,
    linked: bool,
) -> StoreContext:
    """Open the target; refuse the source itself, and for a linked copy a place in use."""
    if isinstance(target, str):
        storage = open_storage(target, storage_options, of_store=True)
        other = StoreContext.on(storage, parquet=source.parquet)
    else:
        other = target.parts
    if linked:
        _refuse_used(other.storage)
    if is_same_place(source.storage, other.storage):
        raise InvalidArgumentError(
            f"{other.storage.url} is the store itself; choose another target"
        )
    return other


def _open_target(source: Catalog, target: StoreContext, dry_run: bool) -> Deriver | None:
    """Open the target, and create it unless this is a dry run.

    Return None if a dry run finds no store.
    """
    try:
        catalog = Catalog.open(
            target.storage,
            create=not dry_run,
            table_format=target.table_format or source.table_format(None),
            layout=target.layout or source.layout(None),
        )
    except StoreNotFoundError:
        if not dry_run:
            raise
        return None
    if target.table_format is not None:
        catalog.table_format(target.table_format)
    return target.deriver_of(catalog)


def _copy_and_commit(
    deriver: Deriver, manifest: Manifest, work: FileCopy, savepoint: str | None
) -> int:
    """Copy the files that the target lacks, and commit; return the id of the new checkpoint."""
    command = "fork" if work.linked else "copy"
    with deriver.derive(Source(manifest), command, dry_run=False) as draft:
        names = work.copy(draft.files.checkpoint_id)
        table_format = deriver.catalog.table_format(None)
        for entry in manifest.entries:
            draft.put(_relocate_entry(entry, names, table_format), new=())
        draft.record(
            store=manifest.store_id,
            writer=manifest.writer.token,
            created_at_ms=manifest.created_at_ms,
            **({"savepoint": savepoint} if savepoint else {}),
        )
    number: int = draft.facts["new_checkpoint_id"]
    return number


def _relocate_entry(entry: Entry, names: Mapping[str, str], table_format: str) -> Entry:
    """Return a state as the target stores it.

    Its files have their new names. It has no table version yet, and no copies in a local cache.
    """
    table = TableRef(table_format, entry.table.path)
    if not isinstance(entry, KeyedEntry):
        handles = (replace(handle, path=names[table.name_of(handle)]) for handle in entry.handles)
        return replace(entry, table=table, handles=tuple(handles))
    layers = (replace(layer, entry=_rename_files(layer.entry, names)) for layer in entry.layers)
    return replace(_rename_files(entry, names), table=table, layers=tuple(layers))


def _rename_files(entry: KeyedEntry, names: Mapping[str, str]) -> KeyedEntry:
    folder = entry.table.path
    handles = (replace(h, path=names[f"{folder}/{h.path}"], host="") for h in entry.handles)
    return replace(entry, handles=tuple(handles))


def _first_copy(target: Catalog, manifest: Manifest) -> int | None:
    """Return the target's checkpoint that was copied from this one, or None.

    Raises InvalidArgumentError if the only copy comes from a different checkpoint with the same id.
    """
    others = []
    held = {savepoint.checkpoint_id for savepoint in target.holds.savepoints()}
    for number in sorted({*target.checkpoint_ids(), *held}, reverse=True):
        try:
            origin = target.load_header(number).origin or {}
        except (CheckpointNotFoundError, MalformedManifestError):
            continue  # collected since it was listed, or unreadable
        source_id = (origin.get("store"), origin.get("checkpoint"))
        brought = origin.get("command") in ("copy", "fork")
        if brought and source_id == (manifest.store_id, manifest.checkpoint_id):
            if _is_copy_of(manifest, origin):
                return number
            others.append((number, origin))
    if others:
        raise _other_source_error(target, manifest, *others[0])
    return None


def _is_copy_of(manifest: Manifest, origin: Mapping[str, Any]) -> bool:
    """Return whether the copied checkpoint is this one.

    Older releases did not record the writer.
    """
    writer = origin.get("writer", manifest.writer.token)
    recorded = writer, origin.get("created_at_ms")
    return recorded == (manifest.writer.token, manifest.created_at_ms)


def _other_source_error(
    target: Catalog, manifest: Manifest, number: int, origin: Mapping[str, Any]
) -> InvalidArgumentError:
    which, where = f"checkpoint {manifest.checkpoint_id}", target.storage.url
    return InvalidArgumentError(
        f"{where} already has a copy of another {which} of store {manifest.store_id}: its "
        f"checkpoint {number} was copied from the {which} that writer "
        f"{origin.get('writer', 'unknown')} made at {_time_text(origin.get('created_at_ms'))}, but "
        f"the one to copy was made by writer {manifest.writer.token} ({manifest.writer.name}) "
        f"at {_time_text(manifest.created_at_ms)}. The store's files were probably copied or "
        "restored from a backup, and both stores were then written. Copy to another store, "
        f"or remove the existing copy first (expire checkpoint {number} of {where}, and "
        "delete the savepoints that keep it)"
    )


def _time_text(at_ms: object) -> str:
    if not isinstance(at_ms, int):
        return "an unknown time"
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _refuse_taken_name(target: Catalog, name: str | None, first: int | None) -> None:
    for savepoint in target.holds.savepoints() if name is not None else ():
        if savepoint.name == name and savepoint.checkpoint_id != first:
            raise InvalidArgumentError(
                f"{target.storage.url} already has a savepoint {name!r}, of checkpoint "
                f"{savepoint.checkpoint_id}; choose another name with as_savepoint "
                "(--as-savepoint), or delete that savepoint first"
            )


def _refuse_other_keys(target: Catalog, manifest: Manifest) -> None:
    """Refuse a state with another max parallelism or key; these never change in a store (I3)."""
    history = PriorCheckpoints(target, manifest.operators)
    for entry in manifest.keyed:
        state, known = entry.state, history.stored(entry.state.uid, entry.state.name)
        stored, groups = known.state, known.max_parallelism
        if groups is not None and groups != state.max_parallelism:
            raise ParallelismError(
                f"operator {state.uid!r} has max parallelism {groups} in {target.storage.url}, but "
                f"{state.max_parallelism} in the checkpoint to copy; use another target store"
            )
        if stored is None:
            continue
        for attribute in ("kind", "key", "key_types", "namespace", "entry", "hash_scheme"):
            old, new = getattr(stored, attribute), getattr(state, attribute)
            if old != new:
                raise SchemaMismatchError(
                    f"{state} has {attribute.replace('_', ' ')} {old} in {target.storage.url}, but "
                    f"{new} in the checkpoint to copy; use another target store"
                )


def _put_savepoint(target: Catalog, name: str, number: int) -> None:
    savepoint = Savepoint(name, number, time.time_ns() // 1_000_000)
    if number not in {s.checkpoint_id for s in target.holds.savepoints() if s.name == name}:
        target.holds.put_savepoint(savepoint, visible=lambda: target.check_visible(number))


def is_same_place(first: Storage, second: Storage) -> bool:
    """Return whether two storages are the same folder, by URL or by real path."""
    paths = [storage.native_path("") for storage in (first, second)]
    real = [None if path is None else Path(path).resolve() for path in paths]
    return first.url == second.url or (real[0] is not None and real[0] == real[1])


def _refuse_used(target: Storage) -> None:
    """Refuse a target that is in use.

    A store without a checkpoint is an interrupted linked copy, and is allowed.
    """
    if target.is_empty():
        return
    advice = "choose a path that does not exist yet for the linked copy"
    try:
        numbers = Catalog.open(target, create=False).checkpoint_ids()
    except StoreNotFoundError as error:
        raise InvalidArgumentError(
            f"{target.url} is not a store but contains files; {advice}"
        ) from error
    if numbers:
        raise InvalidArgumentError(
            f"{target.url} is already a store, with checkpoints "
            f"{', '.join(map(str, numbers))}; {advice}, or copy without links"
        )
