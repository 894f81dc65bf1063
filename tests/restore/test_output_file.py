"""One file as a command's result: its place is checked first, and it appears when complete."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from statestore.errors import InvalidArgumentError, StorageError
from statestore.restore.row_files import check_output_file, output_file, write_result


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with output_file(path, replace=False) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_after_an_error_the_former_file_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"former")
    with pytest.raises(ZeroDivisionError), output_file(path, replace=True) as file:
        file.write(bytes(1 // len(b"")))
    assert path.read_bytes() == b"former"
    with output_file(path, replace=True) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/new", "there is no folder .*/missing; create it, or choose another"),
        ("file/new", "there is no folder .*/file; create it, or choose another"),
        ("folder", "it is a folder; add the name of a file"),
        ("file", "exists; remove it, or choose another name"),
        ("store/new", "is inside the store .*/store, whose garbage collection could delete"),
    ],
)
def test_an_impossible_place_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").write_bytes(b"former")
    (tmp_path / "folder").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "statestore.json").touch()
    with pytest.raises(InvalidArgumentError, match=reason):
        check_output_file(tmp_path / name, replace=False)
    with (
        pytest.raises(InvalidArgumentError, match=reason),
        output_file(tmp_path / name, replace=False),
    ):
        pass


def test_the_result_of_a_query_replaces_no_file(tmp_path: Path) -> None:
    """It can appear after the command has checked the place."""
    rows = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), [])
    (tmp_path / "rows.csv").write_bytes(b"former")
    with pytest.raises(InvalidArgumentError, match="exists; remove it, or choose another name"):
        write_result(rows, "csv", tmp_path / "rows.csv", 0)
    assert (tmp_path / "rows.csv").read_bytes() == b"former"


def test_a_file_that_cannot_be_written_is_a_storage_error() -> None:
    with (
        pytest.raises(StorageError, match="cannot write /proc/new: "),
        output_file(Path("/proc/new"), replace=False),
    ):
        pass


def test_only_a_file_with_this_beginning_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    for content in (b"<html>1", b"<html>2"):
        with output_file(path, replace=b"<html>") as file:
            file.write(content)
    assert path.read_bytes() == b"<html>2"
    for other in (b"def build(): ...", b"", b"<htm"):
        path.write_bytes(other)
        with pytest.raises(InvalidArgumentError, match="exists; remove it"):
            check_output_file(path, replace=b"<html>")
        assert path.read_bytes() == other
