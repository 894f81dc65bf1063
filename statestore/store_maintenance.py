"""``store.maintenance``: what is done to kept checkpoints, and what keeps them.

Each method is one call into ``maintenance/``. None needs a job, and few need Spark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from statestore._version import __version__
from statestore.arguments import checked_methods
from statestore.errors import InvalidArgumentError
from statestore.format.documents import Pin, Savepoint
from statestore.format.layers import CompactionRule
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.maintenance import compact as compact_command
from statestore.maintenance import copy as copy_command
from statestore.maintenance import copy as fork_command
from statestore.maintenance import edit as edit_command
from statestore.maintenance import expire as expire_command
from statestore.maintenance import forget as forget_command
from statestore.maintenance import hold as pin_command
from statestore.maintenance import purge as purge_command
from statestore.maintenance import rekey as rekey_command
from statestore.maintenance import repair as repair_command
from statestore.maintenance import salvage as salvage_command
from statestore.maintenance import verify as verify_command
from statestore.maintenance.compact import CompactReport, CompactRequest
from statestore.maintenance.copy import CopiedCheckpoint
from statestore.maintenance.edit import Edit, EditedState
from statestore.maintenance.expire import ExpiredCheckpoints
from statestore.maintenance.forget import ForgottenSubject
from statestore.maintenance.gc import DEFAULT_MINIMUM_AGE_S, CollectedGarbage, collect_garbage
from statestore.maintenance.hold import PinnedCheckpoint, make_savepoint
from statestore.maintenance.purge import PurgedKey, PurgeRequest
from statestore.maintenance.rekey import RekeyReport
from statestore.maintenance.rekey_plan import RekeyRequest
from statestore.maintenance.repair import RepairedStore
from statestore.maintenance.salvage import DEFAULT_KEYS, SalvageReport
from statestore.maintenance.search import KeySearch, search_store
from statestore.maintenance.subject import ColumnSubject, KeySubject, ValueOf
from statestore.maintenance.verify import VerifyReport
from statestore.restore.export import Progress
from statestore.storage import Storage, open_storage
from statestore.store_parts import Opened, OpenStore

__all__ = ["StoreMaintenance"]


@checked_methods
class StoreMaintenance:
    """Verify, salvage, copy, change and collect what a store keeps; from ``store.maintenance``."""

    def __init__(self, store: OpenStore) -> None:
        """Use ``StateStore.maintenance``."""
        self._store = store

    def savepoint(self, name: str, checkpoint: int | str = "latest") -> Savepoint:
        """Keep a checkpoint under a name, until :meth:`delete_savepoint`.

        Everything that takes a checkpoint takes the name. Nothing happens when it is kept under
        that name already.

        Args:
            name: the name of the savepoint.
            checkpoint: the id, ``latest``, or another savepoint's name.

        Returns:
            The savepoint.

        Raises:
            CheckpointNotFoundError: when there is no such checkpoint.
            MalformedManifestError: for a checkpoint that cannot be read.
            InvalidArgumentError: for a name that is taken, or is not allowed.
        """
        return make_savepoint(self._store.catalog(), name, checkpoint, now_ms=self._store.now_ms())

    def delete_savepoint(self, name: str) -> Savepoint | None:
        """Release a savepoint.

        From now on its checkpoint is one as any other. If that had expired, it is gone.

        Args:
            name: the name of the savepoint.

        Returns:
            The savepoint; None when it was damaged.

        Raises:
            CheckpointNotFoundError: naming the savepoints that there are.
        """
        return self._store.catalog().holds.delete_savepoint(name)

    def savepoints(self) -> tuple[Savepoint, ...]:
        """Return the savepoints in order of name.

        Raises:
            MalformedManifestError: for a damaged one.
        """
        return self._store.catalog().holds.savepoints()

    def pin(
        self, checkpoint: int | str = "latest", *, lease_s: float, holder: str | None = None
    ) -> PinnedCheckpoint:
        """Keep a checkpoint while it is read, at most for ``lease_s`` seconds::

            with store.maintenance.pin(lease_s=3600) as pinned:
                restored = store.restore(checkpoint=pinned.checkpoint_id, parallelism=4)

        It is released at the end of the block, by :meth:`unpin` with its ``token``, or when the
        lease is over.

        Args:
            checkpoint: as in :meth:`savepoint`.
            lease_s: the lease, in seconds.
            holder: who reads; by default host and process.

        Returns:
            The pinned checkpoint.

        Raises:
            CheckpointNotFoundError: when there is no such checkpoint.
            MalformedManifestError: for a checkpoint that cannot be read.
            InvalidArgumentError: for a lease or holder that is not allowed.
        """
        return pin_command.pin(
            self._store.catalog(),
            checkpoint,
            lease_s=lease_s,
            holder=holder,
            now_ms=self._store.now_ms(),
        )

    def unpin(self, token: str) -> None:
        """Release a pin.

        Args:
            token: the token of the pin.

        Raises:
            CheckpointNotFoundError: naming the pins that there are.
        """
        pin_command.unpin(self._store.catalog(), token)

    def pins(self) -> tuple[Pin, ...]:
        """Return the pins, also those whose lease is over.

        Raises:
            MalformedManifestError: for a damaged one.
        """
        return self._store.catalog().holds.pins()

    def expire(
        self,
        *,
        retain: int | None = None,
        older_than_s: float | None = None,
        dry_run: bool = False,
    ) -> ExpiredCheckpoints:
        """Expire checkpoints, which are invisible from now on.

        The newest always stays, and so does what a savepoint or a pin holds; ``held`` names it. No
        data file is deleted: see :meth:`gc`.

        Args:
            retain: how many of the newest stay. With both options, a checkpoint expires that is
                neither among the newest nor young.
            older_than_s: the age in seconds above which checkpoints expire.
            dry_run: only says what would expire.

        Returns:
            The expired checkpoints.

        Raises:
            InvalidArgumentError: for a ``retain`` below one, or when neither option is given.
            StoreNotFoundError: when there is no store.
            MalformedManifestError: for a damaged savepoint or pin.
            StorageError: when the store cannot be read or written.
        """
        if retain is None and older_than_s is None:
            raise InvalidArgumentError("say how many checkpoints to retain, or how old they may be")
        return expire_command.expire(
            self._store.catalog(),
            retain=retain,
            older_than_ms=None if older_than_s is None else _milliseconds(older_than_s),
            release=__version__,
            now_ms=self._store.now_ms(),
            dry_run=dry_run,
        )

    def gc(
        self,
        *,
        minimum_age_s: float = DEFAULT_MINIMUM_AGE_S,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> CollectedGarbage:
        """Delete the data files that no visible checkpoint, savepoint or pin needs.

        What crashed writers left is deleted too.

        Args:
            minimum_age_s: only files that are older than this, in seconds, are deleted; by default
                24 hours. Files of checkpoints that expired less than that ago stay as well. A
                snapshot that takes longer must not run at the same time; with 0, no snapshot at
                all.
            dry_run: only says what would be deleted.
            on_progress: is called with the number of files that are deleted, and of all.

        Returns:
            The deleted files.

        Raises:
            StoreNotFoundError: when there is no store.
            CorruptionError, FormatVersionError or StorageError: before anything is deleted, when it
                cannot be known what is needed. They say what to do.
        """
        return collect_garbage(
            self._store.catalog(),
            minimum_age_ms=_milliseconds(minimum_age_s),
            now_ms=self._store.now_ms(),
            dry_run=dry_run,
            progress=on_progress or (lambda done, total: None),
        )

    def compact(
        self,
        checkpoint: int | str = "latest",
        *,
        uid: str | None = None,
        name: str | None = None,
        key_groups: KeyGroupRange | str | None = None,
        everything: bool = False,
        rule: CompactionRule | None = None,
        dry_run: bool = False,
        now_ms: int | None = None,
        on_progress: Progress | None = None,
    ) -> CompactReport:
        """Merge changes of incremental checkpoints into their base, and layers of them.

        The result is a new checkpoint; the old ones stay. When there is nothing to do, no
        checkpoint is made. Nothing is visible of a compaction that fails.

        A job compacts in the background of its own snapshots. A job that runs meanwhile commits no
        more, as after :meth:`edit`. Of two compactions at once one commits.

        Args:
            checkpoint: as in :meth:`savepoint`.
            uid: compacts only the states of this operator.
            name: compacts only the state of this name.
            key_groups: a KeyGroupRange or a text such as ``0-31``. Only base files that have some
                of these key groups are chosen, and no layers are merged.
            everything: merges all changes into their base, so that no layers are left.
            rule: says what is done, once; by default that of the store.
            dry_run: only says what would be done.
            now_ms: rows that have expired by this time, in ms since 1970, are not written again; by
                default now.
            on_progress: is called with the number of spans and layers that are done, and of all.

        Returns:
            What was compacted.

        Raises:
            CheckpointNotFoundError or StateNotFoundError: when there is no such checkpoint or
                state.
            InvalidArgumentError: for options that are not allowed.
            CorruptionError: when a file is not what was written.
            CommitConflictError: when another writer commits first.
            StorageError: when the store cannot be read or written.
        """
        wanted = CompactRequest(
            uid=uid,
            name=name,
            key_groups=key_groups,
            everything=everything,
            rule=rule or self._store.compaction or CompactionRule(),
        )
        return compact_command.compact(
            self._store.deriver(),
            wanted,
            checkpoint=checkpoint,
            dry_run=dry_run,
            now_ms=self._store.now_ms() if now_ms is None else now_ms,
            progress=on_progress or (lambda done, total: None),
        )

    def verify(
        self,
        checkpoint: int | str = "latest",
        deep: bool = False,
        on_progress: Progress | None = None,
    ) -> VerifyReport:
        """Return whether a checkpoint is intact.

        The manifest is checked, and of every file its length, rows, row groups and columns. One
        length and one footer are read per file. Everything that is broken is in the report; nothing
        is raised for it.

        Args:
            checkpoint: the id, ``latest``, or ``all``.
            deep: reads every byte and row, and checks SHA-256, digest, key group of every key,
                order, duplicates and null keys.
            on_progress: is called with the number of files that are checked, and of all.

        Returns:
            The report.

        Raises:
            StoreNotFoundError or CheckpointNotFoundError: when there is no such store or
                checkpoint.
            FormatVersionError: for a store of a newer release.
            StorageError: when something could not be read.
        """
        return verify_command.verify(
            self._store.storage,
            checkpoint=checkpoint,
            deep=deep,
            progress=on_progress or (lambda done, total: None),
        )

    def salvage(
        self,
        checkpoint: int | str,
        from_older: bool = False,
        dry_run: bool = False,
        keys: int = DEFAULT_KEYS,
        on_progress: Progress | None = None,
    ) -> SalvageReport:
        """Make a new checkpoint of what can be read of a damaged one, which stays as it is.

        A state that lost everything is in the new checkpoint, without rows. When nothing is
        damaged, no checkpoint is made.

        Args:
            checkpoint: as in :meth:`savepoint`.
            from_older: replaces the lost rows with those of the newest older checkpoint that has
                the same key group intact. The new manifest says so in its ``origin``.
            dry_run: makes no checkpoint.
            keys: the most lost keys in the report; by default 100. They are those that the same
                older checkpoint has.
            on_progress: is called with the number of files that are checked, and of all.

        Returns:
            What is lost: key groups, rows and keys.

        Raises:
            CheckpointNotFoundError: when there is no such checkpoint.
            MalformedManifestError: when the checkpoint's manifest cannot be read.
            CommitConflictError: when another writer commits first.
            StorageError: when the store cannot be read or written.
        """
        return salvage_command.salvage(
            self._store.storage,
            self._store.deriver(),
            checkpoint=checkpoint,
            from_older=from_older,
            dry_run=dry_run,
            keys=keys,
            progress=on_progress or (lambda done, total: None),
        )

    def repair(self, *, dry_run: bool = False) -> RepairedStore:
        """Repair what blocks all writing though no checkpoint is damaged.

        That is ``statestore.json``, the newest writer's claim, and an entry that a Delta log lacks.
        What is made again is proved first, by a document's SHA-256, or by the checkpoints. Where
        the newest claim is damaged, this object takes the store over: a job that runs there commits
        no more.

        Args:
            dry_run: only says what would be done.

        Returns:
            What was repaired. ``left`` names what cannot be, and what to do.

        Raises:
            StoreNotFoundError, FormatVersionError or StorageError: the repair can be run again.
        """
        return repair_command.repair(self._store.storage, self._store.fence, dry_run=dry_run)

    def edit(
        self,
        uid: str,
        name: str,
        *,
        delete: Sequence[Any] = (),
        put: Sequence[Mapping[str, Any]] = (),
        rows: Any = None,
        sql: str | None = None,
        checkpoint: int | str = "latest",
        dry_run: bool = False,
    ) -> EditedState:
        """Change one keyed state of a checkpoint, as a new checkpoint; the old one stays.

        Either ``delete`` and ``put`` change single keys, or ``rows`` or ``sql`` gives all rows.

        Args:
            uid: the operator.
            name: the state.
            delete: keys that lose all their rows. They are deleted before ``put``.
            put: rows that replace those with the same key, namespace and entry columns.
            rows: all rows of the state, as a DataFrame, an Arrow table, or a list of dictionaries.
            sql: a SELECT over the table ``state`` that DuckDB answers.
            checkpoint: as in :meth:`savepoint`.
            dry_run: only says what would be changed.

        Returns:
            What was changed.

        Raises:
            StateNotFoundError: when there is no such state.
            InvalidArgumentError, SchemaMismatchError, NullKeyError or DuplicateKeyError: for rows
                that no snapshot takes.
            MissingDependencyError: without DuckDB.
            CorruptionError: when a file is not what was written.
            CommitConflictError: when another writer commits first.
            StorageError: when the store cannot be read or written.
        """
        wanted = Edit(delete=tuple(delete), put=tuple(put), rows=rows, sql=sql)
        return edit_command.edit(
            self._store.deriver(), uid, name, wanted, checkpoint=checkpoint, dry_run=dry_run
        )

    def rekey(
        self,
        uid: str,
        name: str | None = None,
        *,
        max_parallelism: int | None = None,
        key: str | Sequence[str] | None = None,
        hash_scheme: str | None = None,
        checkpoint: int | str = "latest",
        work: str | Path | None = None,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> RekeyReport:
        """Give an operator's keyed states, or one of them, other key groups, as a new checkpoint.

        Rows do not change, and their digest proves it. A job that runs meanwhile commits no more.

        Args:
            uid: the operator.
            name: the state; by default all keyed states of the operator.
            max_parallelism: the new number of key groups; any is possible.
            key: the new key columns, of the state ``name``, which has these columns. What was key
                before is a value then.
            hash_scheme: how keys are hashed from now on.
            checkpoint: as in :meth:`savepoint`.
            work: a local folder, of one run at a time, from which an interrupted run continues.
                Without it a run that fails leaves nothing behind.
            dry_run: only says what would be written.
            on_progress: is called with the number of rows that are done, and of all.

        Returns:
            What was written.

        Raises:
            StateNotFoundError: when there is no such state.
            InvalidArgumentError, UnsupportedTypeError or ParallelismError: for options that are not
                possible.
            NullKeyError or DuplicateKeyError: for what the new key makes of the rows.
            CorruptionError: when a file is not what was written.
            CommitConflictError: when another writer commits first.
            StorageError: when the store cannot be read or written.
        """
        wanted = RekeyRequest(
            uid=uid,
            name=name,
            max_parallelism=max_parallelism,
            key=(key,) if isinstance(key, str) else None if key is None else tuple(key),
            hash_scheme=hash_scheme,
        )
        return rekey_command.rekey(
            self._store.deriver(),
            wanted,
            checkpoint=checkpoint,
            work=None if work is None else Path(work),
            dry_run=dry_run,
            progress=on_progress or (lambda done, total: None),
        )

    def purge(
        self,
        uid: str,
        key: Any,
        name: str | None = None,
        *,
        checkpoint: int | str | None = None,
        ignore_pins: bool = False,
        dry_run: bool = False,
    ) -> PurgedKey:
        """Remove a key of an operator from every kept checkpoint, or from one.

        The operator is found by its operator id: an operator without a uid that was renamed is
        purged under both labels. If a state's key columns were changed, rows are removed by each of
        its keys; :meth:`forget` takes the name of the column.

        Every checkpoint from the first that holds the key on is replaced by a new one, in their
        order. The old ones expire, and their savepoints move. Their files are deleted by
        :meth:`gc`; :meth:`find_key` says whether any is left. A job that writes meanwhile commits
        no more; it still has the key. A purge that was interrupted can be run again, and finishes.

        Args:
            uid: the operator.
            key: what :meth:`RestoredKeyedState.get` takes, or a function that returns it for a
                state.
            name: the state; by default all keyed states of the operator.
            checkpoint: the checkpoint; by default every kept one.
            ignore_pins: purges pinned checkpoints too.
            dry_run: only says what would be removed.

        Returns:
            What was removed.

        Raises:
            StateNotFoundError or CheckpointNotFoundError: when there is no such state or
                checkpoint.
            InvalidArgumentError: for a key that does not fit, or for pinned checkpoints unless
                ``ignore_pins``.
            CorruptionError: when a file is not what was written.
            CommitConflictError: when another writer commits first.
            StorageError: when the store cannot be read or written.
        """
        wanted = PurgeRequest(
            subject_of=lambda manifests: KeySubject(uid, _key_of(key), name, manifests),
            checkpoint=checkpoint,
        )
        return purge_command.purge(
            self._store.deriver(),
            wanted,
            ignore_pins=ignore_pins,
            dry_run=dry_run,
            now_ms=self._store.now_ms(),
        )

    def find_key(
        self, uid: str, key: Any, name: str | None = None, *, on_progress: Progress | None = None
    ) -> KeySearch:
        """Return which files of the store still hold a key, whether or not a checkpoint names them.

        Every file is decoded: rows of data files, statistics and partition values of Delta logs,
        and text of documents. What cannot be decoded is named, and then the key does not count as
        gone.

        Args:
            uid: as in :meth:`purge`.
            key: as in :meth:`purge`.
            name: as in :meth:`purge`.
            on_progress: is called with the number of bytes that are searched, and of all.

        Returns:
            What was searched and found.

        Raises:
            StateNotFoundError: when there is no such state.
            InvalidArgumentError: for a key that does not fit.
            StorageError: when the store cannot be read.
        """
        return search_store(
            self._store.catalog(),
            lambda manifests: KeySubject(uid, _key_of(key), name, manifests),
            on_progress or (lambda done, total: None),
        )

    def forget(
        self,
        columns: Mapping[str, Any],
        *,
        ignore_pins: bool = False,
        dry_run: bool = False,
        gc: bool = False,
        on_progress: Progress | None = None,
    ) -> ForgottenSubject:
        """Remove one subject from all operators: rows with these values in these columns.

        Rows are removed from every keyed state that has all of the columns among its key, namespace
        or entry columns (map keys), or had them there once. Checkpoints are replaced as by
        :meth:`purge`: their order, their times and their savepoints stay. Then the whole store is
        searched.

        Args:
            columns: the value of each column, such as ``{"customer": 312}``, or a function that
                returns it for the column's type. States whose column is of another type are left
                alone, and named.
            ignore_pins: replaces pinned checkpoints too.
            dry_run: only says what would be removed.
            gc: also deletes all files that nothing needs, of any age, as :meth:`gc` does with a
                minimum age of 0. No job and no reader may be at work. Without it the old files
                still have the subject, and the search finds them.
            on_progress: is called with the number of bytes that are searched, and of all.

        Returns:
            What was removed, and what the search found.

        Raises:
            StateNotFoundError: when no state has such columns.
            InvalidArgumentError: for pinned checkpoints unless ``ignore_pins``.
            CorruptionError: when a file is not what was written.
            CommitConflictError: when another writer commits first.
            StorageError: when the store cannot be read or written.
        """
        return forget_command.forget(
            self._store.deriver(),
            _values_of(columns),
            ignore_pins=ignore_pins,
            dry_run=dry_run,
            collect=gc,
            now_ms=self._store.now_ms(),
            progress=on_progress or (lambda done, total: None),
        )

    def find_subject(
        self, columns: Mapping[str, Any], *, on_progress: Progress | None = None
    ) -> KeySearch:
        """Return which files of the store still hold a subject; see :meth:`find_key`.

        Args:
            columns: as in :meth:`forget`.
            on_progress: as in :meth:`find_key`.

        Returns:
            What was searched and found.

        Raises:
            StateNotFoundError: when no state has such columns.
            StorageError: when the store cannot be read.
        """
        values = _values_of(columns)
        return search_store(
            self._store.catalog(),
            lambda manifests: ColumnSubject(values, manifests),
            on_progress or (lambda done, total: None),
        )

    def copy(
        self,
        checkpoint: int | str,
        to: Opened | str,
        *,
        as_savepoint: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> CopiedCheckpoint:
        """Copy a checkpoint, or a savepoint by its name, to another store.

        The copy gets the next id there. When it is copied again, the first copy is found. What the
        target has already is not copied, so a copy that was killed continues. Tables have the
        target's format.

        Args:
            checkpoint: as in :meth:`savepoint`.
            to: a store that is open, or the path or URL of one. It is created if there is none.
                Then it remembers the table format and layout that it was opened with, else this
                store's.
            as_savepoint: the name of the savepoint there. By default a savepoint keeps its name,
                and another checkpoint gets none.
            storage_options: options for fsspec, where ``to`` is a path or URL.
            dry_run: only says what would be copied.
            on_progress: is called with the number of bytes that are copied, and of all.

        Returns:
            What was copied.

        Raises:
            CheckpointNotFoundError: when there is no such checkpoint.
            InvalidArgumentError: for this store itself, for a savepoint that is another checkpoint
                there, or for a table format that is not the target's.
            ParallelismError or SchemaMismatchError: for other keys there.
            MissingFileError or DamagedFileError: for a file here that is not what was written.
            CommitConflictError or StorageError: the copy can be run again.
        """
        if isinstance(to, str):
            target = self._beside(open_storage(to, storage_options, of_store=True))
        else:
            target = to.parts
        return copy_command.copy(
            self._store.catalog(),
            checkpoint,
            target.storage,
            target.deriver_of,
            table_format=target.table_format,
            layout=target.layout,
            as_savepoint=as_savepoint,
            dry_run=dry_run,
            progress=on_progress or (lambda done, total: None),
        )

    def fork(
        self,
        to: str,
        checkpoint: int | str = "latest",
        *,
        storage_options: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> CopiedCheckpoint:
        """Make a new store that begins with a checkpoint of this one, sharing its files.

        On one file system nothing is copied: a file has a name in each store, and is deleted when
        both have released it. From and to a bucket, and to another disk, files are copied.

        Args:
            to: the path or URL of the new store.
            checkpoint: as in :meth:`savepoint`.
            storage_options: as in :meth:`copy`.
            dry_run: only says what would be copied or shared.
            on_progress: as in :meth:`copy`.

        Returns:
            What was copied or shared.

        Raises:
            InvalidArgumentError: when there is a store at ``to``.
            StateStoreError: as :meth:`copy`.
        """
        storage = open_storage(to, storage_options, of_store=True)
        return fork_command.fork(
            self._store.catalog(),
            checkpoint,
            storage,
            self._beside(storage).deriver_of,
            dry_run=dry_run,
            progress=on_progress or (lambda done, total: None),
        )

    def _beside(self, storage: Storage) -> OpenStore:
        """Return another store, whose files are written as this one's."""
        return OpenStore.on(storage, parquet=self._store.parquet)


def _milliseconds(seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgumentError(f"an age is a number of seconds, not {seconds!r}")
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InvalidArgumentError(f"an age is 0 or more seconds, not {seconds}")
    return round(seconds * 1000)


def _key_of(key: Any) -> Callable[[KeyedState], Any]:
    if callable(key):
        of: Callable[[KeyedState], Any] = key
        return of
    return lambda state: key


def _values_of(columns: Mapping[str, Any]) -> dict[str, ValueOf]:
    return {name: _value_of(value) for name, value in columns.items()}


def _value_of(value: Any) -> ValueOf:
    if callable(value):
        of: ValueOf = value
        return of
    return lambda kind: value
