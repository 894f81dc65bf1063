"""Times that Arrow can represent and Python cannot: every method works or names the column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import OperatorKey, StateStore
from statestore.errors import StateStoreError

pytestmark = pytest.mark.slow

FAR: dict[str, Any] = {
    "microseconds": pa.array([2**62, 1], pa.timestamp("us")),
    "microseconds before": pa.array([-(2**62), 1], pa.timestamp("us", "UTC")),
    "days": pa.array([2**31 - 1, 1], pa.date32()),
    "days before": pa.array([-800_000, 1], pa.date32()),
    "in a list": pa.array([[2**62], None], pa.list_(pa.timestamp("us"))),
}


def made(folder: Path, rows: pa.Table) -> StateStore:
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=2)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes(
            "u", "s", rows.set_column(1, "v", rows.column("v").take(pa.array([1, 0]))), key="k"
        )
    return store


Ask = Callable[[StateStore, Any, Path], Any]
IN_ARROW: dict[str, Ask] = {
    "subtask": lambda store, key, _: store.restore().keyed("u", "s").to_arrow(0),
    "keys": lambda store, key, _: store.restore().keyed("u", "s").lookup(pa.table({"k": [1, 2]})),
    "query": lambda store, key, _: store.query("SELECT * FROM s").read_all(),
    "as_of": lambda store, key, _: store.inspect.as_of(1, 2, "u", "s").read_all(),
    "parquet": lambda store, key, folder: store.restore().export(folder / "parquet"),
    "diff": lambda store, key, _: store.inspect.diff(1, 2),
    "jsonl": lambda store, key, folder: store.restore().export(folder / "jsonl", format="jsonl"),
    "verify": lambda store, key, _: store.maintenance.verify(deep=True),
    "delete": lambda store, key, _: store.maintenance.edit("u", "s", delete=[key]),
    "sql": lambda store, key, _: store.maintenance.edit("u", "s", sql="SELECT * FROM state"),
    "purge": lambda store, key, _: store.maintenance.forget(OperatorKey("u", key), search=False),
    "find_key": lambda store, key, _: store.maintenance.find_subject(OperatorKey("u", key)),
    "compact": lambda store, key, _: store.maintenance.compact(everything=True),
    "rekey": lambda store, key, _: store.maintenance.rekey("u", max_parallelism=4),
}
IN_PYTHON: dict[str, Ask] = {
    "get": lambda store, key, _: store.restore().keyed("u", "s").get(key),
    "lazy": lambda store, key, _: store.restore().keyed("u", "s").lazy(0).get(key),
    "key": lambda store, key, _: store.inspect.key(key),
    "key_history": lambda store, key, _: store.inspect.history(key, "u", "s"),
}


@pytest.mark.long_cases("microseconds", "days before", "in a list")
@pytest.mark.parametrize("far", FAR)
def test_values_far_away_are_refused_as_python_values_only(far: str, tmp_path: Path) -> None:
    rows = pa.table({"k": pa.array([1, 2], pa.int64()), "v": FAR[far]})
    store = made(tmp_path, rows)
    for ask in IN_PYTHON.values():
        with pytest.raises(StateStoreError, match=r"'v.*years 1 to 9999"):
            ask(store, 2, tmp_path)
    for what, ask in IN_ARROW.items():
        assert ask(store, 1, tmp_path) is not None, what


@pytest.mark.parametrize("far", [name for name in FAR if name != "in a list"])
def test_keys_far_away_are_found(far: str, tmp_path: Path) -> None:
    rows = pa.table({"k": FAR[far], "v": pa.array([1, 2], pa.int64())})
    store = made(tmp_path, rows)
    near = rows.column("k")[1].as_py()
    assert store.restore().keyed("u", "s").get(near) == [{"k": near, "v": 1}]
    found = store.restore().keyed("u", "s").lookup(rows.select(["k"]))
    assert sorted(found.column("v").to_pylist()) == [1, 2]
    for what in ("diff", "jsonl", "purge", "find_key", "compact", "rekey", "verify"):
        assert IN_ARROW[what](store, near, tmp_path) is not None, what
