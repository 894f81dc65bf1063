"""A fork shares the files of a checkpoint, and afterwards neither store can damage the other."""

from __future__ import annotations

import errno
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from statestore import OperatorKey, StateStore
from statestore.errors import (
    CheckpointNotFoundError,
    DamagedFileError,
    InvalidArgumentError,
    MissingFileError,
)
from statestore.snapshot.state_spec import Changes
from statestore.storage import LocalStorage, MeteredStorage
from statestore.storage.local import can_link, link
from tests.support.damage import fill
from tests.support.stores import values_in

pytestmark = pytest.mark.slow

Rows = dict[str, int]


def opened(path: Path) -> StateStore:
    return StateStore.open(str(path), table_format="parquet", layout="partitioned", compaction=None)


def put(store: StateStore, rows: Rows) -> int:
    frame = [{"k": k, "v": v} for k, v in rows.items()]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", frame, key="k", max_parallelism=4)
    return checkpoint.id


def change(store: StateStore, rows: Rows, upserts: Rows, deletes: list[str]) -> Rows:
    frame = [{"k": k, "v": v} for k, v in upserts.items()]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes(
            "u", "s", Changes(frame, [{"k": k} for k in deletes] or None), key="k"
        )
    return {k: v for k, v in rows.items() if k not in deletes} | upserts


def names(store: StateStore, checkpoint: int | str = "latest") -> set[str]:
    parts = store.checkpoint(checkpoint).manifest.parts
    return {f"{part.table.path}/{handle.path}" for part in parts for handle in part.handles}


def collect(store: StateStore) -> None:
    store.maintenance.expire(retain=1)
    store.maintenance.gc(minimum_age="0")


@pytest.fixture
def rows() -> Rows:
    return {f"k{i}": i for i in range(60)}


@pytest.fixture
def source(tmp_path: Path, rows: Rows) -> StateStore:
    """A store whose newest checkpoint contains changes to a base."""
    store = opened(tmp_path / "source")
    put(store, rows)
    rows |= change(store, rows, {"k1": -1, "new": 7}, [])
    return store


def test_every_file_has_two_names(source: StateStore, tmp_path: Path, rows: Rows) -> None:
    heard: list[tuple[int, int]] = []
    done = source.maintenance.copy(
        "latest", str(tmp_path / "fork"), linked=True, on_progress=lambda *at: heard.append(at)
    )
    fork = opened(tmp_path / "fork")
    assert len(names(fork)) == len(names(source)) == done.files > 4
    inodes = [
        {
            (file.st_ino, file.st_dev)
            for name in names(store)
            for file in [Path(store.url, name).stat()]
        }
        for store in (source, fork)
    ]
    assert inodes[0] == inodes[1]
    assert all(Path(fork.url, name).stat().st_nlink == 2 for name in names(fork))
    assert (done.new_checkpoint_id, done.copied_files, done.copied_bytes) == (1, 0, 0)
    assert heard[-1] == (done.size_bytes, done.size_bytes)
    assert values_in(fork) == values_in(source) == rows
    assert fork.maintenance.verify("all", deep=True).is_intact
    assert fork.checkpoint().manifest.store_id != source.checkpoint().manifest.store_id
    origin = fork.checkpoint().manifest.origin or {}
    told = (origin["command"], origin["store"], origin["checkpoint"])
    assert told == ("fork", source.checkpoint().manifest.store_id, 2)


def test_a_fork_need_not_touch_the_files(source: StateStore, tmp_path: Path) -> None:
    def times() -> dict[str, int]:
        return {name: Path(source.url, name).stat().st_mtime_ns for name in names(source)}

    before = times()
    done = source.maintenance.copy("latest", str(tmp_path / "fork"), linked=True, touch=False)
    assert times() == before
    assert done.copied_files == 0
    source.maintenance.copy("latest", str(tmp_path / "touched"), linked=True)
    assert times() != before


def test_every_kind_of_state_is_forked(tmp_path: Path) -> None:
    source = fill(tmp_path / "source")
    source.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    fork = opened(tmp_path / "fork")
    assert [e.digest for e in fork.checkpoint().manifest.entries] == [
        e.digest for e in source.checkpoint().manifest.entries
    ]
    assert fork.maintenance.verify("all", deep=True).is_intact


def test_no_byte_of_data_is_read_or_written(source: StateStore, tmp_path: Path) -> None:
    before = {path for path in (tmp_path / "source").rglob("*") if path.is_file()}
    inodes = {path.stat().st_ino for path in before}
    source.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    files = list((tmp_path / "fork").rglob("*.parquet"))
    assert files
    assert {path.stat().st_ino for path in files} <= inodes


