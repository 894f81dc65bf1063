"""A purged key is gone from every kept checkpoint, and after garbage collection from every file."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import OperatorKey, StateStore
from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Fence
from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
    DamagedFileError,
    InvalidArgumentError,
    MalformedManifestError,
    StateNotFoundError,
    StorageError,
)
from statestore.format.manifest import Manifest
from statestore.format.names import manifest_path
from statestore.storage import LocalStorage
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.faults.cases import copy_of, with_every_call
from tests.support.stores import opened

pytestmark = pytest.mark.slow

KEY = "somebody@example.org"
USERS = [f"user-{i}" for i in range(20)]
HELD = {1: False, 2: True, 3: False, 4: True}
"""Whether each checkpoint of the store contains the key."""
KILLED = """
import sys
from statestore import OperatorKey, StateStore
from statestore.storage import LocalStorage
from statestore.testing.faults import Fault, FaultKind, FaultyStorage
url, key, at = sys.argv[1:]
storage = FaultyStorage(LocalStorage(url), Fault(int(at), FaultKind.KILLED))
store = StateStore.open(storage, table_format="parquet")
store.maintenance.forget(OperatorKey("users", key), search=False)
"""


def take(store: StateStore, number: int, *, held: bool, layout: str = "ranged") -> None:
    users = [*USERS, KEY] if held else USERS
    with store.snapshot(parallelism=2) as checkpoint:
        rows = pa.table({"user": users, "n": [number] * len(users)})
        routes = pa.table({"user": users * 2, "to": ["x"] * len(users) + ["y"] * len(users)})
        checkpoint.write_keyed(
            "users", "totals", rows, key="user", max_parallelism=8, layout=layout
        )
        checkpoint.write_keyed(
            *("users", "routes", routes),
            kind="map",
            key="user",
            entry="to",
            max_parallelism=8,
            layout=layout,
        )
        checkpoint.write_keyed(
            *("other", "totals", rows.slice(0, 20)), key="user", max_parallelism=8, layout=layout
        )
        checkpoint.write_split("source", "offsets", [[{"offset": number}], []])


@pytest.fixture(params=["partitioned", pytest.param("ranged", marks=pytest.mark.long)])
def store(request: Any, tmp_path: Path) -> StateStore:
    """A store with checkpoints 1 to 4, of which 2 and 4 contain the key, and savepoints
    of 2 and 3.
    """
    store = opened(tmp_path / "store")
    for number, held in HELD.items():
        take(store, number, held=held, layout=request.param)
    store.maintenance.savepoint("two", 2)
    store.maintenance.savepoint("three", 3)
    return opened(tmp_path / "store")


def users_of(store: StateStore, checkpoint: int | str, name: str = "totals") -> list[str]:
    keyed = store.restore(checkpoint=checkpoint, parallelism=1).keyed("users", name)
    return sorted(keyed.to_arrow(0).column("user").to_pylist())


def number_of(store: StateStore, checkpoint: int | str) -> int:
    """Return the original number of a checkpoint, from its content."""
    elements = store.restore(checkpoint=checkpoint, parallelism=1).operator_state(
        "source", "offsets"
    )
    return int(elements.subtask(0)[0]["offset"])


def _times(store: StateStore, number: int) -> tuple[int, int]:
    manifest = store.checkpoint(number).manifest
    return manifest.started_at_ms, manifest.created_at_ms


def is_purged(store: StateStore) -> None:
    """Assert that the order is unchanged, the key is gone, and everything else is there."""
    ids = store.checkpoints()
    assert [number_of(store, one) for one in ids] == [1, 2, 3, 4]
    for one in ids:
        assert users_of(store, one) == sorted(USERS)
        assert users_of(store, one, "routes") == sorted(USERS * 2)
    assert {
        savepoint.name: savepoint.checkpoint_id for savepoint in store.maintenance.savepoints()
    } == {
        "two": ids[1],
        "three": ids[2],
    }
    assert store.maintenance.verify("all", deep=True).is_intact


def test_every_kept_checkpoint_loses_the_key_and_the_order_stays(store: StateStore) -> None:
    before = store.checkpoint(2).manifest
    times = [_times(store, number) for number in (1, 2, 3, 4)]
    done = store.maintenance.forget(OperatorKey("users", KEY), search=False)
    assert [_times(store, number) for number in store.checkpoints()] == times
    assert store.checkpoints() == (1, 6, 7, 8)
    is_purged(store)
    told = [(one.checkpoint_id, one.new_checkpoint_id, one.savepoints) for one in done.replaced]
    assert told == [(2, 6, ("two",)), (3, 7, ("three",)), (4, 8, ())]
    states = {(one.checkpoint_id, s.state): s.rows for one in done.replaced for s in one.states}
    assert states == {(2, "totals"): 1, (2, "routes"): 2, (4, "totals"): 1, (4, "routes"): 2}
    after = store.checkpoint(6).manifest
    for name in ("totals", "routes"):
        (group,) = {s.key_group for s in done.replaced[0].states if s.state == name}
        files = after.keyed_entry("users", name).handles
        kept = [f for f in before.keyed_entry("users", name).handles if group not in f.key_groups]
        assert [file for file in files if group not in file.key_groups] == kept
    assert after.keyed_entry("other", "totals") == before.keyed_entry("other", "totals")
    take(store, 5, held=False)
    assert store.checkpoints() == (1, 6, 7, 8, 9)


def test_after_a_collection_no_byte_of_the_key_is_left(store: StateStore) -> None:
    before = store.maintenance.find_subject(OperatorKey("users", KEY))
    assert len(before.found) == 4
    assert before.problem is not None
    store.maintenance.forget(OperatorKey("users", KEY), search=False)
    assert {
        one.file for one in store.maintenance.find_subject(OperatorKey("users", KEY)).found
    } == {one.file for one in before.found}
    store.maintenance.gc(minimum_age="0")
    after = store.maintenance.find_subject(OperatorKey("users", KEY))
    assert (after.found, after.problem, after.is_gone) == ((), None, True)
    for path in Path(store.url).rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()
    is_purged(store)


def test_the_manifest_describes_the_purge_without_the_key(store: StateStore) -> None:
    store.maintenance.forget(OperatorKey("users", KEY), search=False)
    origin = store.checkpoint(6).manifest.origin or {}
    assert (origin["command"], origin["checkpoint"], origin["operator"]) == ("forget", 2, "users")
    rows = {state["state"]: state["rows"] for state in origin["states"]}
    assert rows == {"totals": 1, "routes": 2}
    assert KEY not in str(origin)


def test_one_state_or_one_checkpoint_can_be_selected(store: StateStore) -> None:
    store.maintenance.forget(OperatorKey("users", KEY, "routes"), search=False)
    assert KEY in users_of(store, 8, "totals")
    assert KEY not in users_of(store, 8, "routes")
    store.maintenance.forget(OperatorKey("users", KEY), search=False, checkpoint="two")
    ids = store.checkpoints()
    assert [number_of(store, one) for one in ids] == [1, 2, 3, 4]
    assert [KEY in users_of(store, one) for one in ids] == [False, False, False, True]
    assert store.maintenance.savepoints()[1].checkpoint_id == ids[1]


def test_a_missing_key_changes_nothing(store: StateStore) -> None:
    before = set(Path(store.url).rglob("*"))
    assert store.maintenance.forget(OperatorKey("users", "nobody"), search=False).replaced == ()
    assert set(Path(store.url).rglob("*")) == before


def test_a_dry_run_reports_the_same_and_changes_nothing(store: StateStore) -> None:
    before = set(Path(store.url).rglob("*"))
    planned = store.maintenance.forget(OperatorKey("users", KEY), search=False, dry_run=True)
    assert set(Path(store.url).rglob("*")) == before
    done = store.maintenance.forget(OperatorKey("users", KEY), search=False)
    assert [(one.checkpoint_id, one.savepoints, one.states) for one in planned.replaced] == [
        (one.checkpoint_id, one.savepoints, one.states) for one in done.replaced
    ]


def test_pins_block_a_purge_and_are_named(store: StateStore) -> None:
    pinned = store.maintenance.pin(3, lease="1h", holder="an export")
    with pytest.raises(InvalidArgumentError, match="checkpoint 3 by an export"):
        store.maintenance.forget(OperatorKey("users", KEY), search=False)
    assert store.checkpoints() == (1, 2, 3, 4)
    assert (
        pinned.token
        in store.maintenance.forget(OperatorKey("users", KEY), search=False, ignore_pins=True).pins[
            0
        ]
    )
    is_purged(store)


def test_a_pin_of_an_unaffected_checkpoint_is_ignored(store: StateStore) -> None:
    store.maintenance.pin(1, lease="1h")
    store.maintenance.forget(OperatorKey("users", KEY), search=False)
    is_purged(store)


def test_an_expired_savepoint_is_purged_and_stays_expired(store: StateStore) -> None:
    store.maintenance.expire(retain=1)
    assert store.checkpoints() == (2, 3, 4)
    store.maintenance.delete_savepoint("two")
    store.maintenance.savepoint("two", 2)
    LocalStorage(store.url).put_if_absent("checkpoints/0000000002.expired", b"{}")
    store.maintenance.forget(OperatorKey("users", KEY), search=False)
    assert store.checkpoints() == (7, 8)
    assert users_of(store, "two") == sorted(USERS)
    assert number_of(store, "two") == 2
    store.maintenance.gc(minimum_age="0")
    assert users_of(store, "two") == sorted(USERS)
    assert store.maintenance.find_subject(OperatorKey("users", KEY)).found == ()
    assert store.maintenance.forget(OperatorKey("users", KEY), search=False).finished == ()


def test_an_active_writer_gets_a_conflict(store: StateStore) -> None:
    """I6: its checkpoint could contain the key again."""
    job = store.snapshot(parallelism=2).__enter__()
    opened(store.url).maintenance.forget(OperatorKey("users", KEY), search=False)
    with pytest.raises(CommitConflictError):
        job.__exit__(None, None, None)
    is_purged(opened(store.url))


def test_a_damaged_file_of_any_checkpoint_blocks_the_purge_before_any_write(
    store: StateStore,
) -> None:
    """The file that would be partly rewritten is named."""
    entry = store.checkpoint(3).manifest.operator[0]
    Path(store.url, entry.table.path, entry.handles[0].path).write_bytes(b"")
    before = sorted(Path(store.url).rglob("*"))
    with pytest.raises(DamagedFileError, match="has 0 bytes") as raised:
        store.maintenance.forget(OperatorKey("users", KEY), search=False)
    command = f"statestore --store {store.url}"
    (note,) = raised.value.__notes__
    assert note == (
        "checkpoint 3, savepoint 'three', stops the removal, which has to search every kept "
        "checkpoint: "
        f"{command} savepoint --remove three, then {command} expire --retain 1, which also "
        "expires all older checkpoints"
    )
    after = sorted(Path(store.url).rglob("*"))
    assert [path for path in after if "writers" not in path.parts] == [
        path for path in before if "writers" not in path.parts
    ]


@pytest.mark.parametrize(
    ("number", "ways"),
    [
        (
            2,
            [
                "savepoint --remove two",
                "expire --retain 2, which also expires all older checkpoints",
            ],
        ),
        (4, ["salvage 4", "expire --retain 1, which also expires all older checkpoints"]),
    ],
)
def test_unreadable_rows_are_named_with_a_remedy(
    store: StateStore, number: int, ways: list[str]
) -> None:
    """The error names the checkpoint, the savepoint and the file. The suggested commands work in
    sequence.
    """
    (table,) = {
        e.table.path for e in store.checkpoint(number).manifest.keyed if e.state.name == "routes"
    }
    entry = store.checkpoint(number).manifest.keyed_entry("users", "routes")
    for handle in entry.handles:
        path = Path(store.url, table, handle.path)
        raw = path.read_bytes()
        path.write_bytes(raw[:4] + bytes(byte ^ 255 for byte in raw[4:60]) + raw[60:])
    before = store.checkpoints()
    with pytest.raises(DamagedFileError, match=table) as caught:
        store.maintenance.forget(OperatorKey("users", KEY), search=False)
    *_, note = caught.value.__notes__
    assert store.checkpoints() == before
    of_savepoint = ", savepoint 'two'," if number == 2 else ""
    command = f"statestore --store {store.url} "
    assert note == (
        f"checkpoint {number}{of_savepoint} stops the removal, which has to search every kept "
        "checkpoint: " + ", then ".join(command + way for way in ways)
    )
    if number == 2:
        store.maintenance.delete_savepoint("two")
    else:
        store.maintenance.salvage(4)
        store.maintenance.delete_savepoint("two")
        store.maintenance.delete_savepoint("three")
    store.maintenance.expire(retain=2 if number == 2 else 1)
    store.maintenance.forget(OperatorKey("users", KEY), search=False)
    assert all(KEY not in users_of(store, checkpoint) for checkpoint in store.checkpoints())


def test_invalid_arguments(store: StateStore) -> None:
    with pytest.raises(StateNotFoundError, match="has keyed state of operator 'user'; the keyed"):
        store.maintenance.forget(OperatorKey("user", KEY), search=False)
    with pytest.raises(StateNotFoundError, match="has keyed state 'total' of operator 'users'"):
        store.maintenance.forget(OperatorKey("users", KEY, "total"), search=False)
    with pytest.raises(StateNotFoundError, match="has keyed state of operator 'source'"):
        store.maintenance.forget(OperatorKey("source", KEY), search=False)
    with pytest.raises(InvalidArgumentError, match="is not a key of"):
        store.maintenance.forget(OperatorKey("users", 17), search=False)
    with pytest.raises(CheckpointNotFoundError):
        store.maintenance.forget(OperatorKey("users", KEY), search=False, checkpoint=9)
    with pytest.raises(StateNotFoundError, match="'users'"):
        store.maintenance.find_subject(OperatorKey("nobody", KEY))
    path = Path(store.url, manifest_path(1))
    path.write_text("{")
    with pytest.raises(MalformedManifestError) as caught:
        store.maintenance.forget(OperatorKey("users", KEY), search=False)
    (note,) = caught.value.__notes__
    assert note.startswith("checkpoint 1 stops the removal")
    newer = len(store.checkpoints()) - 1
    command = f"statestore --store {store.url} expire --retain {newer}"
    assert note.endswith(f"{command}, which also expires all older checkpoints")
    assert store.maintenance.expire(retain=newer).expired == (1,)
    store.maintenance.forget(OperatorKey("users", KEY), search=False)


def test_a_search_finds_orphan_files(store: StateStore, tmp_path: Path) -> None:
    """They come from crashed writers. Undecodable files are named, and the key is then not called
    gone.
    """
    name = store.maintenance.find_subject(OperatorKey("users", KEY)).found[0].file
    raw = Path(store.url, name).read_bytes()
    store.maintenance.forget(OperatorKey("users", KEY), search=False)
    store.maintenance.gc(minimum_age="0")
    folder = Path(store.url, name).parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "0000000099-00000-00.parquet").write_bytes(raw)
    (folder / "0000000099-00001-00.parquet").write_bytes(raw[:-9])
    torn = raw[: len(raw) // 2] + bytes(len(raw) - len(raw) // 2 - 8) + raw[-8:]  # of zeros
    (folder / "0000000099-00002-00.parquet").write_bytes(torn)
    (Path(store.url) / "notes.txt").write_text(KEY)
    search = store.maintenance.find_subject(OperatorKey("users", KEY))
    assert [Path(one.file).name for one in search.found] == ["0000000099-00000-00.parquet"]
    assert {Path(file.file).name for file in search.unsearched} == {
        "0000000099-00001-00.parquet",
        "0000000099-00002-00.parquet",
        "notes.txt",
    }
    assert not search.is_gone


def test_a_put_during_a_purge_comes_too_late(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: a job stalled directly before its PUT. It gets a conflict, no matter how many checkpoints
    the purge has committed, because its checkpoint is no longer the newest.
    """
    job = store.snapshot(parallelism=2).__enter__()
    job.carry_rest()
    real, commits = Catalog.commit, 0
    stalled: list[Manifest] = []

    def commit(catalog: Catalog, manifest: Manifest) -> None:
        nonlocal commits
        if not stalled:
            stalled.append(manifest)
            opened(store.url).maintenance.forget(OperatorKey("users", KEY), search=False)
        else:
            with pytest.raises(CommitConflictError) if commits else nullcontext():
                real(catalog, stalled[0] if commits else manifest)
            if commits:
                real(catalog, manifest)
            commits += 1
            return
        real(catalog, manifest)

    monkeypatch.setattr(Catalog, "commit", commit)
    with pytest.raises(CommitConflictError):
        job.__exit__(None, None, None)
    assert commits == 4
    is_purged(opened(store.url))


