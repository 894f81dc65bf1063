"""A foreign file among the holds: files that it may protect are not deleted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from statestore import StateStore
from statestore.catalog.holds import Pin, Savepoint, pin_to_json, savepoint_to_json
from statestore.cli.main import main
from statestore.errors import MalformedManifestError
from statestore.storage import LocalStorage
from tests.faults.cases import over, take, whole

SAVEPOINT = savepoint_to_json(Savepoint("x", 1, 0))


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    made = over(LocalStorage(str(tmp_path / "store")))
    for number in (1, 2, 3):
        take(made, number)
    return made


@pytest.mark.parametrize(
    "name",
    [
        b"savepoints/~FF.json",
        b"savepoints/\xff.json",
        b"savepoints/~C3.json",
        b"savepoints/y.json",
        b"savepoints/~78.json",
        b"savepoints/a\\b.json",
        b"pins/\xfe\xff.json",
        b"pins/t.json",
    ],
)
def test_a_hold_under_another_name_blocks_deletion(store: StateStore, name: bytes) -> None:
    """This includes names that are not UTF-8. A printable StateStoreError names the file."""
    path = os.fsencode(store.url) + b"/" + name
    os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - a name of bytes
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(SAVEPOINT if name.startswith(b"s") else pin_to_json(Pin("u", 1, "h", 10**14)))
    before = set(Path(store.url).rglob("*.parquet"))
    commands: tuple[Callable[[], object], ...] = (
        lambda: store.maintenance.gc(minimum_age="0"),
        lambda: store.maintenance.expire(retain=1),
    )
    for command in commands:
        with pytest.raises(MalformedManifestError) as refused:
            command()
        assert name.split(b"/")[0].decode() in str(refused.value)
        str(refused.value).encode()
    assert set(Path(store.url).rglob("*.parquet")) == before
    assert store.checkpoints() == (1, 2, 3)
    whole(store, 1)


def test_list_reports_it(store: StateStore, capsys: pytest.CaptureFixture[str]) -> None:
    """The report is one line and not a traceback."""
    folder = Path(store.url, "savepoints")
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.json")).write_bytes(SAVEPOINT)
    assert main(["--store", store.url, "list"]) == MalformedManifestError.exit_code
    assert "Traceback" not in capsys.readouterr().err


def test_a_file_that_is_not_a_hold_is_ignored(store: StateStore) -> None:
    """Such a file is hidden or has another kind, like the files that editors leave."""
    folder = Path(store.url, "savepoints")
    folder.mkdir()
    for name in (".x.json.swp", "x.json~", "README"):
        (folder / name).write_bytes(b"")
    assert store.maintenance.savepoints() == ()
    store.maintenance.expire(retain=1)
    shutil.rmtree(folder)
    assert store.checkpoints() == (3,)
