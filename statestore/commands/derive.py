"""A checkpoint made of another one: what every command that changes kept state begins with.

Nothing is changed in place: files and manifests are written once. The new checkpoint has the
parallelism and the graph of the one that it is made of, and names its files again where nothing
changes.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from statestore.catalog import Catalog
from statestore.commands.begin import begin
from statestore.commands.snapshot import CheckpointWriter
from statestore.fence import Fence
from statestore.model.manifest import Manifest
from statestore.table.base import TablesAsStored
from statestore.table.writing import ParquetOptions

__all__ = ["Deriver"]


@dataclass(frozen=True)
class Deriver:
    """Who can make a checkpoint of another one in a store."""

    catalog: Catalog
    fence: Fence
    spark: Any
    parquet: ParquetOptions
    release: str

    def begin(self, manifest: Manifest) -> CheckpointWriter:
        """Return the writer of a new checkpoint like the one given, with no states yet.

        With Spark the Delta tables get a new version as well; without, their log stays behind until
        the next snapshot, and the manifest is what counts. Raises CommitConflictError when another
        writer has taken over.
        """
        return begin(
            self.catalog,
            self.fence,
            TablesAsStored(self.catalog.storage, self.spark),
            manifest.parallelism,
            graph=manifest.graph,
            checkpoint_id=None,
            parquet=self.parquet,
            release=self.release,
            token=uuid.uuid4().hex,
        )
