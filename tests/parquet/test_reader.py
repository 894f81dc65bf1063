"""Data files: a handle describes its file exactly, and a file that differs is named."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statestore.errors import DamagedFileError, MissingFileError, StorageError
from statestore.format.handles import Footer, OperatorStateHandle
from statestore.parquet.reader import open_data, read_batches
from statestore.parquet.writer import FileWriter, ParquetOptions
from statestore.rows.digests import rows_digest
from statestore.storage import LocalStorage
from statestore.testing.faults import CountingStorage

ROWS = pa.table(
    {
        "k": pa.array(range(100), pa.int64()),
        "t": [None if number % 7 == 0 else f"text {number}" for number in range(100)],
        "l": pa.array([[number] * (number % 3) for number in range(100)], pa.list_(pa.int32())),
    }
)
# In the form of a stored schema.
SCHEMA = pa.schema(
    [("k", pa.int64()), ("t", pa.string()), ("l", pa.list_(pa.field("element", pa.int32())))]
)


def write(storage: LocalStorage, rows: pa.Table = ROWS, **options: Any) -> OperatorStateHandle:
    writer = FileWriter(storage, "t/f.parquet", SCHEMA, ParquetOptions(**options))
    for batch in rows.cast(SCHEMA).to_batches(max_chunksize=13):
        writer.write(batch)
    return OperatorStateHandle("f.parquet", **writer.close())


def read(storage: LocalStorage, handle: OperatorStateHandle) -> pa.Table:
    return pa.Table.from_batches(read_batches(storage, "t", handle, SCHEMA), SCHEMA)


@pytest.mark.parametrize("row_group_rows", [1, 7, 13, 99, 100, 101])
def test_a_handle_describes_the_written_file(storage: LocalStorage, row_group_rows: int) -> None:
    """I5: rows, bytes, row groups, digest and SHA-256, for any row-group size."""
    handle = write(storage, row_group_rows=row_group_rows)
    raw = storage.read("t/f.parquet")
    assert (handle.rows, handle.size_bytes) == (100, len(raw))
    assert handle.sha256 == hashlib.sha256(raw).hexdigest()
    assert handle.digest == rows_digest(ROWS)
    assert handle.row_groups == -(-100 // row_group_rows)
    with open_data(storage, "t", handle) as file:
        assert file.parquet.metadata.num_row_groups == handle.row_groups
    assert read(storage, handle).equals(ROWS.cast(SCHEMA))


def test_wide_rows_are_split_into_row_groups_by_size(storage: LocalStorage) -> None:
    """A reader holds one row group in memory, and a few wide rows must not fill it."""
    handle = write(storage, row_group_bytes=1)
    assert handle.row_groups == 100  # one row each
    assert handle.digest == rows_digest(ROWS)
    assert read(storage, handle).equals(ROWS.cast(SCHEMA))


def test_pages_have_checksums(storage: LocalStorage) -> None:
    """A flipped bit is an error and never another row. In a few places of headers and footer only
    the digest finds it.
    """
    handle = write(storage)
    raw = storage.read("t/f.parquet")
    unseen = damaged = 0
    for at in range(0, len(raw), 3):
        changed = bytearray(raw)
        changed[at] ^= 0x10
        Path(storage.url, "t/f.parquet").write_bytes(changed)
        try:
            unseen += rows_digest(read(storage, handle)) != handle.digest
        except DamagedFileError as error:
            assert f"{storage.url}/t/f.parquet" in str(error)  # noqa: PT017
            assert "an older checkpoint" in str(error) or "the manifest says" in str(error)  # noqa: PT017
            damaged += 1
    assert damaged > 200
    assert unseen < 5


def test_a_handle_describes_its_footer(storage: LocalStorage) -> None:
    """I5: the footer is the bytes after the last page, up to the end."""
    handle = write(storage, row_group_rows=30)
    raw = storage.read("t/f.parquet")
    last = pq.read_metadata(pa.BufferReader(raw)).row_group(3).column(2)
    start = last.dictionary_page_offset or last.data_page_offset
    footer = raw[start + last.total_compressed_size :]
    assert handle.footer == Footer(len(footer), hashlib.sha256(footer).hexdigest()[:32])


@pytest.mark.slow
@pytest.mark.parametrize("streams", [1, 4])
def test_a_damaged_footer_is_refused_before_arrow_sees_it(
    storage: LocalStorage, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: for any bit of it. Arrow would lose rows or abort the process."""
    handle = write(storage, row_group_rows=30)
    raw = storage.read("t/f.parquet")
    assert handle.footer is not None
    monkeypatch.setattr(pq, "read_metadata", lambda _: pytest.fail("it was parsed"))
    monkeypatch.setattr(pq, "ParquetFile", lambda *_, **__: pytest.fail("it was opened"))
    for at in range(len(raw) - handle.footer.size_bytes, len(raw)):
        changed = bytearray(raw)
        changed[at] ^= 1 << at % 8
        Path(storage.url, "t/f.parquet").write_bytes(changed)
        with pytest.raises(DamagedFileError, match="another footer than was written"):
            next(read_batches(CountingStorage(storage.url, streams), "t", handle, SCHEMA))


