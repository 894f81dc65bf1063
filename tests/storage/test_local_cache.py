"""The local cache: files that were written or restored on this host are read from it if valid."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.errors import InvalidArgumentError, MissingFileError
from statestore.storage import CachedStorage, LocalStorage, Storage
from statestore.storage.local_cache import DEFAULT_LIMIT_BYTES, CacheOptions
from statestore.testing.faults import Fault, FaultKind, FaultyStorage
from statestore.testing.suites import StorageSuite

ROWS = [{"user": f"u{i}", "n": i} for i in range(40)]


class TestCachedStorage(StorageSuite):
    """Run the conformance suite: users see no difference from the storage."""

    races = 20

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return CachedStorage(LocalStorage(str(tmp_path / "store")), tmp_path / "cache")


def cached(tmp_path: Path, limit_bytes: Any = DEFAULT_LIMIT_BYTES) -> StateStore:
    return StateStore.open(
        str(tmp_path / "store"),
        table_format="parquet",
        cache=CacheOptions(tmp_path / "cache", limit_bytes),
    )


def plain(tmp_path: Path) -> StateStore:
    return StateStore.open(str(tmp_path / "store"), table_format="parquet")


def take(store: StateStore) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed(
            "users", "totals", ROWS, key="user", max_parallelism=4, layout="partitioned"
        )
        checkpoint.write_union("source", "offsets", [[{"p": 0, "o": 7}], [{"p": 1, "o": 8}]])


def rows(store: StateStore) -> list[dict[str, object]]:
    restored = store.restore(parallelism=3)
    keyed = restored.keyed("users", "totals")
    assert restored.operator_state("source", "offsets").subtask(0) == [
        {"p": 0, "o": 7},
        {"p": 1, "o": 8},
    ]
    found = [row for i in range(3) for row in keyed.to_arrow(i).to_pylist()]
    return sorted(({k: row[k] for k in ("user", "n")} for row in found), key=lambda row: row["n"])


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def data_files(tmp_path: Path) -> list[Path]:
    return files(tmp_path / "store" / "operators")


def test_written_files_are_restored_without_the_store(tmp_path: Path) -> None:
    store = cached(tmp_path)
    take(store)
    assert len(files(tmp_path / "cache")) == len(data_files(tmp_path)) == 5
    for file in data_files(tmp_path):
        file.unlink()
    assert rows(store) == ROWS
    assert store.restore().keyed("users", "totals").get("u7")[0]["n"] == 7
    with pytest.raises(MissingFileError):
        rows(plain(tmp_path))


def test_restored_files_are_restored_again_without_the_store(tmp_path: Path) -> None:
    take(plain(tmp_path))
    store = cached(tmp_path)
    assert rows(store) == ROWS
    assert len(files(tmp_path / "cache")) == 5
    for file in data_files(tmp_path):
        file.unlink()
    assert rows(store) == ROWS


@pytest.mark.parametrize(
    "spoil",
    [
        lambda copy: copy.write_bytes(copy.read_bytes()[:-1]),
        lambda copy: copy.write_bytes(bytes(copy.stat().st_size)),
        lambda copy: copy.unlink(),
        lambda copy: copy.write_bytes(b""),
    ],
)
def test_a_damaged_copy_is_not_read(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """I7: the file is read from the store instead, and the next restore has a valid copy again."""
    store = cached(tmp_path)
    take(store)
    for copy in files(tmp_path / "cache"):
        spoil(copy)
    assert rows(store) == ROWS
    assert rows(store) == ROWS
    stored = {file.name: file.read_bytes() for file in data_files(tmp_path)}
    assert {copy.name: copy.read_bytes() for copy in files(tmp_path / "cache")} == stored


def test_a_file_in_place_of_the_cache_folder_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("no folder")
    store = cached(tmp_path)
    take(store)
    assert rows(store) == ROWS
    assert "local cache: cannot write" in caplog.text


def test_it_stays_within_its_limit_and_evicts_the_least_recently_used(tmp_path: Path) -> None:
    take(cached(tmp_path))
    total = sum(copy.stat().st_size for copy in files(tmp_path / "cache"))
    first, *others = files(tmp_path / "cache")
    for age, copy in enumerate(others, start=1):
        os.utime(copy, (age, age))
    storage = CachedStorage(LocalStorage(str(tmp_path / "store")), tmp_path / "cache", total - 1)
    storage.sync([])
    assert files(tmp_path / "cache") == [first, *others[1:]]
    assert storage.fetch("statestore.json", total) is None
    take(cached(tmp_path, limit_bytes=1))
    assert files(tmp_path / "cache") == []
    with pytest.raises(InvalidArgumentError, match="cannot hold anything"):
        cached(tmp_path, limit_bytes=0)


def test_a_commit_looks_at_no_copy_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process lists the cache once, and then only after it has added a part of the limit."""
    folder, limit_bytes, asked = tmp_path / "cache", 64_000, list[Path]()
    stat = Path.stat

    def counted(self: Path, **options: bool) -> os.stat_result:
        if self.is_relative_to(folder) and self.suffix == ".parquet":
            asked.append(self)
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", counted)
    for number in range(100):
        # A task of Spark has a storage of its own, in a process that runs many tasks.
        storage = CachedStorage(LocalStorage(str(tmp_path / "store")), folder, limit_bytes)
        with storage.open_write(f"{number}.parquet") as file:
            file.write(bytes(100))
        storage.sync([f"{number}.parquet"])
    assert len(asked) == sum(range(1, 101, 10))
    assert len(files(folder)) == 100


