"""Changes found by comparison: the written rows, the files that are not read, and errors."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import OperatorKey, StateStore, key_group_of
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    DuplicateKeyError,
    InvalidArgumentError,
    NullKeyError,
    SchemaMismatchError,
)
from statestore.format.digest import RowSet
from statestore.format.documents import document_bytes
from statestore.format.layers import CompactionRule
from statestore.format.manifest import KeyedEntry
from statestore.format.names import manifest_path
from statestore.rows import key_group_runs as runs
from tests.snapshot.test_change_writer import ROWS, change, content, files, full, opened, table


def against(store: StateStore, rows: Any, previous: int | str = "latest") -> KeyedEntry:
    with store.snapshot(parallelism=2) as checkpoint:
        entry: KeyedEntry = checkpoint.write_changes_against("u", "s", rows, base=previous, key="k")
    return entry


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    store = opened(tmp_path)
    full(store)
    return store


def test_different_rows_are_upserted_and_missing_rows_deleted(store: StateStore) -> None:
    rows = {k: v for k, v in ROWS.items() if k != "u2"} | {"u1": 100, "new": 7, "u3": None}
    (layer,) = against(store, table(rows)).layers
    assert layer.entry.rows == 4
    assert content(store) == rows
    assert content(store, 1) == ROWS


@pytest.mark.parametrize("run_bytes", [1, runs.RUN_BYTES])
def test_it_includes_changes_of_earlier_layers(store: StateStore, run_bytes: int) -> None:
    parquet = replace(store.parts.parquet, run_bytes=run_bytes)
    store = StateStore(replace(store.parts, parquet=parquet))
    change(store, table({"u1": 100, "extra": 1}), [{"k": "u2"}])
    against(store, table(ROWS))
    assert content(store) == ROWS
    against(store, table({}))
    assert content(store) == {}
    against(store, table({"u5": 5}))
    assert content(store) == {"u5": 5}


def test_a_snapshot_without_changes_adds_no_layer(store: StateStore, tmp_path: Path) -> None:
    before = files(tmp_path)
    backwards = dict(reversed(ROWS.items()))
    assert against(store, table(backwards).to_pylist()).layers == ()
    assert files(tmp_path) == before
    change(store, table({"u1": 100}))
    before = files(tmp_path)
    assert len(against(store, table(ROWS | {"u1": 100})).layers) == 1
    assert files(tmp_path) == before


def test_it_builds_on_the_given_checkpoint(store: StateStore) -> None:
    store.maintenance.savepoint("first")
    change(store, table({"u1": 100}))
    rows = ROWS | {"u2": 200}
    for previous in (1, "first"):
        assert [layer.entry.rows for layer in against(store, table(rows), previous).layers] == [1]
        assert content(store) == rows


def test_without_a_previous_state_all_rows_are_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert against(store, table(ROWS)).layers == ()
    assert "in full" in caplog.text
    assert content(store) == ROWS


def test_key_groups_with_the_same_digest_are_not_read(store: StateStore, tmp_path: Path) -> None:
    """If a key group is unchanged its file may be unreadable; otherwise it may not."""
    full(store, layout="partitioned")
    entry = store.checkpoint().manifest.keyed[0]
    group = key_group_of("u1", max_parallelism=16)
    for handle in entry.handles:
        if group not in handle.key_groups:
            path = tmp_path / "store" / entry.table.path / handle.path
            path.write_bytes(bytes(handle.size_bytes))
    against(store, table(ROWS | {"u1": 100}))
    other = next(k for k in ROWS if key_group_of(k, max_parallelism=16) != group)
    before = files(tmp_path)
    with pytest.raises(CorruptionError):
        against(store, table(ROWS | {"u1": 100, other: 100}))
    assert files(tmp_path) == before


REFUSED: list[tuple[Any, type[Exception]]] = [
    ([*table(ROWS).to_pylist(), {"k": "u1", "v": 1}], DuplicateKeyError),
    ([*table(ROWS).to_pylist(), {"k": "u1", "v": 5}], DuplicateKeyError),
    ([*table(ROWS).to_pylist(), {"k": None, "v": 5}], NullKeyError),
    ([{"k": "a", "v": 1.5}], SchemaMismatchError),
    (pa.table({"k": ["a"], "v": [1.5]}), SchemaMismatchError),
    ([{"k": "a"}], SchemaMismatchError),
    (None, InvalidArgumentError),
    (7, InvalidArgumentError),
]


@pytest.mark.parametrize(("rows", "error"), REFUSED)
def test_invalid_rows_leave_no_files(
    store: StateStore, tmp_path: Path, rows: Any, error: type[Exception]
) -> None:
    before = files(tmp_path)
    with pytest.raises(error):
        against(store, rows)
    assert (files(tmp_path), store.checkpoints()) == (before, (1,))


def test_an_expired_previous_checkpoint_is_refused(store: StateStore) -> None:
    change(store, table({"u1": 1}))
    store.maintenance.expire(retain=1)
    with pytest.raises(CheckpointNotFoundError):
        against(store, table(ROWS), 1)


def test_the_changes_are_compacted_by_the_policy(tmp_path: Path) -> None:
    store = opened(tmp_path, CompactionRule(share=0, most_share=0))
    full(store)
    rows: dict[str, Any] = {"a": 1} | dict(list(ROWS.items())[5:])
    against(store, pa.table(table(rows)))
    assert store.checkpoint().manifest.keyed[0].layers == ()
    assert content(store) == rows


def recorded(store: StateStore, checkpoint: int | str = "latest") -> RowSet | None:
    return store.checkpoint(checkpoint).manifest.keyed_entry("u", "s").contents


def test_rows_and_digest_are_recorded_and_a_restore_reads_no_file_for_them(
    store: StateStore, tmp_path: Path
) -> None:
    """I7: the number and digest of all rows, including layers; they match the rows."""
    rows = {k: v for k, v in ROWS.items() if k != "u2"} | {"u1": 100, "new": 7}
    against(store, table(rows))
    known = recorded(store)
    assert known is not None
    assert known.rows == len(rows)
    for path in (tmp_path / "store" / "operators").rglob("*.parquet"):
        path.write_bytes(bytes(path.stat().st_size))
    state = store.restore(parallelism=3).keyed("u", "s")
    assert (state.contents(), state.digest) == (known, known.digest)


def test_an_export_that_differs_from_the_recorded_rows_is_refused(
    store: StateStore, tmp_path: Path
) -> None:
    """The exported rows are compared with the writer's record, and not with the read rows."""
    against(store, table(ROWS | {"u1": 100}))
    assert all(
        state.proof.holds for state in store.restore(parallelism=3).export(tmp_path / "out").states
    )
    path = tmp_path / "store" / manifest_path(2)
    document = json.loads(path.read_bytes())
    del document["sha256"]
    document["operators"][0]["keyed"][0]["merged"]["rows"] += 1
    path.write_bytes(document_bytes(document))
    with pytest.raises(CorruptionError, match="contain other rows than the manifest says"):
        store.restore(parallelism=3).export(tmp_path / "other")


