"""Column encodings: columns with mostly distinct values get no dictionary, and every
value is kept.
"""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statestore.parquet.writer import Encodings, FileWriter, ParquetOptions, encodings, leaf_paths
from statestore.storage import LocalStorage

ROWS = 5_000
_SHUFFLED = random.Random(7).sample(range(10**12), ROWS)


@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        (pa.array([f"user-{number:09d}" for number in range(ROWS)]), "DELTA_BYTE_ARRAY"),
        (pa.array([f"{number}" for number in _SHUFFLED]), "DELTA_LENGTH_BYTE_ARRAY"),
        (pa.array([str(number).encode() for number in _SHUFFLED]), "DELTA_LENGTH_BYTE_ARRAY"),
        (pa.array(_SHUFFLED), "DELTA_BINARY_PACKED"),
        (pa.array(_SHUFFLED, pa.timestamp("us", "UTC")), "DELTA_BINARY_PACKED"),
        (pa.array(range(ROWS), pa.int16()), "DELTA_BINARY_PACKED"),
        (pa.array(range(ROWS), pa.int32()).cast(pa.date32()), "DELTA_BINARY_PACKED"),
        (pa.array([number / 7 for number in _SHUFFLED]), "PLAIN"),
        (pa.array(["red", "green"] * (ROWS // 2)), None),
        (pa.array([1, 2] * (ROWS // 2)), None),
        (pa.array([None] * ROWS, pa.string()), None),
        (pa.array([{"a": number} for number in _SHUFFLED]), None),
        (pa.array([True, False] * (ROWS // 2)), None),
    ],
)
def test_a_column_is_encoded_by_how_its_values_differ(
    values: pa.Array, encoding: str | None
) -> None:
    assert encodings(pa.table({"c": values})).get("c") == encoding


def test_a_name_with_a_dot_keeps_the_default_encoding() -> None:
    assert encodings(pa.table({"a.b": pa.array(_SHUFFLED)})) == {}


def test_no_rows_choose_nothing() -> None:
    assert encodings(pa.table({"c": pa.array([], pa.string())})) == {}


def test_files_of_a_state_share_encodings_after_enough_rows() -> None:
    """One row does not show that a column has the same value in all other rows."""
    few, many = pa.table({"c": ["red"]}), pa.table({"c": ["red"] * ROWS})
    shared = Encodings()
    assert shared.choose(few) == {"c": "DELTA_BYTE_ARRAY"}
    assert shared.choose(many) == {}
    assert shared.choose(pa.table({"c": [str(number) for number in _SHUFFLED]})) == {}


def test_leaf_paths_equal_parquets(tmp_path: Path) -> None:
    nested = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.struct([("z", pa.string())])))])
    table = pa.table(
        {
            "a": pa.array([1]),
            "s": pa.array([{"x": 1, "y": [{"z": "p"}]}], nested),
            "m": pa.array([[("k", {"x": 1, "y": []})]], pa.map_(pa.string(), nested)),
        }
    )
    pq.write_table(table, tmp_path / "file")
    row_group = pq.ParquetFile(tmp_path / "file").metadata.row_group(0)
    found = [row_group.column(at).path_in_schema for at in range(row_group.num_columns)]
    assert leaf_paths(table.schema) == found


def test_the_first_rows_choose_for_the_whole_file_and_nothing_is_lost(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "key": [
                *[f"user-{number:09d}" for number in range(ROWS)],
                None,
                "",
                "ÿ",
                *["same"] * 90,
            ],
            "at": pa.array(
                [*_SHUFFLED, None, -(2**62), 2**62, *[0] * 90], pa.timestamp("us", "UTC")
            ),
            "day": [*[dt.date(2000, 1, 1)] * (ROWS + 93)],
            "amount": [
                *[number / 7 for number in _SHUFFLED],
                None,
                -0.0,
                float("inf"),
                *[1.0] * 90,
            ],
            "tags": [[str(n)] * (n % 3) for n in range(ROWS + 93)],
        }
    )
    storage = LocalStorage(str(tmp_path))
    writer = FileWriter(storage, "file", rows.schema, ParquetOptions(row_group_rows=1_000))
    for batch in rows.to_batches(700):
        writer.write(batch)
    assert writer.close()["rows"] == rows.num_rows
    parquet = pq.ParquetFile(tmp_path / "file")
    assert parquet.read().equals(rows)
    encoded = {
        parquet.metadata.row_group(at).column(0).encodings[-1]
        for at in range(parquet.num_row_groups)
    }
    assert encoded == {"DELTA_BYTE_ARRAY"}
