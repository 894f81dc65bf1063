"""A checkpoint made of another one: what every command that changes kept state begins with.

Nothing is changed in place: files and manifests are written once. The new checkpoint has the
parallelism and the graph of the one that it is made of, and names its files again where nothing
changes.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Fence
from statestore.files.table import ParquetTable, StateTable, TablesAsStored
from statestore.files.writer import ParquetOptions
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Manifest
from statestore.format.names import operator_file, partition_file, ranged_file
from statestore.listeners import Listeners
from statestore.snapshot.begin import begin
from statestore.snapshot.metrics import Measuring
from statestore.snapshot.writer import CheckpointWriter
from statestore.storage import Storage

__all__ = [
    "Deriver",
    "Holding",
    "new_name",
]


@dataclass(frozen=True)
class Deriver:
    """Who can make a checkpoint of another one in a store, and who hears of it."""

    catalog: Catalog
    fence: Fence
    parquet: ParquetOptions
    release: str
    listeners: Listeners

    def look(self, checkpoint: int | str) -> tuple[Manifest, int]:
        """Return a checkpoint to make another one of, and the newest id that the store has.

        Raises CheckpointNotFoundError or MalformedManifestError.
        """
        newest = self.catalog.next_id() - 1  # first: what comes after it has not been looked at
        return self.catalog.manifest(self.catalog.resolve(checkpoint)), newest

    def begin(self, manifest: Manifest, *, seen: int | None) -> CheckpointWriter:
        """Return the writer of a new checkpoint like the one given, with no states yet.

        ``seen`` is the newest id when that was looked at: a checkpoint that came after it would be
        buried by the new one. None says that it is another store's, and goes above whatever is
        here. Raises CommitConflictError when another writer has taken over, or has committed what
        was not seen.
        """
        tables = TablesAsStored(self.catalog.storage, manifest)
        return self._begin(manifest, self.catalog, tables, None, seen)

    def begin_in_order(
        self, manifests: Sequence[Manifest], *, seen: int
    ) -> tuple[tuple[CheckpointWriter, Manifest], ...]:
        """Return writers of new checkpoints like those given, each with the one that it is like, in
        the order in which they must be committed; their ids are in the order of those given.

        The last of those given comes first, so that whoever looks for the newest checkpoint finds
        it, and never one made of an older; each of the others is put below it, under an id that is
        no others' to take, because it was claimed. Before them all come more of the last one, under
        each id that a writer which stalled before its put could take: it would bury what it has.
        Only the last one's Delta tables get a new version. Raises as :meth:`begin`.
        """
        storage = self.catalog.storage
        tables = TablesAsStored(storage, manifests[-1])
        self.fence.enter()
        free = self.catalog.next_id()
        taken = sorted({free, *self.fence.announced(above=free)})
        top = taken.pop() if len(manifests) == 1 else taken[-1] + len(manifests)
        above = [*taken, top]
        below = range(top - 1, top - len(manifests), -1)
        begun: dict[int, tuple[CheckpointWriter, Manifest]] = {}
        try:
            # Claimed from the least to the greatest: an id is announced above all before it.
            for number in sorted([*above, *below]):
                is_above = number in above
                place = above.index(number) if is_above else 0
                known = above[place - 1] if place else seen
                like = manifests[-1] if is_above else manifests[number - top - 1]
                writer = self._begin(
                    like,
                    self.catalog if is_above else _Below(self.catalog),
                    tables if number == top else ParquetTable(),
                    number,
                    known if is_above else None,
                )
                begun[number] = writer, like
        except BaseException:
            for writer, _ in begun.values():
                writer.give_up()
            raise
        return tuple(begun[number] for number in [*above, *below])

    def _begin(
        self,
        manifest: Manifest,
        catalog: Catalog,
        tables: StateTable,
        checkpoint_id: int | None,
        seen: int | None,
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
            seen=seen,
        )


class _Below(Catalog):
    """A store in which a checkpoint may be committed below one that its own writer has put."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog.storage, catalog.store_id)

    def refuse_taken(self, checkpoint_id: int, seen: int | None = None) -> None:
        """Look for nothing: the id was claimed, and the put is done only if it is free still."""


# New names for bytes that are there already: no two attempts ever name one file.
#
# A collection deletes by name, and may do so long after it has listed a file as old: however young
# the file is by then, the name goes. And who fails may delete what it has written. So whoever finds
# what an attempt before it has left, or what lies in another store, gives these bytes a name of its
# own, which is young, and never takes a name over. What nobody names in the end is left to ``gc``.
#
# The new name says what its file is to hold, so that the next attempt finds it.


_DIGITS = 16  # of the SHA-256
_NEW_NAME = re.compile(rf"[0-9]{{10}}-.*?([0-9a-f]{{{_DIGITS}}})-[0-9a-f]{{16}}\.parquet")


def new_name(handle: Handle, checkpoint_id: int) -> str:
    """Return a name for the bytes of a data file, inside its table, that no file has had."""
    token = f"{handle.sha256[:_DIGITS]}-{uuid.uuid4().hex[:16]}"
    if not isinstance(handle, KeyedStateHandle):
        return operator_file(checkpoint_id, token)
    in_folder = "/" in handle.path
    name = partition_file if in_folder else ranged_file
    return name(checkpoint_id, handle.key_groups.first, token)


class Holding:
    """Files of a store by what they hold, as far as their names or kept checkpoints tell."""

    def __init__(self, storage: Storage, tables: Iterable[str]) -> None:
        """List the tables, whose data files may be wanted."""
        self._sizes = {item.name: item.size_bytes for t in tables for item in storage.listed(t)}
        self._left: dict[tuple[str, str], list[str]] = {}
        self._kept: dict[tuple[str, str], str] = {}
        for name in self._sizes:
            folder, _, last = name.rpartition("/")
            if match := _NEW_NAME.fullmatch(last):
                self._left.setdefault((folder, match[1]), []).append(name)

    def add_kept(self, manifest: Manifest) -> None:
        """Add the files of a checkpoint that is visible."""
        for entry in manifest.parts:
            for handle in entry.handles:
                name = entry.table.name_of(handle)
                self._kept[_place(name, handle)] = name

    def kept(self, name: str, handle: Handle) -> str | None:
        """Return the file of a kept checkpoint that is to hold the same in the same folder, and
        has its length; None when there is none.
        """
        found = self._kept.get(_place(name, handle))
        return found if found and self._sizes.get(found) == handle.size_bytes else None

    def left(self, name: str, handle: Handle) -> list[str]:
        """Return the files that attempts before this one may have left for it."""
        found = self._left.get(_place(name, handle), [])
        return [each for each in found if self._sizes[each] == handle.size_bytes]


def _place(name: str, handle: Handle) -> tuple[str, str]:
    return name.rpartition("/")[0], handle.sha256[:_DIGITS]
