"""Data files: what a handle says of them is exact, and what is not as it says is named."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statestore.errors import DamagedFileError, MissingFileError, StorageError
from statestore.model.handles import OperatorStateHandle
from statestore.storage import LocalStorage
from statestore.table.digest import rows_digest
from statestore.table.reading import open_file, read_batches
from statestore.table.writing import FileWriter, ParquetOptions
from statestore.testing.counting import CountingStorage

ROWS = pa.table(
    {
        "k": pa.array(range(100), pa.int64()),
        "t": [None if number % 7 == 0 else f"text {number}" for number in range(100)],
        "l": pa.array([[number] * (number % 3) for number in range(100)], pa.list_(pa.int32())),
    }
)
# As a stored schema has it.
SCHEMA = pa.schema(
    [("k", pa.int64()), ("t", pa.string()), ("l", pa.list_(pa.field("element", pa.int32())))]
)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path))


def write(storage: LocalStorage, rows: pa.Table = ROWS, **options: Any) -> OperatorStateHandle:
    writer = FileWriter(storage, "t/f.parquet", SCHEMA, ParquetOptions(**options))
    for batch in rows.cast(SCHEMA).to_batches(max_chunksize=13):
        writer.write(batch)
    return OperatorStateHandle("f.parquet", **writer.close())


def read(storage: LocalStorage, handle: OperatorStateHandle) -> pa.Table:
    return pa.Table.from_batches(read_batches(storage, "t", handle, SCHEMA), SCHEMA)


@pytest.mark.parametrize("row_group_rows", [1, 7, 13, 99, 100, 101])
def test_a_handle_states_what_was_written(storage: LocalStorage, row_group_rows: int) -> None:
    """I5: rows, bytes, row groups, digest and SHA-256, wherever row groups are cut."""
    handle = write(storage, row_group_rows=row_group_rows)
    raw = storage.read("t/f.parquet")
    assert (handle.rows, handle.size_bytes) == (100, len(raw))
    assert handle.sha256 == hashlib.sha256(raw).hexdigest()
    assert handle.digest == rows_digest(ROWS)
    assert handle.row_groups == -(-100 // row_group_rows)
    with open_file(storage, "t", handle) as parquet:
        assert parquet.metadata.num_row_groups == handle.row_groups
    assert read(storage, handle).equals(ROWS.cast(SCHEMA))


def test_wide_rows_are_cut_into_row_groups_by_their_bytes(storage: LocalStorage) -> None:
    """A reader holds one row group: a few wide rows must not fill its memory."""
    handle = write(storage, row_group_bytes=1)
    assert handle.row_groups == 8  # the batches of 13 rows
    assert handle.digest == rows_digest(ROWS)
    assert read(storage, handle).equals(ROWS.cast(SCHEMA))


def test_pages_carry_checksums(storage: LocalStorage) -> None:
    """A flipped bit is an error and not another row, except in a few places of headers and footer;
    these the digest finds.
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
            damaged += 1
    assert damaged > 200
    assert unseen < 5


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
        (_no_file, MissingFileError, "is missing, and the manifest names it"),
        (_empty, DamagedFileError, "has 0 bytes, the manifest says"),
        (_cut, DamagedFileError, "the manifest says"),
        (_longer, DamagedFileError, "the manifest says"),
        (_zeros, DamagedFileError, "cannot be read"),
        (_no_magic, DamagedFileError, "cannot be read"),
    ],
)
def test_a_file_that_is_not_what_its_handle_says_is_named(
    storage: LocalStorage, damage: Callable[[Path], None], error: type[Exception], message: str
) -> None:
    """I7: before a row of it is given out."""
    handle = write(storage)
    damage(Path(storage.url, "t/f.parquet"))
    with pytest.raises(error, match=f"{storage.url}/t/f.parquet .*{message}"):
        next(iter(read_batches(storage, "t", handle, SCHEMA)))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (ROWS.slice(1), "has 99 rows, the manifest says 100"),
        (ROWS.drop_columns(["l"]), "cannot be read"),
        (ROWS.rename_columns(["k", "t", "other"]), "cannot be read"),
        (ROWS.set_column(0, "k", ROWS.column("t")), "cannot be read"),
    ],
    ids=["fewer rows", "a column less", "another column", "another type"],
)
def test_another_table_in_a_files_place_is_damage(
    storage: LocalStorage, other: pa.Table, message: str
) -> None:
    """Even when it is a valid Parquet file of the size that was expected."""
    handle = write(storage)
    path = Path(storage.url, "t/f.parquet")
    pq.write_table(other, path)
    facts = {name: getattr(handle, name) for name in handle.__dataclass_fields__}
    same_size = OperatorStateHandle(**(facts | {"size_bytes": path.stat().st_size}))
    with pytest.raises(DamagedFileError, match=message):
        read(storage, same_size)


def test_a_disk_that_cannot_be_read_is_no_damage(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing device or network says nothing about what the file holds: retry later."""
    handle = write(storage)

    def failing(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(pq, "ParquetFile", failing)
    with pytest.raises(StorageError, match=r"cannot read .*f\.parquet: .*Input/output error"):
        read(storage, handle)


def test_files_are_closed_however_they_are_opened(tmp_path: Path) -> None:
    """By a path, or by the storage; also when the reader stops half way."""
    storage = CountingStorage(str(tmp_path))
    handle = write(storage)
    batches = read_batches(storage, "t", handle, SCHEMA)
    next(iter(batches))
    batches.close()  # type: ignore[attr-defined]
    read(storage, handle)
    assert [file.closed for file in storage.files] == [True, True]


def test_an_abandoned_file_can_be_deleted(storage: LocalStorage) -> None:
    """And its name be taken again."""
    writer = FileWriter(storage, "t/f.parquet", SCHEMA, ParquetOptions())
    writer.write(ROWS.cast(SCHEMA).to_batches()[0])
    writer.abandon()
    storage.delete("t/f.parquet")
    assert write(storage).rows == 100


def test_a_file_that_parquet_refuses_can_be_deleted(storage: LocalStorage) -> None:
    """Whatever it has against its columns."""
    writer = FileWriter(storage, "t/f", pa.schema([("a", pa.struct([]))]), ParquetOptions())
    with pytest.raises(pa.ArrowException):
        writer.close()
    writer.abandon()
    storage.delete("t/f")
    assert storage.list("t") == ()
