"""A null struct and a struct of nulls are different values for every command and reader."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import StateStore
from statestore.errors import DuplicateKeyError
from statestore.format.layers import CompactionRule
from statestore.snapshot.state_spec import Changes
from statestore.testing.reference import canonical
from tests.support.examples import examples

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

GROUPS = 4
INNER = pa.struct([("x", pa.int64()), ("y", pa.float64())])
OUTER = pa.struct([("s", INNER), ("t", pa.string())])
SCHEMA = pa.schema([("k", pa.int64()), ("n", OUTER), ("e", INNER), ("v", pa.int64())])
FOLD_ALL = CompactionRule(share=0, most_share=0)
Identity = tuple[int, Any, Any]
Rows = dict[Any, tuple[Identity, int]]

_inner = st.none() | st.fixed_dictionaries(
    {"x": st.none() | st.integers(0, 1), "y": st.sampled_from([None, 0.0, -0.0])}
)
_outer = st.none() | st.fixed_dictionaries({"s": _inner, "t": st.sampled_from([None, "a"])})
_identities = st.tuples(st.integers(0, 3), _outer, _inner)
_rows = st.lists(st.tuples(_identities, st.integers(0, 9)), max_size=25).map(
    lambda pairs: {canonical(identity): (identity, value) for identity, value in pairs}
)


def _table(rows: Mapping[Any, tuple[Identity, int]]) -> pa.Table:
    columns = zip(*((*identity, value) for identity, value in rows.values()), strict=True)
    given = list(columns) or [()] * len(SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(given, SCHEMA, strict=True)], SCHEMA.names)


def _taken(rows: list[dict[str, Any]]) -> set[Any]:
    return {canonical([row["k"], row["n"], row["e"], row["v"]]) for row in rows}


def _wanted(rows: Rows) -> set[Any]:
    return {canonical([*identity, value]) for identity, value in rows.values()}


def _check(store: StateStore, rows: Rows) -> None:
    """Check that every reader returns these rows."""
    state = store.restore(parallelism=2).keyed("u", "s")
    found = [row for i in range(2) for row in state.to_arrow(i).to_pylist()]
    assert (len(found), _taken(found)) == (len(rows), _wanted(rows))
    looked_up = [row for key in range(4) for row in state.get(key)]
    assert (len(looked_up), _taken(looked_up)) == (len(rows), _wanted(rows))
    asked = store.query("SELECT * FROM s").read_all().to_pylist()
    assert (len(asked), _taken(asked)) == (len(rows), _wanted(rows))
    many = state.lookup(pa.table({"k": pa.array(range(4), pa.int64())}))
    assert _taken(many.to_pylist()) == _wanted(rows)
    assert store.maintenance.verify(deep=True).is_intact


def _options() -> dict[str, Any]:
    return {"key": "k", "namespace": "n", "entry": "e", "max_parallelism": GROUPS}


@pytest.mark.long
@pytest.mark.slow
@examples(15)
@given(_rows, st.lists(st.tuples(_rows, st.lists(_identities, max_size=5)), max_size=3), st.data())
def test_histories_distinguish_them(
    first: Rows, steps: list[tuple[Rows, list[Identity]]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = StateStore.open(folder, table_format="parquet", compaction=None)
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("u", "s", _table(first), kind="map", **_options())
        rows = dict(first)
        for upserts, deleted in steps:
            before = dict(rows)
            kept = {canonical(one): (one, 0) for one in deleted if canonical(one) not in upserts}
            with store.snapshot(parallelism=2) as checkpoint:
                if data.draw(st.booleans(), label="against"):
                    rows = dict(upserts)
                    checkpoint.write_changes_against("u", "s", _table(upserts))
                else:
                    rows = {at: row for at, row in rows.items() if at not in kept} | upserts
                    checkpoint.write_changes("u", "s", Changes(_table(upserts), _table(kept)))
            last = checkpoint.id
            joined = store.inspect.as_of(last - 1, last, "u", "s").read_all()["change"].to_pylist()
            assert joined.count("added") == len(rows.keys() - before.keys())
            assert joined.count("removed") == len(before.keys() - rows.keys())
            (difference,) = store.inspect.diff(last - 1, last).states
            assert difference.added == len(rows.keys() - before.keys())
            assert difference.changed == joined.count("changed")
        _check(store, rows)
        store.maintenance.compact(everything=True, rule=FOLD_ALL)
        _check(store, rows)
        if rows:
            edited = data.draw(st.sampled_from(sorted(rows, key=repr)), label="edited")
            identity = rows[edited][0]
            rows[edited] = (identity, 77)
            put = dict(zip(SCHEMA.names, (*identity, 77), strict=True))
            store.maintenance.edit("u", "s", put=[put])
            _check(store, rows)
            store.maintenance.edit("u", "s", sql="SELECT * FROM state")
            _check(store, rows)


def test_one_of_them_twice_is_a_duplicate(store: StateStore) -> None:
    for twice in (None, {"x": None, "y": None}):
        rows = _table({number: ((1, None, twice), number) for number in range(2)})
        with pytest.raises(DuplicateKeyError), store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "s", rows, kind="map", **_options())


def test_spark_distinguishes_them(spark: SparkSession, tmp_path: Path) -> None:
    kinds: list[Any] = [None, {"x": None, "y": None}, {"x": 1, "y": None}]
    outers = [None, *({"s": inner, "t": None} for inner in kinds)]
    first = {
        canonical((key, n, e)): ((key, n, e), 1) for key in range(4) for n in outers for e in kinds
    }
    changed = {at: (identity, 2) for at, (identity, _) in list(first.items())[::2]}
    store = StateStore.open(str(tmp_path), spark=spark, table_format="parquet", compaction=None)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed(
            "u", "s", spark.createDataFrame(_table(first)), kind="map", **_options()
        )
    _check(store, first)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "s", spark.createDataFrame(_table(changed)))
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes_against("u", "s", spark.createDataFrame(_table(first | changed)))
    frame = store.restore(parallelism=2).keyed("u", "s").to_spark()
    assert _taken([row.asDict(recursive=True) for row in frame.collect()]) == _wanted(
        first | changed
    )
    _check(store, first | changed)
