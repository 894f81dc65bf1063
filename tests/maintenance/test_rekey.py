"""Distribute an operator's keyed states over other key groups: verified equal rows, or no
change.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore, key_group_of
from statestore.errors import (
    DuplicateKeyError,
    InvalidArgumentError,
    NullKeyError,
    ParallelismError,
    StateNotFoundError,
    StateStoreError,
    UnsupportedTypeError,
)
from statestore.format.state import StateKind, TimeToLive
from statestore.jobgraph.graph import JobGraph
from statestore.parquet.writer import ParquetOptions
from statestore.snapshot.state_spec import Changes
from tests.support.damage import fill
from tests.support.vectors import cases

pytestmark = pytest.mark.slow

Row = dict[str, Any]


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """A store with a small memory budget, so that a rekey uses many ranges."""
    parquet = ParquetOptions(rekey_bytes=4096)
    url = str(tmp_path / "s")
    return StateStore.open(url, table_format="parquet", parquet=parquet, compaction=None)


def put(store: StateStore, rows: Any, name: str = "s", **options: Any) -> None:
    given: Row = {"key": "k", "max_parallelism": 8} | options
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", name, rows, **given)


def data(store: StateStore) -> set[str]:
    return {path.name for path in Path(store.url).rglob("*.parquet")}


def rows_of(store: StateStore, name: str = "s", parallelism: int = 3, **where: Any) -> list[Row]:
    """Return the rows of a state. Each is read by the subtask that owns its key group."""
    state = store.restore(parallelism=parallelism, **where).keyed("u", name)
    found = []
    for subtask in range(parallelism):
        for row in state.to_arrow(subtask).to_pylist():
            assert row["key_group"] in state.assignment.range_of(subtask)
            found.append(row)
    return found


def plain(rows: list[Row]) -> list[str]:
    bare = [{name: row[name] for name in sorted(row) if name != "key_group"} for row in rows]
    return sorted(map(repr, bare))


@pytest.mark.parametrize("layout", ["partitioned", "ranged"])
def test_any_max_parallelism_over_a_layered_state(store: StateStore, layout: str) -> None:
    wanted = {f"k{i}": i for i in range(200)}
    put(store, [{"k": k, "v": v} for k, v in wanted.items()], layout=layout)
    with store.snapshot(parallelism=2) as checkpoint:
        new = [{"k": "k1", "v": -1}, {"k": "new", "v": 7}]
        checkpoint.write_changes("u", "s", Changes(new, [{"k": "k2"}]), key="k")
    wanted |= {"k1": -1, "new": 7}
    del wanted["k2"]
    for most in (7, 100, 3):
        done = store.maintenance.rekey("u", max_parallelism=most)
        (state,) = done.states
        assert (state.rows, state.max_parallelism) == (len(wanted), most)
        found = rows_of(store)
        assert {row["k"]: row["v"] for row in found} == wanted
        assert len(found) == len(wanted)
        for row in found:
            assert row["key_group"] == key_group_of(row["k"], max_parallelism=most)
        entry = store.checkpoint().manifest.keyed[0]
        assert (entry.layers, entry.state.layout, entry.digest) == ((), layout, state.digest)
        assert store.maintenance.verify("latest", deep=True).is_intact
    assert {row["k"]: row["v"] for row in rows_of(store, checkpoint=2)} == wanted
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "s", [{"k": "k5", "v": -5}], key="k")
    assert {row["k"]: row["v"] for row in rows_of(store)} == wanted | {"k5": -5}


def test_every_kind_of_state_and_states_of_other_operators(tmp_path: Path) -> None:
    store = fill(tmp_path / "s")
    before = {entry.state.name: entry for entry in store.checkpoint().manifest.entries}
    old = {kind: rows_for(store, kind) for kind in StateKind}
    done = store.maintenance.rekey("job", max_parallelism=11)
    assert {state.state for state in done.states} == set(StateKind)
    for entry in store.checkpoint().manifest.keyed:
        was = before[entry.state.name]
        assert (entry.rows, entry.digest) == (was.rows, was.digest)
        assert entry.state.max_parallelism == 11
        for fact in ("kind", "key", "namespace", "entry", "time_domain", "key_types", "schema"):
            assert getattr(entry.state, fact) == getattr(was.state, fact)
        assert rows_for(store, entry.state.name) == old[StateKind(entry.state.name)]
    assert all(other == before[other.state.name] for other in store.checkpoint().manifest.operator)
    assert store.maintenance.verify("latest", deep=True).is_intact
    origin = store.checkpoint().manifest.origin or {}
    assert (origin["command"], origin["checkpoint"], origin["operator"]) == ("rekey", 1, "job")


def rows_for(store: StateStore, name: str) -> list[str]:
    state = store.restore(parallelism=1).keyed("job", name)
    return plain(state.to_arrow(0).to_pylist())


def test_a_key_from_other_existing_columns(store: StateStore) -> None:
    """The new key has a namespace or a struct, and is changed back.

    Former key columns become values, and the other way round.
    """
    rows = [{"k": f"k{i}", "n": i % 3, "p": {"x": i % 5, "y": f"y{i}"}, "v": i} for i in range(100)]
    put(store, rows, namespace="n")
    store.maintenance.rekey("u", "s", key=("v", "k"))
    state = store.restore(parallelism=1).keyed("u", "s")
    assert (state.entry.state.key, state.entry.state.values) == (("v", "k"), ("p",))
    assert state.get((7, "k7")) == [dict(sorted(rows[7].items(), key=lambda i: "vknp".index(i[0])))]
    store.maintenance.rekey("u", "s", key="p", max_parallelism=5)
    state = store.restore(parallelism=1).keyed("u", "s")
    assert (state.entry.state.key, state.entry.state.values) == (("p",), ("v", "k"))
    assert [row["v"] for row in state.get(rows[9]["p"])] == [9]
    store.maintenance.rekey("u", "s", key="k")
    assert plain(rows_of(store)) == plain(rows)
    assert store.maintenance.verify("latest", deep=True).is_intact


@pytest.mark.parametrize("kind", ["BIGINT", "STRING"])
def test_another_hash_scheme_gives_flinks_key_groups(store: StateStore, kind: str) -> None:
    known: dict[int, dict[Any, int]] = {}
    for case in cases("sqlkeys", "sqlkey"):
        fields = case["in"]["fields"]
        if "error" not in case and len(fields) == 1 and fields[0][0] == kind:
            value = fields[0][1]
            if value is not None:
                value = int(value) if kind == "BIGINT" else str(value)
                known.setdefault(case["in"]["max"], {})[value] = case["out"]["group"]
    most = max(known, key=lambda most: len(known[most]))
    keys = sorted({key for groups in known.values() for key in groups})
    kinds = {"BIGINT": pa.int64(), "STRING": pa.string()}
    put(store, pa.table({"k": pa.array(keys, kinds[kind]), "v": range(len(keys))}))
    digest = store.checkpoint().manifest.keyed[0].digest
    store.maintenance.rekey("u", hash_scheme="flink-sql", max_parallelism=most)
    state = store.checkpoint().manifest.keyed[0].state
    assert (state.hash_scheme, state.key_types) == ("flink-sql", (kind,))
    found = {row["k"]: row["key_group"] for row in rows_of(store, parallelism=1)}
    assert {key: found[key] for key in known[most]} == known[most]
    for key, group in found.items():
        assert group == key_group_of(key, max_parallelism=most, hash_scheme="flink-sql")
    assert store.maintenance.verify("latest", deep=True).is_intact
    for scheme in ("pyflink", "java"):
        store.maintenance.rekey("u", hash_scheme=scheme)
        for row in rows_of(store, parallelism=1):
            group = key_group_of(row["k"], max_parallelism=most, hash_scheme=scheme)
            assert row["key_group"] == group
    assert store.checkpoint().manifest.keyed[0].digest == digest


def test_the_hashed_type_is_kept(store: StateStore) -> None:
    """It can differ from the column's type, as for milliseconds, which are stored as
    microseconds.
    """
    keys = pa.array([1_000, 2_000, 3_500], pa.timestamp("ms"))
    put(store, pa.table({"k": keys, "o": [1, 2, 3]}), hash_scheme="flink-sql")
    assert store.checkpoint().manifest.keyed[0].state.key_types == ("TIMESTAMP(3)",)
    store.maintenance.rekey("u", max_parallelism=20)
    assert store.checkpoint().manifest.keyed[0].state.key_types == ("TIMESTAMP(3)",)
    store.maintenance.rekey("u", "s", key=("o", "k"))
    assert store.checkpoint().manifest.keyed[0].state.key_types == ("BIGINT", "TIMESTAMP(3)")


def test_rows_keep_their_ttl(store: StateStore) -> None:
    """Expired rows are kept, because the clock of a restore decides which rows have expired."""
    rows = [{"k": f"k{i}", "at": 10 * i} for i in range(20)]
    put(store, rows, ttl=TimeToLive("100ms", "at"))
    store.maintenance.rekey("u", max_parallelism=13)
    entry = store.checkpoint().manifest.keyed[0]
    assert (entry.rows, entry.state.ttl) == (20, TimeToLive("100ms", "at"))
    assert plain(rows_of(store, now_ms=150)) == plain(rows[6:])
    with pytest.raises(InvalidArgumentError, match="the TTL column 'at' is an identity column"):
        store.maintenance.rekey("u", "s", key="at")


def test_a_null_key_is_refused_outside_of_sql(store: StateStore) -> None:
    put(store, [{"k": i, "o": None if i == 3 else f"o{i}"} for i in range(9)])
    files = data(store)
    with pytest.raises(NullKeyError, match="1 row of state 's' of operator 'u' has a null key"):
        store.maintenance.rekey("u", "s", key="o")
    assert (store.checkpoints(), data(store)) == ((1,), files)
    store.maintenance.rekey("u", "s", key="o", hash_scheme="flink-sql")
    assert [row["k"] for row in rows_of(store) if row["o"] is None] == [3]


def test_a_failed_run_leaves_no_files(store: StateStore) -> None:
    rows = [{"k": f"k{i}", "o": f"o{i}", "v": i} for i in range(300)]
    rows[250]["o"] = "o7"
    put(store, rows)
    files = data(store)
    with pytest.raises(DuplicateKeyError, match=r"two rows of state 's' of operator 'u'.*'o7'"):
        store.maintenance.rekey("u", "s", key="o", max_parallelism=64)
    assert (store.checkpoints(), data(store)) == ((1,), files)
    assert store.maintenance.verify("all").strays == ()


@pytest.mark.parametrize(
    ("wanted", "kind", "message"),
    [
        ({}, InvalidArgumentError, "pass what to change"),
        ({"key": "v"}, InvalidArgumentError, "a new key applies to only one state: pass the name"),
        ({"state": "s", "key": "x"}, InvalidArgumentError, "state 's' of operator 'u' has no col"),
        ({"state": "s", "key": ()}, InvalidArgumentError, "name at least one key column"),
        ({"state": "s", "key": ("k", "k")}, InvalidArgumentError, "'k' has two roles"),
        ({"state": "m", "key": "n"}, InvalidArgumentError, "'n' has two roles"),
        ({"state": "s", "key": "l"}, UnsupportedTypeError, "'l' has type map"),
        ({"state": "s", "key": "b"}, UnsupportedTypeError, "binary"),
        (
            {"hash_scheme": "md5"},
            InvalidArgumentError,
            "hash scheme 'md5' does not exist: use one of java",
        ),
        ({"max_parallelism": 0}, InvalidArgumentError, "max parallelism 0"),
        ({"max_parallelism": 32769}, InvalidArgumentError, "32769"),
        ({"max_parallelism": 1}, ParallelismError, "parallelism 2 is above"),
        ({"state": "s", "max_parallelism": 9}, InvalidArgumentError, "state 'm'.*omit the name"),
        ({"state": "x", "max_parallelism": 9}, StateNotFoundError, "no state 'x'"),
        (
            {"operator": "x", "max_parallelism": 9},
            StateNotFoundError,
            "operator 'x' has no keyed state",
        ),
    ],
)
def test_invalid_arguments_are_refused(
    store: StateStore, wanted: Row, kind: type[StateStoreError], message: str
) -> None:
    maps = pa.array([{"a": 1}, {}], pa.map_(pa.string(), pa.int64()))
    rows = pa.table({"k": ["a", "b"], "n": [1, 2], "v": [1, 2], "l": maps, "b": [b"a", b"b"]})
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=8)
        checkpoint.write_keyed("u", "m", rows, kind="map", key="k", entry="n", max_parallelism=8)
    files = data(store)
    for dry_run in (True, False):
        with pytest.raises(kind, match=message):
            store.maintenance.rekey(
                wanted.get("operator", "u"),
                dry_run=dry_run,
                **{k: v for k, v in wanted.items() if k != "operator"},
            )
    assert (store.checkpoints(), data(store)) == ((1,), files)


def test_a_dry_run_reports_the_result(store: StateStore) -> None:
    put(store, [{"k": i, "v": i} for i in range(50)])
    files = data(store)
    planned = store.maintenance.rekey("u", "s", key=("v", "k"), max_parallelism=9, dry_run=True)
    assert (store.checkpoints(), data(store)) == ((1,), files)
    done = store.maintenance.rekey("u", "s", key=("v", "k"), max_parallelism=9)
    (before,), (after,) = planned.states, done.states
    assert (planned.new_checkpoint_id, done.new_checkpoint_id) == (None, 2)
    assert (before.key_before, before.key) == (after.key_before, after.key) == (("k",), ("v", "k"))
    assert (before.files, before.digest) == (None, None)
    assert planned.read_bytes == done.read_bytes == store.checkpoint(1).manifest.size_bytes


def test_a_state_without_rows(store: StateStore) -> None:
    put(store, pa.table({"k": pa.array([], pa.string()), "v": pa.array([], pa.int64())}))
    (state,) = store.maintenance.rekey("u", max_parallelism=5).states
    assert (state.rows, state.files, state.max_parallelism) == (0, 0, 5)
    assert rows_of(store) == []


def test_progress_counts_rows_read_and_written(store: StateStore) -> None:
    put(store, [{"k": i} for i in range(50)])
    heard: list[tuple[int, int]] = []
    store.maintenance.rekey("u", max_parallelism=5, on_progress=lambda *at: heard.append(at))
    assert heard == sorted(heard)
    assert heard[-1] == (100, 100)


GRAPH = """
[job]
parallelism = 2