def test_changes_without_a_comparison_leave_the_number_of_rows_unknown(store: StateStore) -> None:
    """They are known again after a comparison of all rows or a compaction."""
    change(store, table({"u1": 100, "new": 1}), [{"k": "u2"}])
    assert recorded(store) is None
    against(store, table(ROWS))
    assert recorded(store) == recorded(store, 1)
    change(store, table({}))
    assert recorded(store) == recorded(store, 1)
    change(store, table({"u1": 100}))
    assert recorded(store) is None
    store.maintenance.compact(everything=True)
    known = recorded(store)
    assert known is not None
    assert known.rows == len(ROWS)
    assert content(store) == ROWS | {"u1": 100}


@pytest.mark.slow
def test_compaction_keeps_the_recorded_rows(tmp_path: Path) -> None:
    """Layers that are merged, or folded in part, have the same rows."""
    rule = CompactionRule(merge_layers=2, share=0.01, most_share=9, bytes_per_checkpoint=1)
    store = opened(tmp_path, rule)
    full(store, layout="partitioned")
    rows: dict[str, Any] = dict(ROWS)
    for number in range(6):
        rows[f"u{number}"] = 1000 + number
        del rows[f"u{39 - number}"]
        entry = against(store, table(rows))
        known = recorded(store)
        assert known is not None
        assert known.rows == len(rows)
        assert content(store) == rows
    assert entry.layers
    assert [len(layer.live) for layer in store.checkpoint().manifest.keyed[0].layers] != [1]


def test_replaced_files_have_no_recorded_rows(store: StateStore) -> None:
    """A purge removes rows from the base and the layers, so the earlier record is outdated."""
    against(store, table(ROWS | {"u1": 100}))
    assert recorded(store) is not None
    store.maintenance.forget(OperatorKey("u", "u5"), search=False)
    left = {k: v for k, v in (ROWS | {"u1": 100}).items() if k != "u5"}
    assert content(store) == left
    assert recorded(store) in (None, store.restore(parallelism=1).keyed("u", "s").contents())
