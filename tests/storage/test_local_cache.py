"""A copy on this host of what was written or restored here: used when it is right, never else."""

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
from statestore.testing.faults import Fault, FaultKind, FaultyStorage
from statestore.testing.suites import StorageSuite

ROWS = [{"user": f"u{i}", "n": i} for i in range(40)]


class TestCachedStorage(StorageSuite):
    """To its users it is the storage behind it."""

    races = 20

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return CachedStorage(LocalStorage(str(tmp_path / "store")), tmp_path / "cache")


def cached(tmp_path: Path, **options: Any) -> StateStore:
    return StateStore.open(
        str(tmp_path / "store"), table_format="parquet", local_cache=tmp_path / "cache", **options
    )


def plain(tmp_path: Path) -> StateStore:
    return StateStore.open(str(tmp_path / "store"), table_format="parquet")


def take(store: StateStore) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.keyed(
            "users", "totals", ROWS, key="user", max_parallelism=4, layout="partitioned"
        )
        checkpoint.union("source", "offsets", [[{"p": 0, "o": 7}], [{"p": 1, "o": 8}]])


def rows(store: StateStore) -> list[dict[str, object]]:
    restored = store.restore(parallelism=3)
    keyed = restored.keyed("users", "totals")
    assert restored.operator("source", "offsets").subtask(0) == [{"p": 0, "o": 7}, {"p": 1, "o": 8}]
    found = [row for i in range(3) for row in keyed.to_arrow(i).read_all().to_pylist()]
    return sorted(({k: row[k] for k in ("user", "n")} for row in found), key=lambda row: row["n"])


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def data_files(tmp_path: Path) -> list[Path]:
    return files(tmp_path / "store" / "operators")


def test_what_was_written_here_is_restored_without_the_store(tmp_path: Path) -> None:
    store = cached(tmp_path)
    take(store)
    assert len(files(tmp_path / "cache")) == len(data_files(tmp_path)) == 5
    for file in data_files(tmp_path):
        file.unlink()
    assert rows(store) == ROWS
    assert store.restore().keyed("users", "totals").get("u7")[0]["n"] == 7
    with pytest.raises(MissingFileError):
        rows(plain(tmp_path))


