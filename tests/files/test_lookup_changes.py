"""One key's rows where the state has changes: as a dictionary has them, and little is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.errors import DamagedFileError
from statestore.format.layers import CompactionRule
from statestore.store import StateStore
from tests.support.layered import Layered, entries_of, users

NAN = float("nan")


@pytest.mark.parametrize("layout", ["ranged", "partitioned"])
@pytest.mark.parametrize("rule", [None, CompactionRule(merge_layers=2, share=0.1)])
def test_every_key_has_the_rows_of_a_dictionary(
    tmp_path: Path, layout: str, rule: CompactionRule | None
) -> None:
    state = Layered(tmp_path, layout=layout, compaction=rule)
    state.full(users(40, entries=3))
    state.change({("u001", 0): 100, ("new", 7): 1}, entries=[("u002", 1)], cleared=["u003"])
    state.change({("u003", 5): 5, ("u002", 1): 6}, cleared=["u004", "new"])
    state.change({("u005", 0): 8, ("u005", 9): 9}, cleared=["u005", "nobody"])
    for checkpoint_id, rows in state.taken.items():
        keyed = state.store.restore(checkpoint=checkpoint_id).keyed("u", "s")
        for key in [f"u{i:03}" for i in range(8)] + ["new", "nobody", "u039"]:
            expected = {entry: value for entry, value in rows.items() if entry[0] == key}
            found = keyed.get(key)
            assert entries_of(found) == expected
            assert [row["m"] for row in found] == sorted(m for _, m in expected)


def test_one_file_at_most_is_opened_of_the_base_and_of_each_layer(tmp_path: Path) -> None:
    state = Layered(tmp_path, compaction=None)
    state.full(users(200), parallelism=4)
    state.change({("u001", 0): 1})
    state.change(users(200, value=7))
    keyed = state.store.restore().keyed("u", "s")
    changed = len(keyed.entry.layers[1].entry.handles)
    assert changed >= 1
    state.opened()
    assert [row["v"] for row in keyed.get("u050")] == [57]
    opened = state.opened()
    assert set(opened.values()) == {1}
    assert 2 <= len(opened) <= 3
    assert sum("/changes/" in name for name in opened) == len(opened) - 1


def test_keys_are_told_apart_as_in_a_full_state(tmp_path: Path) -> None:
    kind = pa.struct([("a", pa.int64()), ("f", pa.float64())])
    schema = pa.schema([("k", kind), ("n", pa.string()), ("v", pa.int64())])

    def rows(*values: tuple[float, str | None, int]) -> pa.Table:
        found = [{"k": {"a": 1, "f": f}, "n": n, "v": v} for f, n, v in values]
        return pa.Table.from_pylist(found, schema)

    store = StateStore.open(str(tmp_path / "store"), table_format="parquet", compaction=None)
    options: dict[str, Any] = {"key": "k", "namespace": "n", "max_parallelism": 8}
    with store.snapshot(parallelism=1) as checkpoint:
        full = rows((0.0, "x", 1), (-0.0, "x", 2), (NAN, "x", 3), (1.0, None, 4), (1.0, "x", 5))
        checkpoint.keyed("u", "s", full, **options)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.changes(
            "u",
            "s",
            rows((-0.0, "x", 20), (NAN, "x", 30)),
            rows((0.0, "x", 0), (1.0, None, 0)),
            **options,
        )
    keyed = store.restore().keyed("u", "s")
    answers = {
        str(f): [row["v"] for row in keyed.get({"k": {"a": 1, "f": f}})]
        for f in (0.0, -0.0, NAN, 1.0)
    }
    assert answers == {"0.0": [], "-0.0": [20], "nan": [30], "1.0": [5]}


def test_a_damaged_file_of_changes_is_named(tmp_path: Path) -> None:
    state = Layered(tmp_path, compaction=None)
    state.full(users(20))
    state.change({("u001", 0): 1})
    (file,) = (tmp_path / "operators/u/changes/s").rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DamagedFileError, match="changes/s"):
        state.store.restore().keyed("u", "s").get("u001")
