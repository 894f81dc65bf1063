"""I6: a command that does not know the format of the newest checkpoint does not claim the store.

A claim would fence the active writer, which may have a newer release.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from statestore import OperatorKey, StateStore
from statestore.errors import FormatVersionError
from statestore.format.documents import document_bytes
from tests.support.stores import opened
from tests.support.writers import claims, take

pytestmark = pytest.mark.slow

UNKNOWN = 99
ROW = {"k": "c", "v": 3}


def copy(store: StateStore) -> None:
    source = opened(f"{store.url}-source")
    take(source)
    source.maintenance.copy(1, store)


def repair(store: StateStore) -> None:
    """The newest claim is damaged, so it no longer protects any writer."""
    newest = max(Path(store.url, "writers").iterdir())
    newest.write_bytes(newest.read_bytes()[:25])
    store.maintenance.repair()


def salvage(store: StateStore) -> None:
    """A file of the oldest checkpoint is damaged."""
    damaged = min(Path(store.url, "operators").rglob("*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:25])
    store.maintenance.salvage(1)


COMMANDS: dict[str, Callable[[StateStore], object]] = {
    "a snapshot": take,
    "a snapshot with a given id": lambda store: take(store, 9),
    "a snapshot of a batch": lambda store: store.snapshot(parallelism=1, batch=("job", 1)),
    "compact": lambda store: store.maintenance.compact(everything=True),
    "edit": lambda store: store.maintenance.edit("u", "n", put=[ROW]),
    "edit of an old one": lambda store: store.maintenance.edit(
        "u", "n", put=[ROW], checkpoint=1, from_older=True
    ),
    "purge": lambda store: store.maintenance.forget(OperatorKey("u", "a"), search=False),
    "purge of an old one": lambda store: store.maintenance.forget(
        OperatorKey("u", "a"), search=False, checkpoint=1
    ),
    "forget": lambda store: store.maintenance.forget({"k": "a"}),
    "rekey": lambda store: store.maintenance.rekey("u", max_parallelism=8),
    "upgrade": lambda store: store.maintenance.upgrade(),
    "salvage": salvage,
    "copy": copy,
    "repair": repair,
}


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """A store with two checkpoints."""
    made = opened(str(tmp_path / "store"))
    take(made)
    take(made)
    return made


def set_version(store: StateStore, checkpoint_id: int) -> None:
    """Give a manifest a format version that no release has."""
    path = Path(store.url, f"checkpoints/{checkpoint_id:010}.json")
    document = json.loads(path.read_bytes()) | {"format_version": UNKNOWN}
    del document["sha256"]
    path.write_bytes(document_bytes(document))


def names_of(store: StateStore) -> set[str]:
    """Return the names of all files of a store."""
    root = Path(store.url)
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_does_not_claim_a_store_with_a_newer_checkpoint(
    store: StateStore, name: str
) -> None:
    running = store.snapshot(parallelism=1)
    set_version(store, 2)
    before = names_of(store)
    with pytest.raises(FormatVersionError, match=f"format version {UNKNOWN}"):
        COMMANDS[name](opened(store.url))
    assert names_of(store) == before
    running.abandon()
    if name != "repair":
        store.parts.fence.check()


def test_a_checkpoint_that_is_not_visible_does_not_prevent_a_claim(store: StateStore) -> None:
    store.maintenance.expire(retain=1)
    set_version(store, 1)
    assert take(opened(store.url)).id == 3


def test_a_damaged_manifest_does_not_hide_a_newer_one_before_it(store: StateStore) -> None:
    set_version(store, 1)
    newest = Path(store.url, "checkpoints/0000000002.json")
    newest.write_bytes(newest.read_bytes()[:25])
    before = claims(store.url)
    with pytest.raises(FormatVersionError, match=f"format version {UNKNOWN}"):
        take(opened(store.url))
    assert claims(store.url) == before


def test_a_damaged_manifest_does_not_prevent_a_claim(store: StateStore) -> None:
    newest = Path(store.url, "checkpoints/0000000002.json")
    newest.write_bytes(newest.read_bytes()[:25])
    opened(store.url).snapshot(parallelism=1).abandon()
    assert len(claims(store.url)) == 2