def test_a_footer_needs_one_request(storage: LocalStorage) -> None:
    """The handle has the footer's length. Without a handle the length is estimated."""
    handle = write(storage)
    assert handle.footer is not None
    for known, length in ((handle, handle.footer.size_bytes), (unsealed(handle), None)):
        counting = CountingStorage(storage.url, 4)
        with open_data(counting, "t", known) as file:
            assert file.parquet.metadata.num_rows == 100
        [(_, start, stop)] = counting.ranges
        assert stop == handle.size_bytes
        assert start == (0 if length is None else handle.size_bytes - length)


@pytest.mark.parametrize(
    ("rows", "row_groups", "message"),
    [
        (99, 4, "has 100 rows, but the manifest says 99"),
        (100, 3, "has 4 row groups, but the manifest says 3"),
    ],
)
def test_a_footer_without_checksum_is_counted(
    storage: LocalStorage, rows: int, row_groups: int, message: str
) -> None:
    """I7: older releases wrote such files."""
    known = write(storage, row_group_rows=30)
    handle = replace(unsealed(known), rows=rows, row_groups=row_groups)
    with pytest.raises(DamagedFileError, match=message):
        read(storage, handle)


def test_missing_rows_of_a_row_group_are_detected(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: for any reason that makes Arrow skip rows."""
    handle = write(storage, row_group_rows=30)
    iter_batches = pq.ParquetFile.iter_batches

    def fewer(self: Any, batch_rows: int, **options: Any) -> Any:
        return (batch.slice(1) for batch in iter_batches(self, batch_rows, **options))

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fewer)
    with pytest.raises(DamagedFileError, match="returned 29 rows, but its footer says 30"):
        read(storage, handle)


def unsealed(handle: OperatorStateHandle) -> OperatorStateHandle:
    """Return the handle as an older release wrote it."""
    return replace(handle, footer=None)


def _no_file(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _no_magic(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4] + b"XXXX")


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (_no_file, MissingFileError, "is missing, but the manifest references it"),
        (_empty, DamagedFileError, "has 0 bytes, but the manifest says"),
        (_cut, DamagedFileError, "the manifest says"),
        (_longer, DamagedFileError, "the manifest says"),
        (_zeros, DamagedFileError, "has another footer than was written"),
        (_no_magic, DamagedFileError, "has another footer than was written"),
    ],
)
def test_a_file_that_differs_from_its_handle_is_named(
    storage: LocalStorage, damage: Callable[[Path], None], error: type[Exception], message: str
) -> None:
    """I7: before a row of the file is returned."""
    handle = write(storage)
    damage(Path(storage.url, "t/f.parquet"))
    with pytest.raises(error, match=f"{storage.url}/t/f.parquet .*{message}"):
        next(iter(read_batches(storage, "t", handle, SCHEMA)))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (ROWS.slice(1), "has 99 rows, but the manifest says 100"),
        (ROWS.drop_columns(["l"]), "has the columns .* but the manifest says"),
        (ROWS.rename_columns(["k", "t", "other"]), "t string, other .* but the manifest says"),
        (ROWS.set_column(0, "k", ROWS.column("t")), "k string.* but the manifest says"),
    ],
    ids=["fewer rows", "a column less", "another column", "another type"],
)
def test_another_table_in_place_of_a_file_is_damage(
    storage: LocalStorage, other: pa.Table, message: str
) -> None:
    """This includes a valid Parquet file of the expected size."""
    handle = write(storage)
    path = Path(storage.url, "t/f.parquet")
    pq.write_table(other, path)
    facts = {name: getattr(handle, name) for name in handle.__dataclass_fields__}
    same_size = OperatorStateHandle(**(facts | {"size_bytes": path.stat().st_size, "footer": None}))
    with pytest.raises(DamagedFileError, match=message):
        read(storage, same_size)


def test_an_unreadable_disk_is_not_damage(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed device or network says nothing about the file's content, so a later retry can
    succeed.
    """
    handle = write(storage)

    def failing(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(pq, "ParquetFile", failing)
    with pytest.raises(StorageError, match=r"cannot read .*f\.parquet: .*Input/output error"):
        read(storage, handle)


def test_files_are_closed_for_every_way_to_open_them(tmp_path: Path) -> None:
    """They are opened by path or by the storage. The reader may stop in the middle."""
    storage = CountingStorage(str(tmp_path))
    handle = write(storage)
    batches = read_batches(storage, "t", handle, SCHEMA)
    next(iter(batches))
    batches.close()  # type: ignore[attr-defined]
    read(storage, handle)
    assert [file.closed for file in storage.files] == [True, True]


def test_an_abandoned_file_leaves_nothing(storage: LocalStorage) -> None:
    """The name can be used again."""
    writer = FileWriter(storage, "t/f.parquet", SCHEMA, ParquetOptions())
    writer.write(ROWS.cast(SCHEMA).to_batches()[0])
    writer.abandon()
    assert storage.listed("") == ()
    assert write(storage).rows == 100


def test_a_file_that_parquet_rejects_leaves_nothing(storage: LocalStorage) -> None:
    """This holds for any reason that concerns its columns."""
    writer = FileWriter(storage, "t/f", pa.schema([("a", pa.struct([]))]), ParquetOptions())
    with pytest.raises(pa.ArrowException):
        writer.close()
    writer.abandon()
    assert storage.listed("") == ()
