"""A checkpoint made of another one: what every command that changes kept state begins with.

Nothing is changed in place: files and manifests are written once. The new checkpoint has the
parallelism and the graph of the one that it is made of, and names its files again where nothing
changes.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from statestore.catalog import Catalog
from statestore.commands.begin import begin
from statestore.commands.listening import Listeners
from statestore.commands.measuring import Measuring
from statestore.commands.snapshot import CheckpointWriter
from statestore.errors import CommitConflictError
from statestore.fence import Fence
from statestore.model.manifest import Manifest
from statestore.table.base import TablesAsStored
from statestore.table.writing import ParquetOptions

__all__ = ["Deriver", "refuse_older"]


@dataclass(frozen=True)
class Deriver:
    """Who can make a checkpoint of another one in a store, and who hears of it."""

    catalog: Catalog
    fence: Fence
    spark: Any
    parquet: ParquetOptions
    release: str
    listeners: Listeners

    def begin(self, manifest: Manifest) -> CheckpointWriter:
        """Return the writer of a new checkpoint like the one given, with no states yet.

        With Spark the Delta tables get a new version as well; without, their log stays behind until
        the next snapshot, and the manifest is what counts. Raises CommitConflictError when another
        writer has taken over.
        """
        return self._begin(manifest, self.catalog, self.spark, None)

    def begin_in_order(self, manifests: Sequence[Manifest]) -> tuple[CheckpointWriter, ...]:
        """Return the writers of new checkpoints like those given, which get ids in their order.

        They must be committed from the last to the first (an ``ExitStack`` does it): so whoever
        looks for the newest checkpoint finds the last one, and never one made of an older. The ids
        below its own are no others' to take, because each is claimed. Only the last one's Delta
        tables get a new version. Raises CommitConflictError when another writer has taken over.
        """
        free = max(self.fence.enter().announced_id, self.catalog.next_id())
        last = len(manifests) - 1
        begun: list[CheckpointWriter] = []
        try:
            for place, manifest in enumerate(manifests):
                newest = place == last
                catalog = self.catalog if newest else _Below(self.catalog)
                spark = self.spark if newest else None
                begun.append(self._begin(manifest, catalog, spark, free + place))
        except BaseException:
            for writer in begun:
                writer.give_up()
            raise
        return tuple(begun)

    def _begin(
        self, manifest: Manifest, catalog: Catalog, spark: Any, checkpoint_id: int | None
    ) -> CheckpointWriter:
        return begin(
            catalog,
            self.fence,
            TablesAsStored(catalog.storage, spark),
            manifest.parallelism,
            graph=manifest.graph,
            checkpoint_id=checkpoint_id,
            parquet=self.parquet,
            release=self.release,
            token=uuid.uuid4().hex,
            measuring=Measuring(self.listeners),
            ranges=manifest.ranges,
            made_of=manifest,
        )


def refuse_older(catalog: Catalog, checkpoint: int | str, manifest: Manifest) -> None:
    """Raise CommitConflictError when what was asked for is another checkpoint by now: a writer had
    committed before this one replaced it, and a change of the older one would bury that.
    """
    if catalog.resolve(checkpoint) != manifest.checkpoint_id:
        raise CommitConflictError(
            f"{catalog.storage.url} has a newer checkpoint than {manifest.checkpoint_id}, of which "
            "a new one was to be made; nothing was changed. Run it again"
        )


class _Below(Catalog):
    """A store in which a checkpoint may be committed below one that its own writer has put."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog.storage, catalog.store_id)

    def refuse_taken(self, checkpoint_id: int) -> None:
        """Look for nothing: the id was claimed, and the put is done only if it is free still."""