@pytest.mark.long_cases("1")
@pytest.mark.parametrize("seed", range(2))
def test_neither_store_damages_the_other(tmp_path: Path, seed: int) -> None:
    """Both continue randomly with full and incremental checkpoints, compaction, purges and garbage
    collection. Each has the content of its own history.
    """
    dice = random.Random(seed)
    first = opened(tmp_path / "source")
    rows = {f"k{i}": i for i in range(40)}
    put(first, rows)
    rows = change(first, rows, {"k3": -3}, ["k4"])
    first.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    sides: list[Any] = [[first, dict(rows)], [opened(tmp_path / "fork"), dict(rows)]]
    for step in range(10):
        place = dice.randrange(2)
        side = sides[place]
        store, mine = side
        what = dice.choice(["full", "changes", "changes", "compact", "purge", "collect"])
        if what == "full":
            mine = {f"k{dice.randrange(50)}": step for _ in range(30)}
            put(store, mine)
        elif what == "changes":
            gone = dice.sample(sorted(mine), 2) if len(mine) > 4 else []
            mine = change(store, mine, {f"k{dice.randrange(50)}": 100 + step}, gone)
        elif what == "compact":
            store.maintenance.compact(everything=True)
        elif what == "purge" and mine:
            key = dice.choice(sorted(mine))
            store.maintenance.forget(OperatorKey("u", key), search=False)
            mine = {k: v for k, v in mine.items() if k != key}
        else:
            collect(store)
        side[1] = mine
        other, wanted = sides[1 - place]
        assert values_in(other) == wanted, (what, step)
    for each, wanted in sides:
        collect(each)
        assert each.maintenance.verify("all", deep=True).is_intact
        assert values_in(each) == wanted


@pytest.mark.parametrize("ends", ["source", "fork"])
def test_deleting_one_store_leaves_the_other_intact(
    source: StateStore, tmp_path: Path, rows: Rows, ends: str
) -> None:
    source.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    put({"source": source, "fork": opened(tmp_path / "fork")}[ends], {"k": 1})
    collect(opened(tmp_path / ends))
    left = opened(tmp_path / ("fork" if ends == "source" else "source"))
    assert values_in(left) == rows
    assert left.maintenance.verify("latest", deep=True).is_intact
    assert all(Path(left.url, name).stat().st_nlink == 1 for name in names(left))


def test_a_purged_key_stays_in_the_other_store(source: StateStore, tmp_path: Path) -> None:
    source.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    source.maintenance.forget(OperatorKey("u", "k5"), search=False)
    source.maintenance.gc(minimum_age="0")
    assert not source.maintenance.find_subject(OperatorKey("u", "k5")).found
    fork = opened(tmp_path / "fork")
    assert fork.restore().keyed("u", "s").get("k5") == [{"k": "k5", "v": 5}]


def test_an_older_checkpoint_and_a_savepoint_are_forked(source: StateStore, tmp_path: Path) -> None:
    source.maintenance.copy(1, str(tmp_path / "older"), linked=True)
    assert values_in(opened(tmp_path / "older")) == {f"k{i}": i for i in range(60)}
    source.maintenance.savepoint("before", 1)
    put(source, {"k": 1})
    collect(source)
    done = source.maintenance.copy("before", str(tmp_path / "fork"), linked=True)
    fork = opened(tmp_path / "fork")
    assert (done.savepoint, done.copied_files) == ("before", 0)
    assert [savepoint.name for savepoint in fork.maintenance.savepoints()] == ["before"]
    assert values_in(fork, checkpoint="before") == {f"k{i}": i for i in range(60)}


def test_a_copy_recognizes_forked_files(source: StateStore, tmp_path: Path) -> None:
    source.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    again = source.maintenance.copy("latest", str(tmp_path / "fork"))
    assert (again.found, again.new_checkpoint_id) == (True, 1)


def test_a_dry_run_writes_nothing(source: StateStore, tmp_path: Path) -> None:
    done = source.maintenance.copy("latest", str(tmp_path / "fork"), linked=True, dry_run=True)
    assert (done.new_checkpoint_id, done.copied_files, done.copied_bytes) == (None, 0, 0)
    assert done.files == len(names(source))
    assert not (tmp_path / "fork").exists()


