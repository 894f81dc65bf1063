"""The half of a store's front door that needs no job: keeping, checking, comparing and changing
what is stored.

Each method is one call into ``commands/``.
"""

from __future__ import annotations

from typing import Any

from statestore._version import __version__
from statestore.catalog import Catalog
from statestore.commands import expire as expire_command
from statestore.commands import verify as verify_command
from statestore.commands.derive import Deriver
from statestore.commands.expire import ExpiredCheckpoints
from statestore.commands.export import Progress
from statestore.commands.verify import VerifyReport
from statestore.fence import Fence
from statestore.storage import Storage
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

    def expire(self, *, retain: int, dry_run: bool = False) -> ExpiredCheckpoints:
        """Give up all but the newest ``retain`` checkpoints: they are invisible from now on.

        No data file is deleted. With ``dry_run`` only say what would be given up. Raises
        InvalidArgumentError for fewer than one, StoreNotFoundError or StorageError.
        """
        return expire_command.expire(
            self._catalog(), retain=retain, release=__version__, dry_run=dry_run
        )

    def _catalog(self) -> Catalog:
        return Catalog.open(self._data, create=False)

    def _deriver(self) -> Deriver:
        return Deriver(self._catalog(), self._fence, self._spark, self._parquet, __version__)
