"""Checkpoints by id: the existing ones, the next id, and the commit that makes one visible.

A checkpoint is visible exactly when its manifest exists without a tombstone (I4). A new id is
greater than every id that ever had a manifest or a tombstone, usually by one (I6). To guarantee
that, a manifest is deleted only if its tombstone exists, a tombstone only long after its manifest,
and neither of the greatest id is ever deleted. ``fence.py`` decides which writer may commit.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from weakref import WeakSet

from msgspec import Struct

from statestore.catalog.holds import Holds
from statestore.display import NotebookBar, bars, figure, size, table, text, when
from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
    FormatVersionError,
    InvalidArgumentError,
    MalformedManifestError,
    StateStoreError,
    StorageError,
    StoreNotFoundError,
)
from statestore.format.documents import document_bytes, parse_document
from statestore.format.files_json import file_list_to_json
from statestore.format.handles import FileList, ListedFiles, list_of, read_all, totals_of
from statestore.format.manifest import KeyedEntry, Manifest, TableFormat, name_of
from statestore.format.manifest_json import (
    check_manifest_version,
    manifest_from_json,
    manifest_to_json,
)
from statestore.format.manifest_summary import ManifestSummary, summary_from_json
from statestore.format.names import (
    CHECKPOINTS,
    STORE_FILE,
    checkpoint_id_of,
    is_savepoint_name,
    manifest_path,
    tombstone_path,
)
from statestore.format.state import LayoutChoice
from statestore.storage import Storage, is_full_disk, put_once, refuse_unsafe

STORE_FORMAT = "statestore"
STORE_FORMAT_VERSION = 1
DEFAULT_TABLE_FORMAT = "delta"


class _StoreDocument(Struct, frozen=True):
    store_id: str
    table_format: TableFormat | None = None
    layout: LayoutChoice | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found in a store; ``StateStore.checkpoint`` returns it.

    Pass it on instead of a number or name, so that two calls cannot find two checkpoints. Another
    one may be the newest by then, or only a savepoint may keep this one.
    """

    manifest: Manifest
    """The contents of the checkpoint."""
    name: str | None
    """The savepoint it was found by; None if it was found by number or as the latest."""
    storage: Storage = field(compare=False)
    """The storage of the store."""

    @property
    def checkpoint_id(self) -> int:
        """The id of the checkpoint."""
        return self.manifest.checkpoint_id

    def __repr__(self) -> str:
        name = "" if self.name is None else f", {self.name!r}"
        return f"Checkpoint({self.checkpoint_id}{name})"

    def _repr_html_(self) -> str:
        """Return the notebook view."""
        return manifest_view(self.manifest)


def manifest_view(manifest: Manifest) -> str:
    """Return the notebook view of a checkpoint: the bytes of each state, and its properties."""
    sizes, rows = [], []
    for entry in manifest.entries:
        uid, name = name_of(entry)
        if isinstance(entry, KeyedEntry):
            kind, key = entry.state.kind.value, ", ".join(entry.state.key)
        else:
            kind, key = entry.state.mode.value, ""
        label = f"{uid} · {name}"
        sizes.append(NotebookBar(label, ((entry.size_bytes, "plain"),), size(entry.size_bytes)))
        rows.append((uid, name, kind, key, entry.rows, entry.size_bytes, entry.files))
    columns = ("operator", "state", "kind", "key", "rows", "size_bytes", "files")
    caption = text(f"taken {when(manifest.created_at_ms)}, by release {manifest.writer.release}")
    return figure(str(manifest), caption, bars(sizes), table(columns, rows))


CheckpointRef = int | str | Checkpoint
"""A checkpoint: its number, ``latest``, the name of a savepoint, or a checkpoint that was found."""


