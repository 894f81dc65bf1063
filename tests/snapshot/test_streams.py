"""Rows that can be read only once are stored like the same rows in a table, by every call."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import KeyedWriter, KeyGroupAssignment, StateStore, key_group_of
from statestore.errors import InvalidArgumentError
from statestore.format.state import TimeToLive
from statestore.snapshot.state_spec import Changes
from statestore.snapshot.writer import CheckpointWriter
from tests.support.examples import examples

GROUPS, PARALLELISM, NOW = 8, 2, 1_000
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("t", pa.int64())])
Form = Callable[[pa.Table], Any]


class _Exported:
    """An object that exports its Arrow rows once, and is not an iterator."""

    def __init__(self, table: pa.Table) -> None:
        self._reader = table.to_reader()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._reader.__arrow_c_stream__(requested_schema)


def _from_duckdb(table: pa.Table) -> pa.RecordBatchReader:
    connection = duckdb.connect()
    reader: pa.RecordBatchReader = connection.from_arrow(table).to_arrow_reader(3)
    return reader


def _yielded(values: list[Any]) -> Iterator[Any]:
    yield from values


FORMS: dict[str, Form] = {
    "reader": lambda table: table.to_reader(2),
    "batches": lambda table: _yielded(table.to_batches(2) or [_no_rows(table.schema)]),
    "tuple of batches": lambda table: tuple(table.to_batches(2) or [_no_rows(table.schema)]),
    "batch": lambda table: table.combine_chunks().to_batches()[0] if table.num_rows else table,
    "exported once": _Exported,
    "DuckDB reader": _from_duckdb,
    "Polars": pl.from_arrow,
    "lazy Polars": lambda table: pl.LazyFrame(pl.from_arrow(table)),
    "dictionaries": lambda table: _yielded(table.to_pylist()) if table.num_rows else table,
}


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)


def _table(rows: dict[int, tuple[str, int]]) -> pa.Table:
    columns = [list(rows), [text for text, _ in rows.values()], [at for _, at in rows.values()]]
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA.names
    )


def _keys(keys: list[int]) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64())})


@st.composite
def _step(draw: st.DrawFn) -> tuple[str, list[pa.Table], list[str]]:
    """A call, its tables, and the form in which it receives each of them."""
    call = draw(st.sampled_from(["full", "changes", "against", "edit", "subtasks", "elements"]))
    ids = st.integers(0, 20)
    rows = draw(st.dictionaries(ids, st.tuples(st.text(max_size=3), st.just(NOW)), max_size=12))
    tables = [_table(rows)]
    if call == "changes":
        gone = draw(st.lists(ids.filter(lambda key: key not in rows), unique=True, max_size=4))
        cleared = draw(st.lists(ids, unique=True, max_size=4))
        tables += [_keys(gone), _keys(cleared)]
    forms = st.sampled_from([name for name in FORMS if call != "elements" or _is_frame(name)])
    return call, tables, [draw(forms) for _ in tables]


def _is_frame(form: str) -> bool:
    return form not in ("batches", "tuple of batches", "dictionaries")


def _run(store: StateStore, call: str, given_rows: list[Any], has_ttl: bool) -> None:
    options: dict[str, Any] = {"key": "k", "max_parallelism": GROUPS}
    options["ttl"] = TimeToLive("1000s", "t") if has_ttl else None
    if call == "edit":
        store.maintenance.edit("u", "s", rows=given_rows[0])
        return
    with store.snapshot(parallelism=PARALLELISM, now_ms=NOW) as checkpoint:
        if call == "full":
            checkpoint.write_keyed("u", "s", given_rows[0], **options)
        elif call == "changes":
            upserts, deletes, cleared = given_rows
            checkpoint.write_changes(
                "u", "s", Changes(upserts, deletes, cleared=cleared), **options
            )
        elif call == "against":
            checkpoint.write_changes_against("u", "s", given_rows[0], **options)
        elif call == "subtasks":
            _write_subtasks(checkpoint, given_rows, options)
        else:
            checkpoint.write_union("u", "e", given_rows[0])
        checkpoint.carry_rest()


def _write_subtasks(checkpoint: CheckpointWriter, parts: list[Any], options: Any) -> None:
    writer = checkpoint.declare_keyed("u", "s", SCHEMA, **options)
    assert isinstance(writer, KeyedWriter)
    for subtask, part in enumerate(parts):
        checkpoint.acknowledge(writer.subtask(subtask).write(part))


def _parts(rows: pa.Table) -> list[pa.Table]:
    """The rows of each subtask."""
    owners = KeyGroupAssignment(max_parallelism=GROUPS, parallelism=PARALLELISM)
    owned = [
        owners.subtask_of(key_group_of(key, max_parallelism=GROUPS, key_type="long"))
        for key in rows.column("k").to_pylist()
    ]
    return [
        rows.filter(pa.array([owner == subtask for owner in owned], pa.bool_()))
        for subtask in range(PARALLELISM)
    ]


def _stored(store: StateStore) -> list[Any]:
    """The contents of each checkpoint: the rows and the digest of every state."""
    found = []
    for number in range(1, store.checkpoint().checkpoint_id + 1):
        restored = store.restore(checkpoint=number, parallelism=1, now_ms=NOW)
        for entry in restored.manifest.keyed:
            rows = restored.keyed(entry.state.uid, entry.state.name).to_arrow(0)
            found.append((number, entry.digest, rows))
        found += [(number, entry.digest, entry.rows) for entry in restored.manifest.operator]
    return found


@pytest.mark.long
@pytest.mark.slow
@examples(60)
@given(st.lists(_step(), min_size=1, max_size=4), st.booleans())
def test_a_history_written_from_streams_equals_one_written_from_tables(
    steps: list[tuple[str, list[pa.Table], list[str]]], has_ttl: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stores = [
            StateStore.open(f"{folder}/{name}", table_format="parquet") for name in ("a", "b")
        ]
        first = ("full", [_table({1: ("a", NOW)})], ["reader"])
        for call, tables, forms in [first, *steps]:
            if call == "subtasks":
                tables, forms = _parts(tables[0]), forms * PARALLELISM
            _run(stores[0], call, tables, has_ttl)
            once = [FORMS[form](table) for form, table in zip(forms, tables, strict=True)]
            _run(stores[1], call, once, has_ttl)
        assert _stored(stores[0]) == _stored(stores[1])


@pytest.mark.parametrize("form", ["reader", "batches", "dictionaries"])
def test_a_stream_that_was_already_read_is_refused(store: StateStore, form: str) -> None:
    rows = FORMS[form](_table({1: ("a", 0), 2: ("b", 0)}))
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k")
    with (
        pytest.raises(InvalidArgumentError, match="has already been read"),
        store.snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.write_keyed("u", "s", rows, key="k")


def test_restored_rows_are_accepted_unchanged(store: StateStore) -> None:
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", _table({1: ("a", 0)}), key="k", max_parallelism=GROUPS)
    rows = store.restore().keyed("u", "s").to_batches(0)
    bare = (batch.drop_columns(["key_group"]) for batch in rows)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes_against("u", "s", bare, key="k")
    assert store.restore().keyed("u", "s").get(1) == [{"k": 1, "v": "a", "t": 0}]


@pytest.mark.slow
def test_values_for_a_filter_from_an_iterator_apply_to_every_batch(store: StateStore) -> None:
    elements = [{"p": number % 3} for number in range(200_000)]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_union("u", "e", [elements])
    state = store.restore().operator_state("u", "e")
    assert len(state.subtask(0, where={"p": iter([1])})) == sum(
        element["p"] == 1 for element in elements
    )
