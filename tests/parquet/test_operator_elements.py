"""Write elements of operator state into a file and read them back."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.format.manifest import OperatorEntry, TableRef
from statestore.format.names import SUBTASK
from statestore.format.schema import Schema
from statestore.format.state import OperatorState
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.parquet.operator_elements import (
    elements_table,
    read_elements,
    schema_of_elements,
    write_elements,
)
from statestore.storage import LocalStorage
from statestore.testing.reference import canonical
from tests.support.examples import examples
from tests.support.strategies import element_lists, nullable, table, value_kinds


@dataclass
class Offset:
    partition: int
    offset: int


def stored(
    folder: Path, elements: pa.Table, where: Any = None
) -> list[tuple[int, int, dict[str, Any]]]:
    state = OperatorState(
        uid="u", name="n", mode=RedistributionMode.SPLIT, schema=schema_of_elements(elements)
    )
    storage = LocalStorage(str(folder))
    handles = write_elements(elements, state, storage, "t", 1)
    subtasks = elements.column(SUBTASK).to_pylist()
    counts = tuple(subtasks.count(at) for at in range(max(subtasks, default=0) + 1))
    entry = OperatorEntry(state, TableRef("parquet", "t"), counts, handles)
    return list(read_elements(storage, entry, where))


@examples(30)
@given(st.integers(1, 4).flatmap(element_lists))
def test_elements_are_read_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, lists: list[list[dict[str, Any]]]
) -> None:
    """Each has its previous subtask and position."""
    found = stored(tmp_path_factory.mktemp("t"), elements_table(lists, None))
    assert found == [
        (subtask, position, element)
        for subtask, elements in enumerate(lists)
        for position, element in enumerate(elements)
    ]


@examples(30)
@given(st.data())
def test_elements_hold_any_type(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """These include nested types, and null."""
    kind = nullable(data.draw(value_kinds))
    values = data.draw(st.lists(kind.values, min_size=1, max_size=5))
    rows = table(["a"], [kind], [(value,) for value in values])
    placed = rows.add_column(0, "position", pa.array(range(len(values)), pa.int64()))
    placed = placed.add_column(0, "subtask", pa.array([0] * len(values), pa.int32()))
    found = stored(tmp_path_factory.mktemp("t"), placed)
    assert canonical([element["a"] for _, _, element in found]) == canonical(values)


def test_an_element_is_a_dictionary_or_a_dataclass() -> None:
    """Elements can have the same columns or a subset of them."""
    rows = elements_table([[Offset(0, 7)], [{"partition": 1, "metadata": "x"}]], None)
    assert rows.drop_columns(["subtask", "position"]).to_pylist() == [
        {"partition": 0, "offset": 7, "metadata": None},
        {"partition": 1, "offset": None, "metadata": "x"},
    ]


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[1]], "a dictionary or a dataclass, not int"),
        ([[], [{"a": 1}, "text"]], "element 1 of subtask 1 of the rows must .*, not str"),
        ([[Offset]], "not type"),
        ([[Pair(1, 2)]], "not Pair"),
        ([1], "elements of subtask 0 of the rows must be a list"),
        ([None], "elements of subtask 0 of the rows must be a list"),
        (["text"], "elements of subtask 0 of the rows must be a list"),
        ([[], {"a": 1}], "elements of subtask 1 of the rows must be a list"),
        ([[{}], [{}]], "have no columns"),
        ([[{1: 2}]], "a column name of the rows is not a string"),
        ([[{"a": 1}, {"a": "x"}]], "values of 'a' do not have one type"),
        ([[{"a": 2**64}]], "element 0 of subtask 0 of the rows has 18446744073709551616 in .*'a'"),
        ([[{"subtask": 1}]], "'subtask' is reserved for the store"),
        ([[{"position": 1}]], "'position' is reserved for the store"),
    ],
)
def test_an_invalid_element_is_refused(lists: Any, message: str) -> None:
    """The error comes before anything is written."""
    with pytest.raises(InvalidArgumentError, match=message):
        elements_table(lists, None)


def test_no_elements_make_no_file(tmp_path: Path) -> None:
    """The columns come from the schema, or there are none."""
    rows = elements_table([[], []], None)
    assert schema_of_elements(rows) == Schema(())
    assert stored(tmp_path, rows) == []
    assert list(tmp_path.iterdir()) == []


LISTS: list[list[dict[str, Any]]] = [
    [{"t": "a", "p": 0}, {"t": "b", "p": 0}],
    [{"t": "a", "p": None}],
]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({}, [0, 1, 2]),
        ({"p": [0]}, [0, 1]),
        ({"p": []}, []),
        ({"p": [1]}, []),
        ({"p": [None]}, [2]),
        ({"p": (0, None)}, [0, 1, 2]),
        ({"t": {"a", "z"}}, [0, 2]),
        ({"t": ["a"], "p": range(3)}, [0]),
    ],
)
def test_where_keeps_elements_with_these_values(
    tmp_path: Path, where: Any, kept: list[int]
) -> None:
    """All named columns must match."""
    rows = elements_table(LISTS, None)
    everything = stored(tmp_path / "all", rows)
    assert stored(tmp_path, rows, where) == [everything[index] for index in kept]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"nobody": [1]}, "no column 'nobody'; the columns are t, p"),
        ({"subtask": [1]}, "no column 'subtask'"),
        ({"t": "ab"}, "pass a list of the values"),
        ({"p": 0}, "pass a list of the values"),
        ({"p": ["x"]}, "cannot be compared"),
        ({"p": [2**70]}, "cannot be compared"),
    ],
)
def test_an_invalid_condition_is_refused(tmp_path: Path, where: Any, message: str) -> None:
    """The result is an error and not an empty list."""
    with pytest.raises(InvalidArgumentError, match=message):
        stored(tmp_path, elements_table(LISTS, None), where)