class SeenCheckpoints:
    """The newest checkpoint that an opened store has seen, and its last committed manifest.

    Ids only grow (I6). A store whose newest id is less than an id seen before was replaced by an
    older copy, such as a backup. A writer then has state in memory that does not fit the store.
    """

    def __init__(self) -> None:
        """Start without a checkpoint."""
        self._known: tuple[bytes, Manifest] | None = None
        self.newest: tuple[str, int] | None = None
        """The store's id and the newest checkpoint's; None if no store was listed yet."""
        self.own: tuple[str, int] | None = None
        """The token of this writer's claim, and the newest checkpoint, which it committed last.

        None if it did not commit the newest checkpoint, or if that is unknown."""
        _every_seen.add(self)

    def see(self, store_id: str, newest: int) -> None:
        """Remember the newest id of a store; a replaced store is not remembered."""
        known = self.newest
        if known is None or (known[0] == store_id and known[1] < newest):
            self.newest = store_id, newest

    def keep(self, raw: bytes, manifest: Manifest) -> None:
        """Keep a committed manifest and its document, which the next checkpoint can reuse.

        The document is still read from the store. The manifest is used only if its bytes are equal.
        A manifest whose list of files is a separate document is not kept: the list may be long, and
        a reader must notice if it is damaged.
        """
        has_lists = any(list_of(part.handles) for part in manifest.parts)
        self._known = None if has_lists else (raw, manifest)

    def get(self, raw: bytes) -> Manifest | None:
        """Return the manifest whose document has these bytes; None if it is not kept."""
        known = self._known
        return known[1] if known is not None and known[0] == raw else None


_every_seen: WeakSet[SeenCheckpoints] = WeakSet()


def _forget_own() -> None:
    """Let each writer list the checkpoints again."""
    for seen in list(_every_seen):
        seen.own = None


if hasattr(os, "register_at_fork"):  # Windows has no fork
    # The forked process may end a snapshot that this process began, with the same claim.
    os.register_at_fork(after_in_parent=_forget_own)


