"""Where a store can be: not inside another store, under one name, and without symbolic links."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statestore import OperatorKey, StateStore
from statestore.errors import InvalidArgumentError, StorageError
from statestore.interop.flink import export_savepoint
from tests.support.stores import opened
from tests.support.writers import claims, take


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    made = opened(str(tmp_path / "outer"))
    take(made)
    return made


def a_day_later(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 90_000,) * 2)


PLACES: dict[str, Callable[[StateStore, str], object]] = {
    "fork": lambda store, to: store.maintenance.copy("latest", to, linked=True),
    "copy": lambda store, to: store.maintenance.copy("latest", to),
    "snapshot": lambda store, to: take(opened(to)),
    "export": lambda store, to: store.restore().export(to),
    "flink export": lambda store, to: export_savepoint(store, to),
}


@pytest.mark.parametrize("below", ["operators/inner", "operators/o/keyed/s/inner", "elsewhere"])
@pytest.mark.parametrize("write", PLACES)
def test_nothing_is_written_into_a_store(
    store: StateStore, write: str, below: str, tmp_path: Path
) -> None:
    """The outer store's garbage collection could delete it."""
    before = sorted(Path(store.url).rglob("*"))
    with pytest.raises(InvalidArgumentError, match=r"is inside .*outer"):
        PLACES[write](store, f"{store.url}/{below}")
    (tmp_path / "link").symlink_to(store.url)
    with pytest.raises(InvalidArgumentError, match=r"is inside .*outer"):
        PLACES[write](store, str(tmp_path / "link" / below))
    assert sorted(Path(store.url).rglob("*")) == before


@pytest.mark.parametrize("below", ["operators/inner", "operators/keyed"])
def test_gc_keeps_files_that_do_not_belong_to_its_tables(
    store: StateStore, below: str, tmp_path: Path
) -> None:
    """A store and an export were moved there by hand, or by an older release."""
    inner, there = opened(str(tmp_path / "inner")), Path(store.url, below)
    take(inner)
    inner.restore().export(str(tmp_path / "export"))
    shutil.move(tmp_path / "inner", there)
    shutil.move(tmp_path / "export", there / "export")
    a_day_later(Path(store.url))
    before = sorted(there.rglob("*"))
    store.maintenance.gc()
    assert sorted(there.rglob("*")) == before
    assert opened(str(there)).maintenance.verify(deep=True).is_intact


def test_a_store_is_not_copied_to_itself_under_another_name(
    store: StateStore, tmp_path: Path
) -> None:
    """The copy would replace the store of a running job."""
    (tmp_path / "link").symlink_to(store.url)
    before = claims(store.url)
    for place in (str(tmp_path / "link"), f"file://localhost{store.url}"):
        with pytest.raises(InvalidArgumentError, match="is the store itself"):
            store.maintenance.copy("latest", place)
    assert claims(store.url) == before
    take(store)


@pytest.mark.parametrize("command", ["purge", "gc", "verify", "repair"])
def test_a_link_in_a_store_is_named_and_not_followed(command: str, tmp_path: Path) -> None:
    """The store came from somebody else and contains a link to a folder of this host."""
    store, victim = StateStore.open(str(tmp_path / "store")), tmp_path / "home"
    for _ in range(2):
        take(store)
    (victim / "sub").mkdir(parents=True)
    for name in ("letter.txt", "sub/photo.jpg"):
        (victim / name).write_text("precious")
    log = Path(store.url, "operators/u/keyed/n/_delta_log")
    shutil.rmtree(log)
    log.symlink_to(victim)
    run: dict[str, Callable[[], object]] = {
        "purge": lambda: store.maintenance.forget(OperatorKey("u", "a"), search=False),
        "gc": store.maintenance.gc,
        "verify": lambda: store.maintenance.verify("all"),
        "repair": store.maintenance.repair,
    }
    with pytest.raises(StorageError, match=r"_delta_log is a symbolic link to .*home"):
        run[command]()
    files = [path for path in victim.rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["letter.txt", "photo.jpg"]


@pytest.mark.parametrize("place", [Path("/store"), None, 5, b"/store"])
def test_a_place_that_is_no_text_and_no_storage_is_refused(place: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"as text.* not {type(place).__name__}"):
        StateStore.open(place)
