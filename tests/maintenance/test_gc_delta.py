"""Garbage collection and Delta tables: the newest version of a table stays readable."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from statestore import CompactionRule, OperatorKey, StateStore
from statestore.maintenance.gc_mark import files_of
from statestore.snapshot.state_spec import Changes

RULE = CompactionRule(merge_layers=2, share=0.1, most_share=9)
EAGER = CompactionRule(merge_layers=2, share=0.1, most_share=0.2)
Rows = dict[str, int]


def table(rows: Rows) -> pa.Table:
    return pa.table({"k": list(rows), "v": pa.array(rows.values(), pa.int64())})


def opened(path: Path, rule: CompactionRule = RULE) -> StateStore:
    return StateStore.open(str(path / "store"), compaction=rule)


def full(store: StateStore, rows: Rows, layout: str = "ranged") -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", table(rows), key="k", max_parallelism=8, layout=layout)


def change(store: StateStore, rows: Rows, deletes: list[str] | None = None) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        gone = None if deletes is None else pa.table({"k": pa.array(deletes, pa.string())})
        checkpoint.write_changes("u", "s", Changes(table(rows), gone))
    store.parts.background.wait()


def expire_and_collect(store: StateStore) -> None:
    store.maintenance.expire(retain=1)
    store.maintenance.gc(minimum_age="0")


def shown(path: Path) -> tuple[int, Rows]:
    """Return the checkpoint that the Delta table names, and the table's rows."""
    delta = DeltaTable(path / "store/operators/u/keyed/s")
    match = re.fullmatch(r"state 's' of operator 'u', checkpoint (\d+)", delta.metadata().name)
    assert match is not None
    rows = delta.to_pyarrow_table(columns=["k", "v"]).to_pylist()
    return int(match[1]), {row["k"]: row["v"] for row in rows}


@pytest.mark.parametrize("layout", ["ranged", "partitioned"])
def test_the_newest_version_outlives_its_checkpoint(tmp_path: Path, layout: str) -> None:
    store, rows = opened(tmp_path), {f"k{number}": 0 for number in range(40)}
    full(store, rows, layout)
    change(store, dict.fromkeys(list(rows)[:20], 1))
    change(store, {"k0": 2})
    expire_and_collect(store)
    live = set(files_of(store.checkpoint().manifest))
    on_disk = {str(p.relative_to(tmp_path / "store")) for p in tmp_path.rglob("*.parquet")}
    assert on_disk - live  # files that only the table needs
    assert shown(tmp_path) == (1, rows)
    full(store, {"k0": 5}, layout)
    expire_and_collect(store)
    assert shown(tmp_path) == (4, {"k0": 5})
    on_disk = {str(p.relative_to(tmp_path / "store")) for p in tmp_path.rglob("*.parquet")}
    assert on_disk == set(files_of(store.checkpoint().manifest))


@pytest.mark.long_cases("1", "3", "4", "5", "2")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_after_any_sequence_the_table_shows_its_checkpoint(tmp_path: Path, seed: int) -> None:
    random, rule = Random(seed), EAGER if seed % 2 else RULE
    store = opened(tmp_path, rule)
    rows = {f"k{number}": -1 for number in range(60)}
    full(store, rows)
    contents = {1: rows}
    for step in range(24):
        done = random.choice(["change"] * 8 + ["collect"] * 4 + ["full", "compact", "reopen"])
        if done in ("full", "change"):
            keys = random.sample(sorted(rows), random.choice([1, 3, len(rows) // 2]))
            rows = rows | dict.fromkeys(keys[1:], step) | {f"new{step}": step}
            rows.pop(keys[0])
            if done == "full":
                full(store, rows)
            else:
                upserts = {key: value for key, value in rows.items() if value == step}
                change(store, upserts, keys[:1])
            contents[store.checkpoints()[-1]] = rows
        elif done == "compact":
            store.maintenance.compact(everything=random.random() < 0.3)
            contents[store.checkpoints()[-1]] = rows
        elif done == "collect":
            store.maintenance.expire(retain=random.randint(1, 2))
            store.maintenance.gc(minimum_age="0")
        else:
            store = opened(tmp_path, rule)
        number, found = shown(tmp_path)
        assert found == contents[number], (step, done)
    assert store.maintenance.verify("all", deep=True).is_intact


def test_files_of_a_table_with_an_unreadable_log_stay(tmp_path: Path) -> None:
    store, rows = opened(tmp_path), {f"k{number}": 0 for number in range(40)}
    full(store, rows)
    change(store, dict.fromkeys(rows, 1))
    change(store, {"k0": 2})
    log = tmp_path / "store/operators/u/keyed/s/_delta_log/00000000000000000000.json"
    whole = log.read_bytes()
    log.write_bytes(b"{")
    expire_and_collect(store)
    log.write_bytes(whole)
    assert shown(tmp_path) == (1, rows)


def test_a_purge_drops_a_version_with_the_key(tmp_path: Path) -> None:
    store, rows = opened(tmp_path), {f"k{number}": 0 for number in range(40)}
    full(store, rows | {"somebody@example.org": 1})
    change(store, dict.fromkeys(rows, 1), ["somebody@example.org"])
    change(store, {"k0": 2})
    expire_and_collect(store)
    change(store, {"k0": 3})
    expire_and_collect(store)
    assert "somebody@example.org" in shown(tmp_path)[1]
    assert store.maintenance.find_subject(OperatorKey("u", "somebody@example.org")).found
    other = opened(tmp_path)
    done = other.maintenance.forget(OperatorKey("u", "somebody@example.org"), search=False)
    assert done.logs == ("operators/u/keyed/s",)
    other.maintenance.gc(minimum_age="0")
    assert other.maintenance.find_subject(OperatorKey("u", "somebody@example.org")).found == ()
    full(other, rows)
    assert shown(tmp_path)[1] == rows
    assert other.maintenance.verify("all", deep=True).is_intact


def test_a_purge_leaves_a_version_without_the_key(tmp_path: Path) -> None:
    store, rows = opened(tmp_path), {f"k{number}": 0 for number in range(40)}
    full(store, rows)
    change(store, dict.fromkeys(rows, 1))
    change(store, {"k0": 2})
    expire_and_collect(store)
    assert (
        store.maintenance.forget(OperatorKey("u", "somebody@example.org"), search=False).logs == ()
    )
    assert shown(tmp_path) == (1, rows)