class Catalog:
    """The manifests of one store."""

    def __init__(
        self,
        storage: Storage,
        store_id: str,
        table_format: str | None = None,
        layout: str | None = None,
        seen: SeenCheckpoints | None = None,
    ) -> None:
        """Wrap an existing store with the settings that it remembers; see :meth:`open`."""
        self.storage, self.store_id = storage, store_id
        self._table_format, self._layout = table_format, layout
        self.seen = seen or SeenCheckpoints()

    @cached_property
    def holds(self) -> Holds:
        """The savepoints and pins of the store."""
        return Holds(self.storage)

    @classmethod
    def open(
        cls,
        storage: Storage,
        *,
        create: bool,
        table_format: str = DEFAULT_TABLE_FORMAT,
        layout: str | None = None,
        seen: SeenCheckpoints | None = None,
    ) -> Catalog:
        """Return the catalog of a store; with ``create``, create the store if it does not exist.

        A new store remembers ``table_format``, and ``layout`` if it is given. ``seen`` is
        shared by the catalogs of one opened store.

        Raises StoreNotFoundError; InvalidArgumentError if the folder of a new store contains other
        files; FormatVersionError if a newer release wrote the store; StorageError, also for a file
        system without put-if-absent, which is probed once before a store is created.
        """
        try:
            with refuse_plain_file(storage):
                raw = storage.read(STORE_FILE)
        except FileNotFoundError:
            if not create:
                raise StoreNotFoundError(
                    f"no store at {storage.url} (no {STORE_FILE}); check the URL; the first "
                    "snapshot creates a store (if an existing store has lost that file, run "
                    "'statestore repair')"
                ) from None
            raw = _create(storage, table_format, layout)
        return cls.from_document(storage, raw, seen)

    @classmethod
    def from_document(
        cls, storage: Storage, raw: bytes, seen: SeenCheckpoints | None = None
    ) -> Catalog:
        """Return the catalog of a store whose ``statestore.json`` contains ``raw``.

        Raises MalformedManifestError or FormatVersionError.
        """
        document = _parse_store(raw, storage.url)
        return cls(storage, document.store_id, document.table_format, document.layout, seen)

    def table_format(self, wanted: str | None) -> str:
        """Return the table format that a snapshot writes: the one that the store remembers.

        A store of an older release remembers none. Then it is ``wanted``, or the format of the
        tables in the newest readable checkpoint. Raises InvalidArgumentError if the store remembers
        another format than ``wanted``.
        """
        if self._table_format is None:
            return wanted or self._format_of_tables()
        if wanted not in (None, self._table_format):
            raise InvalidArgumentError(
                f"{self.storage.url} was created with table_format={self._table_format!r} and "
                f"cannot be opened with table_format={wanted!r}; omit table_format, or create "
                f"a separate store for {wanted!r} tables"
            )
        return self._table_format

    def layout(self, wanted: str | None) -> str | None:
        """Return the default layout of keyed states: the store's, or ``wanted``, or None.

        Raises InvalidArgumentError if the store remembers another layout than ``wanted``.
        """
        if self._layout is None or wanted in (None, self._layout):
            return self._layout or wanted
        raise InvalidArgumentError(
            f"{self.storage.url} was created with layout={self._layout!r} and cannot be "
            f"opened with layout={wanted!r}; omit layout here, and pass it when you write a "
            f"state: checkpoint.write_keyed(…, layout={wanted!r})"
        )

    def checkpoint_ids(self) -> tuple[int, ...]:
        """Return the ids of the visible checkpoints, oldest first."""
        manifests, tombstones = self._ids()
        return tuple(sorted(manifests - tombstones))

    def kept_ids(self) -> tuple[int, ...]:
        """Return the ids of the checkpoints that are visible or have a savepoint, oldest first.

        Raises MalformedManifestError for a damaged savepoint.
        """
        held = {savepoint.checkpoint_id for savepoint in self.holds.savepoints()}
        return tuple(sorted({*self.checkpoint_ids(), *held}))

    def visible_and_newest(self) -> tuple[tuple[int, ...], int]:
        """Return the visible checkpoint ids, oldest first, and the greatest id ever used.

        The latter is 0 if the store never had a checkpoint. Raises CommitConflictError as
        :meth:`refuse_taken` does if the store was replaced.
        """
        manifests, tombstones, newest = self._grown_ids()
        return tuple(sorted(manifests - tombstones)), newest

    def newest_own(self, token: str) -> int | None:
        """Return the newest checkpoint's id if the claim with this token committed it, or None.

        ``token`` is of a claim that is the newest one of the store. The cost does not depend on the
        number of checkpoints. ``fence.py`` explains why no listing is needed.
        """
        own = self.seen.own
        if own is None or own[0] != token or self.seen.newest != (self.store_id, own[1]):
            return None
        try:
            self.storage.size(manifest_path(own[1]))
        except FileNotFoundError:  # an older copy of the store was put back
            return None
        return own[1]

    def next_id(self) -> int:
        """Return the id of the next checkpoint: one more than the greatest id ever used.

        Raises CommitConflictError as :meth:`refuse_taken` does if the store was replaced.
        """
        return self._grown_ids()[2] + 1

    def checkpoint(self, checkpoint: CheckpointRef, *, read_lists: bool = False) -> Checkpoint:
        """Return a checkpoint with its manifest, which :meth:`load_header` reads.

        A checkpoint that was already found is not searched again. ``read_lists`` is for a new
        document that will name its files: all its lists of files are read, and it must still be
        kept.

        Raises CheckpointNotFoundError that lists the existing checkpoints, MalformedManifestError,
        or InvalidArgumentError for a checkpoint of another store.
        """
        if isinstance(checkpoint, Checkpoint):
            found = replace(checkpoint, storage=self.storage)
            if found.manifest.store_id != self.store_id:
                raise InvalidArgumentError(
                    f"checkpoint {found.checkpoint_id} belongs to store {found.manifest.store_id}, "
                    f"but {self.storage.url} is store {self.store_id}; pass a checkpoint of this "
                    "store"
                )
            if read_lists:
                self.resolve(found)
        else:
            manifest = self.load_header(self.resolve(checkpoint))
            by_name = isinstance(checkpoint, str) and is_savepoint_name(checkpoint)
            found = Checkpoint(manifest, str(checkpoint) if by_name else None, self.storage)
        if read_lists:
            read_all(part.handles for part in found.manifest.parts)
        return found

    def resolve(self, checkpoint: CheckpointRef) -> int:
        """Return the id of a checkpoint without reading its manifest.

        Raises CheckpointNotFoundError that lists the existing checkpoints, also for a checkpoint
        that was found and is no longer kept.
        """
        ids = self.checkpoint_ids()
        if isinstance(checkpoint, Checkpoint):
            wanted = self.checkpoint(checkpoint).checkpoint_id
            held = {savepoint.checkpoint_id for savepoint in self.holds.readable()}
            if wanted not in (*ids, *held):
                raise self._not_found_error(wanted, ids)
            return wanted
        if isinstance(checkpoint, str) and checkpoint and is_savepoint_name(checkpoint):
            try:
                return self.holds.savepoint(checkpoint).checkpoint_id
            except CheckpointNotFoundError as error:
                raise CheckpointNotFoundError(f"{error}; {_list(ids)}") from None
        wanted = self._parse_reference(checkpoint, ids)
        if wanted not in ids:
            raise self._not_found_error(wanted, ids)
        return wanted

    def check_visible(self, checkpoint_id: int) -> None:
        """Raise CheckpointNotFoundError if a checkpoint is not visible, or no longer visible."""
        ids = self.checkpoint_ids()
        if checkpoint_id not in ids:
            raise self._not_found_error(checkpoint_id, ids)

    def manifest(self, checkpoint_id: int) -> Manifest:
        """Return a manifest by its id, and read all its lists of files.

        It raises the errors of :meth:`load_header`, also if a list of files cannot be read.
        """
        manifest = self.load_header(checkpoint_id)
        read_all(part.handles for part in manifest.parts)
        return manifest

    def load_header(self, checkpoint_id: int) -> Manifest:
        """Return a manifest by its id, whether or not it has a tombstone.

        A list of files that is a separate document is read on the first access to one of its files,
        which may raise the same errors.

        Raises CheckpointNotFoundError if the manifest does not exist, or MalformedManifestError.
        """
        raw, where = self._manifest_bytes(checkpoint_id)
        manifest = self.seen.get(raw)
        if manifest is None:
            manifest = manifest_from_json(raw, name=where, read=self.storage.read)
        _refuse_other_id(manifest.checkpoint_id, checkpoint_id, where)
        return manifest

    def summary(self, checkpoint_id: int) -> ManifestSummary:
        """Return the totals of a checkpoint by its id, whether or not it has a tombstone.

        It takes a fraction of the time of :meth:`load_header`, and raises the same errors.
        """
        raw, where = self._manifest_bytes(checkpoint_id)
        summary = summary_from_json(raw, name=where)
        _refuse_other_id(summary.checkpoint_id, checkpoint_id, where)
        return summary

    def _manifest_bytes(self, checkpoint_id: int) -> tuple[bytes, str]:
        """Return the bytes of a manifest, and its name in errors."""
        name = manifest_path(checkpoint_id)
        try:
            return self.storage.read(name), f"{self.storage.url}/{name}"
        except FileNotFoundError:
            raise CheckpointNotFoundError(
                f"{self.storage.url}/{name} does not exist: checkpoint {checkpoint_id} has "
                "expired and its files were garbage-collected"
            ) from None

    def commit(self, manifest: Manifest) -> None:
        """Make a checkpoint visible: put its manifest, if its id is free (I4, I5).

        Raises InvalidArgumentError for a manifest that could not be read, before the put. Raises
        CommitConflictError that names the winner if another writer has taken the id. It is
        also raised if the id has a tombstone; then the manifest exists but will never be visible.
        After any other error the manifest may exist and be visible.
        """
        name = manifest_path(manifest.checkpoint_id)
        raw = manifest_to_json(manifest)
        if not put_once(self.storage, name, raw):
            raise self._conflict_error(manifest.checkpoint_id)
        # Checked after the put, so that a tombstone written just before the put is noticed.
        if self.is_expired(manifest.checkpoint_id):
            raise self._expired_error(manifest.checkpoint_id)
        self.seen.see(self.store_id, manifest.checkpoint_id)
        self.seen.keep(raw, manifest)

    def put_list(self, path: str, entry: KeyedEntry, *, packed: bool) -> KeyedEntry:
        """Put a state's list of files as a separate document; return the new entry.

        With ``packed``, as for a layer of changes, the figures per key group are compressed.
        """
        raw = file_list_to_json(entry, packed=packed)
        if not put_once(self.storage, path, raw):
            raise StorageError(f"{self.storage.url}/{path} already exists with different content")
        sha256 = hashlib.sha256(raw).hexdigest()
        file_list = FileList(path, len(raw), sha256, totals_of(entry.handles))
        return replace(entry, handles=ListedFiles.of(file_list, entry.handles))

    def is_expired(self, checkpoint_id: int) -> bool:
        """Return whether a checkpoint has a tombstone; costs one request."""
        try:
            self.storage.read(tombstone_path(checkpoint_id))
        except FileNotFoundError:
            return False
        return True

    def expire(self, checkpoint_id: int, tombstone: bytes) -> None:
        """Make a checkpoint invisible for ever; do nothing if it already has a tombstone.

        On a full disk, where only deletions could help, the tombstone is a second name of
        ``statestore.json``, which needs no space. Only the existence of a tombstone counts (I4).

        Raises StorageError; the tombstone may exist nevertheless.
        """
        name = tombstone_path(checkpoint_id)
        try:
            put_once(self.storage, name, tombstone)
        except StorageError as error:
            if not is_full_disk(error):
                raise
            if not self.storage.renew(STORE_FILE, name) and not self.is_expired(checkpoint_id):
                raise
            self.storage.sync([name])

    def refuse_taken(
        self, checkpoint_id: int, observed_newest_id: int | None = None, token: str = ""
    ) -> None:
        """Raise CommitConflictError if the id or a greater one is taken.

        It is called before tables are published: a checkpoint that could not be committed, or would
        be out of order, must not be published.

        ``observed_newest_id`` is the newest id of the store when the checkpoint began, on which its
        contents build. If a newer checkpoint exists by now, with any id, the new checkpoint would
        lack its changes. The same error is raised if the store was replaced by an older copy, which
        lacks an id that this process has seen. ``token`` is of the store's newest claim, if this
        writer has it; see :meth:`newest_own`.
        """
        own = self.newest_own(token)
        manifests, tombstones, newest = self._grown_ids() if own is None else ({own}, set(), own)
        if checkpoint_id in tombstones:
            raise self._expired_error(checkpoint_id)
        if observed_newest_id is not None and newest > observed_newest_id:
            raise self._unseen_error(newest, observed_newest_id)
        if checkpoint_id in manifests or newest > checkpoint_id:
            raise self._conflict_error(checkpoint_id if checkpoint_id in manifests else newest)

    def _format_of_tables(self) -> str:
        for number in reversed(self.checkpoint_ids()):
            try:
                formats = {entry.table.format for entry in self.load_header(number).entries}
            except (CheckpointNotFoundError, MalformedManifestError, FormatVersionError):
                continue
            if formats:
                return formats.pop() if len(formats) == 1 else DEFAULT_TABLE_FORMAT
        return DEFAULT_TABLE_FORMAT

    def _not_found_error(self, checkpoint_id: int, ids: tuple[int, ...]) -> CheckpointNotFoundError:
        of_it = [s.name for s in self.holds.readable() if s.checkpoint_id == checkpoint_id]
        hint = f"; it has expired, and savepoint {of_it[0]!r} keeps its files" if of_it else ""
        return CheckpointNotFoundError(
            f"no checkpoint {checkpoint_id} in {self.storage.url}{hint}; {_list(ids)}"
        )

    def _expired_error(self, checkpoint_id: int) -> CommitConflictError:
        return CommitConflictError(
            f"checkpoint {checkpoint_id} of {self.storage.url} has a tombstone: this id has "
            "already expired, so the new checkpoint is not visible. Take the snapshot again: "
            "it gets a new id"
        )

    def _conflict_error(self, checkpoint_id: int) -> CommitConflictError:
        return CommitConflictError(
            f"checkpoint {checkpoint_id} of {self.storage.url} was committed by "
            f"{self._writer_of(manifest_path(checkpoint_id))} first; nothing of this snapshot is "
            "visible. Take the snapshot again: it gets a new id"
        )

    def _unseen_error(self, newest: int, observed_newest_id: int) -> CommitConflictError:
        before = f"checkpoint {observed_newest_id}" if observed_newest_id else "no checkpoint"
        return CommitConflictError(
            f"checkpoint {newest} of {self.storage.url} was committed by "
            f"{self._writer_of(manifest_path(newest))} after this one had begun. This one is based "
            f"on {before} and would lose the newer changes; nothing was changed. Take the snapshot "
            "again, or stop the job that writes to the store and run the command again"
        )

    def _replaced_error(self, newest: int, seen: tuple[str, int]) -> CommitConflictError:
        found = f"the newest one is {newest}" if newest else "it has no checkpoint"
        if seen[0] != self.store_id:
            found = f"the store {self.store_id} is in the place of the store {seen[0]}"
        return CommitConflictError(
            f"checkpoint {seen[1]} of {self.storage.url}, which this process has used, no longer "
            f"exists: {found}. A backup was probably put back. Nothing is written. To continue "
            "with the store as it is, reopen it with StateStore.open(…), and restore its newest "
            "checkpoint"
        )

    def _ids(self) -> tuple[set[int], set[int]]:
        manifests: set[int] = set()
        tombstones: set[int] = set()
        for name in self.storage.list(CHECKPOINTS):
            if (found := checkpoint_id_of(name)) is not None:
                (tombstones if found[1] else manifests).add(found[0])
        self.seen.see(self.store_id, max(manifests | tombstones, default=0))
        return manifests, tombstones

    def _grown_ids(self) -> tuple[set[int], set[int], int]:
        """Return the ids for a writer, and the greatest one, which never decreases (I6)."""
        seen = self.seen.newest  # before the listing: another thread may commit during it
        manifests, tombstones = self._ids()
        newest = max(manifests | tombstones, default=0)
        if seen is not None and (seen[0] != self.store_id or newest < seen[1]):
            raise self._replaced_error(newest, seen)
        return manifests, tombstones, newest

    def _parse_reference(self, checkpoint: int | str, ids: tuple[int, ...]) -> int:
        if checkpoint == "latest":
            if not ids:
                raise CheckpointNotFoundError(f"{self.storage.url} has no checkpoint yet")
            return ids[-1]
        if isinstance(checkpoint, int) and not isinstance(checkpoint, bool):
            return checkpoint
        # Python does not convert text of more than 4,300 digits.
        if isinstance(checkpoint, str) and re.fullmatch("[0-9]{1,4300}", checkpoint):
            return int(checkpoint)
        raise InvalidArgumentError(
            "a checkpoint must be a number, 'latest' or the name of a savepoint, not "
            f"{checkpoint!r:.80}; {_list(ids)}"
        )

    def _writer_of(self, name: str) -> str:
        try:
            writer = manifest_from_json(self.storage.read(name), name=name).writer
        except (StateStoreError, FileNotFoundError):
            return "another writer"
        return str(writer)


