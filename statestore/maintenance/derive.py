"""Make a new checkpoint from an existing one; every command that changes kept state starts here.

Nothing is changed in place: files and manifests are written once. The new checkpoint has the
parallelism and the job graph of its parent, and names the parent's files again where nothing
changes.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Fence
from statestore.delta.state_table import ParquetTable, StateTable, TablesAsStored
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Manifest
from statestore.format.names import operator_file, partition_file, ranged_file
from statestore.listeners import Listeners
from statestore.parquet.writer import ParquetOptions
from statestore.snapshot.begin import begin
from statestore.snapshot.measurement import Measuring
from statestore.snapshot.writer import CheckpointWriter
from statestore.storage import Storage

__all__ = [
    "Deriver",
    "StoredFileIndex",
    "new_name",
]


@dataclass(frozen=True)
class Deriver:
    """Creates checkpoints from existing ones in a store, and notifies the listeners."""

    catalog: Catalog
    fence: Fence
    parquet: ParquetOptions
    release: str
    listeners: Listeners

    def load_source(self, checkpoint: int | str) -> tuple[Manifest, int]:
        """Return the checkpoint to derive from, and the newest id in the store.

        Raises CheckpointNotFoundError or MalformedManifestError.
        """
        newest = self.catalog.next_id() - 1  # first: later checkpoints have not been looked at
        return self.catalog.manifest(self.catalog.resolve(checkpoint)), newest

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
        new ones. Only the last checkpoint publishes new versions of its Delta tables. Raises the
        errors of :meth:`begin`.
        """
        storage = self.catalog.storage
        tables = TablesAsStored(storage, manifests[-1])
        self.fence.claim()
        free = self.catalog.next_id()
        taken = sorted({free, *self.fence.announced(above=free)})
        top = taken.pop() if len(manifests) == 1 else taken[-1] + len(manifests)
        above = [*taken, top]
        below = range(top - 1, top - len(manifests), -1)
        begun: dict[int, tuple[CheckpointWriter, Manifest]] = {}
        try:
            # Claim in ascending order: an announced id must be above all earlier ones.
            for number in sorted([*above, *below]):
                is_above = number in above
                place = above.index(number) if is_above else 0
                known = above[place - 1] if place else newest_id
                like = manifests[-1] if is_above else manifests[number - top - 1]
                writer = self._begin(
                    like,
                    self.catalog if is_above else _UncheckedCatalog(self.catalog),
                    tables if number == top else ParquetTable(),
                    number,
                    known if is_above else None,
                )
                begun[number] = writer, like
        except BaseException:
            for writer, _ in begun.values():
                writer.abandon()
            raise
        return tuple(begun[number] for number in [*above, *below])

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
            seen=newest_id,
        )


class _UncheckedCatalog(Catalog):
    """A catalog that allows a commit below a checkpoint that the same writer has put."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog.storage, catalog.store_id)

    def refuse_taken(self, checkpoint_id: int, seen: int | None = None) -> None:
        """Check nothing: the id was claimed, and put-if-absent still protects it."""


# New names for existing bytes: no two attempts ever use the same file name.
#
# A collection deletes by name, possibly long after it has listed the file as old. It deletes the
# name even if the file under it was written again meanwhile. A failed attempt may also delete the
# files that it wrote. So an attempt that finds files of an earlier attempt, or of another store,
# never uses their names. It gives the bytes a new name of its own, which counts as young. ``gc``
# removes the names that no manifest uses in the end.
#
# The new name contains part of the SHA-256, so that the next attempt can find the file.


_DIGITS = 16  # hex digits of the SHA-256 in a file name
_NEW_NAME = re.compile(rf"[0-9]{{10}}-.*?([0-9a-f]{{{_DIGITS}}})-[0-9a-f]{{16}}\.parquet")


def new_name(handle: Handle, checkpoint_id: int) -> str:
    """Return a name inside the table for a data file's bytes that was never used before."""
    token = f"{handle.sha256[:_DIGITS]}-{uuid.uuid4().hex[:16]}"
    if not isinstance(handle, KeyedStateHandle):
        return operator_file(checkpoint_id, token)
    in_folder = "/" in handle.path
    name = partition_file if in_folder else ranged_file
    return name(checkpoint_id, handle.key_groups.first, token)


class StoredFileIndex:
    """Files of a store indexed by content, as told by their names or by kept checkpoints."""

    def __init__(self, storage: Storage, tables: Iterable[str]) -> None:
        """List the tables whose data files may be reused."""
        self._sizes = {item.name: item.size_bytes for t in tables for item in storage.listed(t)}
        self._left: dict[tuple[str, str], list[str]] = {}
        self._kept: dict[tuple[str, str], str] = {}
        for name in self._sizes:
            folder, _, last = name.rpartition("/")
            if match := _NEW_NAME.fullmatch(last):
                self._left.setdefault((folder, match[1]), []).append(name)

    def add_kept(self, manifest: Manifest) -> None:
        """Add the files of a visible checkpoint."""
        for entry in manifest.parts:
            for handle in entry.handles:
                name = entry.table.name_of(handle)
                self._kept[_place(name, handle)] = name

    def find_kept(self, name: str, handle: Handle) -> str | None:
        """Return a kept checkpoint's file with the same folder, hash and length, or None."""
        kept = self._kept.get(_place(name, handle))
        return kept if kept and self._sizes.get(kept) == handle.size_bytes else None

    def find_leftovers(self, name: str, handle: Handle) -> list[str]:
        """Return the files with the same content that earlier attempts may have left."""
        names = self._left.get(_place(name, handle), [])
        return [each for each in names if self._sizes[each] == handle.size_bytes]


def _place(name: str, handle: Handle) -> tuple[str, str]:
    return name.rpartition("/")[0], handle.sha256[:_DIGITS]
