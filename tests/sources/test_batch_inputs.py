"""The bytes of a batch input: only data files, and only the current files of a Delta table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from statestore.errors import CorruptionError, InvalidArgumentError, NotFoundError, StorageError
from statestore.sources import table_files
from statestore.sources.table_files import input_files
from statestore.storage import LocalStorage


def parquet(path: Path, rows: int = 10) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": range(rows)}), path)
    return path.stat().st_size


def sizes_of(url: str) -> tuple[int, ...]:
    return input_files(url).sizes


def delta(path: Path, rows: int, mode: Any = "append") -> None:
    write_deltalake(path, pa.table({"x": range(rows)}), mode=mode)


def on_disk(path: Path) -> list[int]:
    return sorted(file.stat().st_size for file in path.glob("*.parquet"))


def active(path: Path) -> list[int]:
    files = DeltaTable(path).file_uris()
    return sorted(Path(file.removeprefix("file://")).stat().st_size for file in files)


def log_of(path: Path) -> Path:
    return path / "_delta_log"


# --- Parquet --------------------------------------------------------------------------------------


def test_a_folder_lists_its_files_in_order(tmp_path: Path) -> None:
    names = {"b.parquet": 1000, "a.parquet": 10, "k=1/_p=2/c.parquet": 500, "no-suffix": 20}
    expected = {name: parquet(tmp_path / name, rows) for name, rows in names.items()}
    got = sizes_of(str(tmp_path))
    assert got == tuple(expected[name] for name in sorted(expected))
    assert len(set(got)) > 2


def test_files_that_spark_ignores_are_not_counted(tmp_path: Path) -> None:
    size = parquet(tmp_path / "a.parquet")
    for name in ("_SUCCESS", ".a.parquet.crc", "_temporary/0/b.parquet", ".hidden/c.parquet"):
        parquet(tmp_path / name, 1000)
    assert sizes_of(str(tmp_path)) == (size,)


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_single_file_is_an_input_too(tmp_path: Path, prefix: str) -> None:
    size = parquet(tmp_path / "a.parquet", 100)
    parquet(tmp_path / "b.parquet", 5)
    assert sizes_of(f"{prefix}{tmp_path}/a.parquet") == (size,)


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = parquet(tmp_path / "t" / "a.parquet")
    monkeypatch.chdir(tmp_path)
    assert sizes_of("t") == sizes_of("t/a.parquet") == (size,)


@pytest.mark.parametrize("name", ["nothing", "nothing/at/all.parquet"])
def test_a_missing_path_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFoundError, match=f"{tmp_path}/{name} does not exist"):
        sizes_of(f"{tmp_path}/{name}")


@pytest.mark.parametrize("name", [None, "_SUCCESS", "_old/a.parquet"])
def test_a_folder_without_data_is_refused(tmp_path: Path, name: str | None) -> None:
    if name:
        parquet(tmp_path / name)
    with pytest.raises(InvalidArgumentError, match="no data files"):
        sizes_of(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"a,b\n1,2\n3,4\n5,6\n", b"PAR1" + b"x" * 99])
@pytest.mark.parametrize("single", [True, False])
def test_a_file_that_is_not_parquet_is_named(tmp_path: Path, content: bytes, single: bool) -> None:
    parquet(tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=r"b\.csv is not a Parquet file"):
        sizes_of(f"{tmp_path}/b.csv" if single else str(tmp_path))


def test_other_file_systems_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="http"):
        sizes_of("http://localhost/x.parquet")


def test_a_file_that_disappears_meanwhile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet(tmp_path / "a.parquet")

    def listed(storage: LocalStorage, folder: str) -> tuple[str, ...]:
        return () if folder else ("a.parquet", "gone.parquet")

    monkeypatch.setattr(LocalStorage, "list", listed)
    with pytest.raises(NotFoundError, match=r"gone\.parquet"):
        sizes_of(str(tmp_path))


def test_an_object_store_is_asked_for_a_file_if_there_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = parquet(tmp_path / "t" / "a.parquet")

    class Bucket(LocalStorage):
        """Objects have names and not paths. A prefix without objects is not a folder."""

        def __init__(self, url: str) -> None:
            super().__init__(str(tmp_path / url.removeprefix("s3://")))
            self.url = url

        def native_path(self, name: str) -> None:
            return None

        def list(self, folder: str) -> tuple[str, ...]:
            try:
                return super().list(folder)
            except StorageError:  # the path is a file
                return ()

    monkeypatch.setattr(table_files, "open_storage", lambda url, _: Bucket(url))
    assert sizes_of("s3://t") == sizes_of("s3://t/a.parquet") == (size,)
    for missing in ("s3://t/b.parquet", "s3://other"):
        with pytest.raises(NotFoundError, match=missing):
            sizes_of(missing)


# --- Delta ----------------------------------------------------------------------------------------


def test_a_delta_table_lists_the_files_of_its_newest_version(tmp_path: Path) -> None:
    for rows in (10, 1000, 20_000):
        delta(tmp_path, rows)
    assert sorted(sizes_of(str(tmp_path))) == on_disk(tmp_path)
    delta(tmp_path, 50, "overwrite")
    got = sizes_of(str(tmp_path))
    assert list(got) == active(tmp_path)
    assert len(got) == 1
    assert len(on_disk(tmp_path)) == 4


def test_a_checkpoint_replaces_the_commits_before_it(tmp_path: Path) -> None:
    for rows in (10, 1000):
        delta(tmp_path, rows)
    DeltaTable(tmp_path).delete("x = 3")
    DeltaTable(tmp_path).create_checkpoint()
    for version in (0, 1):
        (log_of(tmp_path) / f"{version:020}.json").unlink()
    expected = active(tmp_path)
    assert sorted(sizes_of(str(tmp_path))) == expected != on_disk(tmp_path)
    delta(tmp_path, 20_000)
    assert sorted(sizes_of(str(tmp_path))) == active(tmp_path) != expected


def test_a_multi_part_checkpoint_counts_if_it_is_complete(tmp_path: Path) -> None:
    for rows in (10, 1000):
        delta(tmp_path, rows)
    DeltaTable(tmp_path).create_checkpoint()
    (whole,) = log_of(tmp_path).glob("*.checkpoint.parquet")
    content = pq.read_table(whole)
    stem, half = whole.name.removesuffix(".parquet"), content.num_rows // 2
    whole.unlink()
    (log_of(tmp_path) / "_last_checkpoint").unlink()  # it names a checkpoint with one file
    parts = [log_of(tmp_path) / f"{stem}.{part:010}.{2:010}.parquet" for part in (1, 2)]
    pq.write_table(content.slice(0, half), parts[0])
    pq.write_table(content.slice(half), parts[1])
    first = next(iter(sorted(log_of(tmp_path).glob("*.json"))))
    kept = first.read_bytes()
    first.unlink()
    assert sorted(sizes_of(str(tmp_path))) == on_disk(tmp_path)
    parts[0].unlink()
    with pytest.raises(CorruptionError, match="cannot read the Delta log"):
        sizes_of(str(tmp_path))
    first.write_bytes(kept)
    assert sorted(sizes_of(str(tmp_path))) == on_disk(tmp_path)


def test_a_missing_commit_is_named(tmp_path: Path) -> None:
    for rows in (10, 20, 30):
        delta(tmp_path, rows)
    (log_of(tmp_path) / f"{1:020}.json").unlink()
    with pytest.raises(CorruptionError, match="found gap; read the table with Spark"):
        sizes_of(str(tmp_path))


def test_a_table_without_rows_has_no_bytes(tmp_path: Path) -> None:
    delta(tmp_path, 10)
    DeltaTable(tmp_path).delete()
    assert sizes_of(str(tmp_path)) == ()


def commit(path: Path, version: int, *actions: dict[str, Any]) -> None:
    log_of(path).mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    (log_of(path) / f"{version:020}.json").write_text(lines)


def feature(name: str) -> dict[str, Any]:
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    return {"protocol": versions | {"readerFeatures": [name], "writerFeatures": [name]}}


def test_rows_marked_deleted_do_not_remove_their_file(tmp_path: Path) -> None:
    """The log removes the file without a deletion vector and adds it with one, in any order."""
    delta(tmp_path, 10)
    (size,) = active(tmp_path)
    first = (log_of(tmp_path) / f"{0:020}.json").read_text().splitlines()
    (added,) = (one["add"] for line in first if "add" in (one := json.loads(line)))
    vector = {"storageType": "u", "pathOrInlineDv": "ab", "sizeInBytes": 1, "cardinality": 1}
    gone = {"path": added["path"], "deletionTimestamp": 1, "dataChange": True}
    marked = {"add": added | {"deletionVector": vector}}
    commit(tmp_path, 1, feature("deletionVectors"), marked, {"remove": gone})
    assert sizes_of(str(tmp_path)) == (size,)
    commit(tmp_path, 2, {"remove": gone | {"deletionVector": vector}})
    assert sizes_of(str(tmp_path)) == ()


def test_a_table_that_delta_rs_does_not_support_is_left_to_spark(tmp_path: Path) -> None:
    delta(tmp_path, 10)
    commit(tmp_path, 1, feature("somethingNew"))
    with pytest.raises(InvalidArgumentError, match=r"somethingNew.*read the table with Spark"):
        sizes_of(str(tmp_path))


def test_a_delta_table_that_delta_rs_would_read_elsewhere_is_refused(tmp_path: Path) -> None:
    delta(tmp_path / "a b", 1_000)
    delta(tmp_path / "other", 10)
    (tmp_path / "other").rename(tmp_path / "a%20b")
    with pytest.raises(InvalidArgumentError, match="a%20b': delta-rs would use another path"):
        sizes_of(str(tmp_path / "a%20b"))


def test_a_log_without_a_commit_is_not_a_table(tmp_path: Path) -> None:
    log_of(tmp_path).mkdir()
    (log_of(tmp_path) / "notes.txt").write_text("")
    with pytest.raises(InvalidArgumentError, match="no commit"):
        sizes_of(str(tmp_path))


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    delta(tmp_path, 10)
    DeltaTable(tmp_path).create_checkpoint()
    (whole,) = log_of(tmp_path).glob("*.checkpoint.parquet")
    whole.write_bytes(os.urandom(whole.stat().st_size))
    with pytest.raises(CorruptionError, match=f"cannot read the Delta log of {tmp_path}"):
        sizes_of(str(tmp_path))