def test_what_was_restored_here_is_restored_again_without_the_store(tmp_path: Path) -> None:
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
def test_a_copy_that_is_not_the_file_is_not_read(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    """I7: the store is read in its place, and the next restore has a good copy again."""
    store = cached(tmp_path)
    take(store)
    for copy in files(tmp_path / "cache"):
        spoil(copy)
    assert rows(store) == ROWS
    assert rows(store) == ROWS
    stored = {file.name: file.read_bytes() for file in data_files(tmp_path)}
    assert {copy.name: copy.read_bytes() for copy in files(tmp_path / "cache")} == stored


def test_a_cache_that_is_a_file_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("no folder")
    store = cached(tmp_path)
    take(store)
    assert rows(store) == ROWS
    assert "local cache: cannot write" in caplog.text


def test_it_stays_within_its_limit_and_forgets_what_was_used_least_lately(tmp_path: Path) -> None:
    take(cached(tmp_path))
    total = sum(copy.stat().st_size for copy in files(tmp_path / "cache"))
    first, *others = files(tmp_path / "cache")
    for age, copy in enumerate(others, start=1):
        os.utime(copy, (age, age))
    storage = CachedStorage(LocalStorage(str(tmp_path / "store")), tmp_path / "cache", total - 1)
    storage.sync([])
    assert files(tmp_path / "cache") == [first, *others[1:]]
    assert storage.fetch("statestore.json", total) is None
    take(cached(tmp_path, local_cache_bytes=1))
    assert files(tmp_path / "cache") == []
    with pytest.raises(InvalidArgumentError, match="holds nothing"):
        cached(tmp_path, local_cache_bytes=0)


def test_a_process_that_only_restores_keeps_to_the_limit_too(tmp_path: Path) -> None:
    take(plain(tmp_path))
    assert rows(cached(tmp_path, local_cache_bytes=1)) == ROWS
    assert files(tmp_path / "cache") == []


def test_nothing_but_copies_is_ever_deleted(tmp_path: Path) -> None:
    """Whatever else lies in the folder, a store among it."""
    (tmp_path / "thesis.tex").write_text("years of work")
    store = StateStore.open(
        str(tmp_path / "store"),
        table_format="parquet",
        local_cache=tmp_path,
        local_cache_bytes=1,
    )
    for number in range(1, 4):
        take(store)
        assert store.checkpoints() == tuple(range(1, number + 1))
    assert rows(store) == ROWS
    assert store.maintenance.verify("all", deep=True).is_intact
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("inside", ["store", "store/operators", "link"])
def test_a_cache_in_the_store_is_refused(tmp_path: Path, inside: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store")
    with pytest.raises(InvalidArgumentError, match="lies in the store"):
        StateStore.open(str(tmp_path / "store"), local_cache=tmp_path / inside)


@pytest.mark.parametrize("folder", ["~no-such-user/x", "a\0b"])
def test_a_folder_that_cannot_be_is_refused(tmp_path: Path, folder: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no folder for a local cache"):
        StateStore.open(str(tmp_path / "store"), local_cache=folder)
    with pytest.raises(InvalidArgumentError, match="local_cache_bytes is of type int"):
        cached(tmp_path, local_cache_bytes="1GiB")


def test_a_name_that_is_too_long_stops_nobody(tmp_path: Path) -> None:
    take(plain(tmp_path))
    store = StateStore.open(str(tmp_path / "store"), local_cache=tmp_path / ("x" * 300))
    assert rows(store) == ROWS
    assert store.plan(parallelism=1).local_bytes == 0


def test_a_right_copy_is_hashed_once_a_process_and_again_when_it_changes(tmp_path: Path) -> None:
    store = cached(tmp_path)
    take(store)
    assert rows(store) == ROWS
    for copy in files(tmp_path / "cache"):
        raw = bytearray(copy.read_bytes())
        raw[len(raw) // 2] ^= 1
        copy.write_bytes(raw)
        os.utime(copy, (1, 1))
    assert rows(store) == ROWS


def test_a_read_that_fails_leaves_no_half_copy(tmp_path: Path) -> None:
    take(plain(tmp_path))
    name = str(data_files(tmp_path)[0].relative_to(tmp_path / "store"))
    behind = LocalStorage(str(tmp_path / "store"))
    faulty = FaultyStorage(behind, Fault(2, FaultKind.ERROR, lasting=True))
    with pytest.raises(OSError, match="Input/output error"):
        CachedStorage(faulty, tmp_path / "cache").fetch(name, 1)
    assert files(tmp_path / "cache") == []


def test_a_file_that_failed_has_no_copy(tmp_path: Path) -> None:
    """Neither one whose write fails, nor one that is deleted after an error."""
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


def test_the_plan_says_how_many_bytes_are_here(tmp_path: Path) -> None:
    store = cached(tmp_path)
    take(store)
    plan = store.plan(parallelism=2)
    assert plan.local_bytes == plan.size_bytes > 0
    assert plain(tmp_path).plan(parallelism=2).local_bytes == 0
    (gone, *_) = [c for c in files(tmp_path / "cache") if "keyed" in str(c)]
    gone.unlink()
    later = store.plan(parallelism=2)
    assert 0 < later.local_bytes < later.size_bytes


def test_the_manifest_says_on_which_host_copies_were_left(tmp_path: Path) -> None:
    take(cached(tmp_path))
    store = plain(tmp_path)
    hosts = {handle.host for handle in store.manifest().keyed[0].handles}
    assert hosts == {socket.gethostname()}
    take(store)
    assert {handle.host for handle in store.manifest().keyed[0].handles} == {""}


def test_damage_in_the_store_is_found_though_a_good_copy_is_here(tmp_path: Path) -> None:
    """Verify looks at the store alone."""
    store = cached(tmp_path)
    take(store)
    file = data_files(tmp_path)[0]
    file.write_bytes(bytes(file.stat().st_size))
    assert rows(store) == ROWS
    assert not store.maintenance.verify(deep=True).is_intact
