"""Two writers: the newest generation commits, and a stalled one never commits again (I6)."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event, Timer
from typing import Any

import pytest
from deltalake import DeltaTable

from statestore import OperatorKey, StateStore
from statestore.catalog.fence import Claim, Fence, claim_from_json, claim_to_json
from statestore.delta.state_table import ParquetTable, open_table
from statestore.errors import (
    CommitConflictError,
    FormatVersionError,
    InvalidArgumentError,
    LateCommitError,
    MalformedManifestError,
)
from statestore.format.documents import document_bytes
from statestore.format.names import generation_of, writer_path
from statestore.snapshot import commit
from statestore.snapshot.pending_checkpoint import PendingCheckpoint
from statestore.storage import LocalStorage
from tests.support.stores import opened
from tests.support.writers import ROWS, claims, stored_files, take

# --- the claim ------------------------------------------------------------------------------------


def test_a_store_object_claims_one_generation(url: str) -> None:
    """I6: with its first snapshot; the manifest records the generation."""
    store = opened(url)
    for _ in range(3):
        take(store)
    (claim,) = claims(url)
    assert (claim.generation, claim.announced_id) == (1, 0)
    writers = [store.checkpoint(checkpoint).manifest.writer for checkpoint in (1, 2, 3)]
    assert {(writer.generation, writer.name) for writer in writers} == {(1, claim.name)}
    take(opened(url))
    assert store.checkpoint().manifest.writer.generation == 2


@pytest.mark.parametrize("command", ["compact", "edit", "purge", "rekey"])
@pytest.mark.parametrize("whose", ["far", "alive", "ended", "own"])
def test_a_command_announces_which_writer_it_replaces(
    url: str, command: str, whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I6: not if that writer is known to have ended, nor if there is nothing to do."""
    with opened(url).snapshot(parallelism=1) as checkpoint:
        rows = [{"k": f"k{i}", "v": i} for i in range(50)]
        checkpoint.write_keyed("u", "n", rows, key="k", max_parallelism=2, layout="ranged")
    with opened(url).snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes("u", "n", [{"k": "k1", "v": 7}], key="k")
    ended = subprocess.Popen(["true"])
    ended.wait()
    here = socket.gethostname()
    name = {
        "far": "elsewhere:1",
        "alive": f"{here}:{os.getppid()}",
        "ended": f"{here}:{ended.pid}",
        "own": f"{here}:{os.getpid()}",
    }[whose]
    claim = replace(claims(url)[-1], generation=3, name=name)
    LocalStorage(url).put_if_absent(writer_path(3), claim_to_json(claim))
    run: Callable[[StateStore, bool], Any] = {
        "compact": lambda store, dry: store.maintenance.compact(everything=True, dry_run=dry),
        "edit": lambda store, dry: store.maintenance.edit("u", "n", delete=["k2"], dry_run=dry),
        "purge": lambda store, dry: store.maintenance.forget(
            OperatorKey("u", "k2"), search=False, dry_run=dry
        ),
        "rekey": lambda store, dry: store.maintenance.rekey("u", max_parallelism=4, dry_run=dry),
    }[command]
    run(opened(url), True)
    assert caplog.messages == []
    run(opened(url), False)
    told = f"{url} is taken over from {claim}: a job that still runs there cannot commit"
    assert [message.startswith(told) for message in caplog.messages] == [True] * (
        whose in "far alive"
    )
    with opened(url).snapshot(parallelism=1) as checkpoint:
        checkpoint.carry_rest()
    assert len(caplog.messages) == (whose in "far alive")


def test_a_restored_backup_of_a_store_has_one_writer(url: str, tmp_path: Path) -> None:
    """I6: an old job and its successor have claims of one generation, with different tokens."""
    take(opened(url))
    shutil.copytree(url, tmp_path / "backup")
    old, open_meanwhile = opened(url), opened(url)
    take(old)
    begun = open_meanwhile.snapshot(parallelism=2)
    shutil.rmtree(url)
    shutil.copytree(tmp_path / "backup", url)
    with pytest.raises(CommitConflictError, match=r"writer \S+ .*generation 1"):
        take(old)  # no writer has claimed the store since
    new = opened(url)
    take(new)
    take(new)
    assert [claim.generation for claim in claims(url)] == [1, 2]
    for store in (old, open_meanwhile):
        with pytest.raises(CommitConflictError, match=r"generation 2, .* has taken over"):
            take(store)
    with pytest.raises(CommitConflictError, match=r"generation 2, .* has taken over"), begun:
        begun.write_keyed("u", "n", ROWS, key="k")
    assert opened(url).checkpoints() == (1, 2, 3)
    assert take(new).manifest.writer.generation == 2


