"""Checkpoints by id: which exist, which is next, and the one step that makes one visible.

A checkpoint is visible exactly when its manifest exists without a tombstone (I4). Its id is one
more than the greatest id that ever had a manifest or a tombstone, or greater (I6): a manifest is
removed only beside its tombstone, a tombstone only long after its manifest, and what the greatest
id has never. Who may commit at all is the business of ``fence.py``.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from contextlib import suppress
from dataclasses import replace

from msgspec import Struct

from statestore.catalog.holds import Holds
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
from statestore.format.documents import document_bytes, is_savepoint_name, parse_document
from statestore.format.files_json import file_list_to_json
from statestore.format.listed import FileList, ListedFiles, list_of, read_all, totals_of
from statestore.format.manifest import KeyedEntry, Manifest, TableFormat
from statestore.format.manifest_json import manifest_from_json, manifest_to_json
from statestore.format.names import (
    CHECKPOINTS,
    STORE_FILE,
    checkpoint_id_of,
    manifest_path,
    tombstone_path,
)
from statestore.format.state import LayoutChoice
from statestore.storage import Storage, put_once, refuse_unsafe

__all__ = [
    "DEFAULT_TABLE_FORMAT",
    "Catalog",
    "CommittedManifest",
    "refuse_inside_store",
    "store_document",
]

STORE_FORMAT = "statestore"
STORE_FORMAT_VERSION = 1
DEFAULT_TABLE_FORMAT = "delta"


class _StoreDocument(Struct, frozen=True):
    store_id: str
    table_format: TableFormat | None = None
    layout: LayoutChoice | None = None


class CommittedManifest:
    """The last manifest that an opened store has committed, so that its next checkpoint, which
    builds on it, does not parse it.

    The document is still read from the store, and the manifest is used only if its bytes are equal.
    """

    def __init__(self) -> None:
        """Start without a manifest."""
        self._known: tuple[bytes, Manifest] | None = None

    def keep(self, raw: bytes, manifest: Manifest) -> None:
        """Keep a manifest and its document.

        A manifest with a list of files that is a document of its own is not kept: the list may be
        long, and a reader must notice if it is damaged.
        """
        has_lists = any(list_of(part.handles) for part in manifest.parts)
        self._known = None if has_lists else (raw, manifest)

    def of(self, raw: bytes) -> Manifest | None:
        """Return the manifest whose document has these bytes, None if it is not kept."""
        known = self._known
        return known[1] if known is not None and known[0] == raw else None


class Catalog:
    """The manifests of one store."""

    def __init__(
        self,
        storage: Storage,
        store_id: str,
        table_format: str | None = None,
        layout: str | None = None,
        committed: CommittedManifest | None = None,
    ) -> None:
        """Wrap a store that exists, and remembers the rest, or nothing; see :meth:`open`."""
        self.storage, self.store_id = storage, store_id
        self._table_format, self._layout = table_format, layout
        self._committed = committed or CommittedManifest()
        self.holds = Holds(storage)

    @classmethod
    def open(
        cls,
        storage: Storage,
        *,
        create: bool,
        table_format: str = DEFAULT_TABLE_FORMAT,
        layout: str | None = None,
        committed: CommittedManifest | None = None,
    ) -> Catalog:
        """Return the catalog of a store; with ``create``, make the store if there is none: one
        that remembers ``table_format``, and ``layout`` if it is given. ``committed`` is shared by
        the catalogs of one opened store.

        Raises StoreNotFoundError, InvalidArgumentError when the store would be made among other
        files, FormatVersionError when a newer release wrote it, or StorageError, also for a file
        system that does not keep to put-if-absent, which is tried once before a store is made.
        """
        try:
            raw = storage.read(STORE_FILE)
        except FileNotFoundError:
            if not create:
                raise StoreNotFoundError(
                    f"no store at {storage.url} (no {STORE_FILE}); check the URL, or make one with "
                    "StateStore.open(url) (or, where one has lost that file, 'statestore repair')"
                ) from None
            raw = _create(storage, table_format, layout)
        except StorageError as error:
            if not isinstance(error.__cause__, NotADirectoryError):
                raise
            raise StoreNotFoundError(
                f"{storage.url} is a file, or lies below one, and not a store; check the URL"
            ) from error
        return cls.of(storage, raw, committed)

    @classmethod
    def of(
        cls, storage: Storage, raw: bytes, committed: CommittedManifest | None = None
    ) -> Catalog:
        """Return the catalog of a store whose ``statestore.json`` holds ``raw``.

        Raises MalformedManifestError or FormatVersionError.
        """
        document = parse_document(
            raw,
            _StoreDocument,
            name=f"{storage.url}/{STORE_FILE}",
            form=STORE_FORMAT,
            newest=STORE_FORMAT_VERSION,
            mend=f"'statestore --store {storage.url} repair' makes it again",
        )
        return cls(storage, document.store_id, document.table_format, document.layout, committed)

    def table_format(self, wanted: str | None) -> str:
        """Return the format of the tables that a snapshot writes: the one the store remembers.

        A store of an older release remembers none: then it is ``wanted``, else that of the tables
        in the newest checkpoint that can be read. Raises InvalidArgumentError when the store
        remembers another format than the one wanted.
        """
        if self._table_format is None:
            return wanted or self._format_of_tables()
        if wanted not in (None, self._table_format):
            raise InvalidArgumentError(
                f"{self.storage.url} keeps its tables as {self._table_format!r}, since it was "
                f"made, and was opened with table_format={wanted!r}; leave table_format out, or "
                f"give {wanted!r} tables a store of their own"
            )
        return self._table_format

    def layout(self, wanted: str | None) -> str | None:
        """Return the layout of keyed states of which none is said: the one the store remembers,
        else the one that is ``wanted``; None when nobody said one.

        Raises InvalidArgumentError when the store remembers another one than is wanted.
        """
        if self._layout is None or wanted in (None, self._layout):
            return self._layout or wanted
        raise InvalidArgumentError(
            f"{self.storage.url} writes keyed states with layout={self._layout!r}, since it was "
            f"made, and was opened with layout={wanted!r}; leave layout out, and give it where a "
            f"state is written: checkpoint.keyed(…, layout={wanted!r})"
        )

    def checkpoint_ids(self) -> tuple[int, ...]:
        """Return the ids of the visible checkpoints, oldest first."""
        manifests, tombstones = self._ids()
        return tuple(sorted(manifests - tombstones))

    def visible_and_newest(self) -> tuple[tuple[int, ...], int]:
        """Return the ids of the visible checkpoints, oldest first, and the greatest id that any
        checkpoint has had, 0 if there was none.
        """
        manifests, tombstones = self._ids()
        return tuple(sorted(manifests - tombstones)), max(manifests | tombstones, default=0)

    def next_id(self) -> int:
        """Return the smallest id that no checkpoint has had, nor one below."""
        manifests, tombstones = self._ids()
        return max(manifests | tombstones, default=0) + 1

    def resolve(self, checkpoint: int | str) -> int:
        """Return the id of a checkpoint; its manifest is not read.

        ``checkpoint`` is the id of a visible one, ``"latest"``, or the name of a savepoint. Raises
        CheckpointNotFoundError naming those that exist.
        """
        ids = self.checkpoint_ids()
        if isinstance(checkpoint, str) and checkpoint and is_savepoint_name(checkpoint):
            try:
                return self.holds.savepoint(checkpoint).checkpoint_id
            except CheckpointNotFoundError as error:
                raise CheckpointNotFoundError(f"{error}; of checkpoints, {_list(ids)}") from None
        wanted = self._wanted(checkpoint, ids)
        if wanted not in ids:
            raise self._not_found(wanted, ids)
        return wanted

    def check_visible(self, checkpoint_id: int) -> None:
        """Raise CheckpointNotFoundError when a checkpoint is not visible, or not any more."""
        ids = self.checkpoint_ids()
        if checkpoint_id not in ids:
            raise self._not_found(checkpoint_id, ids)

    def load(self, checkpoint: int | str) -> Manifest:
        """Return a manifest by id, ``"latest"``, or the name of a savepoint, as :meth:`outline`
        does.

        Raises CheckpointNotFoundError naming the checkpoints that exist, or MalformedManifestError.
        """
        return self.outline(self.resolve(checkpoint))

    def manifest(self, checkpoint_id: int) -> Manifest:
        """Return a manifest by its id with all its lists of files: they can be read, or this raises
        as :meth:`outline` does.
        """
        manifest = self.outline(checkpoint_id)
        read_all(part.handles for part in manifest.parts)
        return manifest

    def outline(self, checkpoint_id: int) -> Manifest:
        """Return a manifest by its id, whether or not it has a tombstone. A list of files that is a
        document of its own is read when one of the files is asked for, and that may raise as this.

        Raises CheckpointNotFoundError when there is none, or MalformedManifestError.
        """
        name = manifest_path(checkpoint_id)
        try:
            raw = self.storage.read(name)
        except FileNotFoundError:
            raise CheckpointNotFoundError(
                f"{self.storage.url}/{name} is not there: checkpoint {checkpoint_id} expired, "
                "and its files collected"
            ) from None
        where = f"{self.storage.url}/{name}"
        manifest = self._committed.of(raw)
        if manifest is None:
            manifest = manifest_from_json(raw, name=where, read=self.storage.read)
        if manifest.checkpoint_id != checkpoint_id:
            raise MalformedManifestError(
                f"{self.storage.url}/{name} at $.checkpoint_id: it is the manifest of checkpoint "
                f"{manifest.checkpoint_id}, under another name"
            )
        return manifest

    def commit(self, manifest: Manifest) -> None:
        """Make a checkpoint visible: put its manifest, if its id is free (I4, I5).

        Raises CommitConflictError naming the winner when another writer has taken the id, or when
        a tombstone has: then the manifest is there and nobody will ever see it. After any other
        error the manifest may be there, and visible, all the same.
        """
        name = manifest_path(manifest.checkpoint_id)
        raw = manifest_to_json(manifest)
        if not put_once(self.storage, name, raw):
            raise self._conflict(manifest.checkpoint_id)
        # Looked for after the put: a tombstone that came just before it must not go unseen.
        if self.is_expired(manifest.checkpoint_id):
            raise self._expired(manifest.checkpoint_id)
        self._committed.keep(raw, manifest)

    def put_list(self, path: str, entry: KeyedEntry, *, packed: bool) -> KeyedEntry:
        """Put the list of a state's files as a document of its own, under a name that is new;
        return the state with it. ``packed`` is said of a layer.
        """
        raw = file_list_to_json(entry, packed=packed)
        if not put_once(self.storage, path, raw):
            raise StorageError(f"{self.storage.url}/{path} is there already, with other bytes")
        sha256 = hashlib.sha256(raw).hexdigest()
        file_list = FileList(path, len(raw), sha256, totals_of(entry.handles))
        return replace(entry, handles=ListedFiles.of(file_list, entry.handles))

    def is_expired(self, checkpoint_id: int) -> bool:
        """Return whether a checkpoint has a tombstone: one request."""
        try:
            self.storage.read(tombstone_path(checkpoint_id))
        except FileNotFoundError:
            return False
        return True

    def expire(self, checkpoint_id: int, tombstone: bytes) -> None:
        """Make a checkpoint invisible for ever; nothing happens when it has a tombstone already.

        Raises StorageError; the tombstone may be there all the same.
        """
        put_once(self.storage, tombstone_path(checkpoint_id), tombstone)

    def refuse_taken(self, checkpoint_id: int, seen: int | None = None) -> None:
        """Raise CommitConflictError when the id, or a greater one, is taken: what would be lost, or
        come out of order, is not even published.

        ``seen`` is the newest id of the store when the checkpoint began: what it contains builds on
        that one. If there is a newer one by now, whatever its id, the new checkpoint would lack
        what that one has.
        """
        manifests, tombstones = self._ids()
        newest = max(manifests | tombstones, default=0)
        if checkpoint_id in tombstones:
            raise self._expired(checkpoint_id)
        if seen is not None and newest > seen:
            raise self._unseen(newest, seen)
        if checkpoint_id in manifests or newest > checkpoint_id:
            raise self._conflict(checkpoint_id if checkpoint_id in manifests else newest)

    def _format_of_tables(self) -> str:
        for number in reversed(self.checkpoint_ids()):
            try:
                formats = {entry.table.format for entry in self.outline(number).entries}
            except (CheckpointNotFoundError, MalformedManifestError, FormatVersionError):
                continue
            if formats:
                return formats.pop() if len(formats) == 1 else DEFAULT_TABLE_FORMAT
        return DEFAULT_TABLE_FORMAT

    def _not_found(self, checkpoint_id: int, ids: tuple[int, ...]) -> CheckpointNotFoundError:
        of_it = [s.name for s in self.holds.readable() if s.checkpoint_id == checkpoint_id]
        hint = f"; it has expired, and is kept as savepoint {of_it[0]!r}" if of_it else ""
        return CheckpointNotFoundError(
            f"no checkpoint {checkpoint_id} in {self.storage.url}{hint}; {_list(ids)}"
        )

    def _expired(self, checkpoint_id: int) -> CommitConflictError:
        return CommitConflictError(
            f"checkpoint {checkpoint_id} of {self.storage.url} has a tombstone: its number has "
            "expired, and nothing of this one is visible. Take the snapshot again: it will get a "
            "new id"
        )

    def _conflict(self, checkpoint_id: int) -> CommitConflictError:
        return CommitConflictError(
            f"checkpoint {checkpoint_id} of {self.storage.url} was committed by "
            f"{self._winner(manifest_path(checkpoint_id))} first; nothing of this one is visible. "
            "Take the snapshot again: it will get a new id"
        )

    def _unseen(self, newest: int, seen: int) -> CommitConflictError:
        before = f"checkpoint {seen}" if seen else "no checkpoint"
        return CommitConflictError(
            f"checkpoint {newest} of {self.storage.url} was committed by "
            f"{self._winner(manifest_path(newest))} after this one was begun, which builds on "
            f"{before} and would lack what that one has; nothing was changed. Take the snapshot "
            "again, or run the command again after the job that writes has been stopped"
        )

    def _ids(self) -> tuple[set[int], set[int]]:
        found = [checkpoint_id_of(name) for name in self.storage.list(CHECKPOINTS)]
        pairs = [pair for pair in found if pair is not None]
        return ({i for i, dead in pairs if not dead}, {i for i, dead in pairs if dead})

    def _wanted(self, checkpoint: int | str, ids: tuple[int, ...]) -> int:
        if checkpoint == "latest":
            if not ids:
                raise CheckpointNotFoundError(f"{self.storage.url} has no checkpoint yet")
            return ids[-1]
        if isinstance(checkpoint, int) and not isinstance(checkpoint, bool):
            return checkpoint
        # Python converts no text of more than 4,300 digits.
        if isinstance(checkpoint, str) and re.fullmatch("[0-9]{1,4300}", checkpoint):
            return int(checkpoint)
        raise InvalidArgumentError(
            f"a checkpoint is a number, 'latest' or the name of a savepoint, not "
            f"{checkpoint!r:.80}; {_list(ids)}"
        )

    def _winner(self, name: str) -> str:
        try:
            writer = manifest_from_json(self.storage.read(name), name=name).writer
        except (StateStoreError, FileNotFoundError):
            return "another writer"
        return str(writer)


def refuse_inside_store(storage: Storage, what: str) -> None:
    """Raise InvalidArgumentError if a folder lies in a store: a collection of that store could
    delete what is written there. ``what`` says what that would be.
    """
    store = storage.folder_above(STORE_FILE)
    if store is not None:
        raise InvalidArgumentError(
            f"{storage.url} lies in the store {store}, whose garbage collection could delete {what}"
            " there; name a folder outside of it"
        )


def store_document(store_id: str, table_format: str | None, layout: str | None) -> bytes:
    """Return what ``statestore.json`` holds; what is None it does not remember."""
    document = {
        "format": STORE_FORMAT,
        "format_version": STORE_FORMAT_VERSION,
        "store_id": store_id,
        "table_format": table_format,
        "layout": layout,
    }
    return document_bytes({name: said for name, said in document.items() if said is not None})


def _create(storage: Storage, table_format: str, layout: str | None) -> bytes:
    raw = store_document(str(uuid.uuid4()), table_format, layout)
    refuse_inside_store(storage, "a store")
    # Of two creators one wins, and both must go on with what the winner's store remembers.
    if storage.is_empty():
        try:
            refuse_unsafe(storage)
        except StorageError:
            # A collection of a store that was made there meanwhile takes an old probe.
            with suppress(FileNotFoundError):
                return storage.read(STORE_FILE)
            raise
        if put_once(storage, STORE_FILE, raw):
            return raw
    try:
        return storage.read(STORE_FILE)
    except FileNotFoundError:
        raise InvalidArgumentError(
            f"{storage.url} holds other files and no {STORE_FILE}: it is not a store, and none is "
            "made among them; give an empty or new folder (or, if it was one, 'statestore repair' "
            "makes the file again)"
        ) from None


def _list(ids: tuple[int, ...]) -> str:
    if not ids:
        return "it has none"
    shown = ", ".join(map(str, ids[-10:]))
    return f"it has {'… ' if len(ids) > 10 else ''}{shown}"
