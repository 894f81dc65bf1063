"""Key groups of whole tables, and the rows of each subtask, in Arrow, Polars and pandas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from statestore import (
    KeyGroupAssignment,
    StateStore,
    key_group_of,
    key_groups,
    split_by_subtask,
)
from statestore.errors import (
    InvalidArgumentError,
    NullKeyError,
    ParallelismError,
    UnsupportedTypeError,
)

ROWS = pa.table(
    {
        "n": pa.array(range(500), pa.int64()),
        "user": [f"user-{number % 170}" for number in range(500)],
    }
)
FORMS: dict[str, Callable[[pa.Table], Any]] = {
    "arrow": lambda table: table,
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "chunks": lambda table: pa.concat_tables([table.slice(0, 123), table.slice(123)]),
    "dictionaries": pa.Table.to_pylist,
    "lazy polars": lambda table: pl.DataFrame(table).lazy(),
    "pandas": pa.Table.to_pandas,
    "polars": pl.DataFrame,
    "reader": pa.Table.to_reader,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("key", ["user", ["user", "n"]])
def test_each_row_gets_the_key_group_of_its_key(
    form: Callable[[pa.Table], Any], key: str | list[str]
) -> None:
    groups = key_groups(form(ROWS), key, max_parallelism=128)
    names = [key] if isinstance(key, str) else key
    rows = ROWS.to_pylist()
    keys = [tuple(row[name] for name in names) if len(names) > 1 else row[key] for row in rows]
    assert groups.tolist() == [key_group_of(value, max_parallelism=128) for value in keys]
    assert groups.dtype == np.int32


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("parallelism", "most"), [(1, 1), (3, 128), (128, 128), (300, 32768)])
def test_each_subtask_gets_its_rows_in_their_order(
    form: Callable[[pa.Table], Any], parallelism: int, most: int
) -> None:
    owners = KeyGroupAssignment(max_parallelism=most, parallelism=parallelism)
    expected: list[list[dict[str, Any]]] = [[] for _ in range(parallelism)]
    for row in ROWS.to_pylist():
        expected[owners.subtask_of(key_group_of(row["user"], max_parallelism=most))].append(row)
    parts = split_by_subtask(form(ROWS), "user", parallelism=parallelism, max_parallelism=most)
    assert [pa.table(part).to_pylist() for part in parts] == expected
    assert all(pa.table(part).column_names == ["n", "user"] for part in parts)


def test_a_frame_is_split_into_frames_of_its_kind() -> None:
    frames: list[Any] = [ROWS, pl.DataFrame(ROWS), ROWS.to_pandas()]
    for frame in frames:
        parts = split_by_subtask(frame, "user", parallelism=2, max_parallelism=16)
        assert [type(part) for part in parts] == [type(frame)] * 2


def test_the_column_types_of_a_frame_stay() -> None:
    """Only the key of a DataFrame is converted."""
    frame = pd.DataFrame({"user": ["a", "b", "c"], "kind": pd.Categorical(["x", "y", "x"])})
    for part in split_by_subtask(frame, "user", parallelism=2, max_parallelism=16):
        assert part.dtypes.equals(frame.dtypes)
        assert part.index.equals(pd.RangeIndex(len(part)))
    schema: Any = {"user": pl.String, "kind": pl.Enum(["x", "y"])}
    polars = pl.DataFrame({"user": ["a", "b"], "kind": ["x", "y"]}, schema=schema)
    for part in split_by_subtask(polars, "user", parallelism=2, max_parallelism=16):
        assert part.schema == schema


def test_hash_scheme_and_key_types_count() -> None:
    rows = pa.table({"k": pa.array([-1, 5, 10**6], pa.int64())})
    options: list[dict[str, Any]] = [
        {"hash_scheme": "flink-sql"},
        {"hash_scheme": "pyflink"},
        {"key_types": ["Integer"]},
    ]
    for option in options:
        groups = key_groups(rows, "k", max_parallelism=4096, **option)
        key_type = option.get("key_types", [None])[0]
        scheme = option.get("hash_scheme", "java")
        assert groups.tolist() == [
            key_group_of(key, max_parallelism=4096, key_type=key_type, hash_scheme=scheme)
            for key in (-1, 5, 10**6)
        ]


@pytest.mark.parametrize("form", ["arrow", "pandas", "polars"])
def test_subtasks_write_what_they_get(store: StateStore, form: str) -> None:
    """A subtask refuses rows of another one, so the parts are those that a writer expects."""
    rows = ROWS.slice(0, 170)
    parts = split_by_subtask(
        FORMS[form](rows), "user", parallelism=3, max_parallelism=128, hash_scheme="flink-sql"
    )
    with store.snapshot(parallelism=3) as checkpoint:
        writer = checkpoint.declare_keyed(
            *("u", "s", rows.schema),
            key="user",
            max_parallelism=128,
            hash_scheme="flink-sql",
        )
        for subtask, part in enumerate(parts):
            checkpoint.acknowledge(writer.subtask(subtask).write(part))
    stored = store.restore().keyed("u", "s").to_arrow().select(["n", "user"]).sort_by("n")
    assert stored.to_pylist() == rows.to_pylist()


@pytest.mark.parametrize("form", ["arrow", "pandas", "polars"])
def test_rows_without_a_usable_key_are_refused(form: str) -> None:
    rows = FORMS[form](ROWS)
    with pytest.raises(InvalidArgumentError, match="no column 'usr'; the columns are n, user"):
        split_by_subtask(rows, ["user", "usr"], parallelism=2, max_parallelism=16)
    nulls = FORMS[form](pa.table({"k": ["a", None]}))
    with pytest.raises(NullKeyError, match="1 of 2 rows have a null key"):
        key_groups(nulls, "k", max_parallelism=16)


def test_arguments_and_rows_that_cannot_be_split_are_refused() -> None:
    with pytest.raises(ParallelismError, match="max parallelism 2 is below parallelism 3"):
        split_by_subtask(ROWS, "user", parallelism=3, max_parallelism=2)
    with pytest.raises((InvalidArgumentError, ParallelismError), match="out of bounds"):
        key_groups(ROWS, "user", max_parallelism=0)
    with pytest.raises(UnsupportedTypeError):
        key_groups(pa.table({"k": pa.array([None], pa.null())}), "k", max_parallelism=2)
    indexed = ROWS.to_pandas().set_index("n")
    with pytest.raises(InvalidArgumentError, match="an index named 'n'"):
        split_by_subtask(indexed, "user", parallelism=1, max_parallelism=2)
    view = pa.table({"k": [1], "view": pa.array(["a"], pa.string_view())})
    with pytest.raises(UnsupportedTypeError, match=r"columns \(int64, string_view\)"):
        split_by_subtask(view, "k", parallelism=1, max_parallelism=2)


def test_a_spark_dataframe_is_refused_with_the_function_to_use(spark: Any) -> None:
    frame = spark.createDataFrame([("a", 1)], "user string, n long")
    with pytest.raises(InvalidArgumentError, match=r"use statestore\.partition"):
        key_groups(frame, "user", max_parallelism=2)
    with pytest.raises(InvalidArgumentError, match=r"use statestore\.partition"):
        split_by_subtask(frame, "user", parallelism=1, max_parallelism=2)


@pytest.mark.long
def test_text_of_more_than_2_gib_is_split() -> None:
    """One array cannot have it, neither before nor after the split."""
    texts = pa.array(["x" * 2**20] * 750)
    keys = [pa.array(range(750 * part, 750 * (part + 1))) for part in range(3)]
    rows = pa.table({"k": pa.chunked_array(keys), "t": pa.chunked_array([texts] * 3)})
    parts = split_by_subtask(rows, "k", parallelism=1, max_parallelism=128)
    assert [part.num_rows for part in parts] == [2250]
    assert parts[0].column("k").to_pylist() == [*range(2250)]
    parts = split_by_subtask(rows, "k", parallelism=2, max_parallelism=128)
    assert sum(part.num_rows for part in parts) == 2250
