"""``store.maintenance``: the commands on kept checkpoints, and their holds.

Each method is one call into ``maintenance/``. None needs a job, and few need Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from statestore._version import __version__
from statestore.api.context import HasContext, StoreContext
from statestore.arguments import checked_methods
from statestore.catalog.catalog import CheckpointRef
from statestore.durations import Duration, milliseconds_of
from statestore.errors import InvalidArgumentError
from statestore.format.compaction_policy import CompactionRule
from statestore.format.hold_documents import Pin, Savepoint
from statestore.keys.groups import KeyGroupRange
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance import compact as compact_command
from statestore.maintenance import copy as copy_command
from statestore.maintenance import edit as edit_command
from statestore.maintenance import rekey as rekey_command
from statestore.maintenance import repair as repair_command
from statestore.maintenance import retention as retention_command
from statestore.maintenance import salvage as salvage_command
from statestore.maintenance import upgrade as upgrade_command
from statestore.maintenance import verify as verify_command
from statestore.maintenance.compact import CompactReport
from statestore.maintenance.copy import CopiedCheckpoint
from statestore.maintenance.edit import Edit, EditedState
from statestore.maintenance.edit_keys import RowUpdate
from statestore.maintenance.erase import ForgottenSubject, erase
from statestore.maintenance.erase_search import KeySearch, search_store
from statestore.maintenance.erase_subject import OperatorKey, subject_of
from statestore.maintenance.gc import DEFAULT_MINIMUM_AGE, CollectedGarbage, collect_garbage
from statestore.maintenance.rekey import RekeyReport
from statestore.maintenance.rekey_plan import RekeyRequest
from statestore.maintenance.repair import RepairedStore
from statestore.maintenance.retention import ExpiredCheckpoints, PinnedCheckpoint, make_savepoint
from statestore.maintenance.salvage import DEFAULT_KEYS, SalvageReport
from statestore.maintenance.translate_offsets import TranslationPlan, plan_translation
from statestore.maintenance.upgrade import UpgradedStore
from statestore.maintenance.verify import VerifyReport
from statestore.publishing.iceberg_table import (
    IcebergTable,
    PublishedState,
    PublishRequest,
    UnpublishedTable,
)
from statestore.sources.mirror import Mirror
from statestore.storage import Storage, open_storage

__all__ = ["StoreMaintenance"]


@checked_methods
class StoreMaintenance:
    """Verifies, salvages, copies, edits and collects checkpoints; from ``store.maintenance``."""

    def __init__(self, store: StoreContext) -> None:
        """Use ``StateStore.maintenance``."""
        self._store = store

    def savepoint(self, name: str, checkpoint: CheckpointRef = "latest") -> Savepoint:
        """Keep a checkpoint under a name, until :meth:`delete_savepoint`.

        All methods that take a checkpoint also take this name. If the checkpoint already has that
        savepoint, nothing changes.

        Args:
            name: the name of the savepoint.
            checkpoint: the id, ``latest``, or another savepoint's name.

        Returns:
            The savepoint.

        Raises:
            CheckpointNotFoundError: if the checkpoint does not exist.
            MalformedManifestError: for an unreadable checkpoint.
            InvalidArgumentError: for a name that is taken or invalid.
        """
        return make_savepoint(self._store.catalog(), name, checkpoint, now_ms=self._store.now_ms())

    def delete_savepoint(self, name: str) -> Savepoint | None:
        """Release a savepoint.

        Its checkpoint can then expire like any other. If it had expired before, it is no longer
        readable.

        Args:
            name: the name of the savepoint.

        Returns:
            The savepoint; None if it was damaged.

        Raises:
            CheckpointNotFoundError: with the names of the existing savepoints.
        """
        return self._store.catalog().holds.delete_savepoint(name)

    def savepoints(self) -> tuple[Savepoint, ...]:
        """Return the savepoints, ordered by name.

        Raises:
            MalformedManifestError: for a damaged one.
        """
        return self._store.catalog().holds.savepoints()

    def pin(
        self, checkpoint: CheckpointRef = "latest", *, lease: Duration, holder: str | None = None
    ) -> PinnedCheckpoint:
        """Keep a checkpoint while it is being read, at most for ``lease``::

            with store.maintenance.pin(lease="1h") as pinned:
                restored = store.restore(checkpoint=pinned.checkpoint_id, parallelism=4)

        The pin is released at the end of the block, by :meth:`unpin` with its ``token``, or when
        the lease ends.

        Args:
            checkpoint: as in :meth:`savepoint`.
            lease: the longest time for which it is kept, such as ``1h`` or a ``timedelta``.
            holder: the reader; by default host and process.

        Returns:
            The pinned checkpoint.

        Raises:
            CheckpointNotFoundError: if the checkpoint does not exist.
            MalformedManifestError: for an unreadable checkpoint.
            InvalidArgumentError: for an invalid lease or holder.
        """
        return retention_command.pin(
            self._store.catalog(),
            checkpoint,
            lease_ms=milliseconds_of(lease),
            holder=holder,
            now_ms=self._store.now_ms(),
        )

    def unpin(self, token: str) -> None:
        """Release a pin.

        Args:
            token: the token of the pin.

        Raises:
            CheckpointNotFoundError: with the names of the existing pins.
        """
        retention_command.unpin(self._store.catalog(), token)

    def pins(self) -> tuple[Pin, ...]:
        """Return the pins, including those whose lease has ended.

        Raises:
            MalformedManifestError: for a damaged one.
        """
        return self._store.catalog().holds.pins()

    def expire(
        self,
        *,
        retain: int | None = None,
        older_than: Duration | None = None,
        dry_run: bool = False,
    ) -> ExpiredCheckpoints:
        """Expire checkpoints, which makes them invisible.

        The newest one always stays, and so do checkpoints that a savepoint or a pin holds; ``held``
        lists these. No data file is deleted; see :meth:`gc`.

        Args:
            retain: how many of the newest checkpoints stay. With both options, a checkpoint expires
                if it is neither among the newest nor young.
            older_than: the age above which checkpoints expire, such as ``7d``.
            dry_run: reports what would expire, and changes nothing.

        Returns:
            The expired checkpoints.

        Raises:
            InvalidArgumentError: for a ``retain`` below one, or if neither option is given.
            StoreNotFoundError: if the store does not exist.
            MalformedManifestError: for a damaged savepoint or pin.
            StorageError: if the store cannot be read or written.
        """
        if retain is None and older_than is None:
            raise InvalidArgumentError(
                "pass the number of checkpoints to retain, or their maximum age"
            )
        return retention_command.expire(
            self._store.catalog(),
            retain=retain,
            older_than_ms=None if older_than is None else milliseconds_of(older_than),
            release=__version__,
            now_ms=self._store.now_ms(),
            dry_run=dry_run,
        )

    def gc(
        self,
        *,
        minimum_age: Duration = DEFAULT_MINIMUM_AGE,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> CollectedGarbage:
        """Delete the data files that no visible checkpoint, savepoint or pin needs.

        Files that crashed writers left are deleted too.

        Args:
            minimum_age: only files above this age are deleted; by default 24 hours. Files of
                checkpoints that expired more recently stay as well. No snapshot that takes longer
                than this may run at the same time. With 0, no snapshot may run at all.
            dry_run: reports what would be deleted, and changes nothing.
            on_progress: called with the number of deleted files and the total.

        Returns:
            The deleted files.

        Raises:
            StoreNotFoundError: if the store does not exist.
            CorruptionError, FormatVersionError or StorageError: before anything is deleted, if the
                needed files cannot be determined. The message says what to do.
        """
        return collect_garbage(
            self._store.catalog(),
            minimum_age_ms=milliseconds_of(minimum_age),
            now_ms=self._store.now_ms(),
            dry_run=dry_run,
            progress=on_progress or ignore_progress,
        )

    def compact(
        self,
        checkpoint: CheckpointRef = "latest",
        *,
        operator: str | None = None,
        state: str | None = None,
        key_groups: KeyGroupRange | str | None = None,
        everything: bool = False,
        rule: CompactionRule | None = None,
        from_older: bool = False,
        dry_run: bool = False,
        now_ms: int | None = None,
        on_progress: Progress | None = None,
    ) -> CompactReport:
        """Merge layers of incremental checkpoints, and fold them into their base.

        The result is a new checkpoint; the old ones stay. If there is nothing to do, no checkpoint
        is made. If the compaction fails, no new checkpoint is visible.

        A job compacts in the background of its own snapshots. A running job can no longer commit
        afterwards, as after :meth:`edit`. If two compactions run at the same time, only one
        commits.

        Args:
            checkpoint: as in :meth:`savepoint`.
            operator: compacts only the states of this operator.
            state: compacts only the state of this name.
            key_groups: a KeyGroupRange or a text such as ``0-31``. Only base files with some of
                these key groups are selected, and no layers are merged.
            everything: merges all changes into their base, so that no layers are left.
            rule: the policy to apply, once; by default the store's.
            from_older: allows a checkpoint that is not the newest. The new checkpoint then undoes
                the newer ones, with their batches. Without it only a dry run takes such a
                checkpoint.
            dry_run: reports what would be done, and changes nothing.
            now_ms: rows that have expired by this time, in ms since 1970, are not rewritten; by
                default now.
            on_progress: called with the number of spans and layers done and the total.

        Returns:
            The compacted states.

        Raises:
            CheckpointNotFoundError or StateNotFoundError: if the checkpoint or state does not
                exist.
            InvalidArgumentError: for invalid options.
            CorruptionError: if a file is damaged.
            CommitConflictError: if another writer commits first.
            StorageError: if the store cannot be read or written.
        """
        return compact_command.compact(
            self._store.deriver(),
            checkpoint=checkpoint,
            operator=operator,
            state=state,
            key_groups=key_groups,
            everything=everything,
            rule=rule or self._store.compaction or CompactionRule(),
            from_older=from_older,
            dry_run=dry_run,
            now_ms=self._store.now_ms() if now_ms is None else now_ms,
            progress=on_progress or ignore_progress,
        )

    def verify(
        self,
        checkpoint: CheckpointRef = "latest",
        deep: bool = False,
        on_progress: Progress | None = None,
    ) -> VerifyReport:
        """Return whether a checkpoint is intact.

        The manifest is checked, and the length, rows, row groups and columns of every file. One
        length and one footer are read per file. The report lists everything that is broken; no
        error is raised for it.

        Args:
            checkpoint: the id, ``latest``, or ``all``.
            deep: reads every byte and row, and checks SHA-256, digests, key groups, order,
                duplicates and null keys.
            on_progress: called with the number of checked files and the total.

        Returns:
            The report.

        Raises:
            StoreNotFoundError or CheckpointNotFoundError: if the store or checkpoint does not
                exist.
            FormatVersionError: for a store of a newer release.
            StorageError: if a file could not be read.
        """
        return verify_command.verify(
            self._store.storage,
            checkpoint=checkpoint,
            deep=deep,
            progress=on_progress or ignore_progress,
        )

    def salvage(
        self,
        checkpoint: CheckpointRef,
        from_older: bool = False,
        dry_run: bool = False,
        keys: int = DEFAULT_KEYS,
        on_progress: Progress | None = None,
    ) -> SalvageReport:
        """Make a new checkpoint from the readable parts of a damaged one, which stays as it is.

        A state that lost everything is in the new checkpoint, without rows. If nothing is damaged,
        no checkpoint is made.

        Args:
            checkpoint: as in :meth:`savepoint`.
            from_older: accepts older state. Lost rows are replaced with the rows of the newest
                older checkpoint in which the key group is intact. The ``origin`` of the new
                manifest records this. It also allows a checkpoint that is not the newest, as in
                :meth:`compact`. Newer ones whose manifests cannot be read do not count.
            dry_run: makes no checkpoint.
            keys: the maximum number of lost keys in the report; by default 100. The keys are read
                from the same older checkpoint.
            on_progress: called with the number of checked files and the total.

        Returns:
            The lost key groups, rows and keys.

        Raises:
            CheckpointNotFoundError: if the checkpoint does not exist.
            MalformedManifestError: if the checkpoint's manifest cannot be read.
            CommitConflictError: if another writer commits first.
            StorageError: if the store cannot be read or written.
        """
        return salvage_command.salvage(
            self._store.storage,
            self._store.deriver(),
            checkpoint=checkpoint,
            from_older=from_older,
            dry_run=dry_run,
            keys=keys,
            progress=on_progress or ignore_progress,
        )

    def repair(self, *, dry_run: bool = False) -> RepairedStore:
        """Repair damage that blocks all writing although no checkpoint is damaged.

        This covers ``statestore.json``, the newest writer's claim, and a missing entry of a Delta
        log. Before a document is rebuilt, its content is proven by its SHA-256 or by the
        checkpoints. If the newest claim is damaged, this object takes over the store, and a running
        job can no longer commit.

        Args:
            dry_run: reports what would be done, and changes nothing.

        Returns:
            The repairs; ``left`` lists the damage that cannot be repaired, and what to do.

        Raises:
            StoreNotFoundError, FormatVersionError or StorageError: the repair can be run again.
        """
        return repair_command.repair(self._store.storage, self._store.fence, dry_run=dry_run)

    def upgrade(self, *, back: bool = False, dry_run: bool = False) -> UpgradedStore:
        """Raise the store's writer version, so that older releases can no longer write to it.

        No checkpoint changes, and an older release still reads each checkpoint that it understands.
        This object takes over the store, and a running job can no longer commit until it reopens
        the store.

        Args:
            back: undoes the last upgrade. That is possible until a checkpoint was committed after
                it.
            dry_run: reports what would change, and changes nothing.

        Returns:
            The writer version before and after.

        Raises:
            InvalidArgumentError: if the upgrade can no longer be undone, or if an interrupted
                command has announced a checkpoint.
            CommitConflictError: if another writer takes over the store meanwhile.
            StoreNotFoundError, MalformedManifestError, FormatVersionError or StorageError: the
                command can be run again.
        """
        return upgrade_command.upgrade(
            self._store.catalog(), self._store.fence, back=back, dry_run=dry_run
        )

    def edit(
        self,
        operator: str,
        state: str,
        *,
        delete: Sequence[Any] = (),
        put: Sequence[Mapping[str, Any]] = (),
        update: RowUpdate | None = None,
        rows: Any = None,
        sql: str | None = None,
        allow_empty: bool = True,
        checkpoint: CheckpointRef = "latest",
        from_older: bool = False,
        dry_run: bool = False,
    ) -> EditedState:
        """Change one keyed state of a checkpoint, as a new checkpoint; the old one stays.

        Either ``delete``, ``put`` and ``update`` change single keys, or ``rows`` or ``sql`` gives
        all rows. Only files of key groups that change are written, except with ``rows``.

        Args:
            operator: the operator.
            state: the state.
            delete: keys whose rows are all deleted. They are deleted before ``put`` is applied.
            put: rows that replace rows with the same key, namespace and entry columns. Columns that
                a row lacks become null.
            update: new values for some columns of the rows of some keys. The other columns keep
                their values.
            rows: all rows of the state, as a DataFrame, an Arrow table, or a list of dictionaries.
            sql: a SELECT over the table ``state``, which DuckDB runs.
            allow_empty: whether the result of ``sql`` may be empty, which removes all rows.
            checkpoint: as in :meth:`savepoint`.
            from_older: as in :meth:`compact`.
            dry_run: reports what would be changed, and changes nothing.

        Returns:
            The changed state, with the first changed rows before and after.

        Raises:
            StateNotFoundError: if the state does not exist.
            InvalidArgumentError, SchemaMismatchError, NullKeyError or DuplicateKeyError: for rows
                that a snapshot would refuse. InvalidArgumentError also if ``update`` names a key
                without a row, or one that is deleted.
            MissingDependencyError: without DuckDB.
            CorruptionError: if a file is damaged.
            CommitConflictError: if another writer commits first.
            StorageError: if the store cannot be read or written.
        """
        wanted = Edit(
            delete=tuple(delete),
            put=tuple(put),
            update=update,
            rows=rows,
            sql=sql,
            allow_empty=allow_empty,
        )
        return edit_command.edit(
            self._store.deriver(),
            operator,
            state,
            wanted,
            checkpoint=checkpoint,
            from_older=from_older,
            dry_run=dry_run,
        )

    def rekey(
        self,
        operator: str,
        state: str | None = None,
        *,
        max_parallelism: int | None = None,
        key: str | Sequence[str] | None = None,
        hash_scheme: str | None = None,
        checkpoint: CheckpointRef = "latest",
        from_older: bool = False,
        work: str | Path | None = None,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> RekeyReport:
        """Give an operator's keyed states, or one of them, other key groups, as a new checkpoint.

        Rows do not change, as their digest proves. A running job can no longer commit.

        Args:
            operator: the operator.
            state: the state; by default all keyed states of the operator.
            max_parallelism: the new number of key groups; any is possible.
            key: the new key columns of the state ``state``, chosen from its columns. Former key
                columns become value columns.
            hash_scheme: the new hash scheme.
            checkpoint: as in :meth:`savepoint`.
            from_older: as in :meth:`compact`.
            work: a local folder, used by one run at a time, from which an interrupted run resumes.
                Without it, a failed run leaves nothing behind.
            dry_run: reports what would be written, and changes nothing.
            on_progress: called with the number of rows done and the total.

        Returns:
            The written states.

        Raises:
            StateNotFoundError: if the state does not exist.
            InvalidArgumentError, UnsupportedTypeError or ParallelismError: for impossible options.
            NullKeyError or DuplicateKeyError: if the rows do not fit the new key.
            CorruptionError: if a file is damaged.
            CommitConflictError: if another writer commits first.
            StorageError: if the store cannot be read or written.
        """
        wanted = RekeyRequest(
            uid=operator,
            name=state,
            max_parallelism=max_parallelism,
            key=(key,) if isinstance(key, str) else None if key is None else tuple(key),
            hash_scheme=hash_scheme,
        )
        return rekey_command.rekey(
            self._store.deriver(),
            wanted,
            checkpoint=checkpoint,
            from_older=from_older,
            work=None if work is None else Path(work),
            dry_run=dry_run,
            progress=on_progress or ignore_progress,
        )

    def plan_translation(
        self,
        operator: str,
        state: str,
        mirror: Mirror,
        *,
        checkpoint: CheckpointRef = "latest",
        from_older: bool = False,
        group: str | None = None,
    ) -> TranslationPlan:
        """Translate a Kafka source's offsets to the cluster that MirrorMaker 2 writes to.

        Nothing is written. ``plan.report`` has the decision about each partition, and
        ``plan.write()`` makes a new checkpoint with the offsets of the new cluster.

        Args:
            operator: the operator.
            state: the state with topic, partition and offset.
            mirror: the two clusters, the replication flow, and the policies.
            checkpoint: as in :meth:`savepoint`.
            from_older: as in :meth:`compact`.
            group: a consumer group of the new cluster for which ``write()`` commits the offsets.

        Returns:
            The plan.

        Raises:
            StateNotFoundError: if the state does not exist.
            NotFoundError: if the offset-syncs topic or an additional topic does not exist.
            InvalidArgumentError: for broadcast state, elements that are not offsets, and offsets
                that are already translated.
            CorruptionError: if a record of MirrorMaker or a file is damaged.
            IncompatibleStateError: if a topic was recreated at the source.
            CommitConflictError: if the group has members.
            StorageError: if a cluster or the store cannot be reached.
        """
        return plan_translation(
            self._store.deriver(),
            operator,
            state,
            mirror,
            checkpoint=checkpoint,
            from_older=from_older,
            group=group,
        )

    def forget(
        self,
        subject: Mapping[str, Any] | OperatorKey,
        *,
        checkpoint: CheckpointRef | None = None,
        search: bool = True,
        ignore_pins: bool = False,
        dry_run: bool = False,
        gc: bool = False,
        on_progress: Progress | None = None,
    ) -> ForgottenSubject:
        """Remove a subject from every kept checkpoint, and search the whole store for it.

        With columns, rows are removed from every keyed state of every operator whose key, namespace
        or entry columns (map keys) include, or once included, all of the columns. With an
        :class:`OperatorKey`, they are removed from the states of one operator.

        The first checkpoint with the subject and all later ones are replaced by new ones, in their
        order. The old ones expire, and their savepoints move. :meth:`gc` deletes their files. A
        running job can no longer commit, and it still has the subject. An interrupted call can be
        run again, and then finishes.

        Args:
            subject: the value of each column, such as ``{"customer": 312}``, or a function that
                returns it for the column's type. States whose column has another type are not
                changed, but reported. Or an ``OperatorKey``.
            checkpoint: the only checkpoint to remove it from; by default every kept one.
            search: searches the store afterwards, as :meth:`find_subject` does.
            ignore_pins: replaces pinned checkpoints too.
            dry_run: reports what would be removed, and changes nothing.
            gc: also deletes all unneeded files of any age, as :meth:`gc` does with a minimum age of
                0. No job and no reader may be active. Without it the old files still contain the
                subject, and the search finds them.
            on_progress: called with the number of searched bytes and the total.

        Returns:
            The removed rows and the findings of the search.

        Raises:
            StateNotFoundError or CheckpointNotFoundError: if no state has these columns, or if the
                operator, state or checkpoint does not exist.
            InvalidArgumentError: for pinned checkpoints unless ``ignore_pins`` is set, and if no
                state can hold the values or the key.
            CorruptionError: if a file is damaged.
            CommitConflictError: if another writer commits first.
            StorageError: if the store cannot be read or written.
        """
        return erase(
            self._store.deriver(),
            subject,
            checkpoint=checkpoint,
            ignore_pins=ignore_pins,
            dry_run=dry_run,
            collect=gc,
            search=search,
            now_ms=self._store.now_ms(),
            progress=on_progress or ignore_progress,
        )

    def find_subject(
        self,
        subject: Mapping[str, Any] | OperatorKey,
        *,
        on_progress: Progress | None = None,
    ) -> KeySearch:
        """Search all files of the store for a subject, whether or not a checkpoint names them.

        Every file is decoded: rows of data files, statistics and partition values of Delta logs,
        and text of documents. A file that cannot be decoded is reported, and then the subject does
        not count as gone.

        Args:
            subject: as in :meth:`forget`.
            on_progress: called with the number of searched bytes and the total.

        Returns:
            The searched files and the findings.

        Raises:
            StateNotFoundError: if no state has these columns, or if the state does not exist.
            InvalidArgumentError: for a key that does not fit.
            StorageError: if the store cannot be read.
        """
        return search_store(
            self._store.catalog(),
            subject_of(subject),
            on_progress or ignore_progress,
        )

    def copy(
        self,
        checkpoint: CheckpointRef,
        target: HasContext | str,
        *,
        as_savepoint: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> CopiedCheckpoint:
        """Copy a checkpoint, or a savepoint by its name, to another store.

        The copy gets the next id there. If it is copied again, the first copy is found. Files that
        the target already has are not copied, so a killed copy can resume. Tables have the target's
        format.

        Args:
            checkpoint: as in :meth:`savepoint`.
            target: an open store, or the path or URL of one. It is created if it does not exist. A
                new store records the table format and layout that it was opened with, or this
                store's.
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
                for another checkpoint, or for a table format that is not the target's.
            ParallelismError or SchemaMismatchError: for a state with another key in the target.
            MissingFileError or DamagedFileError: for a missing or damaged file of this store.
            CommitConflictError or StorageError: the copy can be run again.
        """
        if isinstance(target, str):
            parts = self._beside(open_storage(target, storage_options, of_store=True))
        else:
            parts = target.parts
        return copy_command.copy(
            self._store.catalog(),
            checkpoint,
            parts.storage,
            parts.deriver_of,
            table_format=parts.table_format,
            layout=parts.layout,
            as_savepoint=as_savepoint,
            dry_run=dry_run,
            progress=on_progress or ignore_progress,
        )

    def fork(
        self,
        target: str,
        checkpoint: CheckpointRef = "latest",
        *,
        storage_options: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> CopiedCheckpoint:
        """Make a new store that starts with a checkpoint of this one and shares its files.

        On one file system nothing is copied: a file has a name in each store, and is deleted when
        both stores have released it. Files are copied to and from a bucket, and to another disk.

        Args:
            target: the path or URL of the new store.
            checkpoint: as in :meth:`savepoint`.
            storage_options: as in :meth:`copy`.
            dry_run: reports what would be copied or shared, and changes nothing.
            on_progress: as in :meth:`copy`.

        Returns:
            The copied or shared files.

        Raises:
            InvalidArgumentError: if a store exists at ``target``.
            StateStoreError: the errors of :meth:`copy`.
        """
        storage = open_storage(target, storage_options, of_store=True)
        return copy_command.fork(
            self._store.catalog(),
            checkpoint,
            storage,
            self._beside(storage).deriver_of,
            dry_run=dry_run,
            progress=on_progress or ignore_progress,
        )

    def publish_iceberg(
        self,
        operator: str,
        state: str,
        table: IcebergTable,
        *,
        checkpoint: CheckpointRef = "latest",
        compact: bool = False,
        from_older: bool = False,
        replace: bool = False,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> PublishedState:
        """Show a state of a checkpoint as an Iceberg table, without a copy of its files.

        The table is created, or changed in one commit from the checkpoint that it shows now. A
        missing namespace is created as well. A savepoint keeps the checkpoint's files as long as a
        snapshot of the table needs them. If the table already shows the checkpoint, nothing is
        done.

        Args:
            operator: the operator.
            state: the state, keyed or operator.
            table: the table, such as ``IcebergTable("fraud.totals", catalog="lake")``.
            checkpoint: as in :meth:`savepoint`. A checkpoint that only a savepoint keeps is
                refused.
            compact: folds changes of the state first, as a new checkpoint; otherwise a state with
                changes is refused. A running job can no longer commit then.
            from_older: for ``compact``, as in :meth:`compact`.
            replace: removes what another program has changed in the table; otherwise a changed
                table is refused.
            dry_run: reports what would change, and changes nothing.
            on_progress: called with the number of described files and the total.

        Returns:
            The table and its change.

        Raises:
            CheckpointNotFoundError or StateNotFoundError: if the checkpoint or state does not
                exist.
            InvalidArgumentError: for a table of another state or program.
            UnsupportedTypeError: for a column that an Iceberg table cannot have.
            IncompatibleStateError: for a state with changes unless ``compact`` is set.
            CommitConflictError: if another program changed the table.
            CorruptionError: if a file is damaged.
            MissingDependencyError: without pyiceberg.
            StorageError: if the catalog or the store cannot be read or written.
        """
        from statestore.publishing.publish import publish  # needs pyiceberg

        request = PublishRequest(
            table=table,
            operator=operator,
            state=state,
            checkpoint=checkpoint,
            compact=compact,
            from_older=from_older,
            replace=replace,
        )
        return publish(
            self._store.deriver(),
            request,
            dry_run=dry_run,
            now_ms=self._store.now_ms(),
            progress=on_progress or ignore_progress,
        )

    def unpublish_iceberg(
        self, table: IcebergTable, *, replace: bool = False, dry_run: bool = False
    ) -> UnpublishedTable:
        """Remove an Iceberg table of this store, and release the checkpoints that it kept.

        The files of its metadata are deleted, data files are not. If the table is already gone,
        its savepoints are deleted.

        Args:
            table: the table.
            replace: removes the table even if another program has changed it.
            dry_run: reports what would be removed, and changes nothing.

        Returns:
            The removed table and savepoints.

        Raises:
            NotFoundError: if neither the table nor a savepoint for it exists.
            InvalidArgumentError: for a table that does not show a state of this store.
            CommitConflictError: for a table that another program changed unless ``replace`` is set.
            MissingDependencyError: without pyiceberg.
            StorageError: if the catalog or the store cannot be read or written.
        """
        from statestore.publishing.unpublish import unpublish  # needs pyiceberg

        return unpublish(self._store.catalog(), table, replace=replace, dry_run=dry_run)

    def _beside(self, storage: Storage) -> StoreContext:
        """Return another store that writes files with this one's options."""
        return StoreContext.on(storage, parquet=self._store.parquet)
