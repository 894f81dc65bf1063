"""A command refuses an older checkpoint without permission, because it undoes newer ones (I18)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statestore import Changes, OperatorKey, StateStore
from statestore.errors import CommitConflictError, InvalidArgumentError
from statestore.format.names import manifest_path
from statestore.sources.kafka import KafkaCluster
from statestore.sources.mirror import Mirror
from statestore.sources.mirror_policies import MirrorFlow
from tests.support.damage import files_of
from tests.support.stores import keys_in, uncompacted

CLUSTER = KafkaCluster("localhost:1")
MIRROR = Mirror(flow=MirrorFlow(source="a", target="b"), source=CLUSTER, target=CLUSTER)
COMMANDS: dict[str, Callable[..., Any]] = {
    "compact": lambda maintenance, *at, **more: maintenance.compact(*at, everything=True, **more),
    "edit": lambda maintenance, *at, **more: maintenance.edit(
        "o", "s", put=[{"k": 9}], **dict(zip(["checkpoint"], at, strict=False)), **more
    ),
    "rekey": lambda maintenance, *at, **more: maintenance.rekey(
        "o", max_parallelism=64, **dict(zip(["checkpoint"], at, strict=False)), **more
    ),
    "salvage": lambda maintenance, *at, **more: maintenance.salvage(*(at or ("latest",)), **more),
}


def take(store: StateStore, batch: int) -> None:
    with store.snapshot(parallelism=1, batch=("job", batch)) as checkpoint:
        if batch == 1:
            checkpoint.write_keyed("o", "s", [{"k": 1}], key="k")
            checkpoint.write_split("source", "offsets", [[{"topic": "t"}]])
        else:
            checkpoint.write_changes("o", "s", Changes(upserts=[{"k": batch}]))
            checkpoint.carry_rest()


def damage(store: StateStore) -> None:
    """Cut the file of the base, which all checkpoints have."""
    file = files_of(store, "s")[0]
    file.write_bytes(file.read_bytes()[:-9])


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """A store with the batches 1 to 3 in the checkpoints 1 to 3."""
    made = uncompacted(tmp_path / "store")
    for batch in (1, 2, 3):
        take(made, batch)
    return uncompacted(tmp_path / "store")


@pytest.mark.parametrize("name", COMMANDS)
def test_an_older_checkpoint_is_refused(store: StateStore, name: str) -> None:
    """The error says what would be undone. The job that writes to the store is not fenced."""
    take(store, 4)
    for at in (2, "1"):
        with pytest.raises(InvalidArgumentError, match="from_older") as refused:
            COMMANDS[name](uncompacted(Path(store.url)).maintenance, at)
        assert f"{4 - int(at)} newer checkpoints, up to checkpoint 4" in str(refused.value)
        assert "batch 4 of job 'job'" in str(refused.value)
    take(store, 5)
    assert keys_in(store, "o") == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "salvage"])
def test_a_dry_run_takes_an_older_checkpoint(store: StateStore, name: str) -> None:
    done = COMMANDS[name](store.maintenance, 2, dry_run=True)
    assert (done.checkpoint_id, done.new_checkpoint_id, done.undone) == (2, None, (3,))


@pytest.mark.parametrize("name", COMMANDS)
def test_an_older_checkpoint_can_be_named_on_purpose(store: StateStore, name: str) -> None:
    """Then the job writes the undone batches again."""
    if name == "salvage":
        damage(store)
    done = COMMANDS[name](store.maintenance, 2, from_older=True)
    assert (done.checkpoint_id, done.new_checkpoint_id, done.undone) == (2, 4, (3,))
    take(store, 3)
    assert store.checkpoint().checkpoint_id == 5
    assert 3 in keys_in(store, "o")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "salvage"])
def test_the_newest_checkpoint_needs_no_permission(store: StateStore, name: str) -> None:
    """Also by its number, and by the name of a savepoint."""
    store.maintenance.savepoint("third", 3)
    for number, at in enumerate(((), (3,), ("third",))):
        copy = Path(store.url).with_name(f"copy{number}")
        shutil.copytree(store.url, copy)
        done = COMMANDS[name](uncompacted(copy).maintenance, *at)
        assert (done.new_checkpoint_id, done.undone) == (4, ())
        take(uncompacted(copy), 4)
        assert keys_in(uncompacted(copy), "o") >= {1, 2, 3, 4}


def test_a_savepoint_of_an_expired_checkpoint_is_older(store: StateStore) -> None:
    store.maintenance.savepoint("first", 1)
    store.maintenance.expire(retain=1)
    with pytest.raises(InvalidArgumentError, match="undoes 1 newer checkpoint, up to checkpoint 3"):
        store.maintenance.edit("o", "s", put=[{"k": 9}], checkpoint="first")


def test_a_translation_of_older_offsets_is_refused(store: StateStore) -> None:
    """It is refused before Kafka is asked."""
    with pytest.raises(InvalidArgumentError, match="from_older"):
        store.maintenance.plan_translation("source", "offsets", MIRROR, checkpoint=2)


def test_a_purge_of_an_older_checkpoint_undoes_nothing(store: StateStore) -> None:
    """The newer checkpoints are made again after it."""
    store.maintenance.forget(OperatorKey("o", 1), search=False, checkpoint=2)
    take(store, 4)
    assert keys_in(store, "o") == {1, 2, 3, 4}
    with pytest.raises(CommitConflictError, match="batch 4"):
        take(store, 3)


def test_a_damaged_newest_checkpoint_is_salvaged_without_permission(store: StateStore) -> None:
    damage(store)
    assert store.maintenance.salvage(1, dry_run=True).damaged
    with pytest.raises(InvalidArgumentError, match="from_older"):
        store.maintenance.salvage(2)
    assert store.maintenance.salvage("latest").new_checkpoint_id == 4


def test_an_unreadable_newest_checkpoint_undoes_no_salvage(store: StateStore) -> None:
    """A snapshot would build on the one before it, too. Other commands need the permission."""
    damage(store)
    Path(store.url, manifest_path(3)).write_bytes(b"damaged")
    with pytest.raises(InvalidArgumentError, match="checkpoint 3, which cannot be read"):
        store.maintenance.edit("o", "s", put=[{"k": 9}], checkpoint=2)
    assert store.maintenance.salvage(2).new_checkpoint_id == 4
