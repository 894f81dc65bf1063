"""Make a new checkpoint from an existing one; every command that changes kept state starts here.

A command loads its *source*, and changes some states of a *draft*, which is a checkpoint like the
source. The draft carries all other states, records the command as its origin, and is committed when
the block ends. An error deletes the files that were written for it::

    source = deriver.load_source("latest", from_older=False)
    with deriver.derive(source, "edit", dry_run=False) as draft:
        draft.put(rewrite_spans(entry, rows, draft.write).entry)
        draft.record(operator="totals", state="amounts")
    report = EditedState(**draft.facts, ...)

Nothing is changed in place: files and manifests are written once. The new checkpoint has the
parallelism and the job graph of its source, and references the source's files where nothing
changes.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from statestore.catalog.catalog import Catalog, CheckpointRef
from statestore.catalog.fence import Fence
from statestore.delta.state_table import ParquetTable, StateTable, TablesAsStored
from statestore.display import counted
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    MalformedManifestError,
)
from statestore.format.handles import KeyedStateHandle
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Batch, Entry, KeyedEntry, Manifest
from statestore.listeners import Listeners
from statestore.parquet.keyed_writer import CheckpointFiles
from statestore.parquet.writer import ParquetOptions
from statestore.rows.key_group_runs import check_and_sort
from statestore.snapshot.measurement import Measuring
from statestore.snapshot.writer import CheckpointWriter, begin


@dataclass(frozen=True, kw_only=True)
class DerivedReport:
    """A report on a checkpoint that a command made from another one.

    ``checkpoint_id`` is the source. ``new_checkpoint_id`` is None in a dry run, or if there was
    nothing to do. ``undone`` lists the checkpoints after the source, which the new checkpoint
    undoes. ``left_out`` lists the state of its source that the new checkpoint lacks.
    """

    store: str
    dry_run: bool
    checkpoint_id: int
    new_checkpoint_id: int | None
    undone: tuple[int, ...] = ()
    left_out: tuple[LeftOutState, ...] = ()


@dataclass(frozen=True)
class Source:
    """A checkpoint to derive another one from.

    ``newest_id`` is the newest id at the time when the store was read. The new checkpoint would
    hide one that was committed after it. None means that the source is in another store, and that
    the new checkpoint goes above all existing ones. ``newer`` lists the visible checkpoints after
    the source.
    """

    manifest: Manifest
    newest_id: int | None = None
    newer: tuple[int, ...] = ()


class Draft:
    """A checkpoint that a command derives from a source; without a ``writer`` nothing is written.

    A dry run has no writer, nor does a command that finds nothing to do.
    """

    def __init__(
        self,
        source: Source,
        command: str,
        store: str,
        writer: CheckpointWriter | None,
        *,
        dry_run: bool = False,
    ) -> None:
        """Start with no states; see :meth:`Deriver.derive`."""
        self.source, self.writer = source, writer
        self._store, self._dry_run = store, dry_run
        self._origin = {"command": command, "checkpoint": source.manifest.checkpoint_id}
        self._left_out: tuple[LeftOutState, ...] = ()

    @property
    def checkpoint(self) -> CheckpointWriter:
        """The checkpoint that is written; a draft without a writer has none."""
        assert self.writer is not None, "nothing is written"
        return self.writer

    @property
    def files(self) -> CheckpointFiles:
        """The new files of the checkpoint. An error in the block deletes them."""
        return self.checkpoint.collected.new_files

    def write(self, entry: KeyedEntry, pieces: Iterable[pa.Table]) -> tuple[KeyedStateHandle, ...]:
        """Write ascending pieces as new files of a state. Without a writer, only check the rows.

        Raises DuplicateKeyError, InvalidArgumentError for a row that is too large, or StorageError.
        """
        if self.writer is not None:
            return self.files.write(entry, pieces)
        for _ in check_and_sort(pieces, entry.state):
            pass
        return ()

    def put(
        self, entry: Entry, new: Collection[str] | None = None, *, compacted: bool = False
    ) -> None:
        """Add a changed state of the source.

        ``new`` has the names of the files that were written for it, by default all :attr:`files`.
        ``compacted`` means that they count as written by compaction.
        """
        if self.writer is not None:
            new = self.files.names if new is None else new
            self.writer.collected.carry(entry, new, compacted=compacted)

    def record(self, **members: Any) -> None:
        """Record members of the ``origin`` in the manifest, which outlives the rows.

        Raises InvalidArgumentError for values that would not be read back equal.
        """
        self._origin |= members
        if self.writer is not None:
            self.writer.collected.record(origin=dict(self._origin))

    def leave_out(self, records: Iterable[LeftOutState]) -> None:
        """Record state of the source that the new checkpoint lacks (I16)."""
        records = tuple(records)
        self._left_out += records
        if self.writer is not None:
            self.writer.collected.record(left_out=records)

    def carry_rest(self) -> None:
        """Add the source's states that the draft does not have yet, with their files."""
        if self.writer is None:
            return
        known = self.writer.collected.names
        for entry in self.source.manifest.entries:
            if (entry.state.uid, entry.state.name) not in known:
                self.writer.collected.carry(entry)

    @property
    def facts(self) -> dict[str, Any]:
        """The members of a :class:`DerivedReport`, after the block has ended."""
        source, writer = self.source, self.writer
        return {
            "store": self._store,
            "dry_run": self._dry_run,
            "checkpoint_id": source.manifest.checkpoint_id,
            "new_checkpoint_id": None if writer is None else writer.id,
            "undone": source.newer,
            "left_out": tuple(dict.fromkeys((*source.manifest.left_out, *self._left_out))),
        }


