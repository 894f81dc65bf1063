"""A table becomes an operator state; all other states of the store stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import (
    InvalidArgumentError,
    SchemaMismatchError,
    StateStoreError,
    UnsupportedTypeError,
)
from tests.support.stores import overtake

RULES = pa.table({"rule": ["a", "b", "c"], "limit": [1, 2, 3]})


def elements(store: StateStore, state: str, parallelism: int = 1) -> list[list[dict[str, Any]]]:
    restored = store.restore(parallelism=parallelism)
    return [restored.operator_state("u", state).subtask(number) for number in range(parallelism)]


@pytest.mark.parametrize("mode", ["split", "union", "broadcast"])
def test_a_table_becomes_an_operator_state(mode: str, store: StateStore) -> None:
    made = store.bootstrap("u", "rules", RULES, mode=mode)
    assert (made.kind, made.rows, made.replaced_rows) == (mode, 3, None)
    assert (made.hash_scheme, made.max_parallelism) == (None, None)
    assert [(column.name, column.type, column.role) for column in made.columns] == [
        ("rule", "string", "value"),
        ("limit", "long", "value"),
    ]
    rows = RULES.to_pylist()
    first, second = elements(store, "rules", 2)
    assert (first, second) == ((rows[:2], rows[2:]) if mode == "split" else (rows, rows))


def test_all_other_states_stay(store: StateStore) -> None:
    store.bootstrap("u", "totals", pa.table({"k": [1, 2], "v": [3, 4]}), key="k")
    store.bootstrap("u", "rules", RULES, mode="union")
    store.bootstrap("u", "more", [{"x": 1}], mode="split")
    assert store.checkpoint().manifest.keyed_entry("u", "totals").rows == 2
    assert elements(store, "rules") == [RULES.to_pylist()]
    assert elements(store, "more") == [[{"x": 1}]]


def test_the_elements_are_divided_over_a_store_with_several_subtasks(store: StateStore) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_split("u", "other", [[{"x": 1}], [{"x": 2}]])
    store.bootstrap("u", "rules", RULES, mode="split")
    rows = RULES.to_pylist()
    assert elements(store, "rules", 2) == [rows[:2], rows[2:]]
    assert elements(store, "other", 2) == [[{"x": 1}], [{"x": 2}]]


def test_a_stored_state_needs_replace_and_keeps_its_columns(store: StateStore) -> None:
    store.bootstrap("u", "rules", RULES, mode="union")
    with pytest.raises(InvalidArgumentError, match="already has union state 'rules'"):
        store.bootstrap("u", "rules", RULES, mode="union")
    made = store.bootstrap("u", "rules", RULES.slice(1), mode="union", replace=True)
    assert (made.rows, made.replaced_rows) == (2, 3)
    with pytest.raises(SchemaMismatchError, match="keep the mode and columns"):
        store.bootstrap("u", "rules", RULES, mode="split", dry_run=True)
    other = RULES.rename_columns(["rule", "most"])
    with pytest.raises(SchemaMismatchError, match="keep the mode and columns"):
        store.bootstrap("u", "rules", other, mode="union", replace=True)
    assert store.checkpoints() == (1, 2)


def test_a_state_that_another_writer_adds_meanwhile_is_kept(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtake(monkeypatch, lambda: store.bootstrap("u", "rules", RULES, mode="union"))
    with pytest.raises(InvalidArgumentError, match="already has union state 'rules'"):
        store.bootstrap("u", "rules", RULES.slice(2), mode="union")
    assert elements(store, "rules") == [RULES.to_pylist()]


def test_a_dry_run_writes_nothing(store: StateStore) -> None:
    planned = store.bootstrap("u", "rules", RULES.schema, mode="split", dry_run=True)
    assert str(planned) == "split state 'rules' of operator 'u'"
    assert (planned.rows, planned.checked) == (0, None)
    checked = store.bootstrap("u", "rules", RULES, mode="split", dry_run=True)
    assert checked.checked is not None
    assert (checked.rows, checked.checked.is_valid) == (3, True)
    assert checked.columns == planned.columns
    assert not Path(store.url).exists()


def test_options_of_keyed_state_are_refused(store: StateStore) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no keys: remove key=, ttl="):
        store.bootstrap("u", "rules", RULES, mode="split", key="rule", ttl="7d")


@pytest.mark.parametrize(
    ("rows", "mode", "kind", "said"),
    [
        (RULES, "all", InvalidArgumentError, "unknown mode 'all': use one of 'split', 'union'"),
        (RULES.rename_columns(["rule", "Position"]), "split", StateStoreError, "Position"),
        (pa.table({"at": pa.array([1], pa.duration("s"))}), "split", UnsupportedTypeError, "'at'"),
    ],
)
def test_what_no_operator_state_can_have_is_refused(
    rows: pa.Table, mode: str, kind: type[StateStoreError], said: str, store: StateStore
) -> None:
    with pytest.raises(kind, match=said):
        store.bootstrap("u", "rules", rows, mode=mode)
    assert not Path(store.url).exists()
