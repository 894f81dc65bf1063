"""Publish a state of a checkpoint as an Iceberg table, change it to a new checkpoint, or remove it.

The table names the checkpoint's own files: no row is read or written. Each publication is one
commit of the catalog, so readers see the whole old checkpoint or the whole new one. Files that both
have stay in the table.

**The hold.** A savepoint keeps each snapshot's files from garbage collection. Its name contains the
table's UUID (:class:`statestore.catalog.holds.Publication`), and the snapshot's summary
contains the name of the savepoint.

0. If the table does not exist, it is created without rows: only now its UUID is known.
1. The savepoint of the new checkpoint is put.
2. The catalog commits the new snapshot, and removes the snapshots above ``retain`` from the table.
3. The savepoints of the removed snapshots are deleted.

A crash after step 1 leaves a savepoint that no snapshot names, and the table as it was. A crash
after step 2 leaves savepoints that the table no longer needs. Either way the table can be read. A
later publication deletes such a savepoint when it is a day old. A younger one may belong to another
publisher that has not committed yet.

**Two publishers.** The commit requires that the table still has the snapshot that this publisher
found. pyiceberg's own retry would merge two publications, so the table's properties disable it. The
second publisher gets CommitConflictError and deletes its savepoint.

**Others' changes.** A snapshot of another program has no savepoint. Then nothing is published,
unless ``replace`` is true: it removes what the other program added. All files are added again,
because a row that it deleted in a file would otherwise stay deleted.

**Removing a table.** :func:`unpublish` removes the table first, and then releases the checkpoints.
After a crash, the savepoints are left without a table, and the command can be run again. It then
finds them by the table's name.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from statestore.catalog.catalog import Catalog, CheckpointRef
from statestore.catalog.holds import Publication, Savepoint, publication_of
from statestore.errors import (
    IncompatibleStateError,
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
)
from statestore.extras import needs_extra
from statestore.format.handles import Handle
from statestore.format.manifest import Entry, KeyedEntry, Manifest
from statestore.listeners import Progress
from statestore.maintenance.retention import check_holdable
from statestore.maintenance.store_context import HasContext
from statestore.publishing.columns import (
    change_columns,
    change_partitioning,
    iceberg_schema,
    partition_spec,
)
from statestore.publishing.data_files import describe_files, files_by_url, readers_url
from statestore.publishing.iceberg_catalog import (
    CHECKPOINT,
    HOLD,
    NOT_COMMITTED,
    OPERATOR,
    STATE,
    STORE,
    STORE_URL,
    catalog_errors,
    delete_metadata,
    full_name,
    hold_of,
    load_table,
    make_namespace,
    metadata_files,
    open_catalog,
    refuse_changed,
    refuse_foreign,
)
from statestore.publishing.iceberg_table import IcebergTable, PublishedState, UnpublishedTable

with needs_extra("iceberg", "an Iceberg table"):
    from pyiceberg.catalog import Catalog as IcebergCatalog
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Operation, Snapshot
    from pyiceberg.table.update.snapshot import ExpireSnapshots, _OverwriteFiles


_ABANDONED_MS = 24 * 3_600_000
_NAME_MAPPING = "schema.name-mapping.default"
_PROPERTIES = {
    # The files belong to the store: no purge and no expiry of snapshots may delete them.
    "gc.enabled": "false",
    # A retry would add the files of two publications to one table.
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}


def publish(
    opened: HasContext,
    operator: str,
    state: str,
    wanted: IcebergTable,
    *,
    checkpoint: CheckpointRef,
    replaces: bool,
    dry_run: bool,
    progress: Progress,
) -> PublishedState:
    """Make the table show the state as it is in a checkpoint; do nothing if it already does.

    ``StoreMaintenance.publish_iceberg`` describes the arguments and the errors. ``replaces`` is its
    ``replace``.
    """
    store, now_ms = opened.parts.catalog(), opened.parts.now_ms()
    url = readers_url(store.storage, wanted.store_url)
    catalog = open_catalog(wanted.catalog, wanted.catalog_options)
    name = full_name(catalog, wanted.name)
    table = load_table(catalog, wanted.name)
    if table is not None:
        refuse_foreign(table, name, store.store_id, operator, state)
        if not replaces:
            refuse_changed(table, name, "pass replace (--replace) to remove its changes")
    # After the table: the newest checkpoint is at least the one that another publisher found.
    found = store.checkpoint(checkpoint, read_lists=True)
    entry = found.manifest.find(operator, state)
    iceberg_schema(entry)  # refuses names before anything is written
    if isinstance(entry, KeyedEntry) and entry.layers:
        raise IncompatibleStateError(
            f"{entry.state} in checkpoint {found.checkpoint_id} has changes in addition to its "
            "base files, which Iceberg cannot show; fold them as a new checkpoint with "
            "'statestore compact --everything' (in Python compact(everything=True))"
        )
    change = _Change(store, catalog, table, found.manifest, entry, wanted, url)
    if dry_run or change.is_current:
        return change.report(dry_run=dry_run)
    check_holdable(store, found)
    return change.commit(now_ms=now_ms, progress=progress)


def holds_of_table(store: Catalog, table_id: str) -> tuple[Savepoint, ...]:
    """Return the savepoints that keep files for the table with this UUID, in hex digits."""
    return tuple(
        savepoint
        for savepoint in store.holds.savepoints()
        if (own := publication_of(savepoint.name)) is not None and own.table_id == table_id
    )


def holds_of_name(store: Catalog, name: str) -> tuple[Savepoint, ...]:
    """Return the savepoints of a table of this name; a long table name is cut in their names."""
    found = []
    for savepoint in store.holds.savepoints():
        own = publication_of(savepoint.name)
        if own is not None and replace(own, table=name).savepoint_name == savepoint.name:
            found.append(savepoint)
    return tuple(found)


class _Change:
    """The change of a table from its current snapshot to a checkpoint."""

    def __init__(
        self,
        store: Catalog,
        catalog: IcebergCatalog,
        table: Table | None,
        manifest: Manifest,
        entry: Entry,
        wanted: IcebergTable,
        url: str,
    ) -> None:
        self._store, self._catalog, self._table = store, catalog, table
        self._manifest, self._entry, self._wanted = manifest, entry, wanted
        self._name, self._url = full_name(catalog, wanted.name), url
        self._current = None if table is None else table.current_snapshot()
        own = files_by_url(entry, url)
        shown = self._shown_files()
        # A file in which another program deleted rows must get a new sequence number.
        is_changed = self._current is not None and hold_of(self._current) is None
        kept = set() if is_changed else own.keys() & shown.keys()
        self._added: dict[str, Handle] = {
            path: handle for path, handle in own.items() if path not in kept
        }
        self._removed = [file for path, file in shown.items() if path not in kept]

    @property
    def is_current(self) -> bool:
        """Whether the table shows the checkpoint, and a savepoint keeps its files."""
        if self._table is None or self._current is None or self._added or self._removed:
            return False
        number = self._manifest.checkpoint_id
        hold = hold_of(self._current)
        held = {savepoint.name: savepoint.checkpoint_id for savepoint in self._holds()}
        return _checkpoint_of(self._current) == number and held.get(hold or "") == number

    def commit(self, *, now_ms: int, progress: Progress) -> PublishedState:
        """Hold the checkpoint, commit the table, and release what it no longer needs."""
        self._store.holds.savepoints()  # a damaged one is reported before anything is written
        with catalog_errors(self._name):
            known = [] if self._table is None else list(self._table.metadata.snapshots)
            before = self._metadata_files()
            table = self._begin()
            transaction = table.transaction()
            can_read_older = self._stage_definition(transaction)
            hold = self._hold(table, now_ms)
            try:
                snapshot_id = self._stage_files(table, transaction, hold, can_read_older, progress)
            except BaseException as error:
                self._withdraw(hold, error)
                raise
            try:
                transaction.commit_transaction()
            except NOT_COMMITTED as error:
                self._withdraw(hold, error)
                raise
            # After any other error the snapshot may be visible, and its savepoint stays.
        released = self._release(table, known, now_ms)
        with catalog_errors(self._name):
            gone = before - metadata_files(table, table.metadata.snapshots)
        return self.report(
            dry_run=False,
            snapshot_id=snapshot_id,
            hold=hold,
            released=released,
            is_history_lost=not can_read_older,
            leftover_metadata=delete_metadata(table.io, gone),
        )

    def report(
        self,
        *,
        dry_run: bool,
        snapshot_id: int | None = None,
        hold: str | None = None,
        released: Sequence[str] = (),
        is_history_lost: bool = False,
        leftover_metadata: int = 0,
    ) -> PublishedState:
        """Return the result of the change."""
        entry, manifest = self._entry, self._manifest
        ttl = entry.state.ttl if isinstance(entry, KeyedEntry) else None
        if hold is None and self.is_current and self._current is not None:
            hold = hold_of(self._current)
        return PublishedState(
            store=self._store.storage.url,
            checkpoint_id=manifest.checkpoint_id,
            operator=entry.state.uid,
            state=entry.state.name,
            table=self._name,
            dry_run=dry_run,
            rows=entry.rows,
            files=entry.files,
            size_bytes=entry.size_bytes,
            added_files=len(self._added),
            removed_files=len(self._removed),
            replaced_checkpoint=None if self._current is None else _checkpoint_of(self._current),
            snapshot=None if snapshot_id is None else str(snapshot_id),
            hold=hold,
            released=tuple(released),
            other_holds=self._other_holds(),
            is_history_lost=is_history_lost,
            leftover_metadata=leftover_metadata,
            ttl_ms=None if ttl is None else ttl.duration_ms,
            left_out=tuple(
                record
                for record in manifest.left_out
                if record.operator == entry.state.uid and record.state in (None, entry.state.name)
            ),
        )

    def _other_holds(self) -> tuple[str, ...]:
        """Return the savepoints of another table of this name, such as a dropped one."""
        own = set() if self._table is None else {savepoint.name for savepoint in self._holds()}
        named = (savepoint.name for savepoint in holds_of_name(self._store, self._name))
        return tuple(name for name in named if name not in own)

    def _shown_files(self) -> dict[str, DataFile]:
        """Return the data files of the table's current snapshot by URL."""
        if self._table is None or self._current is None:
            return {}
        with catalog_errors(self._name):
            return {
                entry.data_file.file_path: entry.data_file
                for manifest in self._current.manifests(self._table.io)
                if not _has_only_deletes(manifest)
                for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
            }

    def _begin(self) -> Table:
        """Return the table, which is created without rows if it does not exist."""
        if self._table is not None:
            self._restore_properties(self._table)
            return self._table
        make_namespace(self._catalog, self._wanted.namespace)
        schema = iceberg_schema(self._entry)
        table = self._catalog.create_table(
            self._wanted.name,
            schema,
            partition_spec=partition_spec(self._entry, schema),
            properties=_PROPERTIES | self._description(),
        )
        if f"{table.location()}/".startswith(f"{self._url}/"):
            self._catalog.drop_table(self._wanted.name)
            delete_metadata(table.io, [table.metadata_location])
            raise InvalidArgumentError(
                f"the catalog would write the metadata of {self._name} to {table.location()}, "
                "which is inside the store; choose another warehouse for the catalog"
            )
        self._table = table
        return table

    def _restore_properties(self, table: Table) -> None:
        """Set the properties that publications rely on, if somebody changed them."""
        if _PROPERTIES.items() <= table.metadata.properties.items():
            return
        with table.transaction() as transaction:
            transaction.set_properties(_PROPERTIES)
        if table.current_snapshot() != self._current:
            raise CommitFailedException("it has another snapshot than before")

    def _stage_definition(self, transaction: Transaction) -> bool:
        """Stage the table's columns, partitioning and properties.

        Returns:
            Whether older snapshots stay readable.
        """
        can_read_older = change_columns(transaction, self._entry)
        change_partitioning(transaction, self._entry)
        metadata = transaction.table_metadata
        properties = self._description()
        if metadata.name_mapping() is None:  # pyiceberg keeps it up to date afterwards
            properties[_NAME_MAPPING] = metadata.schema().name_mapping.model_dump_json()
        if not properties.items() <= metadata.properties.items():
            transaction.set_properties(properties)
        return can_read_older

    def _description(self) -> dict[str, str]:
        """Return the table's properties that describe the shown checkpoint and state."""
        state = self._entry.state
        return {
            STORE: self._store.store_id,
            STORE_URL: self._store.storage.url,
            OPERATOR: state.uid,
            STATE: state.name,
            "comment": f"{state}, published by statestore; do not write to this table",
        }

    def _hold(self, table: Table, now_ms: int) -> str:
        """Put the savepoint that keeps the checkpoint for this attempt; return its name."""
        number = self._manifest.checkpoint_id
        table_id = table.metadata.table_uuid.hex
        attempt = uuid.uuid4().hex[:16]
        hold = Publication(self._name, table_id, attempt).savepoint_name
        self._store.holds.put_savepoint(
            Savepoint(hold, number, now_ms), visible=lambda: self._store.check_visible(number)
        )
        return hold

    def _stage_files(
        self,
        table: Table,
        transaction: Transaction,
        hold: str,
        can_read_older: bool,
        progress: Progress,
    ) -> int:
        """Stage the new snapshot and the removal of old ones; return the new one's id."""
        metadata = transaction.table_metadata
        described = describe_files(
            self._store.storage,
            self._entry,
            self._added,
            metadata.schema(),
            metadata.default_spec_id,
            progress,
        )
        summary = {CHECKPOINT: str(self._manifest.checkpoint_id), HOLD: hold}
        operation = Operation.APPEND if self._current is None else Operation.OVERWRITE
        update = _ReplacedFiles(operation, transaction, table.io, snapshot_properties=summary)
        with update:
            for file in self._removed:
                update.delete_data_file(file)
            for file in described:
                update.append_data_file(file)
        kept = 1 if not can_read_older else self._wanted.retain
        expired = _expired_snapshots(transaction, kept)
        if expired:
            ExpireSnapshots(transaction).by_ids(expired).commit()
        return update.snapshot_id

    def _metadata_files(self) -> set[str]:
        """Return the files of the snapshots that the table has before the commit."""
        if self._table is None:
            return set()
        return metadata_files(self._table, self._table.metadata.snapshots)

    def _withdraw(self, hold: str, error: BaseException) -> None:
        """Delete the savepoint of an attempt that is not visible and never will be."""
        try:
            self._store.holds.delete_savepoint(hold)
        except StateStoreError as failure:
            error.add_note(f"savepoint {hold!r} could not be deleted: {failure}")

    def _release(self, table: Table, known: Iterable[Snapshot], now_ms: int) -> list[str]:
        """Delete the savepoints of removed snapshots, and savepoints that a crash left."""
        needed, removed = _holds_in(table.metadata.snapshots), _holds_in(known)
        released = []
        for savepoint in holds_of_table(self._store, table.metadata.table_uuid.hex):
            is_abandoned = now_ms - savepoint.created_at_ms >= _ABANDONED_MS
            if savepoint.name in needed or not (savepoint.name in removed or is_abandoned):
                continue
            with suppress(NotFoundError):  # another publisher deleted it
                self._store.holds.delete_savepoint(savepoint.name)
                released.append(savepoint.name)
        return released

    def _holds(self) -> tuple[Savepoint, ...]:
        assert self._table is not None
        return holds_of_table(self._store, self._table.metadata.table_uuid.hex)


