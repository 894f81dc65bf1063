"""What keeps checkpoints and lets go of them: savepoints, pins, expiry, garbage collection.

The part of a store's front door that reads and writes no rows. Each method is one call into
``commands/``.
"""

from __future__ import annotations

import math
import time
from typing import Any

from statestore._version import __version__
from statestore.arguments import checked_methods
from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Fence
from statestore.errors import InvalidArgumentError
from statestore.files.writer import ParquetOptions
from statestore.format.documents import Pin, Savepoint
from statestore.format.layers import CompactionRule
from statestore.listeners import CheckpointListener, Listeners
from statestore.maintenance import expire as expire_command
from statestore.maintenance import hold as pin_command
from statestore.maintenance import repair as repair_command
from statestore.maintenance.derive import Deriver
from statestore.maintenance.expire import ExpiredCheckpoints
from statestore.maintenance.gc import DEFAULT_MINIMUM_AGE_S, CollectedGarbage, collect_garbage
from statestore.maintenance.hold import PinnedCheckpoint, make_savepoint
from statestore.maintenance.repair import RepairedStore
from statestore.restore.export import Progress
from statestore.storage import Storage

__all__ = ["StoreKeeping"]


@checked_methods
class StoreKeeping:
    """What is kept of a store, and for how long; :class:`StoreCare` is one."""

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
        self._listeners = Listeners(storage.url)
        self._compaction: CompactionRule | None = None
        self._table_format: str | None = None  # what it was opened with
        self._now_ms = _now_ms

    @property
    def url(self) -> str:
        """Where the store lies, without credentials."""
        return self._storage.url

    def add_listener(self, listener: CheckpointListener) -> None:
        """Tell a listener of every checkpoint that this object commits, fails to commit, or
        restores.

        As Spark's ``spark.streams.addListener``. It is called in the thread that does so; what it
        raises is logged, and changes nothing else. InvalidArgumentError for what is no listener.
        """
        self._listeners.add(listener)

    def remove_listener(self, listener: CheckpointListener) -> None:
        """Tell a listener no more; nothing happens when it is not known."""
        self._listeners.remove(listener)

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

    def repair(self, *, dry_run: bool = False) -> RepairedStore:
        """Mend what blocks all writing though no checkpoint is damaged: ``statestore.json``, the
        newest writer's claim, an entry that a Delta log lacks.

        What is made again is proved first, by a document's SHA-256, by the checkpoints, or by
        Delta's own checksums; ``left`` names what cannot be, and what to do. Where the newest claim
        is damaged, this object takes the store over: a job at work there commits no more. With
        ``dry_run`` only say what would be done. Raises StoreNotFoundError, FormatVersionError or
        StorageError; then it can be run again.
        """
        return repair_command.repair(self._storage, self._fence, dry_run=dry_run)

    def _catalog(self) -> Catalog:
        return Catalog.open(self._data, create=False)

    def _deriver(self) -> Deriver:
        return self._deriver_of(self._catalog())

    def _deriver_of(self, catalog: Catalog) -> Deriver:
        return Deriver(
            catalog, self._fence, self._spark, self._parquet, __version__, self._listeners
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _milliseconds(seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgumentError(f"an age is a number of seconds, not {seconds!r}")
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InvalidArgumentError(f"an age is 0 or more seconds, not {seconds}")
    return round(seconds * 1000)