[[operator]]
name = "source"
uid = "source"

[[operator]]
name = "count"
uid = "u"
max_parallelism = 8
inputs = [{ from = "source", partitioner = "hash" }]

[[operator]]
name = "more"
uid = "more"
max_parallelism = 8
inputs = ["count"]
"""


def test_the_job_graph_gets_the_max_parallelism_of_the_chain(store: StateStore) -> None:
    graph = JobGraph.from_toml(GRAPH)
    with store.snapshot(parallelism=2, graph=graph) as checkpoint:
        checkpoint.write_keyed("u", "s", [{"k": "a"}], key="k")
    store.maintenance.rekey("u", max_parallelism=12)
    new = store.checkpoint().manifest.graph
    assert new is not None
    assert [node.max_parallelism for node in new.nodes] == [None, 12, 12]
    assert store.checkpoint().manifest.operators.max_parallelism_of("u") == 12
    with store.snapshot(parallelism=2, graph=new) as checkpoint:
        checkpoint.write_changes("u", "s", [{"k": "b"}], key="k")
    assert {row["k"] for row in rows_of(store)} == {"a", "b"}
    with store.snapshot(parallelism=2, graph=new) as checkpoint:
        checkpoint.write_keyed("u", "s", [{"k": "a"}], key="k")
        checkpoint.write_keyed("more", "s", [{"k": "a"}], key="k")
    with pytest.raises(InvalidArgumentError, match="'u' and 'more' are in one chain"):
        store.maintenance.rekey("u", max_parallelism=16)


def test_random_rekeys_lose_nothing(store: StateStore) -> None:
    dice = random.Random(5)
    rows = [
        {"k": f"k{i}", "o": i, "t": i / 7, "d": None if i % 9 == 0 else f"d{i}"} for i in range(80)
    ]
    put(store, rows)
    for _ in range(6):
        scheme = dice.choice(["java", "flink-sql", "pyflink"])
        key = dice.sample(["k", "o", "t"], dice.randint(1, 3))
        most = dice.choice([2, 5, 64, 300])
        store.maintenance.rekey("u", "s", key=key, hash_scheme=scheme, max_parallelism=most)
        assert plain(rows_of(store, parallelism=2)) == plain(rows)
        row = dice.choice(rows)
        given = tuple(row[name] for name in key)
        (found,) = store.restore().keyed("u", "s").get(given if len(given) > 1 else given[0])
        assert found == row
    assert store.maintenance.verify("all", deep=True).is_intact
    json.dumps(store.checkpoint().manifest.origin)