class _ReplacedFiles(_OverwriteFiles):
    """Replaces files of a table, and drops the manifests that only list files removed earlier.

    pyiceberg keeps these, so that each publication would add one more to every later snapshot.
    """

    def _existing_manifests(self) -> list[ManifestFile]:
        manifests = super()._existing_manifests()
        return [m for m in manifests if m.has_added_files() or m.has_existing_files()]


def _has_only_deletes(manifest: ManifestFile) -> bool:
    return manifest.content.name == "DELETES"


def _checkpoint_of(snapshot: Snapshot) -> int | None:
    """Return the checkpoint that a snapshot shows; None if another program made it."""
    if snapshot.summary is None:
        return None
    text = snapshot.summary.additional_properties.get(CHECKPOINT, "")
    return int(text) if text.isdigit() else None


def _holds_in(snapshots: Iterable[Snapshot]) -> set[str]:
    return {hold for snapshot in snapshots if (hold := hold_of(snapshot)) is not None}


def _expired_snapshots(transaction: Transaction, kept: int) -> list[int]:
    """Return the snapshots to remove: all except the newest ones and those with a name."""
    metadata = transaction.table_metadata
    named = {reference.snapshot_id for reference in metadata.refs.values()}
    newest_first = sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0, reverse=True)
    return [s.snapshot_id for s in newest_first[kept:] if s.snapshot_id not in named]


