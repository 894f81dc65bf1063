"""Restores with a max parallelism that differs from the stored one, against a dictionary."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore, TimeToLive, key_group_of
from statestore.errors import InvalidArgumentError, ParallelismError, SchemaMismatchError
from statestore.format.slices import KeptGroups
from statestore.keys.groups import KeyGroupAssignment
from statestore.parquet.writer import ParquetOptions
from statestore.rows.key_group_runs import rows_in_kept_groups
from statestore.snapshot.state_spec import Changes
from statestore.testing.faults import CountingStorage

pytestmark = pytest.mark.slow

STORED = 12
OTHERS = (24, 36, 120, 4, 6, 1)
LAYOUTS = ("partitioned", "ranged")
NOW = 1_700_000_000_000

Identity = tuple[Any, ...]


@cache
def group_of(key: str, groups: int) -> int:
    return key_group_of(key, max_parallelism=groups)


class Made:
    """A stored state of some kind, and its expected rows."""

    def __init__(self, folder: Path, kind: str, layout: str) -> None:
        self.storage = CountingStorage(str(folder))
        options = ParquetOptions(row_group_rows=40)
        self.store = StateStore.open(
            self.storage, table_format="parquet", layout=layout, parquet=options, compaction=None
        )
        self.kind = kind
        chance = random.Random(f"{kind} {layout}")
        entries = 1 if kind in ("value", "ttl") else 3
        self.rows = {
            (f"k{i}", entry): chance.randrange(1000) for i in range(40) for entry in range(entries)
        }
        self.take(self.table())

    def table(self) -> list[dict[str, Any]]:
        return [{"k": k, "e": e, "v": v} for (k, e), v in self.rows.items()]

    def take(self, rows: Any, groups: int = STORED, **more: Any) -> int:
        with self.store.snapshot(parallelism=3, now_ms=NOW) as checkpoint:
            if self.kind in ("list", "map"):
                more |= {"kind": self.kind, "entry": "e"}
            if self.kind == "ttl":
                more["ttl"] = TimeToLive("1m", "v")
            checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=groups, **more)
        return int(checkpoint.id)

    def change(self) -> None:
        chance = random.Random(len(self.rows))
        gone = chance.sample(sorted({k for k, _ in self.rows}), 5)
        upserts = {(f"k{i}", 0): -i for i in range(1, 60, 5) if f"k{i}" not in gone}
        self.rows = {i: v for i, v in self.rows.items() if i[0] not in gone} | upserts
        rows = [{"k": k, "e": e, "v": v} for (k, e), v in upserts.items()]
        with self.store.snapshot(parallelism=3) as checkpoint:
            checkpoint.write_changes("u", "s", Changes(rows, [{"k": k} for k in gone]))

    def check(self, parallelism: int, groups: int, **more: Any) -> Any:
        """Restore all subtasks: each has its own rows, and together they have each row once."""
        restored = self.store.restore(parallelism=parallelism, max_parallelism=groups, **more)
        keyed = restored.keyed("u", "s")
        owners = KeyGroupAssignment(max_parallelism=groups, parallelism=parallelism)
        found: dict[Identity, int] = {}
        for subtask in range(parallelism):
            self.storage.opened.clear()
            for row in keyed.to_arrow(subtask).to_pylist():
                group = group_of(row["k"], groups)
                assert (row["key_group"], owners.subtask_of(group)) == (group, subtask)
                assert (row["k"], row["e"]) not in found
                found[row["k"], row["e"]] = row["v"]
            files = {n: k for n, k in self.storage.opened.items() if n.endswith(".parquet")}
            assert set(files.values()) <= {1}, files
        assert found == self.rows
        return restored


@pytest.mark.long_cases("value-partitioned", "list-partitioned", "map-ranged", "value-ranged")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_every_row_has_one_subtask(tmp_path: Path, kind: str, layout: str) -> None:
    made = Made(tmp_path, kind, layout)
    for changed in (False, True):
        if changed:
            made.change()
            made.change()
        digest = made.store.restore().keyed("u", "s").digest
        for groups in OTHERS[changed::2]:
            for parallelism in {1, min(5, groups)}:
                restored = made.check(parallelism, groups)
                assert restored.keyed("u", "s").digest == digest


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", [36, 4])
def test_expired_rows_stay_hidden(tmp_path: Path, layout: str, groups: int) -> None:
    made = Made(tmp_path, "ttl", layout)
    made.rows = {(f"k{i}", 0): NOW - i * 1000 for i in range(100)}
    made.take(made.table())
    made.rows = {identity: used for identity, used in made.rows.items() if used > NOW - 60_000}
    assert 50 < len(made.rows) < 70
    made.check(3, groups, now_ms=NOW)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_plans_read_amplification_is_the_rows_read(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path, "map", layout)
    read: list[int] = []

    def counted(rows: Any, state: Any, kept: KeptGroups | None) -> Any:
        read.append(rows.num_rows)
        return rows_in_kept_groups(rows, state, kept)

    monkeypatch.setattr("statestore.layers.merge.rows_in_kept_groups", counted)
    for groups in (STORED, *OTHERS):
        for parallelism in {1, min(2, groups), min(5, groups)}:
            read.clear()
            restored = made.check(parallelism, groups)
            stated = restored.plan.read_amplification or 1.0
            assert stated == pytest.approx(sum(read) / len(made.rows)), (groups, parallelism)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_subtask_with_all_stored_groups_reads_each_once(tmp_path: Path, layout: str) -> None:
    """No subtask reads a row twice, so the amplification is at most the parallelism."""
    made = Made(tmp_path, "value", layout)
    for parallelism in (1, 2, 5):
        plan = made.store.plan(parallelism=parallelism, max_parallelism=60)
        assert (plan.read_amplification or 1.0) <= parallelism


def test_lowering_costs_nothing_with_a_file_for_each_key_group(tmp_path: Path) -> None:
    made = Made(tmp_path, "value", "partitioned")
    for groups in (6, 4, 3, 2, 1):
        for parallelism in range(1, groups + 1):
            plan = made.store.plan(parallelism=parallelism, max_parallelism=groups)
            assert plan.read_amplification is None
            assert plan.files == made.store.checkpoint().manifest.files


@pytest.mark.parametrize("groups", [48, 6, 13])
def test_the_next_snapshot_uses_the_new_key_groups(tmp_path: Path, groups: int) -> None:
    made = Made(tmp_path, "list", "partitioned")
    made.take(made.table(), groups, regroup=True)
    assert made.store.checkpoint().manifest.keyed_entry("u", "s").state.max_parallelism == groups
    restored = made.check(3, groups)
    assert restored.plan.read_amplification is None
    assert made.store.maintenance.verify(deep=True).is_intact


def test_without_regroup_the_stored_max_parallelism_is_required(tmp_path: Path) -> None:
    made = Made(tmp_path, "value", "partitioned")
    with pytest.raises(ParallelismError, match="stored with max parallelism 12 but 24"):
        made.take(made.table(), 24)


def test_states_of_an_operator_have_the_same_max_parallelism(tmp_path: Path) -> None:
    made = Made(tmp_path, "value", "partitioned")
    with made.store.snapshot(parallelism=3) as checkpoint:
        checkpoint.write_keyed("u", "s", made.table(), key="k", max_parallelism=24, regroup=True)
        with pytest.raises(ParallelismError) as caught:
            checkpoint.write_keyed(
                "u",
                "t",
                made.table(),
                key="k",
                max_parallelism=12,
                regroup=True,
            )
    assert "for state 't' of operator 'u'" in caught.value.__notes__
    assert [entry.state.name for entry in made.store.checkpoint().manifest.keyed] == ["s"]


def test_changes_have_the_max_parallelism_of_their_base(tmp_path: Path) -> None:
    made = Made(tmp_path, "value", "partitioned")
    made.take(made.table(), 24, regroup=True)
    with (
        pytest.raises(SchemaMismatchError, match=r"max parallelism 12 .* take a full snapshot"),
        made.store.snapshot(parallelism=3) as checkpoint,
    ):
        checkpoint.write_changes("u", "s", [{"k": "k1", "e": 0, "v": 1}], base=1)


@pytest.mark.parametrize("groups", [18, 5, 100])
def test_a_max_parallelism_that_does_not_fit_is_refused_by_plan_and_restore(
    tmp_path: Path, groups: int
) -> None:
    store = Made(tmp_path, "value", "partitioned").store
    for refused in (store.plan, store.restore):
        with pytest.raises(ParallelismError) as caught:
            refused(parallelism=1, max_parallelism=groups)
        assert "while planning state 's' of operator 'u'" in caught.value.__notes__
        assert "statestore rekey" in str(caught.value)


@pytest.mark.parametrize("groups", [0, -1, 2**16])
def test_an_invalid_max_parallelism_is_refused(tmp_path: Path, groups: int) -> None:
    store = Made(tmp_path, "value", "partitioned").store
    for refused in (store.plan, store.restore):
        with pytest.raises(InvalidArgumentError, match=str(groups)):
            refused(parallelism=1, max_parallelism=groups)


def test_the_parallelism_is_limited_by_the_new_max_parallelism(tmp_path: Path) -> None:
    made = Made(tmp_path, "value", "partitioned")
    made.check(20, 24)
    with pytest.raises(ParallelismError, match="5"):
        made.store.restore(parallelism=5, max_parallelism=4)


def test_a_plan_of_one_operator_equals_the_plan_of_all(tmp_path: Path) -> None:
    store = Made(tmp_path, "value", "ranged").store
    whole = store.plan(parallelism=5, max_parallelism=36)
    assert store.plan(parallelism=5, max_parallelism=36, operator="u").operators == whole.operators
