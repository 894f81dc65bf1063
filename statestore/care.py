"""The half of a store's front door that needs no job: checking, comparing and changing what is
stored.

Each method is one call into ``commands/``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from statestore.arguments import checked_methods
from statestore.format.layers import CompactionRule
from statestore.format.state import KeyedState
from statestore.keeping import StoreKeeping
from statestore.keys.groups import KeyGroupRange
from statestore.maintenance import compact as compact_command
from statestore.maintenance import copy as copy_command
from statestore.maintenance import copy as fork_command
from statestore.maintenance import diff as diff_command
from statestore.maintenance import edit as edit_command
from statestore.maintenance import purge as purge_command
from statestore.maintenance import rekey as rekey_command
from statestore.maintenance import salvage as salvage_command
from statestore.maintenance import verify as verify_command
from statestore.maintenance.compact import CompactReport, CompactRequest
from statestore.maintenance.copy import CopiedCheckpoint
from statestore.maintenance.diff import DEFAULT_EXAMPLES
from statestore.maintenance.diff_rows import CheckpointDifference
from statestore.maintenance.edit import Edit, EditedState
from statestore.maintenance.purge import PurgedKey, PurgeRequest
from statestore.maintenance.purge_files import KeySearch, check_purged
from statestore.maintenance.rekey import RekeyReport
from statestore.maintenance.rekey_plan import RekeyRequest
from statestore.maintenance.salvage import DEFAULT_KEYS, SalvageReport
from statestore.maintenance.verify import VerifyReport
from statestore.restore.export import Progress
from statestore.storage import open_storage

__all__ = ["StoreCare"]


@checked_methods
class StoreCare(StoreKeeping):
    """What an operator does with kept checkpoints; :class:`StateStore` is one."""

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
            self._storage,
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
            self._storage,
            self._deriver(),
            checkpoint=checkpoint,
            from_older=from_older,
            dry_run=dry_run,
            keys=keys,
            progress=on_progress or (lambda done, total: None),
        )

    def diff(
        self,
        a: int | str,
        b: int | str = "latest",
        *,
        other: StoreCare | None = None,
        uid: str | None = None,
        name: str | None = None,
        keys: int = DEFAULT_EXAMPLES,
        on_progress: Progress | None = None,
    ) -> CheckpointDifference:
        """Return what tells checkpoint ``a`` from ``b``, which lies in the store ``other`` if one
        is given: rows added, removed and changed per state and key group, elements, schemas, job
        graphs, parallelism.

        What is stored is compared, expired rows too; a wider type is no difference. Only key groups
        whose digests differ, or say nothing under other types, are read; the answer has the bytes
        read of each side, and up to ``keys`` examples per state. With ``uid`` only that operator is
        compared, with ``name`` only the state of that name. ``on_progress`` hears of the key groups
        that are done, and of how many. Raises StoreNotFoundError, CheckpointNotFoundError,
        StateNotFoundError, CorruptionError or StorageError.
        """
        return diff_command.diff(
            (self._storage, a),
            ((other or self)._storage, b),
            uid=uid,
            name=name,
            keys=keys,
            progress=on_progress or (lambda done, total: None),
        )

    def copy(
        self,
        checkpoint: int | str,
        to: StoreCare | str,
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
        if not isinstance(to, StoreCare):
            storage = open_storage(to, storage_options)
            to = StoreCare(storage, storage, None, self._parquet)
        return copy_command.copy(
            self._catalog(),
            checkpoint,
            to._storage,
            to._deriver_of,
            table_format=to._table_format,
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
        other = StoreCare(storage, storage, None, self._parquet)
        return fork_command.fork(
            self._catalog(),
            checkpoint,
            storage,
            other._deriver_of,
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
            self._deriver(), wanted, ignore_pins=ignore_pins, dry_run=dry_run, now_ms=self._now_ms()
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
        return check_purged(self._catalog(), uid, _key_of(key), name=name, progress=progress)

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
            self._deriver(), uid, name, wanted, checkpoint=checkpoint, dry_run=dry_run
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
            self._deriver(),
            wanted,
            checkpoint=checkpoint,
            work=None if work is None else Path(work),
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
            rule=rule or self._compaction or CompactionRule(),
        )
        return compact_command.compact(
            self._deriver(),
            wanted,
            checkpoint=checkpoint,
            dry_run=dry_run,
            now_ms=self._now_ms() if now_ms is None else now_ms,
            progress=on_progress or (lambda done, total: None),
        )


def _key_of(key: Any) -> Callable[[KeyedState], Any]:
    if callable(key):
        of: Callable[[KeyedState], Any] = key
        return of
    return lambda state: key
