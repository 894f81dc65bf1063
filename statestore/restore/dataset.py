"""The rows of one state as an Arrow dataset: whoever scans it says which columns and rows.

Only what the manifest names is in it, whatever else lies in the folder; nothing is listed. Files
are opened and checked as for a restore, one after another, when rows of them are wanted: only
columns that are wanted are read, and of files and row groups only those that can have wanted rows,
by their key groups and by what their footers say of least and greatest values.

The rows are read by who takes them, in no thread of Arrow's own: such a thread reads ahead whether
or not anybody goes on, and when the program ends before it, Arrow waits for it for ever.

A state with changes, or one that hides expired rows, is read as a restore reads it, anew for every
scan, a run of key groups at a time: nothing of it is kept. Beside the columns that are wanted those
are read that tell rows apart or say when they expire, of those key groups that the scan can want;
of the base no other row groups than of a state without changes, of the changes all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from statestore.errors import StateStoreError
from statestore.files.fetch import Begun
from statestore.files.merge import Wanted, hides, read_state
from statestore.files.reader import DataFile, open_data, placed
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Entry, KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.slices import reads_of
from statestore.format.state import Layout
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange
from statestore.restore.duck import unsliced
from statestore.storage import Storage

__all__ = ["StateRows", "dataset_of"]

_PIECES = 256
"""Into so many parts the key groups of a state with changes are cut, to read those alone that a
condition admits."""

_FORMAT = ds.ParquetFileFormat()
_NOWHERE = pafs.LocalFileSystem()


@dataclass
class StateRows:
    """Where the rows of states come from; ``problem`` is what went wrong first.

    Whoever scans through several libraries gets that error back from here as it was raised.
    """

    storage: Storage
    now_ms: int | None = None
    verify: bool = False
    problem: StateStoreError | None = None


def dataset_of(rows: StateRows, entry: Entry, columns: pa.Schema) -> ds.Dataset:
    """Return a state's rows as a dataset with these columns; no file is opened yet."""
    dataset = _Dataset([], columns, _FORMAT, _NOWHERE)
    dataset.rows, dataset.entry = rows, entry
    return dataset


class _Dataset(ds.FileSystemDataset):  # type: ignore[misc]
    """A dataset that is scanned here, and not by Arrow."""

    rows: StateRows
    entry: Entry

    def scanner(self, **options: Any) -> _Scan:
        """Return a scan of some columns and rows."""
        names = options.get("columns")
        wanted = self.schema.names if names is None else list(names)
        return _Scan(self.rows, self.entry, self.schema, wanted, options.get("filter"))


