"""The steps of reading and writing a state grow with its entries, not faster.

Steps are calls of Python functions, and memory is what NumPy allocates, so that no test depends on
the speed of the machine.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import DamagedFileError
from statestore.interop.flink import export_savepoint, open_savepoint
from statestore.interop.flink.importing.probes import probe_keys
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.metadata.logical_types import key_logical_type
from statestore.interop.flink.options import FlinkTarget
from statestore.interop.flink.types.byte_cursor import Cursor, Spans, piece_array
from statestore.interop.flink.types.java_types import Scalar
from statestore.interop.flink.types.key_recipes import recipe_hash_codes
from statestore.interop.flink.types.kryo_objects import read_text_bytes
from statestore.interop.flink.types.scala_types import CaseClassType
from statestore.interop.flink.types.sql_types import RowDataType
from statestore.keys.arrow import key_groups_of_hashes
from tests.interop.flink.written import written_savepoint

RULES = 2_000


def count_calls(work: Callable[[], object]) -> int:
    """Return how many calls of Python functions some work makes."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    """A store with a broadcast state."""
    store = StateStore.open(str(tmp_path_factory.mktemp("rules") / "store"), table_format="parquet")
    names = [f"rule {number}" for number in range(RULES)]
    table = pa.table({"key": names, "most": range(RULES)})
    store.bootstrap("uid", "rules", table, mode="broadcast")
    return store


def export(store: StateStore, folder: Path, parallelism: int) -> Path:
    target = FlinkTarget(types={"uid/rules": "Map<String, Long>"})
    export_savepoint(store, str(folder), parallelism=parallelism, target=target)
    return folder


def test_entries_of_a_broadcast_state_are_decoded_together(
    rules: StateStore, tmp_path: Path
) -> None:
    operator = open_savepoint(str(export(rules, tmp_path / "to", 1))).operator("uid")
    (elements,) = operator.operator_state()
    assert count_calls(elements.values) < 12 * RULES
    assert elements.values().to_pylist() == [
        {"f0": f"rule {number}", "f1": number} for number in range(RULES)
    ]


def test_a_broadcast_state_is_encoded_and_proven_once_for_all_subtasks(
    rules: StateStore, tmp_path: Path
) -> None:
    few = count_calls(lambda: export(rules, tmp_path / "few", 2))
    many = count_calls(lambda: export(rules, tmp_path / "many", 34))
    assert many - few < 32 * RULES
    copies = list(open_savepoint(str(tmp_path / "many")).operator("uid").operator_state())
    assert [copy.subtask for copy in copies] == list(range(34))
    assert {copy.raw.data.tobytes() for copy in copies} == {copies[0].raw.data.tobytes()}
    assert copies[0].count() == RULES


def test_rows_of_flink_sql_are_encoded_and_hashed_together() -> None:
    columns = tuple(map(key_logical_type, ("STRING", "BIGINT", "DECIMAL(38, 2)", "TIMESTAMP(6)")))
    row = RowDataType(columns, (Scalar("Long"),) * len(columns), is_key=True)
    names = pa.array([f"the name of customer {number}" for number in range(RULES)])
    numbers = pa.array(range(RULES))
    times, prices = numbers.cast(pa.timestamp("us")), numbers.cast(pa.decimal128(38, 2))
    kinds = pa.array([0] * RULES, pa.int8())
    rows = pa.StructArray.from_arrays(
        [kinds, names, numbers, prices, times], fields=list(row.arrow_type())
    )
    assert count_calls(lambda: row.write(rows)) < RULES
    spans = Spans.from_array(row.write(rows), "rows")
    cursor = Cursor(spans, spans.starts, spans.ends)
    assert count_calls(lambda: row.key_groups(cursor)(128)) < RULES


def test_equal_keys_prove_a_recipe_once(tmp_path: Path) -> None:
    """Keys are compared by their bytes, a whole key group at a time."""
    key = CaseClassType("a.Plain", (Scalar("String"), Scalar("Long")))
    one = pa.array([{"f0": "ann", "f1": 1}], key.arrow_type())
    (group,) = key_groups_of_hashes(recipe_hash_codes("scala", key, one), 128).tolist()
    keys = pa.concat_arrays([one] * RULES)
    place = written_savepoint(tmp_path / "s", key, keys, list(range(RULES)), groups=[group] * RULES)
    (operator,) = open_savepoint(str(place)).operators
    assert probe_keys(operator).recipe is None
    assert count_calls(lambda: probe_keys(operator)) < 40 * RULES


@pytest.mark.parametrize("head", [b"\xff", b"\xc5"], ids=["a length", "a length of Kryo"])
def test_the_length_of_a_kryo_text_has_at_most_six_bytes(head: bytes) -> None:
    hostile = Reader(head + b"\xff" * 100_000, "f")
    with pytest.raises(DamagedFileError, match="f is damaged at byte 1: a variable-length number"):
        read_text_bytes(hostile)
    assert hostile.position < 10


def test_a_long_ascii_text_of_kryo_is_read_at_once() -> None:
    text = b"a" * 100_000
    reader = Reader(text + b"\xe1rest", "f")
    assert count_calls(lambda: read_text_bytes(reader)) < 10
    assert reader.remaining == 4
    assert read_text_bytes(Reader(b"ab\xe3", "f")) == b"abc"
    with pytest.raises(DamagedFileError, match="only 3 are left"):
        read_text_bytes(Reader(b"abc", "f"))


@pytest.mark.parametrize("size", [700, 3 << 20])
def test_unordered_slices_take_little_more_memory_than_their_bytes(size: int) -> None:
    count = (24 << 20) // size
    data = np.random.default_rng(size).integers(0, 256, count * size, np.uint8)
    starts = np.arange(count, dtype=np.int64)[::-1] * size
    tracemalloc.start()
    try:
        pieces = piece_array(data, starts, starts + size)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(data) + 40 * count + (40 << 20)
    assert pieces.to_pylist()[:: max(1, count // 100)] == [
        data[start : start + size].tobytes() for start in starts[:: max(1, count // 100)].tolist()
    ]
    pieces.validate(full=True)