def test_a_reader_claims_nothing(url: str) -> None:
    """I6: a store can be read while a job writes to it."""
    writer = opened(url)
    take(writer)
    reader = opened(url)
    assert reader.restore().keyed("u", "n").get("a") == [{"k": "a", "v": 1}]
    take(writer)
    assert len(claims(url)) == 1


def test_concurrent_claims_are_all_different(url: str) -> None:
    """I6: they are put if absent, without gaps, and only the last one is not replaced.

    The writer of the first claim cannot see whether others followed before or after its put. If
    others have followed, it claims once more.
    """
    together = Barrier(8)
    fences = [Fence(LocalStorage(url), release="1") for _ in range(8)]

    def enter(fence: Fence) -> int:
        together.wait()
        try:
            return fence.claim().generation
        except CommitConflictError:
            return 0

    with ThreadPoolExecutor(8) as pool:
        entered = list(pool.map(enter, fences))
    generations = [claim.generation for claim in claims(url)]
    newest = len(generations)
    assert newest in (8, 9)
    assert generations == list(range(1, newest + 1))
    assert len({claim.token for claim in claims(url)}) == newest
    assert max(entered) == newest
    for fence in fences:
        if fence._claim is not None and fence._claim.generation == newest:
            fence.check()
        else:
            with pytest.raises(CommitConflictError, match="has taken over"):
                fence.check()


def test_threads_of_one_object_share_its_claim(url: str) -> None:
    """I6: they can conflict over an id, but never replace each other."""
    store = opened(url)
    with ThreadPoolExecutor(4) as pool:
        begun = list(pool.map(lambda _: store.snapshot(parallelism=1), range(4)))
    assert len(claims(url)) == 1
    assert {checkpoint._pending.writer.generation for checkpoint in begun} == {1}
    for checkpoint in begun:
        checkpoint.abandon()


@pytest.mark.slow
def test_a_thread_that_announces_an_id_is_not_mistaken_for_a_successor(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: its claim is in the store before this object knows about it."""
    store = opened(url)
    take(store)
    begun = store.snapshot(parallelism=2)
    put, is_put, goes_on = LocalStorage.put_if_absent, Event(), Event()

    def slow(self: LocalStorage, name: str, data: bytes) -> bool:
        done = put(self, name, data)
        if name == writer_path(2):
            is_put.set()
            assert goes_on.wait(300)
        return done

    monkeypatch.setattr(LocalStorage, "put_if_absent", slow)
    with ThreadPoolExecutor(1) as pool:
        announced = pool.submit(lambda: store.snapshot(parallelism=2, checkpoint_id=50))
        assert is_put.wait(300)
        Timer(0.2, goes_on.set).start()
        with begun:
            begun.write_keyed("u", "n", ROWS, key="k")
        announced.result().abandon()
    assert store.checkpoints() == (1, 2)


def test_a_forked_process_is_another_writer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I6: it makes a claim of its own, which replaces its parent."""
    store = opened(url)
    take(store)
    with monkeypatch.context() as patched:
        patched.setattr("os.getpid", lambda: 77)
        take(store)
    first, second = claims(url)
    assert second.name.endswith(":77")
    assert first.token != second.token
    assert store.checkpoint().manifest.writer.generation == 2


def test_a_process_forked_during_a_commit_does_not_wait_for_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks that another thread of the parent held are never released in the child."""
    store = opened(url)
    take(store)
    fence = store.parts.fence
    with fence.one_commit, fence._lock, monkeypatch.context() as patched:
        patched.setattr("os.getpid", lambda: 77)
        take(store)
    assert store.checkpoints() == (1, 2)


def test_a_claim_whose_response_was_lost_is_recognized(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: a client that sent the put again, and found its own object, has not been replaced."""
    put = LocalStorage.put_if_absent

    def twice(self: LocalStorage, name: str, data: bytes) -> bool:
        if name.startswith("writers/"):
            put(self, name, data)
        return put(self, name, data)

    store = opened(url)
    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "put_if_absent", twice)
        take(store)
    take(store)
    assert [claim.generation for claim in claims(url)] == [1]


CLAIM = Claim(
    generation=3, name="host:1", token="t", release="0.1", claimed_at_ms=0, announced_id=7
)