@dataclass(frozen=True)
class _Scan:
    """What DuckDB asks of a scanner: its columns, and a stream of its rows."""

    rows: StateRows
    entry: Entry
    schema: pa.Schema
    names: list[str]
    wanted: ds.Expression | None

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns that are asked for."""
        return pa.schema([self.schema.field(name) for name in self.names])

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows, read as they are taken."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        entry, batches = self.entry, self._stored()
        if isinstance(entry, KeyedEntry) and (entry.layers or hides(entry.state, self.rows.now_ms)):
            batches = self._merged(entry)
        try:
            for batch in batches:
                yield from unsliced(self._wanted_of(batch))
        except StateStoreError as error:
            self.rows.problem = self.rows.problem or error
            raise

    def _wanted_of(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        if self.wanted is None:
            return [batch.select(self.names)]
        rows = pa.Table.from_batches([batch]).filter(self.wanted)
        batches: list[pa.RecordBatch] = rows.select(self.names).to_batches()
        return batches

    # --- rows as they are stored ------------------------------------------------------------------

    def _stored(self) -> Iterator[pa.RecordBatch]:
        entry, verify = self.entry, self.rows.verify
        folder, columns = entry.table.path, self._columns
        stored = pa.schema([field for field in columns if not self._is_placed(field.name)])
        whole = self._is_whole
        files = self._files()
        with Begun(self.rows.storage, folder, [(one, whole) for one in files], verify) as begun:
            for handle in files:
                with open_data(
                    self.rows.storage,
                    folder,
                    handle,
                    verify=verify,
                    whole=whole,
                    begun=begun.next(),
                ) as file:
                    for batch in file.batches(self._row_groups(file, handle), stored):
                        yield self._with_group(batch, handle)

    @property
    def _is_whole(self) -> bool:
        """Whether all is asked for."""
        return self.wanted is None and len(self._columns) == len(self.schema)

    @cached_property
    def _columns(self) -> pa.Schema:
        """The columns that are read: those asked for, and those that decide on rows."""
        read = [field for field in self.schema if field.name in self.names or self._decides(field)]
        return pa.schema(read)

    def _decides(self, field: pa.Field) -> bool:
        """Return whether the condition is about a column: it cannot do without it."""
        if self.wanted is None:
            return False
        others = pa.schema([other for other in self.schema if other.name != field.name])
        try:
            others.empty_table().filter(self.wanted)
        except pa.ArrowInvalid:
            return True
        return False

    def _is_placed(self, name: str) -> bool:
        """Return whether a column is in no file: the key group, where its folder says it."""
        entry = self.entry
        return (
            name == KEY_GROUP
            and isinstance(entry, KeyedEntry)
            and entry.state.layout is Layout.PARTITIONED
        )

    def _with_group(self, batch: pa.RecordBatch, handle: Handle) -> pa.RecordBatch:
        if not any(map(self._is_placed, self._columns.names)):
            return batch
        assert isinstance(handle, KeyedStateHandle)
        first = [KEY_GROUP, *batch.schema.names]
        schema = pa.schema([self.schema.field(name) for name in first])
        return placed(batch, handle.key_groups.first, schema)

    def _files(self) -> list[Handle]:
        """Return the files that can have wanted rows."""
        handles: list[Handle] = [*self.entry.handles]
        numbers = self._admitted([_groups_of(handle) for handle in handles])
        return [handles[number] for number in numbers]

    def _row_groups(self, file: DataFile, handle: Handle) -> Iterable[int]:
        """Return the row groups that can have wanted rows; Arrow says which, of the footer.

        What a footer without checksum says of them is not believed: it could hide rows.
        """
        if self.wanted is None or handle.footer is None:
            return range(handle.row_groups)
        footer = pa.BufferOutputStream()
        file.parquet.metadata.write_metadata_file(footer)
        fragment = _FORMAT.make_fragment(
            pa.BufferReader(footer.getvalue()), partition_expression=_groups_of(handle)
        )
        found = fragment.subset(self.wanted, schema=self.schema)
        return sorted(row_group.id for row_group in found.row_groups)

    # --- rows that are merged while they are read -------------------------------------------------

    def _merged(self, entry: KeyedEntry) -> Iterator[pa.RecordBatch]:
        for groups in self._key_groups(entry.state.max_parallelism):
            yield from read_state(
                self.rows.storage,
                entry,
                reads_of(entry, groups),
                verify=self.rows.verify,
                now_ms=self.rows.now_ms,
                wanted=None if self._is_whole else Wanted(self._columns.names, self._row_groups),
            )

    def _key_groups(self, groups: int) -> Iterator[KeyGroupRange]:
        """Yield the key groups that can have wanted rows, those that touch together."""
        pieces = KeyGroupAssignment(max_parallelism=groups, parallelism=min(groups, _PIECES))
        for numbers in _runs(self._admitted([_within(piece) for piece in pieces.ranges()])):
            first, last = pieces.range_of(numbers[0]), pieces.range_of(numbers[-1])
            yield KeyGroupRange(first.first, last.last)

    def _admitted(self, parts: list[ds.Expression]) -> list[int]:
        """Return which parts can have wanted rows, ascending; each says what is true of all of its
        rows. Arrow finds out, of pretended files.
        """
        if self.wanted is None:
            return [*range(len(parts))]
        pretended = ds.FileSystemDataset(
            [
                _FORMAT.make_fragment(str(number), _NOWHERE, part)
                for number, part in enumerate(parts)
            ],
            self.schema,
            _FORMAT,
            _NOWHERE,
        )
        return sorted(int(one.path) for one in pretended.get_fragments(filter=self.wanted))


def _groups_of(handle: Handle) -> ds.Expression:
    """Return what the key groups of a file say of its rows."""
    return _within(handle.key_groups) if isinstance(handle, KeyedStateHandle) else ds.scalar(True)


def _within(groups: KeyGroupRange) -> ds.Expression:
    first, last = (pa.scalar(group, pa.int32()) for group in (groups.first, groups.last))
    if first == last:
        return ds.field(KEY_GROUP) == first
    return (ds.field(KEY_GROUP) >= first) & (ds.field(KEY_GROUP) <= last)


def _runs(numbers: list[int]) -> Iterator[list[int]]:
    """Yield numbers, which ascend, in runs without a gap."""
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        yield [number for _, number in run]
