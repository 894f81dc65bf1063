"""A table becomes a state of a store, in a new checkpoint with all other states."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from statestore import StateStore, TimeToLive
from statestore.errors import (
    DuplicateKeyError,
    InvalidArgumentError,
    NullKeyError,
    ParallelismError,
    SchemaMismatchError,
)
from statestore.jobgraph.graph import JobGraph, Node
from tests.support.stores import overtake, values_in

ROWS = pa.table({"user_id": ["a", "b", "c"], "total": [1, 2, 3]})

stored = partial(values_in, state="totals", key="user_id", value="total")


def batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from rows.to_batches(2)


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        ROWS.to_reader(),
        batches(ROWS),
        ROWS.to_pylist(),
        pd.DataFrame(ROWS.to_pydict()),
        pl.DataFrame(ROWS.to_pydict()),
        pl.LazyFrame(ROWS.to_pydict()),
    ],
    ids=["table", "reader", "batches", "dictionaries", "pandas", "Polars", "lazy"],
)
def test_any_rows_become_a_state(rows: Any, store: StateStore) -> None:
    made = store.bootstrap("u", "totals", rows, key="user_id")
    assert (made.new_checkpoint_id, made.rows, made.max_parallelism) == (1, 3, 128)
    assert made.replaced_rows is None
    assert stored(store) == {
        "a": 1,
        "b": 2,
        "c": 3,
    }
    assert store.maintenance.verify("all", deep=True).is_intact


def test_a_dry_run_has_the_columns_and_writes_nothing(store: StateStore, tmp_path: Path) -> None:
    rows = ROWS.append_column("w", pa.array([0, 0, 0]))
    bootstrap = partial(
        store.bootstrap,
        *("u", "totals"),
        key="user_id",
        namespace="w",
        ttl=TimeToLive("7d", "used"),
        dry_run=True,
    )
    planned = bootstrap(rows.schema)
    columns = [(c.name, c.type, c.role, c.hashed_as) for c in planned.columns]
    assert columns == [
        ("user_id", "string", "key", "String"),
        ("w", "long", "namespace", None),
        ("total", "long", "value", None),
        ("used", "long", "time", None),
    ]
    assert (planned.new_checkpoint_id, planned.rows, planned.checked) == (None, 0, None)
    checked = bootstrap(pa.concat_tables([rows, rows.slice(1)])).checked
    assert checked is not None
    assert (checked.rows, checked.duplicates, checked.is_valid) == (5, 2, False)
    assert not (tmp_path / "store").exists()


def test_other_states_and_the_job_stay(store: StateStore) -> None:
    graph = JobGraph((Node("u", uid="u", parallelism=3, max_parallelism=12), Node("o", uid="o")))
    with store.snapshot(graph=graph) as checkpoint:
        checkpoint.write_keyed("o", "other", ROWS, key="user_id")
        checkpoint.write_union("o", "offsets", [[{"n": 1}]])
    made = store.bootstrap("u", "totals", ROWS, key="user_id")
    manifest = store.checkpoint().manifest
    assert made.max_parallelism == 12
    assert manifest.graph == graph
    assert {(e.state.uid, e.state.name) for e in manifest.entries} == {
        ("o", "other"),
        ("o", "offsets"),
        ("u", "totals"),
    }
    with pytest.raises(ParallelismError, match="max parallelism 12 in the job graph"):
        store.bootstrap("u", "more", ROWS, key="user_id", max_parallelism=64, dry_run=True)


def test_a_stored_state_is_replaced_only_on_request(store: StateStore) -> None:
    store.bootstrap("u", "totals", ROWS, key="user_id")
    with pytest.raises(InvalidArgumentError, match=r"already has state 'totals'.*replace=True"):
        store.bootstrap("u", "totals", ROWS.slice(1), key="user_id")
    assert store.checkpoints() == (1,)
    made = store.bootstrap("u", "totals", ROWS.slice(1), key="user_id", replace=True)
    assert (made.rows, made.replaced_rows) == (2, 3)
    assert stored(store) == {"b": 2, "c": 3}
    other_key = ROWS.rename_columns(["customer", "total"])
    with pytest.raises(SchemaMismatchError, match="key"):
        store.bootstrap("u", "totals", other_key, key="customer", replace=True)


def test_a_state_that_another_writer_adds_meanwhile_is_not_replaced(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtake(monkeypatch, lambda: store.bootstrap("u", "totals", ROWS.slice(1), key="user_id"))
    with pytest.raises(InvalidArgumentError, match="already has state"):
        store.bootstrap("u", "totals", ROWS, key="user_id")
    assert stored(store) == {"b": 2, "c": 3}


def test_errors_have_examples_and_leave_nothing(store: StateStore) -> None:
    nulls = pa.table({"user_id": ["a", None, None], "total": [1, 2, 3]})
    with pytest.raises(NullKeyError, match=r"2 rows .*such as .*'total': 2.*'total': 3") as caught:
        store.bootstrap("u", "totals", nulls, key="user_id")
    assert caught.value.rows == 2
    twice = pa.concat_tables([ROWS, ROWS.slice(0, 2)])
    expected = "same identity {'user_id': '.'}, and so have others, such as {'user_id': '.'};"
    with pytest.raises(DuplicateKeyError, match=expected):
        store.bootstrap("u", "totals", twice, key="user_id", max_parallelism=1)
    assert store.checkpoints() == ()


def test_entries_of_maps_and_ttl(store: StateStore) -> None:
    rows = pa.table({"user_id": ["a", "a"], "shop": ["x", "y"], "total": [1, 2]})
    made = store.bootstrap(
        "u",
        "totals",
        rows,
        key="user_id",
        ttl=TimeToLive("7d", "used"),
        kind="map",
        entry="shop",
    )
    assert [column.role for column in made.columns] == ["key", "entry", "value", "time"]
    entry = store.checkpoint().manifest.keyed_entry("u", "totals")
    assert (entry.rows, entry.state.kind.value) == (2, "map")
    assert entry.state.ttl == TimeToLive("7d", "used")