def test_a_put_below_announced_ids_comes_too_late(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: another purge claimed ids and was killed. A stalled job has a smaller id, which is free,
    and its checkpoint contains the key.
    """
    job = store.snapshot(parallelism=2).__enter__()
    job.carry_rest()
    real = Catalog.commit
    stalled: list[Manifest] = []
    monkeypatch.setattr(Catalog, "commit", lambda catalog, manifest: stalled.append(manifest))
    job.__exit__(None, None, None)
    monkeypatch.setattr(Catalog, "commit", real)
    killed = Fence(LocalStorage(store.url), release="test")
    killed.claim()
    for number in (6, 8):
        killed.announce(number)
    done = opened(store.url).maintenance.forget(OperatorKey("users", KEY), search=False)
    assert [one.new_checkpoint_id for one in done.replaced] == [9, 10, 11]
    with pytest.raises(CommitConflictError):
        real(opened(store.url).parts.catalog(), stalled[0])
    for number in (6, 8):
        with pytest.raises(CommitConflictError):
            real(opened(store.url).parts.catalog(), replace(stalled[0], checkpoint_id=number))
    is_purged(opened(store.url))


class ConcurrentStorage(LocalStorage):
    """A storage that runs a function directly before the n-th call that changes a file."""

    def __init__(self, root: str, at: int, happens: Callable[[], object]) -> None:
        super().__init__(root)
        self.left, self.happens = at, happens

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.happens()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._count()
        return super().put_if_absent(name, data)

    def delete(self, name: str) -> None:
        self._count()
        super().delete(name)


@pytest.mark.long
@pytest.mark.slow
def test_an_expiry_at_any_moment_of_a_purge_loses_no_savepoint(tmp_path: Path) -> None:
    """I9: the replacement is held before the hold of the old one is released. If the replacement
    expired before it was held, the savepoint stays, and the purge is run again.
    """
    store = opened(tmp_path / "store")
    for number, held in HELD.items():
        take(store, number, held=held)
    store.maintenance.savepoint("two", 2)
    store.maintenance.savepoint("three", 3)
    again, left = 0, 0
    for at in range(1, 100):
        copy = copy_of(tmp_path / "store", tmp_path / "copy")

        def expire(copy: Path = copy) -> None:
            opened(copy).maintenance.expire(retain=1)

        disk = ConcurrentStorage(str(copy), at, expire)
        refused = ""
        try:
            StateStore.open(disk, table_format="parquet").maintenance.forget(
                OperatorKey("users", KEY), search=False
            )
        except CommitConflictError as error:
            refused = str(error)
        if refused:
            assert "the savepoints stay with the old checkpoint" in refused
            again += 1
            opened(copy).maintenance.forget(OperatorKey("users", KEY), search=False)
        left = disk.left
        for name, number in (("two", 2), ("three", 3)):
            assert number_of(opened(copy), name) == number
            assert users_of(opened(copy), name) == sorted(USERS)
        assert number_of(opened(copy), "latest") == 4
        assert opened(copy).maintenance.pins() == ()
        opened(copy).maintenance.gc(minimum_age="0")
        assert opened(copy).maintenance.find_subject(OperatorKey("users", KEY)).found == ()
        assert [number_of(opened(copy), name) for name in ("two", "three")] == [2, 3]
        if left > 0:
            break
    assert left > 0
    assert 0 < again < at / 3


def stages(folder: Path) -> Iterator[int]:
    """Yield the numbers of all calls of a purge that change something, and of some other calls."""
    copy = copy_of(folder, folder.parent / "counted")
    calls = calls_of(
        LocalStorage(str(copy)),
        lambda s: StateStore.open(s, table_format="parquet").maintenance.forget(
            OperatorKey("users", KEY), search=False
        ),
    )
    for call in calls:
        if call.operation in ("put_if_absent", "delete", "open_write", "sync"):
            yield call.number


STOPPING = [
    FaultKind.ERROR,
    pytest.param(FaultKind.ANSWER_LOST, marks=pytest.mark.long),
    FaultKind.KILLED,
]


@pytest.mark.long
@pytest.mark.slow
@with_every_call
@pytest.mark.parametrize("kind", STOPPING)
def test_a_purge_interrupted_anywhere_can_be_run_again(
    tmp_path: Path, kind: FaultKind, every_call: bool
) -> None:
    """I10: at every moment the newest checkpoint has the newest state."""
    store = opened(tmp_path / "store")
    for number, held in HELD.items():
        take(store, number, held=held)
    store.maintenance.savepoint("two", 2)
    store.maintenance.savepoint("three", 3)
    at = [*stages(tmp_path / "store")]
    assert len(at) > 20
    stride = (1 if every_call else 4) * (5 if kind is FaultKind.KILLED else 1)
    for number in at[::stride]:
        copy = copy_of(tmp_path / "store", tmp_path / "copy")
        if kind is FaultKind.KILLED:
            words = [sys.executable, "-c", KILLED, str(copy), KEY, str(number)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.returncode == -signal.SIGKILL, done.stderr
        else:
            faulty = FaultyStorage(LocalStorage(str(copy)), Fault(number, kind))
            with pytest.raises(StorageError):
                StateStore.open(faulty, table_format="parquet").maintenance.forget(
                    OperatorKey("users", KEY), search=False
                )
        left = opened(copy)
        assert number_of(left, "latest") == 4
        seen = [number_of(left, checkpoint) for checkpoint in left.checkpoints()]
        assert set(seen) == {1, 2, 3, 4}
        assert left.maintenance.verify("all", deep=True).is_intact
        left.maintenance.forget(OperatorKey("users", KEY), search=False)
        is_purged(opened(copy))
        left.maintenance.gc(minimum_age="0")
        assert left.maintenance.find_subject(OperatorKey("users", KEY)).found == ()
        is_purged(opened(copy))


def test_many_purges_do_not_nest_their_origins(tmp_path: Path) -> None:
    """The origin of another command stays; the origins of earlier purges do not accumulate."""
    store = opened(tmp_path / "store")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("o", "s", [{"k": k} for k in range(4)], key="k")
    store.maintenance.edit("o", "s", put=[{"k": 4}])
    edited = store.checkpoint().manifest.origin
    for key in range(4):
        store.maintenance.forget(OperatorKey("o", key), search=False)
        assert (store.checkpoint().manifest.origin or {})["before"] == edited
    assert store.restore().keyed("o", "s").to_arrow()["k"].to_pylist() == [4]
