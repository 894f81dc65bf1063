"""Make a new checkpoint from an existing one; every command that changes kept state starts here.

Nothing is changed in place: files and manifests are written once. The new checkpoint has the
parallelism and the job graph of its parent, and names the parent's files again where nothing
changes.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Fence
from statestore.delta.state_table import ParquetTable, StateTable, TablesAsStored
from statestore.display import counted
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    MalformedManifestError,
)
from statestore.format.batches import Batch
from statestore.format.manifest import Manifest
from statestore.listeners import Listeners
from statestore.parquet.writer import ParquetOptions
from statestore.snapshot.begin import begin
from statestore.snapshot.measurement import Measuring
from statestore.snapshot.writer import CheckpointWriter

__all__ = ["Deriver"]


@dataclass(frozen=True)
class Deriver:
    """Creates checkpoints from existing ones in a store, and notifies the listeners."""

    catalog: Catalog
    fence: Fence
    parquet: ParquetOptions
    release: str
    listeners: Listeners

    def load_source(self, checkpoint: int | str, *, from_older: bool) -> tuple[Manifest, int]:
        """Return the checkpoint to derive from, and the newest id in the store.

        Raises CheckpointNotFoundError or MalformedManifestError. Unless ``from_older`` is True, it
        also raises the error of :meth:`refuse_older`.
        """
        # First: later checkpoints have not been looked at.
        visible, newest = self.catalog.visible_and_newest()
        manifest = self.catalog.manifest(self.catalog.resolve(checkpoint))
        if not from_older:
            self.refuse_older(manifest, visible)
        return manifest, newest

    def refuse_older(self, manifest: Manifest, visible: Sequence[int]) -> None:
        """Raise InvalidArgumentError if a ``visible`` checkpoint is newer than ``manifest`` (I18).

        The next snapshot builds on the newest checkpoint. If that one was derived from an older
        checkpoint, the changes and batches of the checkpoints between them are undone.
        """
        newer = [number for number in visible if number > manifest.checkpoint_id]
        if newer:
            raise InvalidArgumentError(
                f"checkpoint {manifest.checkpoint_id} of {self.catalog.storage.url} is not the "
                f"newest. A checkpoint that is derived from it undoes "
                f"{counted(len(newer), 'newer checkpoint')}, up to checkpoint {newer[-1]}"
                f"{self._undone_batches(manifest, newer[-1])}, because the next snapshot builds on "
                "it. Name the newest checkpoint, or copy this one to a store of its own with "
                "'statestore fork'. To undo the newer checkpoints, pass from_older=True "
                "(--from-older)"
            )

    def _undone_batches(self, manifest: Manifest, newest: int) -> str:
        """Return text that names the last batch of each job that ``manifest`` lacks."""
        try:
            records = self.catalog.load_header(newest).batches or {}
        except (CheckpointNotFoundError, MalformedManifestError):
            return ", which cannot be read"
        own = manifest.batches or {}
        batches = [
            str(Batch(job, record.number))
            for job, record in sorted(records.items())
            if job and record != own.get(job)
        ]
        return "".join(f" and {batch}" for batch in batches)

    def begin(self, manifest: Manifest, *, newest_id: int | None) -> CheckpointWriter:
        """Return a writer for a new checkpoint that is like ``manifest``, without any states yet.

        ``newest_id`` is the newest id at the time when the store was read. The new checkpoint would
        hide one that was committed after it. None means that ``manifest`` is from another store,
        and that the new checkpoint goes above all existing ones. Raises CommitConflictError if
        another writer has taken over, or has committed a checkpoint after ``newest_id``.
        """
        tables = TablesAsStored(self.catalog.storage, manifest)
        return self._begin(manifest, self.catalog, tables, None, newest_id)

    def begin_in_order(
        self, manifests: Sequence[Manifest], *, newest_id: int
    ) -> tuple[tuple[CheckpointWriter, Manifest], ...]:
        """Return writers for new checkpoints like ``manifests``, in the order of their commits.

        Each writer is paired with the manifest that it is like. The ids are in the order of
        ``manifests``, but the last one is committed first, so that a reader of the newest
        checkpoint never sees one made from an older manifest. The others follow below it, under ids
        that no other writer can take, because they were claimed.

        Before all of these, the last manifest is also committed under each id that a writer which
        stalled before its put could still take. Otherwise that writer's checkpoint would hide the
        new ones. The greatest of these ids comes first: as soon as a checkpoint is visible, no
        stalled writer can commit above it. Only the last checkpoint publishes new versions of its
        Delta tables. Raises the errors of :meth:`begin`.
        """
        storage = self.catalog.storage
        tables = TablesAsStored(storage, manifests[-1])
        self.fence.claim()
        free = self.catalog.next_id()
        taken = sorted({free, *self.fence.announced_ids(above=free)}, reverse=True)
        if taken == [free] and len(manifests) == 1:
            taken, top = [], free  # the put decides between this id and a stalled writer's
        else:
            top = taken[0] + len(manifests)
        below = range(top - 1, top - len(manifests), -1)
        begun: dict[int, tuple[CheckpointWriter, Manifest]] = {}
        try:
            # Claim in ascending order: an announced id must be above all earlier ones.
            for number in sorted([*taken, top, *below]):
                is_checked = number == top or number in taken[:1]
                known = taken[0] if number == top and taken else newest_id
                like = manifests[number - top - 1] if number in below else manifests[-1]
                writer = self._begin(
                    like,
                    self.catalog if is_checked else _UncheckedCatalog(self.catalog),
                    tables if number == top else ParquetTable(),
                    number,
                    known if is_checked else None,
                )
                begun[number] = writer, like
        except BaseException:
            for writer, _ in begun.values():
                writer.abandon()
            raise
        return tuple(begun[number] for number in [*taken, top, *below])

    def _begin(
        self,
        manifest: Manifest,
        catalog: Catalog,
        tables: StateTable,
        checkpoint_id: int | None,
        newest_id: int | None,
    ) -> CheckpointWriter:
        return begin(
            catalog,
            self.fence,
            tables,
            manifest.parallelism,
            graph=manifest.graph,
            checkpoint_id=checkpoint_id,
            parquet=self.parquet,
            release=self.release,
            token=uuid.uuid4().hex,
            measuring=Measuring(self.listeners),
            ranges=manifest.ranges,
            made_of=manifest,
            observed_newest_id=newest_id,
        )


class _UncheckedCatalog(Catalog):
    """A catalog that allows a commit below a checkpoint that the same writer has put."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog.storage, catalog.store_id, seen=catalog.seen)

    def refuse_taken(self, checkpoint_id: int, observed_newest_id: int | None = None) -> None:
        """Check nothing: the id was claimed, and put-if-absent still protects it."""
