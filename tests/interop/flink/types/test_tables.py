"""State of queries and joins of real Flink: columns where possible, and no hidden operator."""

from __future__ import annotations

import io
import lzma
import tarfile
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink import export_savepoint, import_savepoint, open_savepoint
from statestore.interop.flink.columns.state_columns import EntryForm
from statestore.interop.flink.importing.import_record import SavepointRecord
from statestore.interop.flink.metadata.java_binary import Reader, i8, i32, utf
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.byte_cursor import Spans
from statestore.interop.flink.types.column_bytes import decode_values
from statestore.interop.flink.types.internal_types import UnknownType
from statestore.interop.flink.types.java_types import EitherType, ListType, MapType, Scalar
from statestore.interop.flink.types.serializer_snapshots import read_snapshot
from statestore.store import StateStore
from tests.interop.flink.exporting.test_export_imported import entries
from tests.interop.flink.goldens import FOLDER

NUMBERS = range(200)
LONG, STRING = Scalar("Long"), Scalar("String")


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tables")
    packed = lzma.decompress((FOLDER / "2.3_tables.tar.xz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")
    return str(folder / "savepoint")


@pytest.fixture(scope="module")
def store(savepoint: str, tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    url = str(tmp_path_factory.mktemp("store"))
    store = StateStore.open(f"{url}/store", table_format="parquet", layout="ranged")
    import_savepoint(savepoint, store)
    return store


def rows(store: StateStore, operator: str, state: str) -> list[dict[str, Any]]:
    record = SavepointRecord.of(store.restore())
    (uid,) = {one.operator for one in record.states if one.operator.startswith(operator)}
    found = store.restore(parallelism=1).keyed(uid, state).to_arrow(0)
    return list(found.drop_columns(["key_group"]).to_pylist())


@pytest.mark.long
@pytest.mark.slow
def test_no_operator_is_hidden(savepoint: str, store: StateStore) -> None:
    assert [
        operator.problem for operator in open_savepoint(savepoint).operators if operator.problem
    ] == []
    states = SavepointRecord.of(store.restore()).states
    assert [state for state in states if state.form is not EntryForm.COLUMNS] == []
    assert len(states) == 82


@pytest.mark.slow
def test_a_sorted_map_of_top_n_has_a_column(store: StateStore) -> None:
    sums: Counter[tuple[int, str | None]] = Counter()
    for n in NUMBERS:
        sums[n % 3, None if n % 7 == 0 else f"name {n % 7}"] += n
    found = {row["key_f0"]: row["value"] for row in rows(store, "Rank[54]", "sorted-map")}
    for small in range(3):
        wanted = sorted(total for (one, _), total in sums.items() if one == small)
        assert [(key["f0"], count) for key, count in found[small]] == [
            (Decimal(one), count) for one, count in sorted(Counter(wanted).items())
        ]


@pytest.mark.slow
def test_joins_of_two_streams_have_columns(store: StateStore) -> None:
    found = rows(store, "TumblingEventTimeWindows", "window-contents")
    left = sorted(row["left"] for row in found if row["is_left"])
    right = sorted(row["right"] for row in found if not row["is_left"])
    assert left == list(NUMBERS)
    assert right == sorted(f"text {n}" for n in NUMBERS)
    buffered = rows(store, "interval", "LEFT_BUFFER")
    assert [one["value"][0]["f1"] for one in buffered] == [one["map_key"] for one in buffered]
    assert {one["map_key"] for one in buffered} <= set(NUMBERS)
    assert {one["map_key"] % 5 for one in buffered} == {one["key"] for one in buffered}


@pytest.mark.slow
def test_over_aggregates_and_deduplication_have_columns(store: StateStore) -> None:
    newest = rows(store, "Deduplicate[22]", "deduplicate-state")
    assert {(row["key_f0"], row["f0"]) for row in newest} == {
        (None if n % 7 == 0 else f"name {n % 7}", n) for n in range(193, 200)
    }
    kept = rows(store, "OverAggregate[88]", "inputState")
    assert {row["key_f0"] for row in kept} >= {f"name {n}" for n in range(1, 7)}


@pytest.mark.slow
def test_every_byte_survives_a_round_trip(
    savepoint: str, store: StateStore, tmp_path: Path
) -> None:
    done = export_savepoint(store, str(tmp_path / "to"))
    after = {one.metadata.id: one for one in open_savepoint(done.savepoint).operators}
    before = open_savepoint(savepoint).operators
    assert len(before) == len(after)
    for operator in before:
        assert entries(after[operator.metadata.id]) == entries(operator)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (ListType(STRING, "LinkedList"), [[], ["a"], [None, "b", None], ["x"] * 9 + [None]]),
        (ListType(LONG, "LinkedList"), [[None] * 20, [1, -1]]),
        (MapType(STRING, LONG, "SortedMap", b"\xac\xed\0\5p"), [[], [("a", 1), ("b", None)]]),
        (MapType(STRING, LONG, "NullAwareMap"), [[("a", 1), ("b", None)]]),
        (
            EitherType(LONG, STRING, "TaggedUnion"),
            [
                {"is_left": True, "left": 1, "right": None},
                {"is_left": False, "left": None, "right": "a"},
            ],
        ),
        (Scalar("SortedLong"), [0, -1, 2**63 - 1, -(2**63)]),
        (Scalar("ByteArrayWrapper"), [b"", b"abc"]),
    ],
    ids=str,
)
def test_values_survive_a_round_trip(kind: FlinkType, values: list[Any]) -> None:
    assert read_snapshot(Reader(i32(2) + kind.snapshot(), "a snapshot")).flink_type == kind
    raw = kind.write(pa.array(values, kind.arrow_type())).to_pylist()
    assert decode_values(kind, Spans.from_values(raw, "values")).to_pylist() == values
    for one in raw:
        reader = Reader(one + b"more", "a value")
        kind.skipper()(reader)
        assert reader.position == len(one)


def test_numbers_sort_like_their_bytes() -> None:
    numbers = [-(2**63), -5, -1, 0, 7, 2**63 - 1]
    raw = Scalar("SortedLong").write(pa.array(numbers)).to_pylist()
    assert raw == sorted(raw)


def test_a_map_with_a_null_key_has_no_column() -> None:
    kind = MapType(STRING, LONG, "NullAwareMap")
    raw = i32(1) + i8(1) + i8(0) + bytes(8)
    with pytest.raises(UnsupportedTypeError, match="a map has a null key"):
        decode_values(kind, Spans.from_values([raw], "values"))


def test_an_unknown_class_hides_nothing_if_other_metadata_describes_it() -> None:
    inner = i32(1333245) + i32(1) + i32(1) + LONG.snapshot()
    raw = utf("a.b.OwnSnapshot") + i32(3) + i32(911108) + i32(7) + inner
    reader = Reader(i32(2) + raw + b"more", "a snapshot")
    found = read_snapshot(reader)
    assert found.raw == raw == found.flink_type.snapshot()
    assert isinstance(found.flink_type, UnknownType)
    with pytest.raises(
        UnsupportedTypeError, match="values of OwnSnapshot can only be read as bytes"
    ):
        found.flink_type.arrow_type()
    wrong = utf("a.b.OwnSnapshot") + i32(3) + i32(911108) + i32(7) + utf("more") + inner
    with pytest.raises(UnsupportedTypeError, match=r"'a.b.OwnSnapshot' at byte"):
        read_snapshot(Reader(i32(2) + wrong, "a snapshot"))