def test_a_claim_survives_a_round_trip() -> None:
    raw = claim_to_json(CLAIM)
    assert claim_from_json(raw, name="c", generation=3) == CLAIM
    assert str(CLAIM) == (
        "writer host:1 (statestore 0.1, generation 3, since 1970-01-01 00:00:00 UTC)"
    )
    with pytest.raises(
        MalformedManifestError, match="claim of generation 3, which belongs under another name"
    ):
        claim_from_json(raw, name="c", generation=4)
    for member in json.loads(raw).keys() - {"sha256"}:
        less = {key: value for key, value in json.loads(raw).items() if key != "sha256"}
        del less[member]
        with pytest.raises(MalformedManifestError, match=member):
            claim_from_json(document_bytes(less), name="c", generation=3)


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("writers/0000000003.json", 3),
        ("writers/0000000000.json", None),
        ("writers/3.json", None),
        ("writers/0000000003.json.tmp", None),
        ("checkpoints/0000000003.json", None),
    ],
)
def test_a_claim_is_identified_by_its_exact_name(name: str, generation: int | None) -> None:
    assert generation_of(name) == generation
    if generation:
        assert writer_path(generation) == name


def test_a_claim_of_a_newer_format_stops_a_writer(url: str) -> None:
    """It may have an unknown meaning, and a damaged one may hide an announced id."""
    take(opened(url))
    newer = document_bytes({"format": "statestore-writer", "format_version": 99})
    LocalStorage(url).put_if_absent(writer_path(2), newer)
    with pytest.raises(FormatVersionError):
        take(opened(url))
    LocalStorage(url).put_if_absent(writer_path(3), b"junk")
    with pytest.raises(MalformedManifestError, match=r"writers/0000000003\.json"):
        take(opened(url))


# --- a stalled writer -----------------------------------------------------------------------------


def test_a_stalled_writer_cannot_commit_its_checkpoint(url: str) -> None:
    """I4, I6: it missed its successor's commits; its files are deleted, theirs are kept."""
    stalled, successor = opened(url), opened(url)
    take(stalled)
    with pytest.raises(CommitConflictError) as caught, stalled.snapshot(parallelism=2) as late:  # noqa: PT012
        late.write_keyed("u", "n", ROWS, key="k")
        take(successor)
        take(successor)
        before = stored_files(url)
    message = str(caught.value)
    (_, newer) = claims(url)
    for part in (newer.name, "generation 2", "since 20", "(generation 1)", "StateStore.open"):
        assert part in message
    assert stored_files(url) < before
    assert successor.checkpoints() == (1, 2, 3)
    assert [successor.checkpoint(at).manifest.writer.generation for at in (1, 2, 3)] == [1, 2, 2]


def test_a_stalled_writer_cannot_begin_another_checkpoint(url: str) -> None:
    """I6: the same object never can; a newly opened one replaces the successor."""
    stalled, successor = opened(url), opened(url)
    take(stalled)
    take(successor)
    for checkpoint_id in (None, 3, 9):
        with pytest.raises(CommitConflictError, match="has taken over"):
            take(stalled, checkpoint_id)
    assert take(opened(url)).id == 3
    with pytest.raises(CommitConflictError, match="generation 3"):
        take(successor)


def test_a_successor_fences_as_soon_as_it_has_begun(url: str) -> None:
    """I6: it may rely on the state of the store when it began."""
    stalled, successor = opened(url), opened(url)
    begun = stalled.snapshot(parallelism=2)
    fresh = successor.snapshot(parallelism=2)
    with pytest.raises(CommitConflictError, match="generation 2"), begun:
        begun.write_keyed("u", "n", ROWS, key="k")
    assert successor.checkpoints() == ()
    with fresh:
        fresh.write_keyed("u", "n", ROWS, key="k")
    assert successor.checkpoints() == (1,)


