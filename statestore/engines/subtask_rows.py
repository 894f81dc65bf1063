"""Key groups of rows, and rows by subtask, whole columns at a time.

A process that holds rows of several subtasks must separate them before each subtask writes its
part. Rows are an Arrow table, a Polars or pandas DataFrame, or anything else that a snapshot
accepts except a Spark DataFrame, for which :func:`statestore.partition` exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.arguments import checked
from statestore.engines.given_rows import as_table, rereadable
from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.keys.arrow import key_groups as key_groups_of_columns
from statestore.keys.groups import KeyGroupAssignment
from statestore.keys.key_types import DEFAULT_HASH_SCHEME
from statestore.rows.key_group_runs import combine_chunks
from statestore.rows.pandas_rows import is_pandas


@checked
def key_groups(
    rows: Any,
    key: str | Sequence[str],
    *,
    max_parallelism: int,
    hash_scheme: str = DEFAULT_HASH_SCHEME,
    key_types: Sequence[str | None] | None = None,
) -> npt.NDArray[np.int32]:
    """Return the key group of each row, as :func:`statestore.key_group_of` does for one key.

    Args:
        rows: an Arrow table, a Polars or pandas DataFrame, or a list of dictionaries.
        key: the key columns, in the order of the key.
        max_parallelism: the number of key groups, 1..32768.
        hash_scheme: ``java``, ``flink-sql`` or ``pyflink``; by default ``java``.
        key_types: the type that each key column is hashed as. By default, or for None, it is the
            column's own type.

    Returns:
        The key groups, 0 .. ``max_parallelism`` - 1, in the order of the rows.

    Raises:
        NullKeyError: for a null in the key (java, pyflink).
        UnsupportedTypeError: for a column type that cannot be a key.
        ParallelismError: when ``max_parallelism`` is not in 1..32768.
        InvalidArgumentError: for a missing column, a value that its type cannot hold, or rows of
            another kind.
    """
    names = [key] if isinstance(key, str) else list(key)
    table = _key_table(rows, names)
    return key_groups_of_columns(
        [table.column(name) for name in names],
        max_parallelism=max_parallelism,
        hash_scheme=hash_scheme,
        key_types=key_types,
    )


@checked
def split_by_subtask(
    rows: Any,
    key: str | Sequence[str],
    *,
    parallelism: int,
    max_parallelism: int,
    hash_scheme: str = DEFAULT_HASH_SCHEME,
    key_types: Sequence[str | None] | None = None,
) -> list[Any]:
    """Return the rows of each subtask, in order of subtask.

    The subtasks own Flink's even ranges of key groups. The rows of a subtask keep their order.

    Args:
        rows: as in :func:`key_groups`.
        key: as in :func:`key_groups`.
        parallelism: the number of subtasks.
        max_parallelism: as in :func:`key_groups`.
        hash_scheme: as in :func:`key_groups`.
        key_types: as in :func:`key_groups`.

    Returns:
        One part per subtask, which can be empty. The parts of a Polars or pandas DataFrame are such
        DataFrames; other rows become Arrow tables. A pandas part has a new index.

    Raises:
        ParallelismError: if ``parallelism`` exceeds ``max_parallelism``, or is below 1.
        UnsupportedTypeError: for a column of a type whose rows Arrow cannot select, such as views.
        StateStoreError: the errors of :func:`key_groups`.
    """
    # Refuse the numbers before all rows are hashed.
    KeyGroupAssignment(max_parallelism=max_parallelism, parallelism=parallelism)
    rows = _frame_or_table(rows)
    groups = key_groups(
        rows,
        key,
        max_parallelism=max_parallelism,
        hash_scheme=hash_scheme,
        key_types=key_types,
    )
    # The rule of subtask_of_key_group. Its product does not fit 32 bits with many key groups.
    subtasks = (groups.astype(np.int64) * parallelism // max_parallelism).astype(np.uint16)
    if isinstance(rows, pa.Table):
        return _split_table(rows, subtasks, parallelism)
    return [_rows_at(rows, places) for places in _places(subtasks, parallelism)]


def _places(subtasks: npt.NDArray[np.uint16], parallelism: int) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the positions of the rows of each subtask."""
    order = np.argsort(subtasks, kind="stable")  # a radix sort, since the numbers have 16 bits
    ends = [0, *np.cumsum(np.bincount(subtasks, minlength=parallelism)).tolist()]
    for first, end in pairwise(ends):
        yield order[first:end]


def _split_table(
    rows: pa.Table, subtasks: npt.NDArray[np.uint16], parallelism: int
) -> list[pa.Table]:
    """Return the parts of a table, a batch at a time: Arrow cannot take more than 2 GiB of text."""
    parts: list[list[pa.RecordBatch]] = [[] for _ in range(parallelism)]
    first = 0
    try:
        for batch in combine_chunks(rows).to_batches():
            own = subtasks[first : first + batch.num_rows]
            for part, places in zip(parts, _places(own, parallelism), strict=True):
                part.append(batch.take(pa.array(places)))
            first += batch.num_rows
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedTypeError(
            f"cannot select rows of the columns ({', '.join(map(str, rows.schema.types))}): "
            f"{error}; cast views and run-end encoded columns to plain types first"
        ) from error
    return [pa.Table.from_batches(part, rows.schema) for part in parts]


def _key_table(rows: Any, names: Sequence[str]) -> pa.Table:
    """Return a table with the key columns; other columns of a DataFrame are not converted."""
    rows = _frame_or_table(rows)
    known = rows.column_names if isinstance(rows, pa.Table) else list(rows.columns)
    for name in names:
        if name not in known:
            raise InvalidArgumentError(
                f"the rows have no column {name!r}; the columns are {', '.join(map(str, known))}"
            )
    return rows if isinstance(rows, pa.Table) else as_table(rows[names])


def _frame_or_table(rows: Any) -> Any:
    """Return a Polars or pandas DataFrame unchanged, and other rows as an Arrow table."""
    if type(rows).__module__.startswith("pyspark."):
        raise InvalidArgumentError(
            "the rows are a Spark DataFrame, which is not in this process; use "
            "statestore.partition(df, KeyGroup(key=…), parallelism=…)"
        )
    rows = rereadable(rows)  # computes a lazy DataFrame
    return rows if _is_polars(rows) or is_pandas(rows) else as_table(rows)


def _rows_at(frame: Any, places: npt.NDArray[np.intp]) -> Any:
    return frame.take(places).reset_index(drop=True) if is_pandas(frame) else frame[places]


def _is_polars(rows: Any) -> bool:
    rows_type = type(rows)
    return rows_type.__module__.startswith("polars.") and rows_type.__name__ == "DataFrame"