@contextmanager
def refuse_plain_file(storage: Storage) -> Iterator[None]:
    """Raise StoreNotFoundError if an access in the block fails because the URL names a file."""
    try:
        yield
    except StorageError as error:
        if not isinstance(error.__cause__, NotADirectoryError):
            raise
        raise StoreNotFoundError(
            f"{storage.url} is not a store: it is a file, or a path below a file; check the URL"
        ) from error


def _refuse_other_id(found: int, checkpoint_id: int, where: str) -> None:
    if found != checkpoint_id:
        raise MalformedManifestError(
            f"{where} at $.checkpoint_id: the file contains the manifest of checkpoint {found}, "
            "which belongs under another name"
        )


def refuse_inside_store(storage: Storage, contents: str) -> None:
    """Raise InvalidArgumentError if a folder is inside a store.

    A garbage collection of that store could delete its files. ``contents`` names these files in the
    error.
    """
    store = storage.folder_above(STORE_FILE)
    if store is not None:
        raise InvalidArgumentError(
            f"{storage.url} is inside the store {store}, whose garbage collection could "
            f"delete {contents} there; choose a folder outside that store"
        )


def refuse_newer_format(storage: Storage) -> None:
    """Raise FormatVersionError if the newest readable checkpoint has an unsupported format version.

    It reads one manifest. A damaged manifest does not keep a writer from its next checkpoint, so
    the previous manifest is read instead. Raises StorageError.
    """
    for checkpoint_id in reversed(Catalog(storage, "").checkpoint_ids()):
        name = manifest_path(checkpoint_id)
        with suppress(FileNotFoundError, MalformedManifestError):
            check_manifest_version(storage.read(name), name=f"{storage.url}/{name}")
            return


