"""The rows of one state as an Arrow dataset, whose scans select columns and rows.

The dataset contains exactly the files that the manifest names; no folder is listed. Files are
opened one after another and checked as in a restore. Only the needed columns are read. Files and
row groups are pruned by their key groups and by the minimum and maximum values in their footers.

The consumer's thread reads the rows, not a thread of Arrow. Arrow's threads read ahead even if the
consumer has stopped. If the program ends first, Arrow waits for such a thread forever.

A state with changes, or one that hides expired rows, is merged as in a restore. Every scan merges
it again, one run of key groups at a time, and nothing is cached. In addition to the selected
columns, it reads the columns that identify rows or contain their expiry time, of the key groups
that can match. Row groups of the base are pruned in the same way; changes are read completely.
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
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Entry, KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.slices import reads_of
from statestore.format.state import Layout
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange
from statestore.layers.expiry import hides_expired
from statestore.layers.merge import Wanted, read_state
from statestore.parquet.file_sources import PrefetchQueue
from statestore.parquet.reader import DataFile, add_key_group, open_data
from statestore.restore.duck import copy_slices
from statestore.storage import Storage

_PIECES = 256
"""The number of parts into which the key groups of a state with changes are cut.

Only the parts that can match a condition are read."""

_FORMAT = ds.ParquetFileFormat()
_NOWHERE = pafs.LocalFileSystem()


@dataclass
class StateRows:
    """The storage from which datasets read rows, and the first error of a scan in ``problem``.

    A scan passes through several libraries, which can replace the error. Callers then raise
    ``problem`` instead.
    """

    storage: Storage
    now_ms: int | None = None
    verify: bool = False
    problem: StateStoreError | None = None


def dataset_of(rows: StateRows, entry: Entry, columns: pa.Schema) -> ds.Dataset:
    """Return a state's rows as a dataset with these columns; files are opened later."""
    dataset = _Dataset([], columns, _FORMAT, _NOWHERE)
    dataset.rows, dataset.entry = rows, entry
    return dataset


class _Dataset(ds.FileSystemDataset):  # type: ignore[misc]
    """A dataset that is scanned by this module instead of by Arrow."""

    rows: StateRows
    entry: Entry

    def scanner(self, **options: Any) -> _Scan:
        """Return a scan of the selected columns and rows."""
        names = options.get("columns")
        wanted = self.schema.names if names is None else list(names)
        return _Scan(self.rows, self.entry, self.schema, wanted, options.get("filter"))


@dataclass(frozen=True)
class _Scan:
    """The interface that DuckDB expects of a scanner: a schema, and a stream of rows."""

    rows: StateRows
    entry: Entry
    schema: pa.Schema
    names: list[str]
    wanted: ds.Expression | None

    @property
    def projected_schema(self) -> pa.Schema:
        """The selected columns."""
        return pa.schema([self.schema.field(name) for name in self.names])

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows; they are read on demand."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        entry, batches = self.entry, self._stored_batches()
        if isinstance(entry, KeyedEntry) and (
            entry.layers or hides_expired(entry.state, self.rows.now_ms)
        ):
            batches = self._merged_batches(entry)
        try:
            for batch in batches:
                yield from copy_slices(self._select_wanted(batch))
        except StateStoreError as error:
            self.rows.problem = self.rows.problem or error
            raise

    def _select_wanted(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        if self.wanted is None:
            return [batch.select(self.names)]
        rows = pa.Table.from_batches([batch]).filter(self.wanted)
        batches: list[pa.RecordBatch] = rows.select(self.names).to_batches()
        return batches

    # --- rows as they are stored ------------------------------------------------------------------

    def _stored_batches(self) -> Iterator[pa.RecordBatch]:
        entry, verify = self.entry, self.rows.verify
        folder, columns = entry.table.path, self._columns
        stored = pa.schema([field for field in columns if not self._is_placed(field.name)])
        whole = self._is_whole
        files = self._files()
        with PrefetchQueue(
            self.rows.storage, folder, [(file, whole) for file in files], verify
        ) as begun:
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
        """True if all rows and columns are selected."""
        return self.wanted is None and len(self._columns) == len(self.schema)

    @cached_property
    def _columns(self) -> pa.Schema:
        """The columns to read: the selected columns, and those in the condition."""
        read = [
            field for field in self.schema if field.name in self.names or self._refers_to(field)
        ]
        return pa.schema(read)

    def _refers_to(self, field: pa.Field) -> bool:
        """Return whether the condition refers to a column: without it, the filter fails."""
        if self.wanted is None:
            return False
        others = pa.schema([other for other in self.schema if other.name != field.name])
        try:
            others.empty_table().filter(self.wanted)
        except pa.ArrowInvalid:
            return True
        return False

    def _is_placed(self, name: str) -> bool:
        """Return whether a column is only in the folder's name, as the key group may be."""
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
        return add_key_group(batch, handle.key_groups.first, schema)

    def _files(self) -> list[Handle]:
        """Return the files that can contain matching rows."""
        handles: list[Handle] = [*self.entry.handles]
        numbers = self._matching_parts([_groups_of(handle) for handle in handles])
        return [handles[number] for number in numbers]

    def _row_groups(self, file: DataFile, handle: Handle) -> Iterable[int]:
        """Return the row groups that can contain matching rows; Arrow decides by the footer.

        A footer without a checksum is not trusted, because its statistics could hide rows.
        """
        if self.wanted is None or handle.footer is None:
            return range(handle.row_groups)
        footer = pa.BufferOutputStream()
        file.parquet.metadata.write_metadata_file(footer)
        fragment = _FORMAT.make_fragment(
            pa.BufferReader(footer.getvalue()), partition_expression=_groups_of(handle)
        )
        subset = fragment.subset(self.wanted, schema=self.schema)
        return sorted(row_group.id for row_group in subset.row_groups)

    # --- rows that are merged while they are read -------------------------------------------------

    def _merged_batches(self, entry: KeyedEntry) -> Iterator[pa.RecordBatch]:
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
        """Yield ranges of key groups that can contain matching rows; adjacent parts are joined."""
        pieces = KeyGroupAssignment(max_parallelism=groups, parallelism=min(groups, _PIECES))
        for numbers in _runs(
            self._matching_parts([_in_ranges(piece) for piece in pieces.ranges()])
        ):
            first, last = pieces.range_of(numbers[0]), pieces.range_of(numbers[-1])
            yield KeyGroupRange(first.first, last.last)

    def _matching_parts(self, parts: list[ds.Expression]) -> list[int]:
        """Return the indexes of the parts that can contain matching rows, in ascending order.

        Each part is a predicate that holds for all of its rows. Arrow decides, using placeholder
        files.
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
        return sorted(
            int(fragment.path) for fragment in pretended.get_fragments(filter=self.wanted)
        )


def _groups_of(handle: Handle) -> ds.Expression:
    """Return a predicate that every row of a file meets, derived from its key groups."""
    return (
        _in_ranges(handle.key_groups) if isinstance(handle, KeyedStateHandle) else ds.scalar(True)
    )


def _in_ranges(groups: KeyGroupRange) -> ds.Expression:
    first, last = (pa.scalar(group, pa.int32()) for group in (groups.first, groups.last))
    if first == last:
        return ds.field(KEY_GROUP) == first
    return (ds.field(KEY_GROUP) >= first) & (ds.field(KEY_GROUP) <= last)


def _runs(numbers: list[int]) -> Iterator[list[int]]:
    """Yield runs of consecutive numbers from an ascending list."""
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        yield [number for _, number in run]
