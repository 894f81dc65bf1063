"""A store in a bucket through the public API, without Spark: Arrow in, Arrow out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
    DamagedFileError,
    MissingFileError,
    NullKeyError,
)
from statestore.storage.s3 import S3Storage
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.services, pytest.mark.slow]

USERS = pa.table({"user": [f"user-{n:03}" for n in range(200)], "total": list(range(200))})
OFFSETS = [[{"partition": n, "offset": 100 + n} for n in range(p, 6, 2)] for p in range(2)]


@pytest.fixture
def store(s3: S3Server, url: str) -> StateStore:
    return StateStore.open(url, table_format="parquet", storage_options=s3.options)


def take(store: StateStore, rows: pa.Table = USERS) -> int:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("totals", "total", rows, key="user", max_parallelism=16)
        checkpoint.write_split("source", "offsets", OFFSETS)
        checkpoint.write_union("source", "seen", OFFSETS)
    return checkpoint.id


def rows_of(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.select(["user", "total"]).to_pylist())


def test_a_snapshot_is_restored_at_every_parallelism(
    store: StateStore, subtests: pytest.Subtests
) -> None:
    """I7."""
    assert take(store) == 1
    for parallelism in (1, 2, 3, 16):
        with subtests.test(parallelism=parallelism):
            restored = store.restore(parallelism=parallelism)
            keyed = restored.keyed("totals", "total")
            split = restored.operator_state("source", "offsets")
            union = restored.operator_state("source", "seen")
            subtasks = range(parallelism)
            found = pa.concat_tables([keyed.to_arrow(subtask) for subtask in subtasks])
            assert rows_of(found) == rows_of(USERS)
            dealt = [element for subtask in subtasks for element in split.subtask(subtask)]
            assert sorted(element["partition"] for element in dealt) == list(range(6))
            assert all(len(union.subtask(subtask)) == 6 for subtask in subtasks)
            assert keyed.get("user-007") == [{"user": "user-007", "total": 7}]
            assert keyed.get("nobody") == []


def test_checkpoints_are_listed_and_independent(store: StateStore) -> None:
    more = pa.table({"user": ["user-007", "user-new"], "total": [8, 1]})
    assert [take(store), take(store, more)] == [1, 2]
    assert store.checkpoints() == (1, 2)
    for checkpoint, total in ((1, 7), (2, 8)):
        keyed = store.restore(checkpoint=checkpoint).keyed("totals", "total")
        assert keyed.get("user-007") == [{"user": "user-007", "total": total}]
    with pytest.raises(
        CheckpointNotFoundError,
        match=r"no checkpoint 3 in s3://.*; the store has the checkpoints 1, 2",
    ):
        store.restore(checkpoint=3)


def test_one_of_two_writers_gets_a_conflict_and_leaves_no_files(
    store: StateStore, storage: S3Storage
) -> None:
    """I4: the loser's files are deleted, and the next attempt gets the next id."""
    take(store)
    late = store.snapshot(parallelism=2).__enter__()
    late.write_keyed("totals", "total", USERS, key="user", max_parallelism=16)
    late.carry_rest()
    assert take(store) == 2
    before = storage.list("operators")
    with pytest.raises(CommitConflictError, match=f"checkpoint 2 of {store.url} was committed by"):
        late.__exit__(None, None, None)
    keyed = [handle for id_ in (1, 2) for handle in store.checkpoint(id_).manifest.keyed[0].handles]
    parts = [name for name in storage.list("operators") if "/keyed/" in name]
    assert len(parts) == len(keyed) < len(before)
    assert take(store) == 3


def test_rows_that_cannot_be_stored_leave_no_files(store: StateStore, storage: S3Storage) -> None:
    bad = pa.table({"user": ["a", "b", None], "total": [1, 2, 3]})
    with pytest.raises(NullKeyError):
        take(store, bad)
    assert store.checkpoints() == ()
    assert storage.list("operators") == ()


def test_a_missing_and_a_replaced_file_are_named(store: StateStore, storage: S3Storage) -> None:
    """I7: damage is reported as corruption and not as a network failure."""
    take(store)
    entry = store.checkpoint().manifest.keyed[0]
    name = f"{entry.table.path}/{entry.handles[0].path}"
    storage.delete(name)
    read = store.restore(parallelism=1).keyed("totals", "total")
    with pytest.raises(MissingFileError, match=f"{store.url}/{name} is missing"):
        read.to_arrow(0)
    with storage.open_write(name) as file:
        file.write(bytes(entry.handles[0].size_bytes))
    with pytest.raises(DamagedFileError, match=f"{store.url}/{name} has another footer"):
        read.to_arrow(0)