def test_a_process_that_only_restores_respects_the_limit(tmp_path: Path) -> None:
    take(plain(tmp_path))
    assert rows(cached(tmp_path, limit_bytes=1)) == ROWS
    assert files(tmp_path / "cache") == []


def test_only_copies_are_ever_deleted(tmp_path: Path) -> None:
    """Other files in the folder are kept, including a store."""
    (tmp_path / "thesis.tex").write_text("years of work")
    store = StateStore.open(
        str(tmp_path / "store"),
        table_format="parquet",
        cache=CacheOptions(tmp_path, 1),
    )
    for number in range(1, 4):
        take(store)
        assert store.checkpoints() == tuple(range(1, number + 1))
    assert rows(store) == ROWS
    assert store.maintenance.verify("all", deep=True).is_intact
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("inside", ["store", "store/operators", "link"])
def test_a_cache_inside_the_store_is_refused(tmp_path: Path, inside: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store")
    with pytest.raises(InvalidArgumentError, match="is inside the store"):
        StateStore.open(str(tmp_path / "store"), cache=CacheOptions(tmp_path / inside))


@pytest.mark.parametrize("folder", ["~no-such-user/x", "a\0b"])
def test_an_invalid_folder_is_refused(tmp_path: Path, folder: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be used as the folder of a local cache"):
        StateStore.open(str(tmp_path / "store"), cache=CacheOptions(folder))
    with pytest.raises(InvalidArgumentError, match="CacheOptions: limit_bytes must be of type int"):
        cached(tmp_path, limit_bytes="1GiB")


def test_a_name_that_is_too_long_is_no_error(tmp_path: Path) -> None:
    take(plain(tmp_path))
    store = StateStore.open(str(tmp_path / "store"), cache=CacheOptions(tmp_path / ("x" * 300)))
    assert rows(store) == ROWS
    assert store.plan(parallelism=1).local_bytes == 0


def test_a_valid_copy_is_hashed_once_per_process_and_again_after_a_change(tmp_path: Path) -> None:
    store = cached(tmp_path)
    take(store)
    assert rows(store) == ROWS
    for copy in files(tmp_path / "cache"):
        raw = bytearray(copy.read_bytes())
        raw[len(raw) // 2] ^= 1
        copy.write_bytes(raw)
        os.utime(copy, (1, 1))
    assert rows(store) == ROWS


def test_a_failed_read_leaves_no_partial_copy(tmp_path: Path) -> None:
    take(plain(tmp_path))
    name = str(data_files(tmp_path)[0].relative_to(tmp_path / "store"))
    behind = LocalStorage(str(tmp_path / "store"))
    faulty = FaultyStorage(behind, Fault(2, FaultKind.ERROR, lasting=True))
    with pytest.raises(OSError, match="Input/output error"):
        CachedStorage(faulty, tmp_path / "cache").fetch(name, 1)
    assert files(tmp_path / "cache") == []


def test_a_file_of_a_failed_snapshot_has_no_copy(tmp_path: Path) -> None:
    """This holds for a failed write and for a file that is deleted after an error."""
    behind = LocalStorage(str(tmp_path / "store"))
    faulty = FaultyStorage(behind, Fault(3, FaultKind.FULL, lasting=True))
    storage = CachedStorage(faulty, tmp_path / "cache")
    file = storage.open_write("a")
    file.write(b"x")
    with pytest.raises(OSError, match="No space"):
        file.close()
    assert files(tmp_path / "cache") == []
    good = CachedStorage(behind, tmp_path / "cache")
    with good.open_write("b") as other:
        other.write(b"x")
    assert [copy.name for copy in files(tmp_path / "cache")] == ["b"]
    good.delete("b")
    assert files(tmp_path / "cache") == []


def test_the_plan_shows_the_bytes_in_the_cache(tmp_path: Path) -> None:
    store = cached(tmp_path)
    take(store)
    plan = store.plan(parallelism=2)
    assert plan.local_bytes == plan.size_bytes > 0
    assert plain(tmp_path).plan(parallelism=2).local_bytes == 0
    (gone, *_) = [c for c in files(tmp_path / "cache") if "keyed" in str(c)]
    gone.unlink()
    later = store.plan(parallelism=2)
    assert 0 < later.local_bytes < later.size_bytes


def test_the_manifest_records_the_host_of_each_copy(tmp_path: Path) -> None:
    take(cached(tmp_path))
    store = plain(tmp_path)
    hosts = {handle.host for handle in store.checkpoint().manifest.keyed[0].handles}
    assert hosts == {socket.gethostname()}
    take(store)
    assert {handle.host for handle in store.checkpoint().manifest.keyed[0].handles} == {""}


def test_damage_in_the_store_is_found_despite_a_valid_copy(tmp_path: Path) -> None:
    """Verification reads only the store."""
    store = cached(tmp_path)
    take(store)
    file = data_files(tmp_path)[0]
    file.write_bytes(bytes(file.stat().st_size))
    assert rows(store) == ROWS
    assert not store.maintenance.verify(deep=True).is_intact