def test_a_replaced_writer_publishes_no_table(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I4: the log of a table would have rows that no checkpoint has."""
    published: list[int] = []

    def publish(self: ParquetTable, entry: Any, checkpoint_id: int, left_out: Any) -> Any:
        published.append(checkpoint_id)
        return entry.table

    monkeypatch.setattr(ParquetTable, "publish", publish)
    stalled = opened(url)
    with pytest.raises(CommitConflictError), stalled.snapshot(parallelism=2) as late:  # noqa: PT012
        late.write_keyed("u", "n", ROWS, key="k")
        opened(url).snapshot(parallelism=2).abandon()
    assert published == []


def test_a_replaced_writer_that_still_publishes_does_not_block_others(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: it passed its check before it was replaced; the newest writer publishes again."""
    take(StateStore.open(url))
    stalled = StateStore.open(url)
    with pytest.raises(CommitConflictError), stalled.snapshot(parallelism=2) as late:  # noqa: PT012
        entry = late.write_keyed("u", "n", ROWS, key="k", max_parallelism=4)
        newest, loads = StateStore.open(url), list[str]()

        def loaded(storage: LocalStorage, path: str, table: DeltaTable) -> None:
            loads.append(path)
            if len(loads) == 1:
                open_table("delta", storage).publish(entry, 2)

        monkeypatch.setattr("statestore.delta.backend.add_checkpoint", loaded)
        take(newest)
        assert len(loads) == 3  # twice by the newest writer
    (kept,) = newest.checkpoint(2).manifest.keyed
    table = DeltaTable(f"{url}/{kept.table.path}")
    assert table.version() == kept.table.version
    assert {*table.get_add_actions().column("path").to_pylist()} == {
        handle.path for handle in kept.handles
    }


def test_the_fence_is_checked_again_right_before_the_manifest_is_put(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: publishing tables takes long enough for another writer to start."""

    def publish(self: ParquetTable, entry: Any, checkpoint_id: int, left_out: Any) -> Any:
        opened(url).snapshot(parallelism=2).abandon()
        return entry.table

    monkeypatch.setattr(ParquetTable, "publish", publish)
    with pytest.raises(CommitConflictError, match="generation 2"):
        take(opened(url))
    assert opened(url).checkpoints() == ()


@pytest.mark.parametrize("late_id", [None, 2, 50])
@pytest.mark.parametrize("successor_ids", [(None, None), (50, None), (60, 70)])
def test_a_late_put_does_not_hide_other_checkpoints(
    url: str,
    late_id: int | None,
    successor_ids: tuple[int | None, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I6: the writer stalls between its last check and the put, and its successor commits.

    The late writer gets an error, even if its checkpoint is visible: the newest does not build on
    it.
    """
    store, successor = opened(url), opened(url)
    take(store)
    put = LocalStorage.put_if_absent
    theirs: list[int] = []

    def late(self: LocalStorage, name: str, data: bytes) -> bool:
        if name.startswith("checkpoints/"):
            monkeypatch.setattr(LocalStorage, "put_if_absent", put)
            theirs.extend(take(successor, wanted).id for wanted in successor_ids)
        return put(self, name, data)

    checkpoint = store.snapshot(parallelism=2, checkpoint_id=late_id)
    monkeypatch.setattr(LocalStorage, "put_if_absent", late)
    number, writer = checkpoint.planned
    with pytest.raises(CommitConflictError, match=r"generation \d") as told, checkpoint:
        checkpoint.write_keyed("u", "n", ROWS, key="k")
    ids = store.checkpoints()
    is_there = number in ids and store.checkpoint(number).manifest.writer == writer
    assert isinstance(told.value, LateCommitError) == is_there
    assert ids == tuple(sorted({1, number, *theirs} if is_there else {1, *theirs}))
    assert ids[-1] == theirs[-1]
    generations = [store.checkpoint(checkpoint).manifest.writer.generation for checkpoint in ids]
    assert generations == sorted(generations)


def test_an_announced_id_is_passed_on(url: str) -> None:
    """I6: no later writer uses a smaller one; otherwise the late one would hide its checkpoint."""
    store = opened(url)
    take(store)
    store.snapshot(parallelism=2, checkpoint_id=40).abandon()
    assert [claim.announced_id for claim in claims(url)] == [0, 40]
    with pytest.raises(InvalidArgumentError, match="the next one is 40"):
        take(opened(url), 2)
    assert take(opened(url)).id == 40
    assert take(opened(url)).id == 41
    assert [claim.announced_id for claim in claims(url)] == [0, 40, 40, 40, 40]


def test_a_replaced_writer_cannot_return_by_announcing_an_id(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: the generation after its own is taken, even if it is not visible at first."""
    stalled = opened(url)
    take(stalled)
    announce = Fence.announce

    def replaced_just_before(self: Fence, checkpoint_id: int) -> Claim:
        opened(url).snapshot(parallelism=2).abandon()
        return announce(self, checkpoint_id)

    monkeypatch.setattr(Fence, "announce", replaced_just_before)
    with pytest.raises(CommitConflictError, match="has taken over"):
        take(stalled, 9)
    assert [claim.generation for claim in claims(url)] == [1, 2]


# --- After the put --------------------------------------------------------------------------------


class _Stalls(LocalStorage):
    """A storage in which another actor acts right before or after the put of a manifest."""

    def __init__(self, url: str, meanwhile: Callable[[], None], *, before: bool) -> None:
        super().__init__(url)
        self._meanwhile: Callable[[], None] | None = meanwhile
        self._before = before

    def put_if_absent(self, name: str, data: bytes) -> bool:
        meanwhile = self._meanwhile if name.startswith("checkpoints/") else None
        if meanwhile is None:
            return super().put_if_absent(name, data)
        self._meanwhile = None
        if self._before:
            meanwhile()
        done = super().put_if_absent(name, data)
        if not self._before:
            meanwhile()
        return done


def test_a_checkpoint_that_expired_during_its_commit_keeps_its_files(url: str) -> None:
    """I5, I9: a successor references them; garbage collection deletes the others."""

    def succeed_and_expire() -> None:
        successor = opened(url)
        with successor.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes("u", "n", [{"k": "c", "v": 3}], key="k")
        assert successor.maintenance.expire(retain=1).expired == (1,)

    stalled = StateStore.open(
        _Stalls(url, succeed_and_expire, before=False), table_format="parquet"
    )
    with pytest.raises(CommitConflictError, match=r"checkpoint 1 .* has a tombstone"):
        take(stalled)
    store = opened(url)
    assert store.maintenance.verify().is_intact
    assert store.restore().keyed("u", "n").get("a") == [{"k": "a", "v": 1}]


def test_a_writer_that_loses_at_its_put_deletes_nothing(url: str) -> None:
    """I9: the writer cannot know whether its put was executed; `gc` can."""
    late = StateStore.open(_Stalls(url, lambda: _take(url), before=True), table_format="parquet")
    with pytest.raises(CommitConflictError, match=r"checkpoint 1 .* was committed by writer"):
        take(late)
    files = stored_files(url)
    store = opened(url)
    assert store.maintenance.gc(minimum_age="0").removed.files == len(files - stored_files(url)) > 0
    assert store.maintenance.verify().is_intact


def _take(url: str) -> None:
    take(opened(url))


def test_a_lost_commit_leaves_only_files_that_a_log_may_reference(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Delta log never references changes, so nobody could read these files."""
    store = StateStore.open(url, table_format="delta")
    with store.snapshot(parallelism=1) as checkpoint:
        for state in ("changed", "full"):
            checkpoint.write_keyed("u", state, ROWS, key="k", max_parallelism=4)
    committed = stored_files(url)
    publish = commit._publish_one

    def overtaken(pending: PendingCheckpoint, *arguments: Any) -> Any:
        table = publish(pending, *arguments)
        StateStore.open(url).snapshot(parallelism=1).abandon()
        return table

    monkeypatch.setattr(commit, "_publish_one", overtaken)
    checkpoint = store.snapshot(parallelism=1)
    with ExitStack() as block:
        block.enter_context(checkpoint)
        checkpoint.write_changes("u", "changed", ROWS)
        full = checkpoint.write_keyed("u", "full", ROWS)
        assert len(stored_files(url)) > len(committed) + len(full.handles)
        with pytest.raises(CommitConflictError):
            block.close()
    left = stored_files(url) - committed
    assert left == {handle.path.rpartition("/")[2] for handle in full.handles}
    assert DeltaTable(f"{url}/operators/u/keyed/full").to_pyarrow_table().num_rows == 2


def test_a_pickled_store_is_opened_again(url: str) -> None:
    """It reads the same checkpoints, and its first snapshot claims the store."""
    store = opened(url)
    take(store)
    restored = store.restore()
    copies = pickle.loads(pickle.dumps((store, store.inspect, restored, restored.keyed("u", "n"))))
    copy, inspect, checkpoint, state = copies
    assert copy.url == store.url
    assert inspect.key("a").checkpoint_id == checkpoint.checkpoint_id == 1
    assert checkpoint.keyed("u", "n").get("a") == state.get("a") == [{"k": "a", "v": 1}]
    take(copy)
    assert [claim.generation for claim in claims(url)] == [1, 2]
    with pytest.raises(CommitConflictError):
        take(store)
    assert store.checkpoints() == (1, 2)


def test_an_open_checkpoint_cannot_be_pickled(url: str) -> None:
    with (
        opened(url).snapshot(parallelism=1) as checkpoint,
        pytest.raises(InvalidArgumentError, match="declare_keyed"),
    ):
        pickle.dumps(checkpoint)