def test_an_occupied_target_is_refused(source: StateStore, tmp_path: Path) -> None:
    source.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    before = sorted((tmp_path / "fork").rglob("*"))
    for dry_run in (False, True):
        with pytest.raises(InvalidArgumentError, match="is already a store, with checkpoints 1"):
            source.maintenance.copy("latest", str(tmp_path / "fork"), linked=True, dry_run=dry_run)
    assert sorted((tmp_path / "fork").rglob("*")) == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(InvalidArgumentError, match="notes is not a store but contains files"):
        source.maintenance.copy("latest", str(tmp_path / "notes"), linked=True)
    assert [path.name for path in (tmp_path / "notes").rglob("*")] == ["a.txt"]
    with pytest.raises(InvalidArgumentError, match="is already a store"):
        source.maintenance.copy("latest", source.url, linked=True)
    with pytest.raises(CheckpointNotFoundError):
        source.maintenance.copy(9, str(tmp_path / "nothing"), linked=True)
    assert not (tmp_path / "nothing").exists()


def test_a_missing_file_of_the_source_is_named(
    source: StateStore, tmp_path: Path, rows: Rows
) -> None:
    name = sorted(names(source))[3]
    kept = Path(source.url, name).read_bytes()
    Path(source.url, name).unlink()
    with pytest.raises(MissingFileError, match=Path(name).name):
        source.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    assert opened(tmp_path / "fork").checkpoints() == ()
    Path(source.url, name).write_bytes(kept)
    done = source.maintenance.copy(
        "latest", str(tmp_path / "fork"), linked=True
    )  # the second run continues
    assert (done.new_checkpoint_id, done.copied_files) == (1, 0)
    assert values_in(opened(tmp_path / "fork")) == rows


def test_a_truncated_file_is_refused(source: StateStore, tmp_path: Path) -> None:
    path = Path(source.url, sorted(names(source))[0])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamagedFileError, match=path.name):
        source.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    assert opened(tmp_path / "fork").checkpoints() == ()


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_another_file_system_gets_copies(
    source: StateStore, tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.link

    def refused(old: Any, new: Any, **options: Any) -> None:
        if str(old).endswith(".parquet"):
            raise OSError(code, os.strerror(code))
        real(old, new, **options)

    monkeypatch.setattr(os, "link", refused)
    done = source.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    assert (done.copied_files, done.copied_bytes) == (done.files, done.size_bytes)
    fork = opened(tmp_path / "fork")
    assert values_in(fork) == rows
    assert all(Path(fork.url, name).stat().st_nlink == 1 for name in names(fork))
    assert fork.maintenance.verify("all", deep=True).is_intact


def test_only_folders_of_one_file_system_share(
    source: StateStore, tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, bucket = LocalStorage(source.url), MeteredStorage(LocalStorage(str(tmp_path / "b")))
    assert can_link(local, LocalStorage(str(tmp_path / "not" / "yet")))
    assert not can_link(local, bucket)  # it has no paths, like a bucket
    assert not can_link(bucket, local)
    assert not link(bucket, sorted(names(source))[0], local, "f")
    remote = StateStore.open(MeteredStorage(local), table_format="parquet")
    planned = remote.maintenance.copy("latest", str(tmp_path / "fork"), linked=True, dry_run=True)
    assert planned.copied_files == planned.files > 0
    done = remote.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    assert (done.copied_files, done.copied_bytes) == (planned.copied_files, planned.copied_bytes)
    assert values_in(opened(tmp_path / "fork")) == rows


def test_a_link_never_replaces_a_file(tmp_path: Path) -> None:
    one, other = LocalStorage(str(tmp_path / "a")), LocalStorage(str(tmp_path / "b"))
    one.put_if_absent("f", b"mine")
    other.put_if_absent("f", b"yours")
    assert not link(one, "f", other, "f")
    assert other.read("f") == b"yours"
    with pytest.raises(FileNotFoundError):
        link(one, "g", other, "g")


def test_a_linked_file_is_new_and_has_its_own_name(source: StateStore, tmp_path: Path) -> None:
    """Otherwise a garbage collection of the new store treats the old file as a killed fork's."""
    for name in names(source):
        os.utime(Path(source.url, name), (0, 0))
    before = time.time() - 5
    source.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    fork = opened(tmp_path / "fork")
    assert all(Path(fork.url, name).stat().st_mtime > before for name in names(fork))
    assert not names(fork) & names(source)


def test_a_file_of_another_owner_is_copied(
    source: StateStore, tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that may not set a file's time cannot renew its second name."""

    def refused(path: Any, *times: Any, **options: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(os, "utime", refused)
    done = source.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    assert done.copied_files == done.files
    assert values_in(opened(tmp_path / "fork")) == rows
