"""Savepoints, pins, and garbage collection of files that no savepoint, pin or checkpoint needs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    MalformedManifestError,
    MissingFileError,
    StateStoreError,
    StorageError,
)
from statestore.format.handles import list_of
from statestore.format.layers import CompactionRule
from statestore.format.names import manifest_path, savepoint_path, tombstone_path
from statestore.storage import Listed, LocalStorage, Storage
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.faults.cases import copy_of, elements, make_store, over, take, whole
from tests.support.forms import (
    Checkpoints,
    change,
    data_in,
    digest_of,
    history,
    names_of,
    rows_of,
    state_of,
)

pytestmark = pytest.mark.slow

DAY = 24 * 3600


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with checkpoints 1 to 3."""
    folder = make_store(tmp_path / "store")
    for number in (2, 3):
        take(store_in(folder), number)
    return folder


def store_in(folder: Path, storage: Storage | None = None, *, later_s: int = 0) -> StateStore:
    parts = over(storage or LocalStorage(str(folder))).parts
    return StateStore(replace(parts, now_ms=lambda: parts.now_ms() + later_s * 1000))


def files_in(folder: Path) -> set[str]:
    """Return the names of all files except the records of deletions, whose names are random."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if not name.startswith("deletions/")}


def test_expired_files_are_deleted_and_the_rest_stays(folder: Path) -> None:
    """I9: data files are deleted first, then manifests, and tombstones much later."""
    store = store_in(folder)
    kept = store.checkpoint(3).manifest
    gone = [store.checkpoint(number).manifest for number in (1, 2)]
    store.maintenance.expire(retain=1)
    planned = store.maintenance.gc(minimum_age="0", dry_run=True)
    before = files_in(folder)
    done = store.maintenance.gc(minimum_age="0")
    assert (planned.removed, planned.manifests) == (done.removed, done.manifests)
    assert done.manifests == (1, 2)
    assert (done.expired, done.kept, done.strays) == ((1, 2), (3,), ())
    assert done.removed.files == sum(manifest.files for manifest in gone)
    assert done.removed.size_bytes == sum(manifest.size_bytes for manifest in gone)
    assert (done.live.files, done.young.files) == (kept.files, 0)
    left = files_in(folder)
    assert before - left >= {manifest_path(1), manifest_path(2)}
    assert {tombstone_path(1), tombstone_path(2), manifest_path(3)} <= left
    whole(store, 3)
    assert store.maintenance.verify("all", deep=True).is_intact
    take(store, 4)
    assert store.checkpoints() == (3, 4)


def test_a_tombstone_is_deleted_long_after_its_manifest(folder: Path) -> None:
    """I6, I9: not with it, not before 30 days, and never the tombstone of the greatest id."""
    store, month = store_in(folder), 30 * DAY
    store.maintenance.expire(retain=1)
    (folder / tombstone_path(9)).write_bytes((folder / tombstone_path(1)).read_bytes())
    with_them = store_in(folder, later_s=month + 60).maintenance.gc(minimum_age="0")
    assert (with_them.manifests, with_them.tombstones) == ((1, 2), ())
    assert store_in(folder, later_s=month - 60).maintenance.gc(minimum_age="0").tombstones == ()
    assert (
        store_in(folder, later_s=month + 60)
        .maintenance.gc(minimum_age=timedelta(seconds=month + 90))
        .tombstones
        == ()
    )
    before = files_in(folder)
    assert store_in(folder, later_s=month + 60).maintenance.gc(dry_run=True).tombstones == (1, 2)
    assert files_in(folder) == before
    assert store_in(folder, later_s=month + 60).maintenance.gc().tombstones == (1, 2)
    assert before - files_in(folder) == {tombstone_path(1), tombstone_path(2)}
    assert store_in(folder, later_s=month + 60).maintenance.gc().tombstones == ()
    take(store, 10)
    assert store.checkpoints() == (3, 10)


def test_a_tombstone_stays_if_a_listing_lacks_its_manifest(folder: Path) -> None:
    """I4: an expired checkpoint never becomes visible again."""
    store_in(folder).maintenance.expire(retain=1)
    storage = Short(str(folder))
    storage.lacks = manifest_path(1)
    done = store_in(folder, storage, later_s=31 * DAY).maintenance.gc(
        minimum_age=timedelta(seconds=60 * DAY)
    )
    assert (done.manifests, done.tombstones) == ((), ())
    done = store_in(folder, storage, later_s=31 * DAY).maintenance.gc()
    assert (done.manifests, done.tombstones) == ((2,), ())
    assert (folder / manifest_path(1)).exists()
    assert store_in(folder).checkpoints() == (3,)


def test_new_and_recently_expired_files_stay(folder: Path) -> None:
    store = store_in(folder)
    store.maintenance.expire(retain=1)
    done = store.maintenance.gc()
    assert (done.removed.files, done.manifests) == (0, ())
    assert done.young.files == 2 * done.live.files
    assert store_in(folder, later_s=DAY).maintenance.gc().removed.files == done.young.files


def test_a_snapshot_that_outlasts_the_minimum_age_commits_nothing(folder: Path) -> None:
    """I9: a collection has deleted its files, and it reports that before its manifest is put."""
    writer = store_in(folder).snapshot(parallelism=2)
    writer.__enter__()
    writer.write_split("source", "splits", elements(4)["splits"])
    writer.carry_rest()
    assert store_in(folder).maintenance.gc(minimum_age="0").removed.files == 1
    with pytest.raises(MissingFileError):
        writer.__exit__(None, None, None)
    assert store_in(folder).checkpoints() == (1, 2, 3)
    whole(store_in(folder), 3)


def test_files_of_a_crashed_writer_are_deleted_and_a_delta_log_stays(folder: Path) -> None:
    table = folder / store_in(folder).checkpoint(3).manifest.entries[0].table.path
    stray = table / "key_group=0" / "0000000009-00000-00000000000000aa.parquet"
    log = table / "_delta_log" / "00000000000000000010.checkpoint.parquet"
    temporary = folder / "checkpoints" / f".0000000004.json.{'0' * 32}"
    for path in (stray, log, temporary):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    assert store_in(folder).maintenance.gc().removed.files == 0
    done = store_in(folder, later_s=DAY + 60).maintenance.gc()
    assert (done.removed.files, done.removed.size_bytes, done.leftovers) == (1, 1, 1)
    assert done.strays == (stray.relative_to(folder).as_posix(),)
    assert (done.stray, done.expired, done.kept) == (done.removed, (), (1, 2, 3))
    assert (stray.exists(), log.exists(), temporary.exists()) == (False, True, False)


def test_a_savepoint_keeps_its_checkpoint(folder: Path) -> None:
    store = store_in(folder)
    store.maintenance.savepoint("before-upgrade", 1)
    assert store.maintenance.savepoint("before-upgrade", 1).checkpoint_id == 1
    done = store.maintenance.expire(retain=1)
    assert (done.expired, done.kept) == ((2,), (1, 3))
    assert [(one.checkpoint_id, one.by) for one in done.held] == [(1, "savepoint 'before-upgrade'")]
    assert store.maintenance.gc(minimum_age="0").manifests == (2,)
    whole(store, 1)
    for word in ("befor-upgrade", "before"):
        with pytest.raises(CheckpointNotFoundError, match="existing savepoints: 'before-upgrade'"):
            store.maintenance.delete_savepoint(word)
    store.maintenance.delete_savepoint("before-upgrade")
    assert store.maintenance.expire(retain=1).expired == (1,)


def test_a_savepoint_that_expired_meanwhile_is_read_by_name(folder: Path) -> None:
    """I9: nothing else can hold it."""
    store = store_in(folder)
    store.maintenance.savepoint("audit", 1)
    store.parts.catalog().expire(1, b"tombstone")
    store.maintenance.gc(minimum_age="0")
    assert store.checkpoint("audit").checkpoint_id == 1
    assert store.restore(checkpoint="audit", parallelism=1).checkpoint_id == 1
    assert store.plan(checkpoint="audit", parallelism=2).checkpoint_id == 1
    assert store.maintenance.verify("audit", deep=True).is_intact
    with pytest.raises(CheckpointNotFoundError, match="savepoint 'audit' keeps its files"):
        store.checkpoint(1)
    for hold in (
        lambda: store.maintenance.savepoint("again", "audit"),
        lambda: store.maintenance.pin("audit", lease="9s"),
    ):
        with pytest.raises(InvalidArgumentError, match="is kept only by savepoint 'audit'"):
            hold()
    store.maintenance.delete_savepoint("audit")
    assert store.maintenance.gc(minimum_age="0").manifests == (1,)


def test_a_pin_keeps_its_checkpoint_until_the_lease_ends(folder: Path) -> None:
    store = store_in(folder)
    with store.maintenance.pin(1, lease="1m") as pinned:
        assert store.maintenance.expire(retain=1).expired == (2,)
        assert store.maintenance.gc(minimum_age="0").removed.files > 0
        whole(store, pinned.checkpoint_id)
    assert store.maintenance.pins() == ()
    store.maintenance.unpin(store.maintenance.pin(1, lease="1ms").token)
    token = store.maintenance.pin(1, lease="1m", holder="me").token
    with pytest.raises(CheckpointNotFoundError, match=f"existing pins: '{token}'"):
        store.maintenance.unpin("x")
    assert store_in(folder, later_s=59).maintenance.expire(retain=1).held[0].by == "a pin of me"
    assert store_in(folder, later_s=61).maintenance.expire(retain=1).expired == (1,)
    assert store_in(folder, later_s=61).maintenance.gc(minimum_age="0").pins == (token,)
    leases: tuple[Any, ...] = ("0", "-1s", timedelta(-1), "3000000001s", 60, True)
    for lease in leases:
        with pytest.raises(InvalidArgumentError, match=r"lease|duration"):
            store.maintenance.pin(lease=lease)


def test_checkpoints_also_expire_by_age(folder: Path) -> None:
    assert store_in(folder).maintenance.expire(older_than="1h").expired == ()
    later = store_in(folder, later_s=3601)
    assert later.maintenance.expire(older_than="1h", retain=2, dry_run=True).expired == (1,)
    assert later.maintenance.expire(older_than="1h").expired == (1, 2)
    assert later.checkpoints() == (3,)
    with pytest.raises(InvalidArgumentError, match="maximum age"):
        later.maintenance.expire()


class Short(LocalStorage):
    """A folder whose listings lack some names."""

    lacks = ""

    def listed(self, folder: str) -> tuple[Listed, ...]:
        return tuple(item for item in super().listed(folder) if self.lacks not in item.name)


@pytest.mark.parametrize("lacks", ["/keyed/", manifest_path(3)])
def test_an_incomplete_listing_is_refused(folder: Path, lacks: str) -> None:
    storage = Short(str(folder))
    storage.lacks = lacks
    before = files_in(folder)
    with pytest.raises(StorageError, match=r"nothing was collected: .* listing lacks it"):
        store_in(folder, storage).maintenance.gc(minimum_age="0")
    assert files_in(folder) == before


class Busy(LocalStorage):
    """A folder in which another process acts after some of the listings."""

    acts: list[Callable[[], object]]

    def listed(self, folder: str) -> tuple[Listed, ...]:
        found = super().listed(folder)
        if self.acts:
            self.acts.pop(0)()
        return found


def test_a_checkpoint_committed_at_that_moment_is_no_error(folder: Path) -> None:
    """I9: one checkpoint is committed directly before the last listing, and one directly
    after it.
    """
    under_way = over(LocalStorage(str(folder))).snapshot(parallelism=2)
    checkpoint = under_way.__enter__()
    checkpoint.write_keyed("u", "s", [{"k": "a", "v": 1}], key="k", max_parallelism=4)
    checkpoint.carry_rest()
    storage = Busy(str(folder))
    storage.acts = [lambda: None, lambda: None, lambda: under_way.__exit__(None, None, None)]
    assert (
        store_in(folder, storage).maintenance.gc(minimum_age=timedelta(seconds=DAY)).removed.files
        == 0
    )
    assert store_in(folder).maintenance.verify().is_intact
    assert not storage.acts


def test_a_concurrent_collection_is_no_error(folder: Path) -> None:
    """I9: an existing checkpoint expired, and its files and manifest are gone."""

    def abandon() -> None:
        store_in(folder).maintenance.expire(retain=1)
        store_in(folder).maintenance.gc(minimum_age="0")

    storage = Busy(str(folder))
    storage.acts = [lambda: None, lambda: None, abandon]
    assert store_in(folder, storage).maintenance.gc(minimum_age="0").manifests == ()
    assert store_in(folder).checkpoints() == (3,)
    assert store_in(folder).maintenance.verify().is_intact


def test_a_refused_hold_does_not_stay_next_to_a_damaged_one(folder: Path) -> None:
    """I9: a damaged hold does not affect a command that only lists the others."""
    store = store_in(folder)
    store.maintenance.savepoint("other", 1)
    (folder / savepoint_path("other")).write_bytes(b"{}")

    class Late(LocalStorage):
        """The checkpoint expires directly after the PUT of the savepoint."""

        def put_if_absent(self, name: str, data: bytes) -> bool:
            done = super().put_if_absent(name, data)
            if name == savepoint_path("mine"):
                (folder / tombstone_path(2)).write_bytes(b"")
            return done

    with pytest.raises(CheckpointNotFoundError, match="no checkpoint 2"):
        store_in(folder, Late(str(folder))).maintenance.savepoint("mine", 2)
    assert not (folder / savepoint_path("mine")).exists()
    with pytest.raises(CheckpointNotFoundError, match="no savepoint 'mine'"):
        store.maintenance.delete_savepoint("mine")


@pytest.mark.parametrize(
    ("name", "kind", "advice"),
    [
        (manifest_path(3), MalformedManifestError, "recover it from a backup, or let it expire"),
        (savepoint_path("audit"), MalformedManifestError, "delete this hold"),
        ("data", MissingFileError, "statestore verify 3"),
    ],
)
def test_damaged_documents_are_refused(
    folder: Path, name: str, kind: type[StateStoreError], advice: str
) -> None:
    store = store_in(folder)
    store.maintenance.savepoint("audit", 1)
    store.maintenance.expire(retain=2)
    entry = store.checkpoint(3).manifest.entries[0]
    if name == "data":
        (folder / entry.table.path / entry.handles[0].path).unlink()
    else:
        (folder / name).write_text("{")
    before = files_in(folder)
    with pytest.raises(kind, match=f"nothing was collected: .*{advice}"):
        store.maintenance.gc(minimum_age="0")
    assert files_in(folder) == before


@pytest.mark.long_cases("FaultKind.ANSWER_LOST")
@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.ANSWER_LOST])
def test_a_collection_that_failed_at_any_call_can_be_run_again(
    folder: Path, tmp_path: Path, kind: FaultKind
) -> None:
    """I10: kept checkpoints are intact, and a second run finishes."""
    store = store_in(folder)
    store.maintenance.savepoint("audit", 1)
    store.maintenance.expire(retain=1)
    counted = copy_of(folder, tmp_path / "counted")
    calls = calls_of(LocalStorage(str(counted)), lambda s: over(s).maintenance.gc(minimum_age="0"))
    assert {"listed", "read", "delete"} <= {call.operation for call in calls}
    for call in calls:
        copy = copy_of(folder, tmp_path / "copy")
        faulty = FaultyStorage(LocalStorage(str(copy)), Fault(call.number, kind))
        with pytest.raises(StorageError):
            over(faulty).maintenance.gc(minimum_age="0")
        for number in (1, 3):
            whole(store_in(copy), number)
        store_in(copy).maintenance.gc(minimum_age="0")
        assert files_in(copy) == files_in(counted)


# --- every form of a state ------------------------------------------------------------------------


@pytest.mark.long_cases("plain", "compacted")
def test_exactly_the_files_of_kept_checkpoints_stay(taken: Checkpoints) -> None:
    store = taken.store
    for retain in (4, 2, 1):
        expired = store.maintenance.expire(retain=retain)
        strays = store.maintenance.verify("all").strays
        done = store.maintenance.gc(minimum_age="0")
        assert done.strays == strays
        assert done.removed.files - done.stray.files == expired.files
        assert (done.kept, {*done.expired} <= {*expired.expired}) == (expired.kept, True)
        kept = store.checkpoints()
        assert len(kept) == retain
        assert data_in(store.url) == set().union(*(names_of(store, number) for number in kept))
        assert {number: rows_of(store, number) for number in kept} == {
            number: taken.taken[number] for number in kept
        }
    left = [*names_of(store), *filter(None, (list_of(p.handles) for p in state_of(store).parts))]
    taken.full(taken.rows)
    expired = store.maintenance.expire(retain=1)
    assert expired.files == len(left)
    assert store.maintenance.gc(minimum_age="0").removed.files == expired.files
    assert data_in(store.url) == names_of(store)


def test_a_base_stays_until_the_last_of_ten_checkpoints_with_it_expires(tmp_path: Path) -> None:
    taken = history(tmp_path / "store", changes=10)
    store = taken.store
    base = {name for name in names_of(store, 1) if "/keyed/" in name}
    assert base
    for retain in (8, 4, 1):
        store.maintenance.expire(retain=retain)
        store.maintenance.gc(minimum_age="0")
        named = set().union(*(names_of(store, number) for number in store.checkpoints()))
        assert base <= named == data_in(store.url)
    assert rows_of(store) == taken.rows
    taken.full(taken.rows)
    store.maintenance.expire(retain=1)
    store.maintenance.gc(minimum_age="0")
    assert not base & data_in(store.url)


def test_a_merged_layer_is_deleted_with_its_last_checkpoint(tmp_path: Path) -> None:
    rule = CompactionRule(merge_layers=2, share=9, most_share=9)
    taken = history(tmp_path / "store", changes=5, rule=rule)
    store = taken.store
    before, after = names_of(store, 2), names_of(store)
    assert len(state_of(store).layers) < 5
    assert before - after
    store.maintenance.expire(retain=1)
    released = data_in(store.url) - after
    assert before - after <= released
    collected = store.maintenance.gc(minimum_age="0")
    assert collected.removed.files == len(released)
    assert data_in(store.url) == after
    assert rows_of(store) == taken.rows


def test_a_savepoint_is_sufficient(taken: Checkpoints) -> None:
    store, digest = taken.store, digest_of(taken.store)
    number = max(taken.taken)
    store.maintenance.savepoint("kept", number)
    change(taken, 9, random.Random(3))
    taken.full({("x", 0): 1})
    store.maintenance.expire(retain=1)
    store.maintenance.gc(minimum_age="0")
    assert names_of(store, "kept") <= data_in(store.url)
    assert digest_of(store, "kept") == digest
    assert rows_of(store, "kept") == taken.taken[number]
