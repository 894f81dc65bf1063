"""A file with the written bytes can still contain invalid rows, because a writer can have
defects.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pytest

from statestore.format.handles import KeyedStateHandle, OperatorStateHandle
from statestore.format.manifest import KeyedEntry, OperatorEntry
from statestore.maintenance import verify_file
from statestore.maintenance.verify_file import FileCheck, Flaws, check_file, check_files
from statestore.parquet.operator_elements import stored_schema
from statestore.parquet.writer import FileWriter, ParquetOptions
from statestore.rows.column_types import arrow_schema
from statestore.rows.row_order import RowOrder
from statestore.storage import LocalStorage
from statestore.store import StateStore

pytestmark = pytest.mark.slow

INFINITY, NAN = float("inf"), float("nan")
Rows = Sequence[tuple[Any, ...]]


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "store"))


@pytest.fixture
def keyed(storage: LocalStorage) -> KeyedEntry:
    """A map with two entries per key. All three keys are in one key group."""
    store = StateStore.open(storage.url, table_format="parquet", layout="partitioned")
    rows = [{"k": key, "m": m, "v": 0} for key in range(40) for m in range(2)]
    with store.snapshot(parallelism=1) as checkpoint:
        entry: KeyedEntry
        entry = checkpoint.write_keyed(
            "u", "n", rows, kind="map", key="k", entry="m", max_parallelism=4
        )
    return entry


@pytest.fixture
def elements(storage: LocalStorage) -> OperatorEntry:
    """Two elements of subtask 0, none of subtask 1, and one of subtask 2."""
    store = StateStore.open(storage.url, table_format="parquet", layout="partitioned")
    with store.snapshot(parallelism=3) as checkpoint:
        return checkpoint.write_split("u", "s", [[{"x": 1}, {"x": 2}], [], [{"x": 3}]])


def write(storage: LocalStorage, folder: str, schema: pa.Schema, rows: Rows) -> dict[str, Any]:
    """Write any rows as the file ``f.parquet``, two per row group; return the members of its
    handle.
    """
    storage.delete(f"{folder}/f.parquet")
    options = ParquetOptions(row_group_rows=2)
    writer = FileWriter(storage, f"{folder}/f.parquet", schema, options)
    dictionaries = [dict(zip(schema.names, row, strict=True)) for row in rows]
    writer.write(pa.RecordBatch.from_pylist(dictionaries, schema))
    return writer.close()


def keys_of(storage: LocalStorage, entry: KeyedEntry, key_group: int) -> list[int]:
    state = StateStore.open(storage.url).restore().keyed("u", "n")
    rows = state.to_arrow(0).to_pylist()
    return sorted({row["k"] for row in rows if row["key_group"] == key_group})


def flaws(storage: LocalStorage, entry: KeyedEntry, rows: Rows, **facts: Any) -> tuple[str, ...]:
    schema = arrow_schema(entry.state.schema)
    facts = write(storage, entry.table.path, schema, rows) | facts
    handle = KeyedStateHandle("f.parquet", entry.handles[1].key_groups, **facts)
    found = check_file(FileCheck(storage, entry, handle, 0, deep=True))
    return () if found is None else found.what


def test_invalid_rows_are_found(storage: LocalStorage, keyed: KeyedEntry) -> None:
    """I1, I7: each defect alone, also across two row groups, and several together."""
    a, b, c = keys_of(storage, keyed, 1)[:3]
    stranger = keys_of(storage, keyed, 2)[0]
    assert flaws(storage, keyed, [(a, 0, 0), (a, 1, 0), (b, 0, 0), (c, 0, 0)]) == ()
    assert flaws(storage, keyed, [(a, 0, 0), (a, 0, 1)]) == (
        "1 of its rows have the same identity as the previous row",
    )
    for rows in ([(a, 0, 0), (c, 0, 0), (b, 0, 0)], [(a, 1, 0), (a, 0, 0)]):
        assert flaws(storage, keyed, rows) == ("its rows are not sorted",)
    assert flaws(storage, keyed, [(a, 0, 0), (b, 0, 0), (b, 0, 0)]) == (
        "1 of its rows have the same identity as the previous row",
    )
    assert flaws(storage, keyed, sorted([(a, 0, 0), (stranger, 0, 0)])) == (
        "1 of its rows belong to other key groups by their key's hash",
    )
    assert flaws(storage, keyed, [(None, 0, 0), (a, 0, 0), (b, 0, 0)]) == (
        "1 of its rows have a null key",
    )
    (wrong,) = flaws(storage, keyed, [(a, 0, 0)], digest=7)
    assert wrong.endswith("the manifest says 0000000000000007")
    (groups,) = flaws(storage, keyed, [(a, 0, 0)], row_groups=2, digest=7)
    assert groups == "has 1 row groups, but the manifest says 2"


def test_a_file_with_other_columns_is_found(storage: LocalStorage, keyed: KeyedEntry) -> None:
    """I3: it is found without reading rows."""
    schema = pa.schema([("k", pa.int64()), ("other", pa.int64())])
    facts = write(storage, keyed.table.path, schema, [(1, 2)])
    handle = KeyedStateHandle("f.parquet", keyed.handles[0].key_groups, **facts)
    found = check_file(FileCheck(storage, keyed, handle, 0, deep=False))
    assert found is not None
    assert found.what == ("has the columns (k, other), but the manifest says (k, m, v)",)


@pytest.mark.parametrize(
    ("places", "wrong"),
    [
        ([(0, 0), (0, 1), (2, 0)], 0),
        ([(0, 1), (0, 0), (2, 0)], 2),
        ([(0, 0), (0, 1), (1, 0)], 1),
        ([(0, 0), (0, 0), (2, 0)], 1),
        ([(0, 0), (0, 1), (2, 1)], 1),
        ([(2, 0), (0, 0), (0, 1)], 3),
    ],
)
def test_misplaced_elements_are_found(
    storage: LocalStorage, elements: OperatorEntry, places: list[tuple[int, int]], wrong: int
) -> None:
    """I7, I11: the counts in the manifest determine which subtask gets which element."""
    schema = stored_schema(elements.state.schema)
    facts = write(storage, elements.table.path, schema, [(*place, 0) for place in places])
    handle = OperatorStateHandle("f.parquet", **facts)
    found = check_file(FileCheck(storage, elements, handle, 0, deep=True))
    if not wrong:
        assert found is None
        return
    assert found is not None
    expected = f"{wrong} of its elements have another subtask or position than recorded"
    assert found.what == (expected,)


@pytest.mark.parametrize("at_once", [0, 2**30], ids=["streamed", "in memory"])
def test_bytes_are_checked_in_files_of_any_length(
    storage: LocalStorage, keyed: KeyedEntry, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: a long file is hashed while it is streamed, and a short one is read once."""
    monkeypatch.setattr("statestore.parquet.file_sources.WHOLE_FILE_BYTES", at_once)
    handle = keyed.handles[0]
    assert check_file(FileCheck(storage, keyed, handle, 0, deep=True)) is None
    other = replace(handle, sha256="0" * 64)
    found = check_file(FileCheck(storage, keyed, other, 0, deep=True))
    assert found is not None
    assert found.what[0].startswith("has changed since it was written")


