"""The files of one state as an Arrow dataset: whoever scans it says which columns and rows.

Only what the manifest names is in it, whatever else lies in the folder; nothing is listed. A file
is opened when rows of it are wanted, and then its length is held against the manifest, as is the
checksum of every page that is read. Of an object only the ranges that are needed are fetched.

A state with changes, or one that hides expired rows, is read as a restore reads it, anew for every
scan, a run of key groups at a time: nothing of it is kept. All columns are read, of those key
groups that the scan can want.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from statestore.errors import CorruptionError, MissingFileError, StateStoreError
from statestore.model.handles import Handle
from statestore.model.keygroups import KeyGroupAssignment, KeyGroupRange
from statestore.model.manifest import Entry, KeyedEntry
from statestore.model.paths import KEY_GROUP
from statestore.model.reads import reads_of
from statestore.model.state import Layout
from statestore.storage import Storage
from statestore.table.expiry import hides
from statestore.table.fetching import check_length
from statestore.table.merge import read_reads

__all__ = ["StateFiles", "dataset_of"]

_PIECES = 256
"""Into so many parts the key groups of a state with changes are cut, to read those alone that a
condition admits."""


class StateFiles(pafs.FSSpecHandler):  # type: ignore[misc]
    """The data files of some states as Arrow opens them; ``problem`` is what went wrong first.

    Whoever scans through several libraries gets that error back from here as it was raised.
    """

    def __init__(self, storage: Storage) -> None:
        """Know no files yet; a state's are added by :func:`dataset_of`."""
        super().__init__(None)
        self.problem: StateStoreError | None = None
        self.url = storage.url
        self.storage = storage
        self._handles: dict[str, Handle] = {}

    def add(self, name: str, handle: Handle) -> None:
        """Let a file be opened, by its name in the store."""
        self._handles[name] = handle

    def get_type_name(self) -> str:
        """Return what Arrow shows for the file system."""
        return "statestore"

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Return an open file; of one that is not as the manifest says, note it and return nothing.

        An error raised from here can leave Arrow's threads waiting for one another; over a file
        without bytes they fail by themselves.
        """
        where = f"{self.url}/{path}"
        try:
            return self._open(path, where, self._handles[path])
        except FileNotFoundError:
            self.note(
                MissingFileError(
                    f"{where} is missing, and the manifest names it; restore an older checkpoint, "
                    "or bring the file back from a copy"
                )
            )
        except StateStoreError as error:
            self.note(error)
        return pa.BufferReader(b"")

    def note(self, error: StateStoreError) -> None:
        """Keep the first error."""
        self.problem = self.problem or error

    def _open(self, path: str, where: str, handle: Handle) -> pa.NativeFile:
        native = self.storage.native_path(path)
        if native is not None:
            file = pa.OSFile(native)
            check_length(where, file.size(), handle)
            return file
        check_length(where, self.storage.size(path), handle)
        return pa.PythonFile(_Ranges(self, self.storage, path, handle.size_bytes), mode="r")


def dataset_of(
    files: StateFiles, entry: Entry, columns: pa.Schema, now_ms: int | None = None
) -> ds.Dataset:
    """Return a state's rows as a dataset with these columns; no file is opened yet."""
    options = ds.ParquetFragmentScanOptions(pre_buffer=True, page_checksum_verification=True)
    parquet = ds.ParquetFileFormat(default_fragment_scan_options=options)
    system = pafs.PyFileSystem(files)
    if isinstance(entry, KeyedEntry) and (entry.layers or hides(entry.state, now_ms)):
        merged = _Merged([], columns, parquet, system)
        merged.opened, merged.entry, merged.now_ms = files, entry, now_ms
        return merged
    placed = isinstance(entry, KeyedEntry) and entry.state.layout is Layout.PARTITIONED
    fragments = []
    for handle in entry.handles:
        name = f"{entry.table.path}/{handle.path}"
        files.add(name, handle)
        group = _key_group(handle) if placed else None
        fragments.append(parquet.make_fragment(name, system, group, file_size=handle.size_bytes))
    dataset = _Dataset(fragments, columns, parquet, system)
    dataset.opened, dataset.subject = files, str(entry.state)
    return dataset


class _Dataset(ds.FileSystemDataset):  # type: ignore[misc]
    """A dataset whose scans never wait with Python's lock held.

    Arrow's own ``Scanner.to_reader`` does, for threads of Arrow's that want it to open our files.
    """

    opened: StateFiles
    subject: str

    def scanner(self, **options: Any) -> Any:
        """Return a scan of some columns and rows."""
        return _Scan(super().scanner(**options), self.opened, self.subject)


