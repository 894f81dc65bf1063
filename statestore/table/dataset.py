"""The files of one state as an Arrow dataset: whoever scans it says which columns and rows.

Only what the manifest names is in it, whatever else lies in the folder; nothing is listed. A file
is opened when rows of it are wanted, and then its length is held against the manifest, as is the
checksum of every page that is read. Of an object only the ranges that are needed are fetched.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from statestore.errors import CorruptionError, MissingFileError, StateStoreError
from statestore.model.manifest import Entry, KeyedEntry
from statestore.model.paths import KEY_GROUP
from statestore.model.state import Layout
from statestore.storage import Storage
from statestore.table.fetching import Handle, check_length

__all__ = ["StateFiles", "dataset_of"]


class StateFiles(pafs.FSSpecHandler):  # type: ignore[misc]
    """The data files of some states as Arrow opens them; ``problem`` is what went wrong first.

    Whoever scans through several libraries gets that error back from here as it was raised.
    """

    def __init__(self, storage: Storage) -> None:
        """Know no files yet; a state's are added by :func:`dataset_of`."""
        super().__init__(None)
        self.problem: StateStoreError | None = None
        self.url = storage.url
        self._storage = storage
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
        native = self._storage.native_path(path)
        if native is not None:
            file = pa.OSFile(native)
            check_length(where, file.size(), handle)
            return file
        check_length(where, self._storage.size(path), handle)
        return pa.PythonFile(_Ranges(self, self._storage, path, handle.size_bytes), mode="r")


def dataset_of(files: StateFiles, entry: Entry, columns: pa.Schema) -> ds.Dataset:
    """Return a state's rows as a dataset with these columns; no file is opened yet."""
    options = ds.ParquetFragmentScanOptions(pre_buffer=True, page_checksum_verification=True)
    parquet = ds.ParquetFileFormat(default_fragment_scan_options=options)
    system = pafs.PyFileSystem(files)
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
