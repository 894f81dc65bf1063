"""Garbage collection deletes the claims of replaced writers, and no writer is misled by that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from statestore import StateStore
from statestore.catalog.fence import Fence
from statestore.errors import CommitConflictError
from statestore.format.names import generation_of, writer_path
from statestore.maintenance.gc import replaced_claims
from statestore.storage import Listed, LocalStorage
from statestore.testing.faults import calls_of
from tests.faults.cases import over
from tests.support.stores import opened
from tests.support.writers import take

DAY_MS = 24 * 3_600_000
NEVER = 10**9
"""A checkpoint id above all announced ones."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store that five writers have claimed, one after another."""
    for _ in range(5):
        take(opened(str(tmp_path / "store")))
    return str(tmp_path / "store")


def generations(url: str) -> list[int | None]:
    return [generation_of(name) for name in LocalStorage(url).list("writers")]


def make_old(url: str, days: float, *, up_to: int = 99) -> None:
    """Set the time of the claims up to a generation back."""
    seconds = time.time() - days * 24 * 3600
    for name in LocalStorage(url).list("writers"):
        if (generation_of(name) or 0) <= up_to:
            os.utime(Path(url, name), (seconds, seconds))


def replace_writers(url: str) -> None:
    """Let three writers claim the store, and delete all claims but the newest two."""
    for _ in range(3):
        take(opened(url))
    make_old(url, 31)
    opened(url).maintenance.gc()


def upgraded(url: str) -> str:
    """Raise the writer version, which two more claims do, and delete the claims before."""
    opened(url).maintenance.upgrade()
    make_old(url, 31)
    opened(url).maintenance.gc()
    assert generations(url) == [6, 7]
    return url


def test_claims_that_were_replaced_a_month_ago_are_deleted(url: str) -> None:
    """I6: the newest two stay, and the next writer has the next generation."""
    store = opened(url)
    assert store.maintenance.gc(minimum_age="0").claims == ()
    make_old(url, 29.9)
    assert store.maintenance.gc(minimum_age="0").claims == ()
    make_old(url, 31)
    assert store.maintenance.gc(minimum_age="40d").claims == ()
    assert store.maintenance.gc(dry_run=True).claims == (1, 2, 3)
    assert generations(url) == [1, 2, 3, 4, 5]
    assert store.maintenance.gc().claims == (1, 2, 3)
    assert generations(url) == [4, 5]
    assert store.maintenance.gc().claims == ()
    take(opened(url))
    assert generations(url) == [4, 5, 6]
    assert opened(url).maintenance.verify("all").is_intact


def test_the_time_counts_from_the_replacement(url: str) -> None:
    """The claims 1 and 2 are old, and writer 2 was replaced only recently."""
    make_old(url, 31, up_to=2)
    assert opened(url).maintenance.gc().claims == (1,)


def test_the_minimum_age_is_sufficient_once_no_old_release_can_write(url: str) -> None:
    """A writer of a newer writer version looks for the preceding claim after its put."""
    upgraded(url)
    for _ in range(3):
        take(opened(url))
    assert opened(url).maintenance.gc().claims == (6,)
    make_old(url, 2)
    assert opened(url).maintenance.gc(minimum_age="3d").claims == ()
    assert opened(url).maintenance.gc(minimum_age="36h").claims == (7, 8)
    assert generations(url) == [9, 10]


def test_a_writer_whose_claim_is_gone_cannot_commit(url: str) -> None:
    """I6: it paused for more than a month, and then finds neither its claim nor the next one."""
    paused = opened(url)

    def pause_in_a_snapshot() -> None:
        with paused.snapshot(parallelism=2) as checkpoint:
            checkpoint.carry_rest()
            replace_writers(url)

    with pytest.raises(CommitConflictError, match="has taken over"):
        pause_in_a_snapshot()
    assert generations(url) == [8, 9]
    assert opened(url).checkpoints() == tuple(range(1, 9))
    with pytest.raises(CommitConflictError, match="has taken over"):
        take(paused)


class Paused(LocalStorage):
    """A folder whose first put of a claim waits until others have acted."""

    act: Callable[[], object] | None = None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if generation_of(name) is not None and self.act is not None:
            act, self.act = self.act, None
            act()
        return super().put_if_absent(name, data)


