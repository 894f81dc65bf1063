"""Restored rows can be written again unchanged: their column ``key_group`` is checked."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import KeyGroupAssignment, StateStore, key_group_of
from statestore.errors import InvalidArgumentError, StateStoreError
from statestore.format.state import KeyedState
from statestore.snapshot.state_spec import Changes
from tests.support.examples import examples
from tests.support.stores import opened

GROUPS = 16
CALLS = ("keyed", "changes", "deletes", "against", "subtasks")
FORMS: dict[str, Any] = {
    "table": lambda table: table,
    "dictionaries": lambda table: table.to_pylist(),
    "batches": lambda table: table.to_batches(max_chunksize=3) or table,
    "pandas": lambda table: table.to_pandas(),
    "reader": lambda table: table.to_reader(),
}


def rows_of(store: StateStore, parallelism: int = 3) -> pa.Table:
    restored = store.restore(parallelism=parallelism).keyed("u", "s")
    return pa.concat_tables([restored.to_arrow(i) for i in range(parallelism)])


def put(store: StateStore, call: str, rows: pa.Table, form: Any) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        if call == "keyed":
            checkpoint.write_keyed("u", "s", form(rows), key="k", max_parallelism=GROUPS)
        elif call == "subtasks":
            writer = checkpoint.declare_keyed(
                "u", "s", rows.schema, key="k", max_parallelism=GROUPS
            )
            owners = KeyGroupAssignment(max_parallelism=GROUPS, parallelism=2)
            for i in range(2):
                own = [
                    owners.subtask_of(key_group_of(k, max_parallelism=GROUPS)) == i
                    for k in rows.column("k").to_pylist()
                ]
                part = rows.filter(pa.array(own, pa.bool_()))
                checkpoint.acknowledge(
                    writer.subtask(i).write(form(part) if part.num_rows else part)
                )
        else:
            if call == "changes":
                checkpoint.write_changes("u", "s", form(rows), key="k")
            elif call == "deletes":
                checkpoint.write_changes("u", "s", Changes(deletes=form(rows)), key="k")
            else:
                checkpoint.write_changes_against("u", "s", form(rows), key="k")


@pytest.mark.slow
@examples(60)
@given(
    st.dictionaries(st.text(max_size=4), st.integers(-9, 9), min_size=1, max_size=30),
    st.sampled_from(CALLS),
    st.sampled_from([*FORMS]),
    st.booleans(),
    st.data(),
)
def test_restored_rows_can_be_written_again(
    content: dict[str, int], call: str, form: str, wrong: bool, data: st.DataObject
) -> None:
    """In every form and with every call; one row with another key group is refused."""
    with tempfile.TemporaryDirectory() as folder:
        store = opened(folder)
        first = pa.table({"k": [*content], "v": pa.array(content.values(), pa.int64())})
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("u", "s", first, key="k", max_parallelism=GROUPS)
        rows = rows_of(store)
        assert "key_group" in rows.column_names
        if wrong:
            at = data.draw(st.integers(0, rows.num_rows - 1))
            groups = np.asarray(rows.column("key_group")).copy()
            groups[at] = (groups[at] + data.draw(st.integers(1, GROUPS - 1))) % GROUPS
            rows = rows.set_column(0, "key_group", pa.array(groups))
            key = rows.column("k")[at].as_py()
            with pytest.raises(InvalidArgumentError) as caught:
                put(store, call, rows, FORMS[form])
            assert f"{{'k': {key!r}}}" in str(caught.value)
            assert f"of {GROUPS}" in str(caught.value)
            assert store.checkpoints() == (1,)
            return
        put(store, call, rows, FORMS[form])
        assert store.checkpoint().manifest.keyed[0].state.schema.names == ("k", "v")
        expected = {} if call == "deletes" else content
        assert {row["k"]: row["v"] for row in rows_of(store).to_pylist()} == expected


def test_some_of_the_changes_can_have_a_key_group(store: StateStore) -> None:
    put(store, "keyed", pa.table({"k": ["a", "b"], "v": [1, 2]}), FORMS["table"])
    kept = rows_of(store)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes(
            "u",
            "s",
            Changes(pa.table({"k": ["c"], "v": [3]}), kept.slice(0, 1), cleared=[{"k": "b"}]),
            key="k",
        )
    gone = kept.column("k")[0].as_py()
    assert {row["k"] for row in rows_of(store).to_pylist()} == {"a", "b", "c"} - {gone, "b"}


def test_key_groups_are_not_checked_with_regroup(tmp_path: Path) -> None:
    """``regroup`` computes them again; without it the error explains why they can differ."""
    store = opened(tmp_path / "store")
    put(store, "keyed", pa.table({"k": [*"abcdef"], "v": range(6)}), FORMS["table"])
    rows = rows_of(store)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=64, regroup=True)
    assert store.checkpoint().manifest.keyed[0].state.max_parallelism == 64
    elsewhere = opened(tmp_path / "other")
    with (
        pytest.raises(InvalidArgumentError, match="from another max parallelism"),
        elsewhere.snapshot(parallelism=2) as checkpoint,
    ):
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=8)


@pytest.mark.parametrize(
    "column", [pa.array(["x"]), pa.array([1.0]), pa.array([True]), pa.array([b"x"])]
)
def test_a_user_column_with_that_name_is_refused(store: StateStore, column: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="is reserved for") as caught:
        put(store, "keyed", pa.table({"k": ["a"], "key_group": column}), FORMS["table"])
    assert "rename" not in str(caught.value)


@pytest.mark.parametrize("name", ["Key_Group", "KEY_GROUP"])
def test_no_message_suggests_renaming_the_column(name: str) -> None:
    from statestore.rows.column_types import schema_of_arrow

    with pytest.raises(StateStoreError, match="remove the column") as caught:
        KeyedState(
            uid="u",
            name="s",
            kind="value",  # type: ignore[arg-type]
            schema=schema_of_arrow(pa.schema([("k", pa.string()), (name, pa.int32())])),
            key=("k",),
            key_types=("String",),
            max_parallelism=4,
            hash_scheme="java",
        )
    assert "rename" not in str(caught.value)


@pytest.mark.parametrize("name", ["__deleted__", "__DELETED__", "Key_Group"])
def test_a_reserved_name_is_refused_before_anything_is_written(
    store: StateStore, name: str
) -> None:
    """Otherwise a job would fail at its first changes, after its state was written."""
    rows = pa.table({"k": [1], name: [1]})
    with (
        pytest.raises(InvalidArgumentError, match=f"'{name}' is reserved for the store"),
        store.snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=4)
    assert store.checkpoints() == ()


def test_a_key_has_no_reserved_name(tmp_path: Path) -> None:
    rows = pa.table({"k": [1], "key_group": [1]})
    with (
        pytest.raises(InvalidArgumentError, match="'key_group' is reserved for the store"),
        opened(tmp_path).snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.write_keyed("u", "s", rows, key="key_group", max_parallelism=4)
