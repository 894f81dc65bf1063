"""Which layout a keyed state gets, and what a store remembers of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import InvalidArgumentError, MalformedManifestError
from statestore.format.documents import document_bytes
from statestore.format.state import Layout
from statestore.snapshot.state_spec import ROWS_WORTH_A_FILE
from tests.support.held import count_held
from tests.support.stores import opened

KEY_GROUPS = 128
OTHER = r"with layout='auto' .* opened with layout='ranged'; omit layout"


def rows(number: int = 1000) -> pa.Table:
    return pa.table({"k": range(number), "n": range(number)})


def take(store: StateStore, given: pa.Table | None = None, **options: Any) -> Layout:
    """Take a checkpoint; return the layout that its state got."""
    with store.snapshot(parallelism=2) as checkpoint:
        given = rows() if given is None else given
        checkpoint.write_keyed("u", "s", given, key="k", max_parallelism=KEY_GROUPS, **options)
    (entry,) = store.checkpoint().manifest.keyed
    return entry.state.layout


def remembered(path: Path) -> str | None:
    found: str | None = json.loads((path / "statestore.json").read_bytes()).get("layout")
    return found


def test_a_new_store_remembers_its_layout(tmp_path: Path) -> None:
    assert take(opened(tmp_path, layout="auto")) is Layout.RANGED
    assert remembered(tmp_path) == "auto"
    assert take(opened(tmp_path)) is Layout.RANGED
    assert take(opened(tmp_path, layout="auto")) is Layout.RANGED


def test_a_state_may_have_another_one(tmp_path: Path) -> None:
    store = opened(tmp_path, layout="auto")
    assert take(store, layout="partitioned") is Layout.PARTITIONED
    assert take(store) is Layout.RANGED


@pytest.mark.slow
def test_without_one_it_is_auto_and_nothing_is_remembered(tmp_path: Path) -> None:
    """So an existing store can be opened with one, for as long as it is open."""
    assert take(opened(tmp_path)) is Layout.RANGED
    assert remembered(tmp_path) is None
    assert take(opened(tmp_path, layout="partitioned")) is Layout.PARTITIONED
    assert remembered(tmp_path) is None
    assert take(opened(tmp_path)) is Layout.RANGED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "layout"),
    [
        (ROWS_WORTH_A_FILE * KEY_GROUPS - 1, Layout.RANGED),
        (ROWS_WORTH_A_FILE * KEY_GROUPS, Layout.PARTITIONED),
    ],
)
def test_key_groups_that_are_large_enough_have_a_file_each(
    store: StateStore, number: int, layout: Layout
) -> None:
    assert take(store, rows(number)) is layout
    (entry,) = store.checkpoint().manifest.keyed
    assert (len(entry.handles) == KEY_GROUPS) is (layout is Layout.PARTITIONED)


@pytest.mark.slow
def test_changes_keep_the_layout_until_the_state_is_written_in_full(store: StateStore) -> None:
    take(store, layout="partitioned")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "s", rows(1000))
    store.maintenance.compact(everything=True)
    (entry,) = store.checkpoint().manifest.keyed
    assert (entry.state.layout, len(entry.handles)) == (Layout.PARTITIONED, KEY_GROUPS)
    assert take(store) is Layout.RANGED


def test_another_layout_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    take(opened(tmp_path, layout="auto"))
    before = set(tmp_path.rglob("*"))
    with pytest.raises(InvalidArgumentError, match=OTHER):
        take(opened(tmp_path, layout="ranged"))
    assert set(tmp_path.rglob("*")) == before
    assert opened(tmp_path, layout="ranged").restore().keyed("u", "s").get(7)  # reading takes any


def test_a_layout_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="the layouts are partitioned, ranged, auto"):
        opened(tmp_path, layout="striped")
    take(opened(tmp_path))
    document = {"format": "statestore", "format_version": 1, "store_id": "s", "layout": "striped"}
    (tmp_path / "statestore.json").write_bytes(document_bytes(document))
    with pytest.raises(MalformedManifestError, match=r"\$\.layout"):
        take(opened(tmp_path))


def test_a_copy_and_a_fork_remember_what_the_source_does(tmp_path: Path) -> None:
    store = opened(tmp_path / "s", layout="auto")
    take(store)
    store.maintenance.copy("latest", str(tmp_path / "copy"))
    store.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    store.maintenance.copy("latest", opened(tmp_path / "said", layout="ranged"))
    found = {name: remembered(tmp_path / name) for name in ("copy", "fork", "said")}
    assert found == {"copy": "auto", "fork": "auto", "said": "ranged"}


def test_a_repair_finds_it_in_what_is_left(tmp_path: Path) -> None:
    take(opened(tmp_path, layout="auto"))
    file = tmp_path / "statestore.json"
    raw = file.read_bytes()
    assert raw.count(b"statestore") == 1
    file.write_bytes(raw.replace(b"statestore", b"state_store").replace(b"format", b"formed"))
    opened(tmp_path).maintenance.repair()
    assert remembered(tmp_path) == "auto"


def test_a_new_state_reads_no_older_checkpoints(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(6):
        take(store)
    held = count_held(monkeypatch)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry_rest()
        checkpoint.write_keyed("new", "s", rows(), key="k", max_parallelism=KEY_GROUPS)
    assert len(held) <= 2  # the newest, as what it follows and as what it carries