@pytest.mark.parametrize("earlier", [0, 1, 5])
def test_a_paused_claim_does_not_take_a_deleted_generation(tmp_path: Path, earlier: int) -> None:
    """I6: the put of a claim succeeds, because that generation was deleted meanwhile."""
    url = str(tmp_path / "store")
    opened(url)
    for _ in range(earlier):
        take(opened(url))
    storage = Paused(url)
    late = over(storage)
    storage.act = lambda: replace_writers(url)
    take(late)
    assert late.checkpoint().manifest.writer.generation == earlier + 4
    assert late.checkpoints() == tuple(range(1, earlier + 5))
    assert generations(url) == [earlier + 1, earlier + 2, earlier + 3, earlier + 4]


def test_a_paused_announcement_is_refused(url: str) -> None:
    """I6: a writer stalls while it claims another generation for a greater id."""
    storage = Paused(url)
    late = over(storage)
    take(late)
    storage.act = lambda: replace_writers(url)
    with pytest.raises(CommitConflictError, match="has taken over"):
        take(late, 50)
    assert opened(url).checkpoints() == tuple(range(1, 10))


def test_claims_stay_while_an_announced_id_is_missing(url: str) -> None:
    """A command may need the announced ids of all claims since the announcement."""
    fence = Fence(LocalStorage(url), release="1.0")
    fence.claim()
    fence.announce(20)
    make_old(url, 31)
    assert opened(url).maintenance.gc().claims == ()
    take(opened(url), 20)
    make_old(url, 31)
    assert opened(url).maintenance.gc().claims == (1, 2, 3, 4, 5, 6)


def test_no_claim_is_deleted_if_the_newest_is_damaged(url: str) -> None:
    newest = Path(url, writer_path(5))
    newest.write_bytes(newest.read_bytes()[:-20])
    make_old(url, 31)
    assert opened(url).maintenance.gc().claims == ()
    assert opened(url).maintenance.repair().repaired[0].file == writer_path(5)
    take(opened(url))
    make_old(url, 31)
    assert opened(url).maintenance.gc().claims == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("lacks", range(1, 6))
def test_a_listing_that_lacks_a_claim_leaves_no_claim_without_its_successor(
    url: str, lacks: int
) -> None:
    """I6: the writer of a claim that stays must find the next one."""
    make_old(url, 31)
    storage = LocalStorage(url)
    listing = [item for item in storage.listed("writers") if item.name != writer_path(lacks)]
    deleted = replaced_claims(
        storage, listing, newest_id=NEVER, minimum_age_ms=0, now_ms=time.time_ns() // 10**6
    )
    left = {1, 2, 3, 4, 5} - set(deleted)
    assert left == set(range(min(left), 6))


def test_each_deletion_is_durable_before_the_next(url: str) -> None:
    """I6: after a power failure no claim is there whose successor is gone."""
    make_old(url, 31)
    calls = calls_of(
        LocalStorage(url),
        lambda storage: StateStore(replace(over(storage).parts)).maintenance.gc(minimum_age="0"),
    )
    of_claims = [(call.operation, call.name) for call in calls if "writers/" in str(call.name)]
    assert of_claims[-6:] == [
        step
        for generation in (1, 2, 3)
        for step in (("delete", writer_path(generation)), ("sync", "writers/"))
    ]


def test_stray_claims_are_deleted_too(url: str) -> None:
    """A writer that took a deleted generation by mistake leaves its claim there."""
    make_old(url, 31)
    opened(url).maintenance.gc()
    Path(url, writer_path(2)).write_bytes(Path(url, writer_path(4)).read_bytes())
    assert opened(url).maintenance.gc().claims == ()
    make_old(url, 31)
    assert opened(url).maintenance.gc().claims == (2,)
    assert generations(url) == [4, 5]


def test_the_listing_may_be_empty() -> None:
    storage = LocalStorage("/nonexistent")
    listing: tuple[Listed, ...] = ()
    assert replaced_claims(storage, listing, newest_id=0, minimum_age_ms=0, now_ms=DAY_MS) == ()