def unpublish(
    store: Catalog, wanted: IcebergTable, *, replace: bool, dry_run: bool
) -> UnpublishedTable:
    """Remove a published table and its savepoints; no data file is deleted.

    Args:
        store: The store.
        wanted: The table.
        replace: Removes the table even if another program has changed it.
        dry_run: Changes nothing.

    Returns:
        The removed table.

    Raises:
        NotFoundError: The catalog has no such table, and the store has no savepoint for it.
        InvalidArgumentError: The table was not published from this store.
        CommitConflictError: Another program changed the table, and ``replace`` is false.
        StorageError: The catalog or the store failed.
    """
    catalog = open_catalog(wanted.catalog, wanted.catalog_options)
    name = full_name(catalog, wanted.name)
    table = load_table(catalog, wanted.name)
    left = 0
    if table is None:
        holds = holds_of_name(store, name)
        if not holds:
            raise NotFoundError(
                f"the catalog has no Iceberg table {name}, and {store.storage.url} has no "
                f"savepoint for it; 'statestore list' shows the savepoints"
            )
    else:
        properties = table.metadata.properties
        if properties.get(STORE) != store.store_id:
            shown = properties.get(STORE_URL, "another program's data")
            raise InvalidArgumentError(
                f"the Iceberg table {name} shows {shown}, not a state of {store.storage.url}; name "
                "the table's own store"
            )
        if not replace:
            refuse_changed(table, name, "pass replace (--replace) to remove the table with them")
        holds = holds_of_table(store, table.metadata.table_uuid.hex)
    if not dry_run:
        if table is not None:
            with catalog_errors(name):
                own = metadata_files(table, table.metadata.snapshots)
                own |= {table.metadata_location}
                own |= {entry.metadata_file for entry in table.metadata.metadata_log}
                catalog.drop_table(wanted.name)
                left = delete_metadata(table.io, own)
        for savepoint in holds:
            with suppress(NotFoundError):  # another process deleted it
                store.holds.delete_savepoint(savepoint.name)
    return UnpublishedTable(
        store=store.storage.url,
        table=name,
        dry_run=dry_run,
        is_missing=table is None,
        released=tuple(savepoint.name for savepoint in holds),
        leftover_metadata=left,
    )
