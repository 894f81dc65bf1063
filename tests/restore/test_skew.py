"""Skewed key groups and hot keys, against a count of the rows."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore, key_group_of
from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.parquet.writer import ParquetOptions
from statestore.snapshot.state_spec import Changes
from statestore.testing.faults import CountingStorage

GROUPS = 16
LAYOUTS = ("partitioned", "ranged")


def rows_of(seed: int, count: int = 1200) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    keys = (int(chance.paretovariate(0.7)) % 300 for _ in range(count))
    return [{"k": f"k{key}", "n": i, "pad": "x" * 20} for i, key in enumerate(keys)]


def made(folder: Path, rows: list[dict[str, Any]], layout: str) -> tuple[StateStore, Any]:
    storage = CountingStorage(str(folder / "s"))
    options = ParquetOptions(row_group_rows=50)
    store = StateStore.open(
        storage, table_format="parquet", layout=layout, parquet=options, compaction=None
    )
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed(
            "u", "m", rows, kind="map", key="k", entry="n", max_parallelism=GROUPS
        )
        flat = [{"k": f"k{i}", "v": i} for i in range(40)]
        checkpoint.write_keyed("u", "v", flat, key="k")
        checkpoint.write_union("src", "offsets", [[{"o": 1}], []])
    return store, storage


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_hot_keys_have_the_most_rows(tmp_path: Path, layout: str, seed: int) -> None:
    rows = rows_of(seed)
    counts = Counter(row["k"] for row in rows)
    store, _ = made(tmp_path, rows, layout)
    for keys in (1, 5, 1000):
        (operator,) = store.inspect.skew("u", "m", keys=keys, read_groups=GROUPS).operators
        (hot,) = operator.hot
        assert hot.is_exact
        assert hot.rows == len(rows)
        assert [key.rows for key in hot.keys] == sorted(counts.values(), reverse=True)[:keys]
        for key in hot.keys:
            assert key.rows == counts[key.key["k"]]
            assert key.key_group == key_group_of(key.key["k"], max_parallelism=GROUPS)
        assert len({key.key["k"] for key in hot.keys}) == len(hot.keys)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_key_groups_are_read_and_only_exact_results_are_marked_exact(
    tmp_path: Path, layout: str
) -> None:
    rows = rows_of(3)
    counts = Counter(row["k"] for row in rows)
    groups = Counter(key_group_of(row["k"], max_parallelism=GROUPS) for row in rows)
    store, storage = made(tmp_path, rows, layout)
    storage.opened.clear()
    for keys, most in ((1, 1), (3, 2), (3, GROUPS), (30, 2)):
        (hot,) = store.inspect.skew("u", "m", keys=keys, read_groups=most).operators[0].hot
        assert len(hot.read) <= most
        assert list(hot.read) == [group for group, _ in groups.most_common(len(hot.read))]
        unread = {k: n for k, n in counts.items() if key_group_of_(k) not in hot.read}
        if hot.is_exact:
            assert [key.rows for key in hot.keys] == [n for _, n in counts.most_common(keys)]
        else:
            assert len(hot.keys) < keys or max(groups_left(groups, hot.read)) > hot.keys[-1].rows
        assert all(key.key["k"] not in unread for key in hot.keys)


def key_group_of_(key: str) -> int:
    return key_group_of(key, max_parallelism=GROUPS)


def groups_left(groups: Counter[int], read: tuple[int, ...]) -> list[int]:
    return [rows for group, rows in groups.items() if group not in read]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_changes_are_merged_with_the_base(tmp_path: Path, layout: str) -> None:
    rows = rows_of(4)
    store, _ = made(tmp_path, rows, layout)
    hottest = Counter(row["k"] for row in rows).most_common(1)[0][0]
    new = [{"k": "k7", "n": 5000 + i, "pad": ""} for i in range(900)]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes(
            "u",
            "m",
            Changes(new, [{"k": hottest}]),
            key="k",
            kind="map",
            entry="n",
        )
        checkpoint.write_keyed("u", "v", [{"k": "a", "v": 1}], key="k")
        checkpoint.carry_rest()
    counts = Counter(row["k"] for row in [*rows, *new] if row["k"] != hottest)
    (hot,) = store.inspect.skew("u", "m", keys=4, read_groups=GROUPS).operators[0].hot
    assert [key.rows for key in hot.keys] == [n for _, n in counts.most_common(4)]
    assert hot.keys[0].key == {"k": "k7"}


def test_skewed_groups_are_computed_over_all_states(tmp_path: Path) -> None:
    rows = rows_of(5)
    store, _ = made(tmp_path, rows, "partitioned")
    groups = Counter(key_group_of_(row["k"]) for row in rows)
    groups.update(key_group_of_(f"k{i}") for i in range(40))
    total = sum(groups.values())
    (operator,) = store.inspect.skew(by="rows", factor=1.5, keys=0).operators
    expected = {g: n for g, n in groups.items() if n * GROUPS > 1.5 * total}
    assert expected
    assert {one.key_group: one.rows for one in operator.skewed} == expected
    for one in operator.skewed:
        assert one.share == pytest.approx(one.rows / total)
        assert one.times == pytest.approx(one.share * GROUPS)
    assert operator.hot == ()
    assert (operator.states, operator.rows) == (("m", "v"), total)


def test_without_keys_no_file_is_opened_and_values_have_no_hot_keys(tmp_path: Path) -> None:
    store, storage = made(tmp_path, rows_of(6, 50), "partitioned")
    storage.opened.clear()
    store.inspect.skew(keys=0)
    store.inspect.skew("u", "v")
    assert not [name for name in storage.opened if name.endswith(".parquet")]
    assert [hot.state for hot in store.inspect.skew("u").operators[0].hot] == ["m"]


def test_several_key_columns_and_an_empty_state(store: StateStore) -> None:
    rows = [{"a": i % 3, "b": f"{i % 2}", "n": i} for i in range(25)]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed(
            "u", "two", rows, kind="list", key=["a", "b"], entry="n", max_parallelism=4
        )
        checkpoint.write_keyed(
            "w", "none", rows[:0] or empty(), kind="list", key="a", entry="n", max_parallelism=4
        )
    report = store.inspect.skew(keys=2, read_groups=4)
    two, none = report.operators
    assert two.hot[0].keys[0].key == {"a": 0, "b": "0"}
    assert [key.rows for key in two.hot[0].keys] == [5, 4]
    assert (none.skewed, none.hot[0].keys, none.hot[0].is_exact) == ((), (), True)


def empty() -> Any:
    import pyarrow as pa

    return pa.table({"a": pa.array([], pa.int64()), "n": pa.array([], pa.int64())})


def test_invalid_arguments_are_named(tmp_path: Path) -> None:
    store, _ = made(tmp_path, rows_of(7, 20), "partitioned")
    with pytest.raises(StateNotFoundError, match="'src' has no keys"):
        store.inspect.skew("src")
    with pytest.raises(StateNotFoundError, match="state 'offsets' of operator 'src' has no keys"):
        store.inspect.skew("src", "offsets")
    with pytest.raises(StateNotFoundError, match="no operator 'x'"):
        store.inspect.skew("x")
    for wrong in ({"keys": -1}, {"read_groups": True}, {"factor": 0.9}, {"by": "files"}):
        with pytest.raises(InvalidArgumentError):
            store.inspect.skew("u", **wrong)
