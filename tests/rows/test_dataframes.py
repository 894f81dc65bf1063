"""Results convert to Arrow, pandas and Polars in one call, with the same rows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import InvalidArgumentError, MissingDependencyError
from statestore.rows.dataframes import RowStream, table_of

OFFSETS = [[{"p": 0, "at": 5}, {"p": 1, "at": 6}], [{"p": 2, "at": 7}]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    """A store with two checkpoints. A file of the rules in the first one is truncated."""
    folder = tmp_path_factory.mktemp("frames")
    store = StateStore.open(str(folder), table_format="parquet")
    for n in (1, 2):
        rows = pa.table({"k": ["a", "a", "b"], "m": [1, 2, 1], "v": [n, None, 3]})
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed(
                "u", "s", rows, kind="map", key="k", entry="m", max_parallelism=4
            )
            checkpoint.write_split("source", "split", OFFSETS)
            checkpoint.write_union("source", "union", OFFSETS)
            checkpoint.write_broadcast("source", "rules", [{"rule": "x"}])
            checkpoint.write_union("source", "none", [[], []])
        if n == 1:
            file = folder / store.checkpoint().manifest.operator_entry("source", "rules").table.path
            (cut,) = file.rglob("*.parquet")
            cut.write_bytes(cut.read_bytes()[:-1])
    return store


RESULTS: dict[str, tuple[Callable[[StateStore], Any], int]] = {
    "query": (lambda store: store.query('SELECT p, "at" FROM split'), 3),
    "as of": (lambda store: store.inspect.as_of(1, 2, "u", "s"), 3),
    "key": (lambda store: store.inspect.key("a").states[0], 2),
    "history": (lambda store: store.inspect.history("a", "u", "s"), 4),
    "plan": (lambda store: store.plan(parallelism=3), 6),
    "comparison": (lambda store: store.inspect.compare([1, 2]), 2),
    "diff": (lambda store: store.inspect.diff(2, 2), 5),
    "skew": (lambda store: store.inspect.skew(factor=1, keys=0), 2),
    "verified": (lambda store: store.maintenance.verify(1), 1),
}
every_result = pytest.mark.parametrize(("ask", "rows"), RESULTS.values(), ids=RESULTS)


@every_result
def test_a_result_becomes_a_dataframe_in_one_call(store: StateStore, ask: Any, rows: int) -> None:
    arrow, pandas, polars = (
        getattr(ask(store), name)() for name in ("to_arrow", "to_pandas", "to_polars")
    )
    assert isinstance(pandas, pd.DataFrame)
    assert isinstance(polars, pl.DataFrame)
    assert arrow.num_rows == rows
    assert polars.rows() == [tuple(row.values()) for row in arrow.to_pylist()]
    assert all(isinstance(kind, pd.ArrowDtype) for kind in pandas.dtypes)
    assert pa.Table.from_pandas(pandas).to_pylist() == arrow.to_pylist()


@pytest.mark.parametrize("name", ["split", "union", "rules", "none"])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_elements_are_listed_by_subtask(store: StateStore, name: str, parallelism: int) -> None:
    state = store.restore(parallelism=parallelism).operator_state("source", name)
    for subtask in range(parallelism):
        elements = state.subtask(subtask)
        assert state.to_arrow(subtask).to_pylist() == elements
        assert state.to_polars(subtask).to_dicts() == elements
        assert state.to_pandas(subtask).to_dict("records") == elements


@pytest.mark.parametrize("name", ["split", "union", "rules", "none"])
def test_without_a_subtask_each_stored_element_is_returned_once(
    store: StateStore, name: str
) -> None:
    state = store.restore(parallelism=3).operator_state("source", name)
    elements = [element for old in state.per_old_subtask() for element in old]
    assert state.to_arrow().to_pylist() == elements
    assert state.to_batches().read_all() == state.to_arrow()
    assert state.to_polars().to_dicts() == elements
    assert state.to_pandas().to_dict("records") == elements


@pytest.mark.parametrize("max_parallelism", [None, 8, 2])
def test_without_a_subtask_a_keyed_state_has_the_rows_of_all_subtasks(
    store: StateStore, max_parallelism: int | None
) -> None:
    """This also holds if the stored key groups are read as another number of them."""
    restored = store.restore(parallelism=2, max_parallelism=max_parallelism)
    state = restored.keyed("u", "s")
    whole = state.to_arrow()
    parts = [row for subtask in (0, 1) for row in state.to_arrow(subtask).to_pylist()]
    assert sorted(whole.to_pylist(), key=str) == sorted(parts, key=str)
    assert len(parts) == 3
    assert state.to_batches().read_all() == whole
    assert state.to_polars().to_dicts() == whole.to_pylist()
    assert pa.Table.from_pandas(state.to_pandas()).to_pylist() == whole.to_pylist()


def test_a_stream_is_read_in_batches(store: StateStore) -> None:
    rows = store.query("SELECT k, m, v FROM s ORDER BY ALL")
    assert [row["k"] for batch in rows.to_batches() for row in batch.to_pylist()] == ["a", "a", "b"]


def test_a_damaged_file_of_elements_raises(store: StateStore) -> None:
    state = store.restore(checkpoint=1, parallelism=1).operator_state("source", "rules")
    with pytest.raises(Exception, match="rules") as caught:
        state.to_arrow(0)
    assert type(caught.value).__name__ == "DamagedFileError"


def test_a_plan_has_a_row_per_subtask(store: StateStore) -> None:
    plan = store.plan(parallelism=3)
    for row in plan.to_arrow().to_pylist():
        subtask = plan.operator(row["operator"]).subtasks[row["subtask"]]
        assert row["size_bytes"] == subtask.size_bytes
        assert (row["first_key_group"] is None) == (subtask.key_groups is None)


def test_a_history_names_the_checkpoint_of_each_row(store: StateStore) -> None:
    rows = store.inspect.history("a", "u", "s").to_arrow().to_pylist()
    assert [(row["checkpoint_id"], row["m"], row["v"]) for row in rows] == [
        *((1, 1, 1), (1, 2, None)),
        *((2, 1, 2), (2, 2, None)),
    ]


def test_a_new_column_is_null_in_earlier_history(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path), table_format="parquet")
    for row in ({"k": "a", "v": 1}, {"k": "a", "v": 1, "w": "x"}):
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "s", [row], key="k", max_parallelism=4)
    history = store.inspect.history("a", "u", "s")
    assert history.to_polars().get_column("w").to_list() == [None, "x"]


def test_a_stream_supports_arrows_interface(store: StateStore) -> None:
    question = "SELECT p FROM split ORDER BY p"
    with store.query(question) as answer:
        assert answer.schema.names == ["p"]
        assert [value for batch in answer for value in batch.column("p").to_pylist()] == [0, 1, 2]
    assert pa.table(store.query(question)).num_rows == 3
    assert pl.DataFrame(store.query(question)).height == 3


def test_without_rows_a_table_has_its_columns() -> None:
    assert table_of({"a": "int64", "b": "string"}, []).schema == pa.schema(
        {"a": pa.int64(), "b": pa.string()}
    )


def test_missing_polars_is_an_error(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingDependencyError, match="install the extra 'polars': "):
        store.plan().to_polars()


def three_rows() -> RowStream:
    batches = pa.table({"k": [1, 2, 3]}).to_batches(max_chunksize=1)
    return RowStream(pa.RecordBatchReader.from_batches(batches[0].schema, batches))


READS: dict[str, Callable[[RowStream], int]] = {
    "to_arrow": lambda rows: rows.to_arrow().num_rows,
    "to_batches": lambda rows: sum(batch.num_rows for batch in rows.to_batches()),
    "to_pandas": lambda rows: len(rows.to_pandas()),
    "to_polars": lambda rows: len(rows.to_polars()),
    "iteration": lambda rows: sum(batch.num_rows for batch in rows),
    "read_all": lambda rows: rows.read_all().num_rows,
    "Arrow's C stream": lambda rows: pa.table(rows).num_rows,
    "Polars": lambda rows: len(pl.DataFrame(rows)),
}


@pytest.mark.parametrize("first", READS)
def test_a_result_is_not_empty_when_it_is_read_again(first: str) -> None:
    rows = three_rows()
    assert READS[first](rows) == 3
    for again in READS.values():
        with pytest.raises(
            InvalidArgumentError, match=r"already read.*rows = result\.to_arrow\(\)"
        ):
            again(rows)


def test_the_rest_of_a_result_can_be_read() -> None:
    rows = three_rows()
    assert rows.read_next_batch().num_rows == 1
    assert rows.to_pandas()["k"].tolist() == [2, 3]
