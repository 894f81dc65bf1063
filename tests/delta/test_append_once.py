"""Numbered rows are appended to a Delta table once, and durably: the output of a query.

``tests/power`` fails the power during the appends.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from statestore import StateStore
from statestore.delta.append_once import append_once
from statestore.errors import CommitConflictError, InvalidArgumentError


def rows(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def append(folder: Path | str, number: int, table: pa.Table, application: str = "query") -> None:
    append_once(str(folder), lambda: table, application=application, number=number, options={})


def values(folder: Path) -> list[int]:
    found: list[int] = DeltaTable(str(folder)).to_pyarrow_table()["n"].to_pylist()
    return sorted(found)


def test_a_number_is_appended_once_for_each_application(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    for number in (0, 0, 1, 0):
        append(folder, number, rows(number))
    append(folder, 0, rows(7), "other")
    assert values(folder) == [0, 1, 7]
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"_delta_log"}


def test_a_number_without_rows_is_recorded(tmp_path: Path) -> None:
    append(tmp_path / "out", 0, rows())
    append(tmp_path / "out", 0, rows(1))
    assert values(tmp_path / "out") == []


def test_the_partitions_of_an_existing_table_are_kept(tmp_path: Path) -> None:
    """Their folders have escaped names."""
    first = pa.table({"n": [1], "part": ["a b%41/ü"]})
    write_deltalake(str(tmp_path), first, partition_by=["part"])
    append(tmp_path, 0, pa.table({"n": [2, 3], "part": ["a b%41/ü", "c"]}))
    table = DeltaTable(str(tmp_path))
    assert sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["n"]) == [
        {"n": 1, "part": "a b%41/ü"},
        {"n": 2, "part": "a b%41/ü"},
        {"n": 3, "part": "c"},
    ]
    assert table.metadata().partition_columns == ["part"]


def test_another_writer_may_commit_meanwhile(tmp_path: Path) -> None:
    """The rows are computed after the log was read; only then does the other writer commit."""
    calls = []

    def table() -> pa.Table:
        calls.append(1)
        write_deltalake(str(tmp_path), rows(10), mode="append")
        return rows(1)

    append(tmp_path, 0, rows(0))
    append_once(str(tmp_path), table, application="query", number=1, options={})
    assert values(tmp_path) == [0, 1, 10]
    assert len(calls) == 1
    assert len([*tmp_path.glob("*.parquet")]) == 3, "a refused file stayed"


def test_a_replaced_driver_with_the_same_number_does_not_append_it_again(tmp_path: Path) -> None:
    def table() -> pa.Table:
        append(tmp_path, 1, rows(1))
        return rows(1)

    append(tmp_path, 0, rows(0))
    append_once(str(tmp_path), table, application="query", number=1, options={})
    assert values(tmp_path) == [0, 1]


def test_a_version_that_is_always_taken_is_refused(tmp_path: Path) -> None:
    """A folder has the name, so the log never shows this version."""
    append(tmp_path, 0, rows(0))
    (tmp_path / "_delta_log" / f"{1:020}.json").mkdir()
    with pytest.raises(CommitConflictError, match="other writers committed first 10 times"):
        append(tmp_path, 1, rows(1))
    assert values(tmp_path) == [0]


def test_a_long_log_gets_checkpoints_and_readers_start_there(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64())])
    DeltaTable.create(str(tmp_path), schema, configuration={"delta.checkpointInterval": "3"})
    for number in range(8):
        append(tmp_path, number, rows(number))
    log = tmp_path / "_delta_log"
    checkpoints = sorted(path.name for path in log.glob("*.checkpoint.parquet"))
    assert checkpoints == [f"{version:020}.checkpoint.parquet" for version in (2, 5, 8)]
    for version in range(8):
        (log / f"{version:020}.json").unlink()  # only the checkpoint has these files now
    append(tmp_path, 8, rows(8))
    assert values(tmp_path) == [*range(9)]


@pytest.mark.parametrize("name", ["a%41", "a\\b", "a\nb", "a\x7fb"])
def test_a_path_that_delta_would_change_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="choose another folder"):
        append(tmp_path / name, 0, rows(0))
    with (
        pytest.raises(InvalidArgumentError, match="table_format='parquet'"),
        StateStore.open(str(tmp_path / name), table_format="delta").snapshot(parallelism=1),
    ):
        pass
    assert not (tmp_path / name).exists()


def test_a_file_url_is_a_local_path(tmp_path: Path) -> None:
    append(f"file://{tmp_path}/out", 0, rows(0))
    assert values(tmp_path / "out") == [0]
