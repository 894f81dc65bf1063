"""Incremental checkpoints: the written files, the restored rows, and the refused changes."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import (
    CheckpointNotFoundError,
    DuplicateKeyError,
    InvalidArgumentError,
    MalformedManifestError,
    NullKeyError,
    ParallelismError,
    SchemaMismatchError,
    StateNotFoundError,
    StorageError,
)
from statestore.format.layers import CompactionRule
from statestore.format.names import manifest_path
from statestore.jobgraph import JobGraph
from statestore.layers.compaction import Compactor
from statestore.parquet.writer import ParquetOptions
from statestore.rows.digests import rows_digest
from statestore.snapshot.state_spec import Changes
from statestore.storage import LocalStorage
from tests.support.options import changes_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statestore.format.manifest import KeyedEntry

ROWS = {f"u{i}": i for i in range(40)}
FOLD_ALL = CompactionRule(share=0, most_share=0)


def table(rows: Mapping[str, int | None]) -> pa.Table:
    values = pa.array([*rows.values()], pa.int64())
    return pa.table({"k": pa.array([*rows], pa.string()), "v": values})


def keys(*names: str) -> list[dict[str, str]]:
    return [{"k": name} for name in names]


def opened(tmp_path: Path, rule: CompactionRule | None = None) -> StateStore:
    return StateStore.open(str(tmp_path / "store"), table_format="parquet", compaction=rule)


def full(store: StateStore, rows: dict[str, Any] = ROWS, **options: Any) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", table(rows), key="k", max_parallelism=16, **options)


def change(
    store: StateStore, upserts: Any = None, deletes: Any = None, **options: Any
) -> KeyedEntry:
    options |= {"upserts": upserts, "deletes": deletes}
    changes = changes_in(options)
    with store.snapshot(parallelism=2) as checkpoint:
        arguments = {"key": "k", **options}
        entry: KeyedEntry = checkpoint.write_changes("u", "s", changes, **arguments)
        checkpoint.carry_rest()
    return entry


def content(store: StateStore, checkpoint: int | str = "latest") -> dict[str, Any]:
    """Return the state, and check that its digest matches its rows."""
    keyed = store.restore(checkpoint=checkpoint, parallelism=3).keyed("u", "s")
    rows = pa.concat_tables([keyed.to_arrow(i) for i in range(3)])
    assert keyed.digest == rows_digest(rows.drop_columns(["key_group"]))
    found = {row["k"]: row["v"] for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


def files(tmp_path: Path) -> set[str]:
    return {str(path) for path in (tmp_path / "store" / "operators").rglob("*.parquet")}


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    store = opened(tmp_path)
    full(store)
    return store


# --- Results --------------------------------------------------------------------------------------


def test_only_changes_are_written(store: StateStore, tmp_path: Path) -> None:
    before = files(tmp_path)
    entry = change(store, table({"u1": 100, "new": 7}), keys("u2", "nobody"))
    (layer,) = entry.layers
    assert entry.handles == store.checkpoint(1).manifest.keyed[0].handles
    assert len(files(tmp_path) - before) == len(layer.entry.handles) == 1
    assert layer.entry.rows == 4
    wanted = {k: v for k, v in ROWS.items() if k != "u2"} | {"u1": 100, "new": 7}
    assert content(store) == wanted
    assert content(store, 1) == ROWS


def test_without_a_base_upserts_are_written_in_full_with_a_log_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    with caplog.at_level(logging.WARNING):
        entry = change(store, table(ROWS), keys("u2"))
    assert "state 's' of operator 'u'" in caplog.text
    assert "in full" in caplog.text
    assert entry.layers == ()
    assert content(store) == ROWS


def test_upserts_in_full_take_the_stored_types(tmp_path: Path) -> None:
    """As with ``write_keyed``: an older checkpoint has the state, the newest one lacks it."""
    store, key = opened(tmp_path), uuid.uuid4()
    rows = pa.table({"k": pa.array([key.bytes], pa.binary()), "v": pa.array([1], pa.int32())})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", key_types="UUID")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.drop("u", "s")
    with store.snapshot(parallelism=1) as checkpoint:
        entry = checkpoint.write_changes("u", "s", [{"k": key, "v": 2}], key="k")
    assert entry.layers == ()
    again = store.restore().keyed("u", "s").to_arrow().select(["k", "v"])
    assert again.schema.types == [pa.binary(), pa.int32()]
    assert again.to_pylist() == [{"k": key.bytes, "v": 2}]


def test_without_a_base_deletes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="nothing to delete"):
        change(opened(tmp_path), None, keys("u2"))
    assert files(tmp_path) == set()


def test_a_snapshot_without_changes_adds_no_layer(store: StateStore, tmp_path: Path) -> None:
    before = files(tmp_path)
    entry = change(store, table({}))
    assert (entry.layers, files(tmp_path)) == ((), before)
    assert content(store) == ROWS


def test_dictionaries_have_the_types_of_the_base(tmp_path: Path) -> None:
    """A column of nulls, or without rows, has no type of its own."""
    store = opened(tmp_path)
    rows = [{"k": "a", "m": m, "v": 1} for m in ("x", None)]
    told: dict[str, Any] = {"key": "k", "entry": "m"}
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, kind="map", max_parallelism=4, **told)
    nulls = {"m": None, "v": None}
    for upserts, deletes in (([], [{"k": "a", "m": None}]), ([{"k": "b", **nulls}], [])):
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_changes("u", "s", Changes(upserts, deletes))
    found = store.restore(parallelism=1).keyed("u", "s")
    assert [row["m"] for row in found.get("a")] == ["x"]
    assert [(row["m"], row["v"]) for row in found.get("b")] == [(None, None)]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes_against("u", "s", [])
    assert store.restore(parallelism=1).keyed("u", "s").digest == 0


def test_a_cleared_key_can_get_new_entries(tmp_path: Path) -> None:
    """Its other entries are deleted; an earlier delete of the same key has no effect."""
    store = opened(tmp_path)
    rows = [{"k": k, "m": m, "v": 0} for k in ("a", "b") for m in (1, 2)]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, kind="map", key="k", entry="m", max_parallelism=4)
    for _ in range(2):
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_changes(
                "u",
                "s",
                Changes([{"k": "a", "m": 3, "v": 9}], cleared=keys("a")),
                key="k",
                kind="map",
                entry="m",
            )
    found = store.restore(parallelism=1).keyed("u", "s")
    assert [row["m"] for row in found.get("a")] == [3]
    assert [row["m"] for row in found.get("b")] == [1, 2]


@pytest.mark.parametrize(
    ("deletes", "left"),
    [
        ([{"k": "a"}], {("b", "x", 1)}),
        ([{"k": "a", "n": "x"}], {("a", "y", 1), ("b", "x", 1)}),
        ([{"k": "a", "n": "x", "e": 1}], {("a", "x", 2), ("a", "y", 1), ("b", "x", 1)}),
        ([{"k": "a", "n": "x", "e": 1, "v": 5}], {("a", "x", 2), ("a", "y", 1), ("b", "x", 1)}),
    ],
)
@pytest.mark.parametrize("kind", ["list", "map", "timers"])
def test_deletes_by_key_by_namespace_and_by_entry(
    tmp_path: Path, kind: str, deletes: list[dict[str, Any]], left: set[Any]
) -> None:
    store = opened(tmp_path)
    rows = [
        {"k": k, "n": n, "e": e, "v": 1}
        for k, n, e in [("a", "x", 1), ("a", "x", 2), ("a", "y", 1), ("b", "x", 1)]
    ]
    domain = {"time_domain": "event"} if kind == "timers" else {}
    state: dict[str, Any] = {"key": "k", "namespace": "n", "kind": kind, "entry": "e", **domain}
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, max_parallelism=4, **state)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes("u", "s", Changes(deletes=deletes), **state)
    found = store.restore(parallelism=1).keyed("u", "s").to_arrow(0).to_pylist()
    assert {(row["k"], row["n"], row["e"]) for row in found} == left


def test_changes_after_a_restore_of_an_older_checkpoint(store: StateStore) -> None:
    """They build on the restored checkpoint, and not on later ones."""
    change(store, table({"u1": 100}))
    change(store, table({"u2": 200}), base=1)
    assert content(store) == ROWS | {"u2": 200}
    store.maintenance.savepoint("before", 2)
    change(store, table({"u3": 300}), base="before")
    assert content(store) == ROWS | {"u1": 100, "u3": 300}


def test_a_retry_of_a_committed_id_writes_nothing(store: StateStore, tmp_path: Path) -> None:
    with store.snapshot(parallelism=2, checkpoint_id=2) as checkpoint:
        checkpoint.write_changes("u", "s", table({"u1": 100}), key="k")
    before = files(tmp_path)
    for compared in (False, True):
        with store.snapshot(parallelism=2, checkpoint_id=2) as checkpoint:
            assert checkpoint.already_committed
            if compared:
                entry = checkpoint.write_changes_against("u", "s", table({"u1": 5}), key="k")
            else:
                entry = checkpoint.write_changes(
                    "u", "s", Changes(table({"u1": 5}), keys("u9")), key="k"
                )
        assert entry == store.checkpoint(2).manifest.keyed[0]
    assert files(tmp_path) == before
    assert content(store) == ROWS | {"u1": 100}


# --- Errors ---------------------------------------------------------------------------------------

REFUSED: list[tuple[Any, tuple[type[Exception], ...], str]] = [
    ({"upserts": [{"k": "a", "v": 1}] * 2}, (DuplicateKeyError,), "'a'"),
    ({"upserts": table({"a": 1}), "deletes": keys("a")}, (DuplicateKeyError,), "cleared"),
    ({"upserts": [{"k": None, "v": 1}, {"k": "a", "v": 1}]}, (NullKeyError,), "1 row"),
    ({"deletes": [{"k": None}, {"k": "a"}]}, (NullKeyError,), "null key"),
    ({"deletes": [{"other": "a"}]}, (InvalidArgumentError,), "other"),
    ({"deletes": [{"k": "u1", "pgae": "x"}]}, (InvalidArgumentError,), "row 0 of the deletes"),
    ({"deletes": pa.table({"k": ["u1"], "pgae": ["x"]})}, (InvalidArgumentError,), "'pgae'"),
    ({"cleared": [{"k": "u1", "pgae": "x"}]}, (InvalidArgumentError,), "'pgae'"),
    ({"deletes": [{"k": {"a": 1}}]}, (InvalidArgumentError,), "'k'"),
    ({"deletes": ["u1"]}, (InvalidArgumentError,), "row 0 of the deletes of state 's'"),
    ({"deletes": [{"k": "u1"}, "u2"]}, (InvalidArgumentError,), "row 1 of the deletes of state"),
    ({"cleared": iter([{"k": "u1"}, ("u2",)])}, (InvalidArgumentError,), "row 1 of the cleared k"),
    ({"cleared": [{"k": 1}]}, (InvalidArgumentError,), "row 0 of the cleared keys of state 's'"),
    ({"upserts": [{"k": "u1", "v": 1}, 3]}, (InvalidArgumentError,), "row 1 of state 's'"),
    ({"upserts": [table({"a": 1}).to_batches()[0], 3]}, (InvalidArgumentError,), "a record batch"),
    ({}, (InvalidArgumentError,), "no changes"),
    ({"upserts": [{"k": "a", "v": 1, "w": 2}]}, (SchemaMismatchError,), "full snapshot"),
    ({"upserts": [{"k": "a", "v": 1.5}]}, (SchemaMismatchError,), "double"),
    ({"upserts": pa.table({"k": ["a"], "v": [1.5]})}, (SchemaMismatchError,), "double"),
    ({"upserts": table({"a": 1}), "base": 7}, (CheckpointNotFoundError,), "7"),
]


@pytest.mark.parametrize(("given", "errors", "text"), REFUSED)
def test_invalid_changes_leave_no_files(
    store: StateStore, tmp_path: Path, given: Any, errors: Any, text: str
) -> None:
    before = files(tmp_path)
    with pytest.raises(errors) as caught:
        change(store, **given)
    assert text in str(caught.value)
    assert (files(tmp_path), store.checkpoints()) == (before, (1,))


def test_a_null_key_to_delete_is_shown_without_internal_columns(store: StateStore) -> None:
    with pytest.raises(NullKeyError) as caught:
        change(store, deletes=[{"k": None}])
    assert "{'k': None, 'v': None}" in str(caught.value)


@pytest.mark.parametrize("value", ["x", 1.5, 2**63])
def test_a_wrong_value_gets_no_advice_about_columns(store: StateStore, value: Any) -> None:
    with pytest.raises(SchemaMismatchError, match=r"row 0 of .* in the column 'v'") as caught:
        change(store, upserts=[{"k": "a", "v": value}])
    assert "full snapshot" not in str(caught.value)


@pytest.mark.parametrize("options", [{"max_parallelism": 32}, {"hash_scheme": "flink-sql"}])
def test_changes_with_other_key_groups_than_the_base_are_refused(
    store: StateStore, options: dict[str, Any]
) -> None:
    with (
        pytest.raises((SchemaMismatchError, ParallelismError)),
        store.snapshot(parallelism=2) as checkpoint,
    ):
        checkpoint.write_changes("u", "s", table({"a": 1}), key="k", **options)
    assert store.checkpoints() == (1,)


def test_changes_of_an_expired_base_are_refused(store: StateStore) -> None:
    change(store, table({"u1": 1}))
    store.maintenance.expire(retain=1)
    with pytest.raises(CheckpointNotFoundError) as caught:
        change(store, table({"u1": 2}), base=1)
    assert "pass its number as base" in "".join(caught.value.__notes__)


def test_changes_of_a_state_that_the_base_lacks_are_refused(store: StateStore) -> None:
    with pytest.raises(StateNotFoundError), store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "other", table({"a": 1}), base=1, key="k")


@pytest.mark.filterwarnings("ignore")
def test_changes_of_a_damaged_checkpoint_are_refused(store: StateStore, tmp_path: Path) -> None:
    """Building on an earlier checkpoint would lose the changes after it."""
    change(store, table({"u1": 1}))
    (tmp_path / "store" / manifest_path(2)).write_bytes(b"{}")
    with pytest.raises(MalformedManifestError):
        change(store, table({"u2": 1}))


def test_a_state_can_be_changed_only_once_per_checkpoint(store: StateStore) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "s", table({"a": 1}), key="k")
        with pytest.raises(InvalidArgumentError, match="already in this checkpoint"):
            checkpoint.write_changes_against("u", "s", table({"a": 1}), key="k")
    assert store.checkpoints() == (1, 2)


# --- Properties of a state ------------------------------------------------------------------------


def test_properties_of_a_state_need_not_be_repeated(tmp_path: Path) -> None:
    """The stored key, kind and entry columns are used."""
    store = opened(tmp_path)
    rows = pa.table({"k": ["a", "a", "b"], "m": [1, 2, 1], "v": [1, 2, 3]})
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, kind="map", key="k", entry="m", max_parallelism=4)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "s", Changes(rows.slice(2), [{"k": "a", "m": 1}]))
    with store.snapshot(parallelism=2) as checkpoint:
        entry = checkpoint.write_changes_against("u", "s", rows.slice(1))
    assert [layer.checkpoint_id for layer in entry.layers] == [2]  # no other property has changed
    assert [row["m"] for row in store.restore().keyed("u", "s").get("a")] == [2]
    for write in ("write_changes", "write_changes_against"):
        with (
            pytest.raises(
                InvalidArgumentError,
                match="the store has no state 'new' of operator 'u': pass key=",
            ),
            store.snapshot(parallelism=2) as checkpoint,
        ):
            getattr(checkpoint, write)("u", "new", rows)


def test_rows_and_schemas_are_separate_arguments(store: StateStore) -> None:
    """Rows and schemas are not interchangeable, and one of them is required."""
    rows = table({"a": 1})
    for given in (None, rows.schema):
        with (
            pytest.raises(InvalidArgumentError, match=r"has no rows.*changes.*declare"),
            store.snapshot(parallelism=2) as checkpoint,
        ):
            checkpoint.write_keyed("u", "s", given, key="k")
    with (
        pytest.raises(InvalidArgumentError, match=r"declared with a pyarrow.Schema, not Table"),
        store.snapshot(parallelism=2) as checkpoint,
    ):
        checkpoint.declare_keyed("u", "s", rows, key="k")
    assert store.checkpoints() == (1,)


# --- compaction -----------------------------------------------------------------------------------


def test_overdue_changes_are_folded_in_the_same_checkpoint(tmp_path: Path) -> None:
    store = opened(tmp_path, FOLD_ALL)
    full(store)
    change(store, table({"u1": 100}))
    assert store.checkpoint().manifest.keyed[0].layers == ()
    assert content(store) == ROWS | {"u1": 100}
    assert content(store, 1) == ROWS


def test_a_layer_is_read_once_for_all_folded_key_groups(tmp_path: Path) -> None:
    """Its SHA-256 is also checked once, and not for each key group."""

    class Counting(LocalStorage):
        read_names: ClassVar[Counter[str]] = Counter()

        def read(self, name: str) -> bytes:
            self.read_names[name] += 1
            return super().read(name)

    path = str(tmp_path / "store")
    store = StateStore.open(path, table_format="parquet", layout="partitioned", compaction=None)
    full(store)
    layer = change(store, table(dict.fromkeys(ROWS, 100))).layers[0].entry
    counting = StateStore.open(Counting(path), compaction=CompactionRule(share=0, most_share=9))
    change(counting, table({"u1": 101}))
    read = Counter(Counting.read_names)
    change(counting, table({"u1": 101}))
    assert len(counting.checkpoint().manifest.keyed[0].layers) == 1
    assert len(counting.checkpoint().manifest.keyed[0].handles) > 3
    assert [read[f"{layer.table.path}/{handle.path}"] for handle in layer.handles] == [1]
    assert content(store) == dict.fromkeys(ROWS, 100) | {"u1": 101}


def test_a_failed_fold_of_overdue_changes_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, FOLD_ALL)
    full(store)
    before = files(tmp_path)
    fold = Compactor.fold

    def failing(self: Compactor, *given: Any) -> Any:
        fold(self, *given)
        raise StorageError("the disk is full")

    monkeypatch.setattr(Compactor, "fold", failing)
    with pytest.raises(StorageError, match="full"):
        change(store, table({"u1": 100}))
    assert (files(tmp_path), store.checkpoints()) == (before, (1,))
    assert content(store) == ROWS


# --- Spark ----------------------------------------------------------------------------------------


def test_changes_from_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The driver collects few rows, tasks write many, and both can be mixed with Arrow tables."""
    store = StateStore.open(str(tmp_path / "store"), spark=spark, compaction=None)
    full(store)
    frame = spark.createDataFrame([("u1", 100), ("new", 5)], "k string, v long")
    gone = spark.createDataFrame([("u2",), ("u3",)], "k string")
    change(store, frame, gone)
    wanted = {k: v for k, v in ROWS.items() if k not in ("u2", "u3")} | {"u1": 100, "new": 5}
    assert content(store) == wanted
    store = StateStore(replace(store.parts, parquet=ParquetOptions(driver_bytes=1)))
    change(store, table({"u4": 7}), gone, cleared=keys("u5"), base=1)
    assert content(store) == {k: v for k, v in ROWS.items() if k not in ("u2", "u3", "u5")} | {
        "u4": 7
    }
    assert (
        store.checkpoint().manifest.keyed[0].table.version
        == store.checkpoint(1).manifest.keyed[0].table.version
    )
    rows: dict[str, Any]
    for rows in ({}, {"u7": 7, "u8": 8}):
        all_rows = spark.createDataFrame([*rows.items()], "k string, v long")
        layers = len(store.checkpoint().manifest.keyed[0].layers)
        with store.snapshot(parallelism=3) as checkpoint:
            entry = checkpoint.write_changes_against("u", "s", all_rows, key="k")
        assert content(store) == rows
        assert len(entry.layers) == layers + 1
    layers, before = len(entry.layers), files(tmp_path)
    with store.snapshot(parallelism=3) as checkpoint:
        entry = checkpoint.write_changes_against("u", "s", all_rows, key="k")
    assert (len(entry.layers), files(tmp_path)) == (layers, before)
    twice = spark.createDataFrame([("x", 1), ("x", 2)], "k string, v long")
    with pytest.raises(DuplicateKeyError), store.snapshot(parallelism=3) as checkpoint:
        checkpoint.write_changes_against("u", "s", twice, key="k")
    assert files(tmp_path) == before
    store.maintenance.compact(everything=True)
    entry = store.checkpoint().manifest.keyed[0]
    assert (entry.layers, content(store)) == ((), rows)
    delta = spark.read.format("delta").load(str(tmp_path / "store" / entry.table.path))
    assert {row.k: row.v for row in delta.collect()} == rows


