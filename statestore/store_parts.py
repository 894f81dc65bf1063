"""A store that was opened: its storages, its fence, its clock, and what commands are made of."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from statestore._version import __version__
from statestore.catalog.catalog import DEFAULT_TABLE_FORMAT, Catalog, CommittedManifest
from statestore.catalog.fence import Fence
from statestore.errors import StoreNotFoundError
from statestore.files.table import StateTable, open_table
from statestore.files.writer import ParquetOptions
from statestore.format.layers import CompactionRule
from statestore.listeners import Listeners
from statestore.maintenance.derive import Deriver
from statestore.snapshot.background import BackgroundCompaction
from statestore.storage import Storage

__all__ = ["OpenStore", "Opened"]


@dataclass(frozen=True)
class OpenStore:
    """What :class:`StateStore`, its ``inspect`` and its ``maintenance`` share.

    ``data`` is the storage as snapshots and restores see it, with the local cache, if there is one.
    ``table_format`` and ``layout`` are those that the store was opened with.
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
    committed: CommittedManifest = field(default_factory=CommittedManifest)

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
    ) -> OpenStore:
        """Return a store on a storage, with a fence of its own and this machine's clock."""
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

    def catalog(self) -> Catalog:
        """Return its checkpoints. Raises StoreNotFoundError."""
        return Catalog.open(self.data, create=False)

    def deriver(self) -> Deriver:
        """Return what makes new checkpoints out of kept ones. Raises StoreNotFoundError."""
        return self.deriver_of(self.catalog())

    def deriver_of(self, catalog: Catalog) -> Deriver:
        """Return what makes new checkpoints in a catalog of this store."""
        return Deriver(catalog, self.fence, self.parquet, __version__, self.listeners)

    def to_write(self) -> tuple[Catalog, StateTable]:
        """Return the checkpoints, of a new store if there is none, and the backend of its tables.

        Raises InvalidArgumentError for another table format than the store has.
        """
        try:
            catalog = Catalog.open(self.data, create=False, committed=self.committed)
        except StoreNotFoundError:
            chosen = self.table_format or DEFAULT_TABLE_FORMAT
            open_table(chosen, self.data)  # what it refuses makes no store
            catalog = Catalog.open(
                self.data,
                create=True,
                table_format=chosen,
                layout=self.layout,
                committed=self.committed,
            )
        chosen = catalog.table_format(self.table_format)
        return catalog, open_table(chosen, self.data)


@runtime_checkable
class Opened(Protocol):
    """A :class:`StateStore`."""

    @property
    def parts(self) -> OpenStore:
        """What commands on it are made of."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
