"""Names that differ only in case or in Unicode normalization: the second one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.errors import CheckpointNotFoundError, InvalidArgumentError
from statestore.snapshot import pending_checkpoint
from statestore.storage import LocalStorage
from tests.support.stores import opened
from tests.support.writers import ROWS, stored_files

OPTIONS: dict[str, Any] = {"key": "k", "max_parallelism": 4}


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    made = opened(str(tmp_path / "store"))
    put(made, ("u", "n"))
    return made


def put(store: StateStore, *names: tuple[str, str]) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        for uid, name in names:
            checkpoint.write_keyed(uid, name, ROWS, **OPTIONS)
        checkpoint.carry_rest()


@pytest.mark.parametrize("name", [("U", "n"), ("U", "other"), ("u", "N")])
def test_a_second_name_is_refused_before_any_write(
    store: StateStore, name: tuple[str, str]
) -> None:
    """In addition to a stored name, for any state of the operator."""
    before = stored_files(store.url)
    with pytest.raises(InvalidArgumentError, match="differ only in case or Unicode"):
        put(store, name)
    assert stored_files(store.url) == before
    with pytest.raises(InvalidArgumentError, match="differ only in case or Unicode"):
        store.snapshot(parallelism=2).__enter__().write_split(*name, [[{"p": 1}], []])
    put(store, ("u", "n"), ("v", "N"))  # another operator has another folder


def test_two_names_in_one_checkpoint_are_refused(tmp_path: Path) -> None:
    for names in ((("a", "n"), ("A", "m")), (("a", "n"), ("a", "N"))):
        store = opened(str(tmp_path / "-".join("".join(name) for name in names)))
        with pytest.raises(InvalidArgumentError, match="differ only in case or Unicode"):
            put(store, *names)
        assert store.checkpoints() == ()


@pytest.mark.parametrize("second", ["\u00c9", "e\u0301", "E\u0301"])
def test_non_ascii_and_composed_letters_are_folded_too(store: StateStore, second: str) -> None:
    """Readers cannot distinguish them, although their paths differ."""
    put(store, ("\u00e9", "n"), ("stra\u00dfe", "n"), ("strasse", "n"))
    with pytest.raises(InvalidArgumentError, match="differ only in case or Unicode"):
        put(store, (second, "other"))


def test_a_copy_does_not_add_a_second_name(store: StateStore, tmp_path: Path) -> None:
    other = opened(str(tmp_path / "other"))
    put(other, ("U", "n"))
    with pytest.raises(InvalidArgumentError, match="differ only in case or Unicode"):
        store.maintenance.copy("latest", other)


def test_a_store_that_has_both_names_stays_usable(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of an older release stays readable, and its job continues."""
    with monkeypatch.context() as patched:
        patched.setattr(pending_checkpoint, "fold_name", lambda name: name)
        put(store, ("U", "n"), ("u", "N"))
    put(store, ("u", "n"), ("U", "n"), ("u", "N"))
    restored = store.restore(parallelism=1)
    for name in (("u", "n"), ("U", "n"), ("u", "N")):
        assert restored.keyed(*name).to_arrow(0).num_rows == len(ROWS)
    store.maintenance.compact(everything=True)
    with pytest.raises(InvalidArgumentError, match="differ only in case or Unicode"):
        put(store, ("U", "N"))


class Folding(LocalStorage):
    """A folder in a file system that preserves the case of names, but ignores it in lookups."""

    def _file(self, name: str) -> Path:
        path = super()._file(name)
        there = path.parent.iterdir() if path.parent.is_dir() else ()
        return next((each for each in there if each.name.lower() == path.name.lower()), path)


@pytest.mark.parametrize("storage", [LocalStorage, Folding])
@pytest.mark.parametrize(
    ("kept", "name"), [("Prod", "prod"), ("prod", "PROD"), ("\u00e9", "e\u0301")]
)
def test_one_of_two_savepoints_that_differ_in_case_is_created(
    tmp_path: Path, storage: type[LocalStorage], kept: str, name: str
) -> None:
    """The other name does not delete it."""
    store = StateStore.open(storage(str(tmp_path / "store")), table_format="parquet")
    put(store, ("u", "n"))
    put(store, ("u", "n"))
    store.maintenance.savepoint(kept, 1)
    for checkpoint in (1, 2):
        with pytest.raises(InvalidArgumentError, match="differ only in case or Unicode"):
            store.maintenance.savepoint(name, checkpoint)
    with pytest.raises(CheckpointNotFoundError, match=kept):
        store.maintenance.delete_savepoint(name)
    with pytest.raises(CheckpointNotFoundError):
        store.restore(checkpoint=name)
    assert [savepoint.name for savepoint in store.maintenance.savepoints()] == [kept]
    assert store.maintenance.delete_savepoint(kept) is not None
    assert store.maintenance.savepoint(name, 2).name == name