class _Merged(ds.FileSystemDataset):  # type: ignore[misc]
    """A state with changes, or of which rows expire: it has the rows that a restore would have."""

    opened: StateFiles
    entry: KeyedEntry
    now_ms: int | None

    def scanner(self, **options: Any) -> Any:
        """Return a scan of some columns and rows."""
        return _MergedScan(self, options.get("columns"), options.get("filter"))


class _MergedScan:
    """What DuckDB asks of a scanner, for rows that are merged while they are read."""

    def __init__(self, dataset: _Merged, columns: Any, wanted: ds.Expression | None) -> None:
        self._dataset, self._wanted = dataset, wanted
        names = dataset.schema.names if columns is None else list(columns)
        self.projected_schema = pa.schema([dataset.schema.field(name) for name in names])

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        files, entry = self._dataset.opened, self._dataset.entry
        try:
            for groups in self._key_groups():
                reads, now_ms = reads_of(entry, groups), self._dataset.now_ms
                for batch in read_reads(files.storage, entry, reads, now_ms=now_ms):
                    rows = pa.Table.from_batches([batch])
                    if self._wanted is not None:
                        rows = rows.filter(self._wanted)
                    yield from rows.select(self.projected_schema.names).to_batches()
        except StateStoreError as error:
            files.note(error)
            raise

    def _key_groups(self) -> Iterator[KeyGroupRange]:
        """Yield the key groups that can have wanted rows, those that touch together.

        Arrow says which, of pretended files with these key groups.
        """
        dataset, groups = self._dataset, self._dataset.entry.state.max_parallelism
        pieces = KeyGroupAssignment(max_parallelism=groups, parallelism=min(groups, _PIECES))
        if self._wanted is None:
            yield KeyGroupRange(0, groups - 1)
            return
        pretended = ds.FileSystemDataset(
            [
                dataset.format.make_fragment(str(number), dataset.filesystem, _within(piece))
                for number, piece in enumerate(pieces.ranges())
            ],
            dataset.schema,
            dataset.format,
            dataset.filesystem,
        )
        found = pretended.get_fragments(filter=self._wanted)
        for numbers in _runs(sorted(int(fragment.path) for fragment in found)):
            first, last = pieces.range_of(numbers[0]), pieces.range_of(numbers[-1])
            yield KeyGroupRange(first.first, last.last)


def _runs(numbers: list[int]) -> Iterator[list[int]]:
    """Yield numbers, which ascend, in runs without a gap."""
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        yield [number for _, number in run]


class _Scan:
    """What DuckDB asks of a scanner: its columns, and a stream of its rows."""

    def __init__(self, scanner: ds.Scanner, files: StateFiles, subject: str) -> None:
        self._scanner, self._files, self._subject = scanner, files, subject
        self.projected_schema = scanner.projected_schema

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._scanner.to_batches()
        except (pa.ArrowException, OSError) as error:
            self._files.note(
                CorruptionError(
                    f"a data file of {self._subject} cannot be read: {error}; verify says which one"
                )
            )
            raise


def _within(groups: KeyGroupRange) -> ds.Expression:
    first, last = (pa.scalar(group, pa.int32()) for group in (groups.first, groups.last))
    return (ds.field(KEY_GROUP) >= first) & (ds.field(KEY_GROUP) <= last)


def _key_group(handle: Any) -> ds.Expression:
    return ds.field(KEY_GROUP) == pa.scalar(handle.key_groups.first, pa.int32())


class _Ranges(io.RawIOBase):
    """An object, read by the ranges that are asked for; its length is known.

    Its end, which is read first, is kept: of a small file that is all of it.
    """

    def __init__(self, files: StateFiles, storage: Storage, name: str, size: int) -> None:
        super().__init__()
        self._files, self._storage, self._name, self._size = files, storage, name, size
        self._at = 0
        self._end = (size, b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        wanted = self._size if size is None or size < 0 else self._at + size
        start, stop = self._at, min(wanted, self._size)
        if stop <= start:
            return b""
        kept_from, kept = self._end
        if start >= kept_from:
            data = kept[start - kept_from : stop - kept_from]
        elif kept and stop > kept_from:
            data = self._fetch(start, kept_from) + kept[: stop - kept_from]
        else:
            data = self._fetch(start, stop)
            if stop == self._size:
                self._end = (start, data)
        self._at += len(data)
        return data

    def _fetch(self, start: int, stop: int) -> bytes:
        try:
            return self._storage.read_range(self._name, start, stop)
        except FileNotFoundError:
            self._files.note(MissingFileError(f"{self._files.url}/{self._name} is missing"))
        except StateStoreError as error:
            self._files.note(error)
        return b""
