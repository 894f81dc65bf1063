"""The parts of an opened store: its storages, its fence, its clock, and helpers for commands.

A command is a function whose first parameter is the store, a :class:`HasContext`. The classes that
users call have these functions as their methods: ``expire = expire_command.expire``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from statestore._version import __version__
from statestore.catalog.catalog import (
    DEFAULT_TABLE_FORMAT,
    Catalog,
    Checkpoint,
    CheckpointRef,
    SeenCheckpoints,
)
from statestore.catalog.fence import Fence
from statestore.delta.state_table import StateTable, open_table
from statestore.errors import StoreNotFoundError
from statestore.format.layers import CompactionRule
from statestore.listeners import Listeners
from statestore.maintenance.derive import Deriver
from statestore.parquet.writer import ParquetOptions
from statestore.snapshot.background_compaction import BackgroundCompaction
from statestore.storage import Storage


@dataclass(frozen=True)
class StoreContext:
    """The parts that :class:`StateStore`, its ``inspect`` and its ``maintenance`` share.

    ``data`` is the storage for snapshots and restores, including the local cache if there is one.
    ``table_format`` and ``layout`` are the arguments that the store was opened with.
    """

    storage: Storage
    data: Storage
    spark: Any
    parquet: ParquetOptions
    compaction: CompactionRule | None
    background: BackgroundCompaction
    table_format: str | None
    layout: str | None
    fence: Fence
    listeners: Listeners
    now_ms: Callable[[], int]
    seen: SeenCheckpoints = field(default_factory=SeenCheckpoints)

    @classmethod
    def on(
        cls,
        storage: Storage,
        *,
        data: Storage | None = None,
        spark: Any = None,
        parquet: ParquetOptions,
        compaction: CompactionRule | None = None,
        table_format: str | None = None,
        layout: str | None = None,
    ) -> StoreContext:
        """Return a context for a storage, with a new fence and this machine's clock."""
        listeners = Listeners(storage.url)
        return cls(
            storage,
            data or storage,
            spark,
            parquet,
            compaction,
            BackgroundCompaction(data or storage, parquet, compaction, listeners),
            table_format,
            layout,
            Fence(storage, release=__version__),
            listeners,
            _now_ms,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the context as one that is opened again: with its own fence, without Spark.

        Listeners are not pickled, because an event belongs to the process that caused it.
        """
        opened = partial(
            StoreContext.on,
            data=self.data,
            parquet=self.parquet,
            compaction=self.compaction,
            table_format=self.table_format,
            layout=self.layout,
        )
        return opened, (self.storage,)

    def catalog(self) -> Catalog:
        """Return the store's catalog. Raises StoreNotFoundError."""
        return Catalog.open(self.data, create=False, seen=self.seen)

    def checkpoint(self, checkpoint: CheckpointRef) -> Checkpoint:
        """Return a checkpoint of the store; raises the errors of :meth:`Catalog.checkpoint`."""
        return self.catalog().checkpoint(checkpoint)

    def deriver(self) -> Deriver:
        """Return a factory for new checkpoints derived from kept ones.

        Raises StoreNotFoundError.
        """
        return self.deriver_of(self.catalog())

    def deriver_of(self, catalog: Catalog) -> Deriver:
        """Return a factory for derived checkpoints in a catalog of this store."""
        catalog.seen = self.seen
        return Deriver(catalog, self.fence, self.parquet, __version__, self.listeners)

    def to_write(self) -> tuple[Catalog, StateTable]:
        """Return the catalog and the table backend, and create the store if necessary.

        Raises InvalidArgumentError for another table format than the store's, and
        StoreNotFoundError if a store that this object has used is gone.
        """
        # Read before the store is opened: another thread may create the store meanwhile.
        is_used = self.seen.newest is not None
        try:
            catalog = self.catalog()
        except StoreNotFoundError:
            if is_used:  # a backup may be put back at this moment
                raise
            chosen = self.table_format or DEFAULT_TABLE_FORMAT
            open_table(chosen, self.data)  # an invalid format must not create a store
            catalog = Catalog.open(
                self.data,
                create=True,
                table_format=chosen,
                layout=self.layout,
                seen=self.seen,
            )
        chosen = catalog.table_format(self.table_format)
        return catalog, open_table(chosen, self.data)


class HasContext:
    """An open store, or a part of its interface such as ``store.maintenance``."""

    def __init__(self, parts: StoreContext) -> None:
        """Use ``StateStore.open``."""
        self.parts = parts
        """The shared parts that commands on the store use."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
