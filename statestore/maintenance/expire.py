"""Expire: hide for ever all but the last checkpoints, or those of a certain age (I4, I6, I9).

A tombstone beside its manifest makes a checkpoint invisible, for ever; its number is never used
again. The newest checkpoint that can be read always stays, as Flink's retention has it, and so does
what a savepoint or a pin holds. No data file is deleted: whoever reads an expired checkpoint at
this moment reads on. What only expired checkpoints used is counted; ``gc`` removes it.

A savepoint that is made at the same moment may find its checkpoint visible, which then gets its
tombstone: it has expired, and is still kept, under the savepoint's name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from statestore.catalog.catalog import Catalog
from statestore.errors import (
    CheckpointNotFoundError,
    FormatVersionError,
    InvalidArgumentError,
    MalformedManifestError,
)
from statestore.flink.retention import Retention, Snapshot
from statestore.format.documents import Held, document_bytes
from statestore.format.handles import Handle
from statestore.format.listed import ListedFiles, list_of
from statestore.format.manifest import Entry
from statestore.format.names import CHECKPOINTS, folder_of, manifest_path

__all__ = ["ExpiredCheckpoints", "expire", "tombstone"]

FORMAT = "statestore-tombstone"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ExpiredCheckpoints:
    """What was, or with ``dry_run`` would be, expired, oldest first, and what stays.

    ``held`` are those that stay only because a savepoint or a pin holds them; they are among
    ``kept``. ``files`` and ``size_bytes`` are those that no kept checkpoint uses any more; of
    ``damaged`` ones, whose manifest cannot be read, they are not known.
    """

    store: str
    dry_run: bool
    expired: tuple[int, ...]
    kept: tuple[int, ...]
    held: tuple[Held, ...]
    damaged: tuple[int, ...]
    files: int
    size_bytes: int


def expire(
    catalog: Catalog,
    *,
    retain: int | None,
    older_than_ms: int | None,
    release: str,
    now_ms: int,
    dry_run: bool,
) -> ExpiredCheckpoints:
    """Put a tombstone for each checkpoint that is neither among the newest ``retain`` that can be
    read, nor younger than ``older_than_ms``, nor held. Interrupted, it can be run again.

    ``retain`` None keeps the newest alone, ``older_than_ms`` None asks for no age. Raises
    InvalidArgumentError for fewer than one or a negative age, MalformedManifestError for a
    savepoint or a pin that cannot be read, or StorageError.
    """
    retention = Retention(1 if retain is None else retain)
    if older_than_ms is not None and older_than_ms < 0:
        raise InvalidArgumentError(f"an age is 0 or more milliseconds, not {older_than_ms}")
    ids = catalog.checkpoint_ids()
    # Of a manifest, which may be large, nothing is held but this: there may be very many.
    known = _taken_ms(catalog, ids) if len(ids) > retention.limit else {}
    for checkpoint_id in known:
        retention, _ = retention.add(Snapshot(checkpoint_id))
    # One that cannot be read is no reason to expire one that can.
    lowest = retention.lowest or 0
    surplus = [one for one in ids if one < lowest]
    if surplus and older_than_ms is not None:
        taken = known | _written_ms(catalog, {*ids} - {*known})
        surplus = [one for one in surplus if now_ms - taken.get(one, now_ms) >= older_than_ms]
    holds = catalog.holds.held(now_ms) if surplus else {}
    expired = tuple(one for one in surplus if one not in holds)
    kept = tuple(one for one in ids if one not in expired)
    released = _released(catalog, expired, {*kept, *holds})
    if not dry_run:
        for checkpoint_id in expired:  # the oldest first
            catalog.expire(checkpoint_id, tombstone(checkpoint_id, release, now_ms))
    return ExpiredCheckpoints(
        store=catalog.storage.url,
        dry_run=dry_run,
        expired=expired,
        kept=kept,
        held=tuple(Held(one, holds[one]) for one in surplus if one in holds),
        damaged=tuple(one for one in ids if known and one not in known),
        files=len(released),
        size_bytes=sum(released.values()),
    )


def _taken_ms(catalog: Catalog, ids: tuple[int, ...]) -> dict[int, int]:
    """Return when each checkpoint was taken of which the manifest can be read."""
    found = {}
    for checkpoint_id in ids:
        try:
            found[checkpoint_id] = catalog.outline(checkpoint_id).created_at_ms
        except (MalformedManifestError, CheckpointNotFoundError):
            continue  # damaged: the caller is told
    visible = catalog.checkpoint_ids()  # another process may expire as well
    return {one: taken for one, taken in found.items() if one in visible}


def _written_ms(catalog: Catalog, damaged: set[int]) -> dict[int, int]:
    """Return when the manifests of some checkpoints were written."""
    times = {item.name: item.modified_ms for item in catalog.storage.listed(CHECKPOINTS)}
    return {one: times[manifest_path(one)] for one in damaged if manifest_path(one) in times}


def _released(catalog: Catalog, expired: Iterable[int], staying: Iterable[int]) -> dict[str, int]:
    """Return the bytes of each file of the expired that nothing uses which stays."""
    gone, kept = _Named(catalog), _Named(catalog)
    for checkpoint_id in expired:
        gone.add(checkpoint_id)
    for checkpoint_id in staying if gone.sizes or gone.lists else ():
        kept.add(checkpoint_id)
    lists = {path: part for path, part in gone.lists.items() if path not in kept.lists}
    for path, part in lists.items():
        gone.add_list(path, part)
    tables = {part.table.path for part in lists.values()} | {*map(folder_of, gone.sizes)}
    for path, part in kept.lists.items():
        if part.table.path in tables:
            kept.add_list(path, part)
    return {name: size for name, size in gone.sizes.items() if name not in kept.sizes}


class _Named:
    """The bytes of each file that some checkpoints name, and the parts whose files are in a list,
    by the list's name; of what cannot be read nothing, as nothing but a count hangs on it here.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.sizes: dict[str, int] = {}
        self.lists: dict[str, Entry] = {}

    def add(self, checkpoint_id: int) -> None:
        try:
            manifest = self._catalog.outline(checkpoint_id)
        except (MalformedManifestError, FormatVersionError, CheckpointNotFoundError):
            return
        for part in manifest.parts:
            path = list_of(part.handles)
            if path is not None:
                self.lists[path] = part
            else:
                self._add(part, part.handles)

    def add_list(self, path: str, part: Entry) -> None:
        assert isinstance(part.handles, ListedFiles)
        try:
            self._add(part, part.handles.read())
        except (MalformedManifestError, FormatVersionError):
            return
        self.sizes[path] = part.handles.file_list.size_bytes

    def _add(self, part: Entry, handles: Sequence[Handle]) -> None:
        self.sizes |= {part.table.name_of(one): one.size_bytes for one in handles}


def tombstone(checkpoint_id: int, release: str, now_ms: int) -> bytes:
    """Return the document whose existence hides a checkpoint for ever."""
    return document_bytes(
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "checkpoint_id": checkpoint_id,
            "expired_at_ms": now_ms,
            "name": f"{socket.gethostname()}:{os.getpid()}",
            "release": release,
        }
    )
