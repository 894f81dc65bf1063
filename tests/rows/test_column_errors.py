"""One error names all columns that do not fit."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pyarrow as pa
import pytest

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.schema import Field, Schema
from statestore.rows.column_types import for_each_column
from statestore.rows.fit_columns import fit_table
from statestore.rows.pandas_rows import pandas_as_stored, table_of_pandas
from statestore.rows.python_values import table_of_dicts

SCHEMA = Schema((Field("a", "long"), Field("b", "string"), Field("c", "long")))


def refuse(error: Exception | None) -> None:
    if error is not None:
        raise error


def test_one_error_is_raised_as_it_is() -> None:
    only = InvalidArgumentError("only")
    with pytest.raises(InvalidArgumentError) as raised:
        for_each_column([None, only, None], refuse, "the rows")
    assert raised.value is only


def test_errors_of_other_kinds_are_not_collected() -> None:
    errors = [SchemaMismatchError("not of one column"), InvalidArgumentError("of one column")]
    with pytest.raises(SchemaMismatchError):
        for_each_column(errors, refuse, "the rows")


@pytest.mark.parametrize(
    "convert",
    [
        lambda: table_of_dicts([{"a": "x", "b": "y", "c": 1.5}], SCHEMA),
        lambda: fit_table(pa.table({"a": ["x"], "b": ["y"], "c": [1.5]}), SCHEMA),
        lambda: pandas_as_stored(
            pd.DataFrame({"a": ["x"], "b": ["y"], "c": [1.5]}),
            pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.int64())]),
        ),
    ],
    ids=["dictionaries", "table", "pandas"],
)
def test_every_way_to_stored_columns_names_all_that_do_not_fit(
    convert: Callable[[], pa.Table],
) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        convert()
    first, *columns = str(raised.value).splitlines()
    assert first == "2 columns of the rows do not fit:"
    assert [("'a'" in line, "'c'" in line) for line in columns] == [(True, False), (False, True)]


@pytest.mark.parametrize("as_frame", [True, False])
def test_columns_without_one_type_are_named_together(as_frame: bool) -> None:
    rows = [{"a": 1, "b": "x", "c": "x"}, {"a": "y", "b": "y", "c": 2}]
    with pytest.raises(InvalidArgumentError, match="2 columns of the rows") as raised:
        table_of_pandas(pd.DataFrame(rows)) if as_frame else table_of_dicts(rows, None)
    assert [line[:20] for line in str(raised.value).splitlines()[1:]] == [
        "  the values of 'a' ",
        "  the values of 'c' ",
    ]
