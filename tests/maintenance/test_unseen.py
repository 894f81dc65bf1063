"""A command that derives a checkpoint refuses if another one appeared that it has not read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import OperatorKey, StateStore
from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Fence
from statestore.errors import CommitConflictError
from statestore.format.manifest import Manifest
from statestore.maintenance.derive import Deriver
from tests.support.stores import opened

pytestmark = pytest.mark.slow

Command = Callable[[StateStore], Any]
COMMANDS: dict[str, Command] = {
    "edit": lambda store: store.maintenance.edit("users", "totals", delete=["ann"]),
    "edit an older one": lambda store: store.maintenance.edit(
        "users", "totals", delete=["ann"], checkpoint=1, from_older=True
    ),
    "compact": lambda store: store.maintenance.compact(everything=True),
    "rekey": lambda store: store.maintenance.rekey("users", max_parallelism=4),
    "salvage": lambda store: store.maintenance.salvage("latest"),
    "purge": lambda store: store.maintenance.forget(OperatorKey("users", "ann"), search=False),
}


def written(store: StateStore, *users: str) -> Any:
    """Return a checkpoint that is complete except for its commit."""
    checkpoint = store.snapshot(parallelism=1).__enter__()
    rows = pa.table({"user": users, "n": [1] * len(users)})
    checkpoint.write_changes("users", "totals", rows, key="user")
    return checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with two checkpoints, the second with changes, and a lost file."""
    store = opened(tmp_path / "store")
    with store.snapshot(parallelism=1) as checkpoint:
        users = ["ann", *(f"user-{i}" for i in range(20))]
        rows = pa.table({"user": users, "n": [1] * len(users)})
        checkpoint.write_keyed(
            "users", "totals", rows, key="user", max_parallelism=2, layout="ranged"
        )
        checkpoint.write_keyed(
            "users", "broken", rows, key="user", max_parallelism=2, layout="ranged"
        )
    with store.snapshot(parallelism=1) as checkpoint:
        rows = pa.table({"user": ["ann"], "n": [3]})
        checkpoint.write_changes("users", "totals", rows, key="user")
        checkpoint.carry_rest()
    return tmp_path / "store"


def damaged(folder: Path, name: str) -> None:
    if name == "salvage":
        (file,) = (folder / "operators/users/keyed/broken").rglob("*.parquet")
        file.write_bytes(file.read_bytes()[:-20] + b"." * 20)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_active_job_is_neither_overwritten_nor_replaced(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits after the command has read the store, so the command fails before it claims the
    store.
    """
    damaged(folder, name)
    job, real = opened(folder), Deriver._begin

    def begin(deriver: Deriver, *arguments: Any) -> Any:
        if job.checkpoints() == (1, 2):
            checkpoint = written(job, "eve")
            checkpoint.carry_rest()
            checkpoint.__exit__(None, None, None)
        return real(deriver, *arguments)

    monkeypatch.setattr(Deriver, "_begin", begin)
    told = r"checkpoint 3 .*based on checkpoint 2|taken over"
    with pytest.raises(CommitConflictError, match=told):
        COMMANDS[name](opened(folder))
    assert opened(folder).checkpoints() == (1, 2, 3)
    if name != "purge":  # a purge claims the store before it reads the second time
        written_again = written(job, "eve")
        written_again.carry_rest()
        written_again.__exit__(None, None, None)
        assert job.checkpoints() == (1, 2, 3, 4)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_job_that_stalled_before_its_put_is_not_overwritten(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its check was before the command's claim, and its PUT is directly after the claim."""
    damaged(folder, name)
    real, claim_of, begin = Catalog.commit, Fence.claim, Deriver.begin_in_order
    stalled: list[tuple[Catalog, Manifest]] = []
    checkpoint = written(opened(folder), "eve")
    checkpoint.carry_rest()
    monkeypatch.setattr(Catalog, "commit", lambda *put: stalled.append(put))
    checkpoint.__exit__(None, None, None)
    monkeypatch.setattr(Catalog, "commit", real)

    def put_late() -> None:
        if stalled:
            real(*stalled.pop())

    def entered(fence: Fence, **options: Any) -> Any:
        claim = claim_of(fence, **options)
        put_late()
        return claim

    def begun(deriver: Deriver, *drafts: Any, **options: Any) -> Any:
        put_late()
        return begin(deriver, *drafts, **options)

    if name == "purge":
        monkeypatch.setattr(Deriver, "begin_in_order", begun)
    else:
        monkeypatch.setattr(Fence, "claim", entered)
    with pytest.raises(CommitConflictError, match=r"checkpoint 3 .*based on checkpoint 2"):
        COMMANDS[name](opened(folder))
    left = opened(folder)
    assert left.checkpoints() == (1, 2, 3)
    assert left.restore().keyed("users", "totals").get("eve") == [{"user": "eve", "n": 1}]
