"""Values decide which rows are equal: results stay the same if all rows have one hash.

Lookups use hashes to find candidate rows. Row matching does not use hashes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statestore import OperatorKey, StateStore
from statestore.rows import equality
from statestore.rows.equality import equal_rows, first_of_equals, matching_positions
from tests.support.forms import Checkpoints, entries_of, users


def one_hash(rows: Any, columns: Any = None) -> Any:
    return np.zeros(rows.num_rows, np.uint64)


def taken(path: Path) -> Checkpoints:
    """Return a state after a full checkpoint and two checkpoints with every kind of change."""
    made = Checkpoints(path / "store")
    made.full(users(6, 3))
    made.change({("u000", 0): 7, ("u009", 1): 9}, cleared=["u000"], entries=[("u001", 1)])
    made.change({("u002", 2): 70}, entries=[("u003", 0)], cleared=["u004"])
    return made


def looked_up(path: Path) -> list[Any]:
    made = taken(path)
    state = made.store.restore(parallelism=2).keyed("u", "s")
    assert entries_of(row for i in range(2) for row in state.to_arrow(i).to_pylist()) == (made.rows)
    answers: list[Any] = [state.get(f"u{i:03}") for i in range(10)]
    answers += state.lookup([{"k": "u000"}, {"k": "u002"}, {"k": "u999"}]).to_pylist()
    for row in state.to_arrow(0).to_pylist():
        answers.append(state.lazy(0).get(row["k"]))
    return answers


def compared(path: Path) -> list[Any]:
    made = taken(path)
    rows = [{"k": k, "m": m, "v": v} for (k, m), v in (made.rows | {("u005", 1): -1}).items()]
    with made.store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes_against("u", "s", rows[2:])
    inspect = made.store.inspect
    history = inspect.history("u002", "u", "s")
    state = made.store.restore(parallelism=1).keyed("u", "s").to_arrow(0)
    assert len(entries_of(state.to_pylist())) == len(rows) - 2
    (differing,) = inspect.diff(1, 4, keys=100).states
    counted = differing.added, differing.removed, differing.changed, len(differing.examples)
    beside = inspect.as_of(1, 4, "u", "s").read_all().sort_by([("k", "ascending")])
    return [
        state.to_pylist(),
        counted,
        sorted(beside.column("change").to_pylist()),
        [(one.checkpoint_id, one.rows, one.is_changed) for one in history],
        [(key.key, key.rows) for key in inspect.skew("u", "s", keys=3).operators[0].hot[0].keys],
    ]


def repaired(path: Path) -> list[Any]:
    made = taken(path)
    maintenance = made.store.maintenance
    edited = maintenance.edit("u", "s", delete=["u001"], put=[{"k": "u002", "m": 0, "v": 1}])
    purged = maintenance.forget(OperatorKey("u", "u005"), search=False)
    assert maintenance.find_subject(OperatorKey("u", "u000")).found
    state = made.store.restore(parallelism=1).keyed("u", "s").to_arrow(0)
    replaced = [[(s.state, s.rows) for s in one.states] for one in purged.replaced]
    return [edited.deleted, edited.put, replaced, state.to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("answers", [looked_up, compared, repaired])
def test_rows_with_equal_hashes_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Callable[[Path], list[Any]]
) -> None:
    expected = answers(tmp_path / "hashed")
    monkeypatch.setattr(equality, "row_hashes", one_hash)
    assert answers(tmp_path / "alike") == expected


@pytest.mark.parametrize("alike", [False, True])
def test_equal_elements_are_compared_as_a_multiset(
    store: StateStore, monkeypatch: pytest.MonkeyPatch, alike: bool
) -> None:
    if alike:
        monkeypatch.setattr(equality, "row_hashes", one_hash)
    for elements in ([["a", "a", "b"], ["c"]], [["c", "b", "a"], ["d"]]):
        with store.snapshot(parallelism=2) as checkpoint:
            lists = [[{"e": one} for one in part] for part in elements]
            checkpoint.write_union("u", "o", lists)
    (state,) = store.inspect.diff(1, 2).states
    assert (state.added, state.removed, state.changed) == (1, 1, 0)


@pytest.mark.parametrize("alike", [False, True])
def test_maps_are_equal_in_any_order(monkeypatch: pytest.MonkeyPatch, alike: bool) -> None:
    if alike:
        monkeypatch.setattr(equality, "row_hashes", one_hash)
    kind = pa.map_(pa.string(), pa.list_(pa.float64()))
    nan = float("nan")
    ways = [[("a", [1.0, nan]), ("b", None)], [("b", None), ("a", [1.0, nan])], [], None]
    old = pa.table({"m": pa.array(ways, kind)})
    new = pa.table({"m": pa.array([*ways[1:], [("a", [1.0])]], kind)})
    assert equal_rows(old, new).tolist() == [True, False, False, False]
    assert [one.tolist() for one in matching_positions(old, new)] == [[0, 1, 2, 3], [0, 0, 1, 2]]
    assert first_of_equals(old).tolist() == [True, False, True, True]
    assert first_of_equals(old.slice(0, 0)).tolist() == []
