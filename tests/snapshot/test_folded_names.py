"""Names that differ in case alone would share a folder somewhere: a second one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.errors import InvalidArgumentError
from statestore.snapshot import states
from tests.support.writers import ROWS, opened, stored_files

OPTIONS: dict[str, Any] = {"key": "k", "max_parallelism": 4}


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    made = opened(str(tmp_path / "store"))
    put(made, ("u", "n"))
    return made


def put(store: StateStore, *names: tuple[str, str]) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        for uid, name in names:
            checkpoint.keyed(uid, name, ROWS, **OPTIONS)
        checkpoint.carry_rest()


@pytest.mark.parametrize("name", [("U", "n"), ("U", "other"), ("u", "N")])
def test_a_second_name_is_refused_before_anything_is_written(
    store: StateStore, name: tuple[str, str]
) -> None:
    """Beside a stored one, of any state of the operator."""
    before = stored_files(store.url)
    with pytest.raises(InvalidArgumentError, match="differ in case alone"):
        put(store, name)
    assert stored_files(store.url) == before
    with pytest.raises(InvalidArgumentError, match="differ in case alone"):
        store.snapshot(parallelism=2).__enter__().split(*name, [[{"p": 1}], []])
    put(store, ("u", "n"), ("v", "N"))  # of another operator it is another folder


def test_two_of_one_checkpoint_are_refused(tmp_path: Path) -> None:
    for names in ((("a", "n"), ("A", "m")), (("a", "n"), ("a", "N"))):
        store = opened(str(tmp_path / "-".join("".join(name) for name in names)))
        with pytest.raises(InvalidArgumentError, match="differ in case alone"):
            put(store, *names)
        assert store.checkpoints() == ()


def test_letters_that_a_path_escapes_are_no_clash(store: StateStore) -> None:
    names = [("\u00e9", "n"), ("\u00c9", "n"), ("u1", "n")]
    put(store, *names)
    stored = {(entry.state.uid, entry.state.name) for entry in store.manifest().keyed}
    assert stored == {("u", "n"), *names}


def test_a_copy_does_not_bring_one(store: StateStore, tmp_path: Path) -> None:
    other = opened(str(tmp_path / "other"))
    put(other, ("U", "n"))
    with pytest.raises(InvalidArgumentError, match="differ in case alone"):
        store.maintenance.copy("latest", other)


def test_a_store_that_has_both_goes_on(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an older release made it: it stays readable, and its job goes on."""
    with monkeypatch.context() as patched:
        patched.setattr(states, "_folded", lambda name: name)
        put(store, ("U", "n"), ("u", "N"))
    put(store, ("u", "n"), ("U", "n"), ("u", "N"))
    restored = store.restore(parallelism=1)
    for name in (("u", "n"), ("U", "n"), ("u", "N")):
        assert restored.keyed(*name).to_arrow(0).read_all().num_rows == len(ROWS)
    store.maintenance.compact(everything=True)
    with pytest.raises(InvalidArgumentError, match="differ in case alone"):
        put(store, ("U", "N"))