@pytest.mark.parametrize("files_at_once", [1, 2, 4])
def test_large_files_are_checked_a_few_at_a_time(
    storage: LocalStorage, files_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results are in the order of the files, whichever is finished first."""
    store = StateStore.open(storage.url, table_format="parquet", layout="partitioned")
    rows = [{"k": key} for key in range(1000)]
    with store.snapshot(parallelism=1) as checkpoint:
        entry = checkpoint.write_keyed("u", "n", rows, key="k", max_parallelism=16)
    checks = [FileCheck(storage, entry, handle, 0, deep=True) for handle in entry.handles]
    for damaged in (3, 12):
        storage.delete(f"{entry.table.path}/{entry.handles[damaged].path}")
    lock, open_files, most = Lock(), 0, 0

    def watched(check: FileCheck) -> Flaws | None:
        nonlocal open_files, most
        with lock:
            open_files += 1
            most = max(most, open_files)
        time.sleep(0.01)
        flaws = check_file(check)
        with lock:
            open_files -= 1
        return flaws

    monkeypatch.setattr(verify_file, "check_file", watched)
    largest = max(handle.size_bytes for handle in entry.handles)
    monkeypatch.setattr(verify_file, "_BYTES_AT_ONCE", files_at_once * largest)
    assert [flaws is not None for flaws in check_files(checks)] == [n in (3, 12) for n in range(16)]
    assert 1 <= most <= files_at_once + 1


@pytest.mark.parametrize(
    ("values", "is_sorted", "duplicates"),
    [
        ([None, -INFINITY, -1.5, -0.0, 0.0, 2.0, INFINITY, NAN], True, 0),
        ([None, NAN, -INFINITY, 0.0, -0.0, 2.0], True, 0),
        ([0.0, 0.0, -0.0], True, 1),
        ([NAN, NAN, 1.0, 2.0, 2.0], True, 2),
        ([None, None], True, 1),
        ([1.0, None], False, 0),
        ([NAN, None], False, 0),
        ([1.0, 0.5], False, 0),
        ([0.0, -0.0, 0.0], False, 0),
        ([NAN, 1.0, NAN], False, 0),
        ([-1.0, -2.0], False, 0),
    ],
)
@pytest.mark.parametrize("width", [pa.float32(), pa.float64()])
def test_floats_have_a_total_order(
    values: list[float | None], is_sorted: bool, duplicates: int, width: pa.DataType
) -> None:
    """NaN and -0.0 sort before or after their neighbors, but consistently, in one batch and row by
    row.
    """
    batch = pa.RecordBatch.from_arrays([pa.array(values, width)], ["x"])
    for size in (1, 2, len(values)):
        order = RowOrder(["x"])
        for at in range(0, len(values), size):
            order.check_batch(batch.slice(at, size))
        assert (order.is_sorted, order.duplicates) == (is_sorted, duplicates)


def test_rows_are_compared_column_by_column() -> None:
    """Strings compare by bytes, structs by fields, and null precedes every value."""
    kind = pa.struct([("a", pa.string()), ("b", pa.bool_())])
    rows: list[Any] = [None, {"a": None, "b": True}, {"a": "Z", "b": None}, {"a": "a", "b": False}]
    rows += [{"a": "a", "b": True}, {"a": "é", "b": None}, {"a": "\U0001f600", "b": None}]
    for given, expected in ((rows, True), (rows[::-1], False)):
        order = RowOrder(["s", "n"])
        numbers = pa.array(range(len(given), 0, -1))
        order.check_batch(pa.RecordBatch.from_arrays([pa.array(given, kind), numbers], ["s", "n"]))
        assert (order.is_sorted, order.duplicates) == (expected, 0)