def store_document(store_id: str, table_format: str | None, layout: str | None) -> bytes:
    """Return the bytes of ``statestore.json``; an argument that is None is not recorded."""
    document = {
        "format": STORE_FORMAT,
        "format_version": STORE_FORMAT_VERSION,
        "store_id": store_id,
        "table_format": table_format,
        "layout": layout,
    }
    members = {name: value for name, value in document.items() if value is not None}
    return document_bytes(members, lambda raw: _parse_store(raw, "the store"))


def _parse_store(raw: bytes, url: str) -> _StoreDocument:
    return parse_document(
        raw,
        _StoreDocument,
        name=f"{url}/{STORE_FILE}",
        form=STORE_FORMAT,
        newest=STORE_FORMAT_VERSION,
        remedy=f"'statestore --store {url} repair' recreates it",
    )


def _create(storage: Storage, table_format: str, layout: str | None) -> bytes:
    raw = store_document(str(uuid.uuid4()), table_format, layout)
    refuse_inside_store(storage, "a store")
    # One of two creators wins, and both must use the settings of the winner's store.
    if storage.is_empty():
        try:
            refuse_unsafe(storage)
        except StorageError:
            # A store that another process created here meanwhile may have collected the old probe
            # as garbage.
            with suppress(FileNotFoundError):
                return storage.read(STORE_FILE)
            raise
        if put_once(storage, STORE_FILE, raw):
            return raw
    try:
        return storage.read(STORE_FILE)
    except FileNotFoundError:
        raise InvalidArgumentError(
            f"{storage.url} contains other files but no {STORE_FILE}: it is not a store, and "
            "no store is created among other files; choose an empty or new folder (if it was "
            "a store, 'statestore repair' recreates the file)"
        ) from None


def _list(ids: tuple[int, ...]) -> str:
    if not ids:
        return "the store has no checkpoints"
    shown = ", ".join(map(str, ids[-10:]))
    return f"the store has the checkpoints {'… ' if len(ids) > 10 else ''}{shown}"
