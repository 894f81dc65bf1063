"""The half of a store's front door that needs no job: keeping, checking, comparing and changing
what is stored.

Each method is one call into ``commands/``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from statestore._version import __version__
from statestore.catalog import Catalog
from statestore.commands import copy as copy_command
from statestore.commands import diff as diff_command
from statestore.commands import edit as edit_command
from statestore.commands import expire as expire_command
from statestore.commands import pin as pin_command
from statestore.commands import purge as purge_command
from statestore.commands import salvage as salvage_command
from statestore.commands import verify as verify_command
from statestore.commands.copy import CopiedCheckpoint
from statestore.commands.derive import Deriver
from statestore.commands.diff import DEFAULT_EXAMPLES
from statestore.commands.edit import Edit, EditedState
from statestore.commands.expire import ExpiredCheckpoints
from statestore.commands.export import Progress
from statestore.commands.gc import DEFAULT_MINIMUM_AGE_S, CollectedGarbage, collect_garbage
from statestore.commands.pin import PinnedCheckpoint
from statestore.commands.purge import PurgedKey, PurgeRequest
from statestore.commands.purge_check import KeySearch, check_purged
from statestore.commands.salvage import DEFAULT_KEYS, SalvageReport
from statestore.commands.savepoint import make_savepoint
from statestore.commands.verify import VerifyReport
from statestore.errors import InvalidArgumentError
from statestore.fence import Fence
from statestore.model.diff import CheckpointDifference
from statestore.model.hold import Pin, Savepoint
from statestore.model.state import KeyedState
from statestore.storage import Storage, open_storage
from statestore.table.writing import ParquetOptions

__all__ = ["StoreCare"]


class StoreCare:
    """What an operator does with kept checkpoints; :class:`StateStore` is one."""

    def __init__(
        self,
        storage: Storage,
        data: Storage,
        spark: Any,
        parquet: ParquetOptions,
    ) -> None:
        """Use ``StateStore.open``."""
        self._storage, self._data, self._spark, self._parquet = storage, data, spark, parquet
        self._fence = Fence(storage, release=__version__)
        self._now_ms = _now_ms

    @property
    def url(self) -> str:
        """Where the store lies, without credentials."""
        return self._storage.url

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

    def savepoint(self, name: str, checkpoint: int | str = "latest") -> Savepoint:
        """Keep a checkpoint under a name, until :meth:`delete_savepoint`.

        Everything that takes a checkpoint takes the name. Nothing happens when it is kept under
        that name already. Raises CheckpointNotFoundError, MalformedManifestError for a checkpoint
        that cannot be read, or InvalidArgumentError for a name that is taken, or is none.
        """
        return make_savepoint(self._catalog(), name, checkpoint, now_ms=self._now_ms())

    def delete_savepoint(self, name: str) -> Savepoint | None:
        """Let go of a savepoint and return it, None when it was damaged.

        Its checkpoint is one as any other from now on; if that had expired, it is gone. Raises
        CheckpointNotFoundError naming the savepoints that there are.
        """
        return self._catalog().holds.delete_savepoint(name)

    def savepoints(self) -> tuple[Savepoint, ...]:
        """Return the savepoints in order of name; MalformedManifestError for a damaged one."""
        return self._catalog().holds.savepoints()

    def pin(
        self, checkpoint: int | str = "latest", *, lease_s: float, holder: str | None = None
    ) -> PinnedCheckpoint:
        """Keep a checkpoint while it is read, at most for ``lease_s`` seconds::

            with store.pin(lease_s=3600) as pinned:
                restored = store.restore(checkpoint=pinned.checkpoint_id, parallelism=4)

        It is let go of at the end of the block, by :meth:`unpin` with its ``token``, or when the
        lease is over. ``holder`` says who reads, by default host and process. Raises
        CheckpointNotFoundError, MalformedManifestError or InvalidArgumentError.
        """
        return pin_command.pin(
            self._catalog(), checkpoint, lease_s=lease_s, holder=holder, now_ms=self._now_ms()
        )

    def unpin(self, token: str) -> None:
        """Let go of a pin; CheckpointNotFoundError names those that there are."""
        pin_command.unpin(self._catalog(), token)

    def pins(self) -> tuple[Pin, ...]:
        """Return the pins, also those whose lease is over; MalformedManifestError for a damaged
        one.
        """
        return self._catalog().holds.pins()

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
            self._catalog(),
            retain=retain,
            older_than_ms=None if older_than_s is None else _milliseconds(older_than_s),
            release=__version__,
            now_ms=self._now_ms(),
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
            self._catalog(),
            minimum_age_ms=_milliseconds(minimum_age_s),
            now_ms=self._now_ms(),
            dry_run=dry_run,
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

        Only key groups whose digests differ are read; the answer has the bytes read of each side,
        and up to ``keys`` examples per state. With ``uid`` only that operator is compared, with
        ``name`` only the state of that name. ``on_progress`` hears of the key groups that are done,
        and of how many. Raises StoreNotFoundError, CheckpointNotFoundError, StateNotFoundError,
        CorruptionError or StorageError.
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
        Spark; else tables are plain Parquet. ``on_progress`` hears of bytes, and of how many.

        Raises CheckpointNotFoundError, InvalidArgumentError for this store itself or a savepoint
        that is another checkpoint there, ParallelismError or SchemaMismatchError for other keys
        there, MissingFileError or DamagedFileError for a file here that is not what was written,
        CommitConflictError, or StorageError; then it can be run again.
        """
        if not isinstance(to, StoreCare):
            storage = open_storage(to, storage_options)
            to = StoreCare(storage, storage, None, self._parquet)
        return copy_command.copy(
            self._catalog(),
            checkpoint,
            to._storage,
            to._deriver_of,
            as_savepoint=as_savepoint,
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
        wanted = Edit(delete=delete, put=put, rows=rows, sql=sql)
        return edit_command.edit(
            self._deriver(), uid, name, wanted, checkpoint=checkpoint, dry_run=dry_run
        )

    def _catalog(self) -> Catalog:
        return Catalog.open(self._data, create=False)

    def _deriver(self) -> Deriver:
        return self._deriver_of(self._catalog())

    def _deriver_of(self, catalog: Catalog) -> Deriver:
        return Deriver(catalog, self._fence, self._spark, self._parquet, __version__)


def _key_of(key: Any) -> Callable[[KeyedState], Any]:
    if callable(key):
        of: Callable[[KeyedState], Any] = key
        return of
    return lambda state: key


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _milliseconds(seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgumentError(f"an age is a number of seconds, not {seconds!r}")
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InvalidArgumentError(f"an age is 0 or more seconds, not {seconds}")
    return round(seconds * 1000)