def without_uids(*names: str) -> JobGraph:
    """A job of a source and operators, whose ids follow from their positions in the graph."""
    operators = "".join(
        f'{{name="{name}", inputs=[{{from="source", partitioner="hash"}}]}},' for name in names
    )
    return JobGraph.from_toml(
        f'job.parallelism=2\noperator=[{{name="source", uid="source"}},{operators}]'
    )


@pytest.mark.parametrize("base", ["latest", 1])
def test_changes_build_on_the_state_of_a_renamed_operator(tmp_path: Path, base: int | str) -> None:
    store = opened(tmp_path)
    with store.snapshot(graph=without_uids("old")) as checkpoint:
        checkpoint.write_keyed("old", "s", table({"a": 1, "b": 2}), key="k", max_parallelism=16)
    with store.snapshot(graph=without_uids("new")) as checkpoint:
        checkpoint.write_changes("new", "s", table({"b": 3}), base=base)
    (entry,) = store.checkpoint().manifest.keyed
    assert (entry.state.uid, len(entry.layers)) == ("new", 1)
    rows = store.restore(parallelism=1).keyed("new", "s").to_arrow(0)
    assert {row["k"]: row["v"] for row in rows.to_pylist()} == {"a": 1, "b": 3}


@pytest.mark.parametrize("compares", [True, False])
def test_changes_never_build_on_the_state_of_another_operator(
    tmp_path: Path, compares: bool
) -> None:
    """Operator x was renamed y, and a new x was added: the stored x is not its state."""
    store = opened(tmp_path)
    with store.snapshot(graph=without_uids("x")) as checkpoint:
        checkpoint.write_keyed("x", "s", table({"a": 1, "b": 2}), key="k", max_parallelism=16)
    other = r"belongs to another operator.*Write the state in full"
    with store.snapshot(graph=without_uids("y", "x")) as checkpoint:
        write = checkpoint.write_changes_against if compares else checkpoint.write_changes
        with pytest.raises(StateNotFoundError, match=other):
            write("x", "s", table({"c": 3}), base=1, key="k")
        checkpoint.carry("y", "s")
    assert [entry.state.uid for entry in store.checkpoint().manifest.keyed] == ["y"]
