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
from statestore.maintenance.gc import DEFAULT_MINIMUM_AGE_S, CollectedGarbage, collect_garbage
from statestore.maintenance.hold import PinnedCheckpoint, make_savepoint
from statestore.maintenance.purge import PurgedKey, PurgeRequest
from statestore.maintenance.purge_files import KeySearch, check_purged
from statestore.maintenance.rekey import RekeyReport
from statestore.maintenance.rekey_plan import RekeyRequest
from statestore.maintenance.repair import RepairedStore
from statestore.maintenance.salvage import DEFAULT_KEYS, SalvageReport
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
        that name already. Raises CheckpointNotFoundError, MalformedManifestError for a checkpoint
        that cannot be read, or InvalidArgumentError for a name that is taken, or is none.
        """
        return make_savepoint(self._store.catalog(), name, checkpoint, now_ms=self._store.now_ms())

    def delete_savepoint(self, name: str) -> Savepoint | None:
        """Let go of a savepoint and return it, None when it was damaged.

        Its checkpoint is one as any other from now on; if that had expired, it is gone. Raises
        CheckpointNotFoundError naming the savepoints that there are.
        """
        return self._store.catalog().holds.delete_savepoint(name)

    def savepoints(self) -> tuple[Savepoint, ...]:
        """Return the savepoints in order of name; MalformedManifestError for a damaged one."""
        return self._store.catalog().holds.savepoints()

    def pin(
        self, checkpoint: int | str = "latest", *, lease_s: float, holder: str | None = None
    ) -> PinnedCheckpoint:
        """Keep a checkpoint while it is read, at most for ``lease_s`` seconds::

            with store.maintenance.pin(lease_s=3600) as pinned:
                restored = store.restore(checkpoint=pinned.checkpoint_id, parallelism=4)

        It is let go of at the end of the block, by :meth:`unpin` with its ``token``, or when the
        lease is over. ``holder`` says who reads, by default host and process. Raises
        CheckpointNotFoundError, MalformedManifestError or InvalidArgumentError.
        """
        return pin_command.pin(
            self._store.catalog(),
            checkpoint,
            lease_s=lease_s,
            holder=holder,
            now_ms=self._store.now_ms(),
        )

    def unpin(self, token: str) -> None:
        """Let go of a pin; CheckpointNotFoundError names those that there are."""
        pin_command.unpin(self._store.catalog(), token)

    def pins(self) -> tuple[Pin, ...]:
        """Return the pins, also those whose lease is over; MalformedManifestError for a damaged
        one.
        """
        return self._store.catalog().holds.pins()

    def expire(
        self,
        *,
        retain: int | None = None,
        older_than_s: float | None = None,
        dry_run: bool = False,
    ) -> ExpiredCheckpoints:
        """Give up checkpoints, which are invisible from now on: all but the newest ``retain``, or
        those that were taken more than ``older_than_s`` seconds ago; with both, what is neither
        among the newest nor young.

        The newest always stays, and so does what a savepoint or a pin holds; ``held`` names it. No
        data file is deleted: see :meth:`gc`. With ``dry_run`` only say what would be given up.
        Raises InvalidArgumentError for fewer than one, or when neither is given,
        StoreNotFoundError, MalformedManifestError for a damaged savepoint or pin, or StorageError.
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
        """Delete the data files that no visible checkpoint, savepoint or pin needs, and that are
        older than ``minimum_age_s`` seconds; also what crashed writers left.

        What was given up less than that ago stays as well. A snapshot that takes longer must not
        run at the same time, and none at all with 0. With ``dry_run`` only say what would go.
        ``on_progress`` hears of the files deleted, and of how many. Raises StoreNotFoundError, and
        before anything is deleted CorruptionError, FormatVersionError or StorageError when it
        cannot be known what is needed: they say what to do.
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
        """Fold changes of incremental checkpoints into their base, and merge layers of them, as a
        new checkpoint; the old ones stay.

        Done is what ``rule`` says, by default that of the store, once; with ``everything`` all
        changes are folded, and no layers are left. ``uid`` and ``name`` choose states.
        ``key_groups``, a KeyGroupRange or a text as ``0-31``, chooses base files that have some of
        them; then no layers are merged. When there is nothing to do no checkpoint is made. A job
        compacts in the background of its own snapshots; one that runs meanwhile commits no more, as
        after :meth:`edit`, and of two compactions at once one commits. Rows that have expired by
        ``now_ms``, by default now, are not written again. ``on_progress`` hears of the spans and
        layers that are done, and of how many.

        Raises CheckpointNotFoundError, StateNotFoundError, InvalidArgumentError, CorruptionError,
        CommitConflictError, or StorageError; nothing is visible of a compaction that fails.
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
        """Return whether a checkpoint (by id, ``latest``, or ``all``) is as it was written.

        Checked are the manifest, and of every file its length, rows, row groups and columns: one
        length and one footer are read per file. With ``deep`` every byte and row is read: SHA-256,
        digest, key group of every key, order, duplicates, null keys. What is broken is in the
        report, all of it; nothing is raised for it. ``on_progress`` hears of the files checked, and
        of how many. Raises StoreNotFoundError, CheckpointNotFoundError, FormatVersionError, or
        StorageError when something could not be read.
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

        What is lost is in the report: key groups, rows, and up to ``keys`` of the keys that the
        newest older checkpoint with the same key group whole has there. With ``from_older`` that
        checkpoint's rows take the place of the lost ones, and the new manifest says so in its
        ``origin``. A state that lost everything is there, without rows. Of a checkpoint in which
        nothing is damaged nothing is made; with ``dry_run`` neither. ``on_progress`` hears of the
        files checked, and of how many.

        Raises CheckpointNotFoundError, MalformedManifestError when the checkpoint's manifest cannot
        be read, CommitConflictError, or StorageError.
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
        """Mend what blocks all writing though no checkpoint is damaged: ``statestore.json``, the
        newest writer's claim, an entry that a Delta log lacks.

        What is made again is proved first, by a document's SHA-256, by the checkpoints, or by
        Delta's own checksums; ``left`` names what cannot be, and what to do. Where the newest claim
        is damaged, this object takes the store over: a job at work there commits no more. With
        ``dry_run`` only say what would be done. Raises StoreNotFoundError, FormatVersionError or
        StorageError; then it can be run again.
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

        Either single keys: those in ``delete`` lose all their rows, then the rows in ``put`` take
        the place of those with the same key, namespace and entry columns. Or ``rows``, all rows of
        the state as a DataFrame, an Arrow table, or a list of dictionaries. Or ``sql``, a SELECT
        over the table ``state`` that DuckDB answers. Raises StateNotFoundError,
        InvalidArgumentError, SchemaMismatchError, NullKeyError or DuplicateKeyError for rows that
        no snapshot takes, MissingDependencyError without DuckDB, CorruptionError,
        CommitConflictError, or StorageError.
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
        """Put an operator's keyed states, or one of them, over other key groups, as a new
        checkpoint.

        Any ``max_parallelism``, a ``hash_scheme``, and for the state ``name`` a ``key`` of columns
        that it has; what was key and is none any more is a value. Rows do not change, and their
        digest proves it. ``work`` is a local folder, of one run at a time, from which an ended
        run goes on; without it a run that fails leaves nothing behind. A job that runs meanwhile
        commits no more. Raises StateNotFoundError, InvalidArgumentError, UnsupportedTypeError,
        ParallelismError, NullKeyError or DuplicateKeyError for what the new key makes of the rows,
        CorruptionError, CommitConflictError, or StorageError.
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
        """Remove a key of an operator, of all its keyed states or of ``name``, from every kept
        checkpoint, or from one.

        ``key`` is what :meth:`RestoredKeyedState.get` takes, or a function that returns it for a
        state. Every checkpoint from the first that holds the key on is replaced by a new one, in
        their order; the old ones are given up, and their savepoints move. Their files go with
        :meth:`gc`; :meth:`find_key` tells whether any is left. A job that writes meanwhile commits
        no more; it still has the key. Interrupted, it can be run again, and finishes.

        Raises StateNotFoundError, CheckpointNotFoundError, InvalidArgumentError for a key that does
        not fit, or pinned checkpoints unless ``ignore_pins``, CorruptionError, CommitConflictError,
        or StorageError.
        """
        wanted = PurgeRequest(uid=uid, key_of=_key_of(key), name=name, checkpoint=checkpoint)
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
        """Return which files of the store still hold a key, whether or not a checkpoint names them:
        data files by their rows, all others by their bytes.

        Arguments are those of :meth:`purge`; ``on_progress`` hears of bytes, and of how many.
        Raises StateNotFoundError, InvalidArgumentError, or StorageError.
        """
        progress = on_progress or (lambda done, total: None)
        return check_purged(self._store.catalog(), uid, _key_of(key), name=name, progress=progress)

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
        """Copy a checkpoint, or a savepoint by its name, to another store: one that is open, or
        the path or URL of one, which is made if there is none.

        It gets the next id there; copied again, the first copy is found. What the target has
        already is not copied, so a copy that was killed goes on. A savepoint is one of that name,
        or of ``as_savepoint``, there. Delta logs are written only to a store that was opened with
        Spark; else tables are plain Parquet. A store that is made remembers the table format that
        it was opened with, else this one's. ``on_progress`` hears of bytes, and of how many.

        Raises CheckpointNotFoundError, InvalidArgumentError for this store itself, a savepoint that
        is another checkpoint there or a table format that is not the target's, ParallelismError
        or SchemaMismatchError for other keys there, MissingFileError or DamagedFileError for a file
        here that is not what was written, CommitConflictError, or StorageError; then it can be run
        again.
        """
        if isinstance(to, str):
            target = self._beside(open_storage(to, storage_options))
        else:
            target = to.parts
        return copy_command.copy(
            self._store.catalog(),
            checkpoint,
            target.storage,
            target.deriver_of,
            table_format=target.table_format,
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
        """Make a new store at ``to`` that begins with a checkpoint of this one, sharing its files.

        On one file system nothing is copied: a file has a name in each store, and goes when both
        have let go of it. From and to a bucket, and to another disk, files are copied. Raises
        InvalidArgumentError when there is a store at ``to``, and what :meth:`copy` raises.
        """
        storage = open_storage(to, storage_options)
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
