"""Which permissions a store needs, and which ones its files get (docs/security.md)."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.errors import StorageError
from statestore.storage import LocalStorage
from tests.syntax import ROOT

USE_A_STORE = """
import sys
from statestore import CacheOptions, StateStore

url, cache, table_format, layout = sys.argv[1:]
store = StateStore.open(url, table_format=table_format, layout=layout, cache=CacheOptions(cache))
for turn in range(3):
    rows = [{"k": f"key-{number}", "n": turn} for number in range(9)]
    with store.snapshot(parallelism=2) as checkpoint:
        if turn == 1:
            checkpoint.write_changes("u", "n", rows[:2])
        else:
            checkpoint.write_keyed("u", "n", rows, key="k", max_parallelism=4)
store.maintenance.savepoint("kept", 1)
store.maintenance.expire(retain=1)
store.maintenance.gc(minimum_age="0")
assert store.restore(parallelism=1).keyed("u", "n").to_arrow().num_rows == 9
"""
ROWS: list[dict[str, Any]] = [{"k": f"key-{number}", "n": number} for number in range(9)]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "layout"), [("delta", "partitioned"), ("parquet", "ranged")])
def test_with_umask_077_only_the_user_reads_a_store(tmp_path: Path, form: str, layout: str) -> None:
    url, cache = tmp_path / "s", tmp_path / "cache"
    subprocess.run(
        [sys.executable, "-c", USE_A_STORE, url, cache, form, layout],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        umask=0o077,
        check=True,
    )
    paths = [path for top in (url, cache) for path in (top, *top.rglob("*"))]
    kinds = {path.relative_to(tmp_path).parts[:2] for path in paths}
    assert {("s", "checkpoints"), ("s", "deletions"), ("s", "operators")} <= kinds
    assert any(path.is_file() for path in cache.rglob("*"))
    wide = [path for path in paths if stat.S_IMODE(path.lstat().st_mode) & 0o077]
    assert wide == []


class NoDeletes(LocalStorage):
    """A folder of somebody who may not delete."""

    def delete(self, name: str) -> None:
        """Refuse."""
        raise StorageError(f"cannot delete {name}: permission denied")


class ReadOnly(NoDeletes):
    """A folder of somebody who may only read."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Refuse."""
        raise StorageError(f"cannot write {name}: permission denied")

    def create(self, name: str) -> Any:
        """Refuse."""
        raise StorageError(f"cannot write {name}: permission denied")


@pytest.fixture
def operators(tmp_path: Path) -> StateStore:
    """A store of its operator, who may do everything, with a checkpoint."""
    store = StateStore.open(str(tmp_path / "s"), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", ROWS, key="k", max_parallelism=4)
    return store


def fail_after_writing(store: StateStore) -> None:
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", ROWS, key="k")
        raise ValueError("the job failed")


def test_a_writer_needs_no_permission_to_delete(operators: StateStore) -> None:
    store = StateStore.open(NoDeletes(operators.url))
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes("u", "n", ROWS[:2])
    store.maintenance.compact(everything=True)
    assert store.checkpoints() == (1, 2, 3)
    with pytest.raises(ValueError, match="the job failed") as told:
        fail_after_writing(store)
    assert "permission denied" in str(told.value.__notes__)
    assert operators.maintenance.gc(minimum_age="0").stray.files > 0


def test_only_an_operator_can_delete(operators: StateStore) -> None:
    with operators.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", ROWS, key="k")
    store = StateStore.open(NoDeletes(operators.url))
    store.maintenance.expire(retain=1)  # puts a tombstone and deletes nothing
    with pytest.raises(StorageError, match="cannot delete"):
        store.maintenance.gc(minimum_age="0")
    assert store.restore(parallelism=1).keyed("u", "n").to_arrow().num_rows == 9


def test_a_reader_needs_no_permission_to_write(operators: StateStore) -> None:
    store = StateStore.open(ReadOnly(operators.url))
    assert store.restore(parallelism=3).keyed("u", "n").to_arrow().num_rows == 9
    assert store.maintenance.verify().is_intact
    assert store.query('SELECT n FROM "u"."n"').to_arrow().num_rows == 9
    with pytest.raises(StorageError, match="permission denied"):
        store.maintenance.savepoint("mine")