@dataclass(frozen=True)
class Deriver:
    """Creates checkpoints from existing ones in a store, and notifies the listeners."""

    catalog: Catalog
    fence: Fence
    parquet: ParquetOptions
    release: str
    listeners: Listeners

    def load_source(
        self, checkpoint: CheckpointRef, *, from_older: bool, skip_unreadable: bool = False
    ) -> Source:
        """Return the checkpoint to derive from.

        ``skip_unreadable`` means that newer checkpoints with an unreadable manifest do not count:
        the next snapshot would not build on them either.

        Raises CheckpointNotFoundError or MalformedManifestError. Unless ``from_older`` is True, it
        also raises InvalidArgumentError if a visible checkpoint is newer (I18).
        """
        # First: later checkpoints have not been looked at.
        visible, newest = self.catalog.visible_and_newest()
        manifest = self.catalog.checkpoint(checkpoint, read_lists=True).manifest
        newer = [number for number in visible if number > manifest.checkpoint_id]
        if skip_unreadable:
            newer = [number for number in newer if self._is_readable(number)]
        source = Source(manifest, newest, tuple(newer))
        if source.newer and not from_older:
            self._refuse_older(source)
        return source

    def _is_readable(self, number: int) -> bool:
        with suppress(CheckpointNotFoundError, MalformedManifestError):
            return self.catalog.load_header(number) is not None
        return False

    def _refuse_older(self, source: Source) -> None:
        """Raise InvalidArgumentError with the newer checkpoints and batches that would be undone.

        The next snapshot builds on the newest checkpoint. If that one was derived from an older
        checkpoint, the changes and batches of the checkpoints between them are undone.
        """
        number, newest = source.manifest.checkpoint_id, source.newer[-1]
        raise InvalidArgumentError(
            f"checkpoint {number} of {self.catalog.storage.url} is not the newest. A checkpoint "
            f"that is derived from it undoes {counted(len(source.newer), 'newer checkpoint')}, up "
            f"to checkpoint {newest}{self._undone_batches(source.manifest, newest)}, because the "
            "next snapshot builds on it. Name the newest checkpoint, or copy this one to a store "
            "of its own with 'statestore copy --linked'. To undo the newer checkpoints, pass "
            "from_older=True (--from-older)"
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

    @contextmanager
    def derive(
        self, source: Source, command: str, *, dry_run: bool, is_needed: bool = True
    ) -> Iterator[Draft]:
        """Yield a draft like ``source``; carry the other states and commit it after the block.

        A dry run writes nothing, and neither does a command that is not needed. Raises
        CommitConflictError if another writer has taken over, or has committed a checkpoint after
        the source was loaded. Raises InvalidArgumentError if the tables cannot be written.
        """
        url, manifest = self.catalog.storage.url, source.manifest
        if dry_run or not is_needed:
            undoing = source if is_needed else replace(source, newer=())
            yield Draft(undoing, command, url, None, dry_run=dry_run)
            return
        tables = TablesAsStored(self.catalog.storage, manifest)
        with self._begin(manifest, self.catalog, tables, None, source.newest_id) as writer:
            draft = Draft(source, command, url, writer)
            draft.record()
            yield draft
            draft.carry_rest()

    def begin_in_order(
        self, manifests: Sequence[Manifest], command: str, *, newest_id: int
    ) -> tuple[Draft, ...]:
        """Return drafts like ``manifests``, in the order of their commits.

        The caller enters and leaves their writers. The ids are in the order of ``manifests``, but
        the last one is committed first, so that a reader of the newest
        checkpoint never sees one made from an older manifest. The others follow below it, under ids
        that no other writer can take, because they were claimed.

        Before all of these, the last manifest is also committed under each id that a writer which
        stalled before its put could still take. Otherwise that writer's checkpoint would hide the
        new ones. The greatest of these ids comes first: as soon as a checkpoint is visible, no
        stalled writer can commit above it. Only the last checkpoint publishes new versions of its
        Delta tables. Raises the errors of :meth:`derive`.
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
        url = self.catalog.storage.url
        ordered = (begun[number] for number in [*taken, top, *below])
        return tuple(Draft(Source(like), command, url, writer) for writer, like in ordered)

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

    def refuse_taken(
        self, checkpoint_id: int, observed_newest_id: int | None = None, token: str = ""
    ) -> None:
        """Check nothing: the id was claimed, and put-if-absent still protects it."""
