"""CSV is read as RFC 4180 says, wherever a block of the reader ends, or refused with its place."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.interop.tables import table_formats
from statestore.interop.tables.table_formats import read_csv

QUOTED = '",\r\n\ufeff'
TEXTS = st.text(alphabet='ab",\r\n é\0\ufeff', max_size=6)


def read(data: bytes, block: int = 2**20) -> list[tuple[Any, ...]]:
    """Return the rows with the header, read in blocks of some bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_formats, "_BLOCK_BYTES", block)
        batches = list(read_csv(io.BytesIO(data), "t.csv"))
    rows = [row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)]
    return [tuple(batches[0].schema.names), *rows]


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, list[tuple[str | None, ...]]]:
    """Draw a file, with quotes where they are needed and where not, and its rows."""
    names = draw(st.lists(TEXTS.filter(bool), min_size=1, max_size=3, unique=True))
    value = st.none() | TEXTS
    rows = draw(st.lists(st.tuples(*[value] * len(names)), max_size=5))
    text = draw(st.sampled_from(["", "\ufeff"]))
    for row in [tuple(names), *rows]:
        fields = []
        for item in row:
            if item is None:
                fields.append("")
            elif not item or not set(item).isdisjoint(QUOTED) or draw(st.booleans()):
                fields.append('"{}"'.format(item.replace('"', '""')))
            else:
                fields.append(item)
        text += ",".join(fields) + draw(st.sampled_from(["\n", "\r\n"]))
    ends_with_empty_line = len(names) == 1 and rows and rows[-1] == (None,)
    if draw(st.booleans()) and not ends_with_empty_line:
        text = text.removesuffix("\n").removesuffix("\r")
    return text.encode(), [tuple(names), *rows]


@given(files(), st.integers(1, 9))
def test_each_value_comes_back_wherever_a_block_ends(
    file: tuple[bytes, list[tuple[str | None, ...]]], block: int
) -> None:
    data, rows = file
    assert read(data, block) == rows


@given(st.text(alphabet='a",\r\n', max_size=20), st.integers(1, 5))
@example('aaa,""\n"', 1)
def test_any_bytes_are_rows_or_refused(text: str, block: int) -> None:
    """Python's reader accepts more, but never reads other values."""
    try:
        rows = read(text.encode(), block)
    except InvalidArgumentError:
        return
    expected = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    found = [[value or "" for value in row] for row in rows]
    assert [row for row in found if len(row) > 1 or row != [""]] == [
        row for row in expected if len(row) > 1 or row != [""]
    ]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "t.csv is empty"),
        (b"\xef\xbb\xbf", "t.csv is empty"),
        (b"\nk,v\n", "line 1 of t.csv is empty"),
        (b"k,v,k\n", "line 1 of t.csv has the column 'k' twice"),
        (b"k,v\na,1\nb\n", "line 3, column 1 of t.csv begins a row of 1 instead of 2"),
        (b'k,v\n"a\nb",1\nc,2,3\n', "line 4, column 1 of t.csv begins a row of 3 instead of 2"),
        (b'k,v\na,"one\nb,two\n', "line 2, column 2 of t.csv opens a quote that is never closed"),
        (b'k,v\na,"one ""\nb', "line 2, column 2 of t.csv opens a quote that is never closed"),
        (b'k,v\na,"one\nb,"two"\n', "line 3, column 2 of t.csv has text after a closing quote"),
        (b'k,v\na,"1"2\n', "line 2, column 2 of t.csv has text after a closing quote"),
        (b'k,v\na,5" pipe\n', "line 2, column 2 of t.csv has a quote in a value without quotes"),
        (b"k,v\ra,1\r", "line 1, column 2 of t.csv has a CR without LF"),
        (b"k,v\na\rb,1\n", "line 2, column 1 of t.csv has a CR without LF"),
        ("k,v\na,é\n".encode("latin-1"), r"line 2, column 2 of t.csv is not UTF-8 \(byte 0xe9\)"),
        ("k,v\na,1\n".encode("utf-16"), r"line 1, column 1 of t.csv is not UTF-8 \(byte 0xff\)"),
    ],
)
@pytest.mark.parametrize("block", [1, 2**20])
def test_what_is_not_csv_is_refused_with_its_place(data: bytes, problem: str, block: int) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        read(data, block)


def test_an_empty_line_is_a_row_only_if_there_is_one_column() -> None:
    assert read(b"k,v\n\na,1\n\r\nb,2\n\n") == [("k", "v"), ("a", "1"), ("b", "2")]
    assert read(b'k\na\n\n""\n') == [("k",), ("a",), (None,), ("",)]


def test_a_row_of_many_blocks_is_searched_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    class Counted(table_formats._Rows):
        def __init__(self, data: bytes, line: int, place: str) -> None:
            searched.append(len(data))
            super().__init__(data, line, place)

    monkeypatch.setattr(table_formats, "_Rows", Counted)
    value = "line\r\n" * 20_000
    assert read(f'k,v\na,"{value}"\nb,1\n'.encode(), 1000)[1:] == [("a", value), ("b", "1")]
    assert sum(searched) < 5 * len(value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [("x" * 200, "has more than 0 MiB"), ('"' + "x\n" * 100, "opens a quote that is never closed")],
)
def test_a_longer_row_than_the_maximum_is_refused(
    value: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_formats, "_MOST_ROW_BYTES", 100)
    with pytest.raises(InvalidArgumentError, match=f"line 2, column [12] of t.csv {problem}"):
        read(f"k,v\na,{value}".encode(), 10)
