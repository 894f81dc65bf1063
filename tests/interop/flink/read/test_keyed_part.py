"""Keyed state of a subtask: each byte is read once for all states, and again for its own state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import DamagedFileError
from statestore.interop.flink import open_savepoint
from statestore.interop.flink.metadata.java_binary import Reader, i32
from statestore.interop.flink.options import SavepointAccess
from statestore.interop.flink.read.canonical import Entries
from statestore.interop.flink.read.heap import HeapEntries
from statestore.interop.flink.read.keyed_states import FlinkState, StateForm, flink_state
from statestore.interop.flink.read.savepoint_files import GroupBytes
from statestore.interop.flink.read.snappy import frame_pieces
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.internal_types import TimerType
from statestore.interop.flink.types.java_types import ListType, MapType, Scalar
from statestore.jobgraph.operators import operator_id
from statestore.keys.groups import KeyGroupAssignment
from statestore.storage.local import LocalStorage
from tests.interop.flink.goldens import Golden

STRING, LONG = Scalar("String"), Scalar("Long")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2.3_rocksdb_canonical", "2.3_heap_native"])
def test_no_state_reads_the_bytes_of_others_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (operator,) = (
        one
        for one in open_savepoint(str(Golden(name).unpack(tmp_path))).operators
        if one.metadata.uid == "by_long"
    )
    read: list[int] = []
    whole = LocalStorage.read_range

    def counted(storage: LocalStorage, file: str, start: int, stop: int) -> bytes:
        read.append(stop - start)
        return whole(storage, file, start, stop)

    monkeypatch.setattr(LocalStorage, "read_range", counted)
    first, *others = (state.name for state in operator.states)
    list(operator.entries(first))
    once = sum(read)
    read.clear()
    found = [entry for other in others for entry in operator.entries(other)]
    assert len({one.state.name for one in found}) >= len(others) - 1
    assert 0 < sum(read) < once


def test_a_state_is_not_looked_for_in_key_groups_without_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read of a key group finds the states that have entries."""
    (operator,) = (
        one
        for one in open_savepoint(str(Golden("2.3_heap_native").unpack(tmp_path))).operators
        if one.metadata.uid == "by_long"
    )
    walked: list[HeapEntries] = []
    heap_entries = FlinkState.heap_entries

    def noted(state: FlinkState, entries: HeapEntries, *places: int) -> Iterator[Entries]:
        walked.append(entries)
        return heap_entries(state, entries, *places)

    monkeypatch.setattr(FlinkState, "heap_entries", noted)
    first, *others = (state.name for state in operator.states)
    list(operator.entries(first))
    assert not all(map(len, walked))
    walked.clear()
    for other in others:
        list(operator.entries(other))
    assert walked
    assert all(map(len, walked))


@pytest.mark.parametrize("name", ["2.3_rocksdb_canonical", "2.3_heap_native"])
def test_a_range_reads_no_other_key_groups(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (operator,) = (
        one
        for one in open_savepoint(str(Golden(name).unpack(tmp_path))).operators
        if one.states and one.metadata.id == operator_id("by_long")
    )
    read: set[tuple[str, int]] = set()
    whole = LocalStorage.read_range

    def noted(storage: LocalStorage, file: str, start: int, stop: int) -> bytes:
        read.update((file, at) for at in range(start, stop))
        return whole(storage, file, start, stop)

    monkeypatch.setattr(LocalStorage, "read_range", noted)
    most = operator.metadata.max_parallelism
    by_range, bytes_of = [], list[set[tuple[str, int]]]()
    for key_groups in KeyGroupAssignment(max_parallelism=most, parallelism=7).ranges():
        read.clear()
        found = [
            entry for entry in operator.entries("last", key_groups=key_groups) if len(entry.keys)
        ]
        assert {one.key_group for one in found} <= {*key_groups}
        by_range += [(one.key_group, one.keys.arrow(), one.values.arrow()) for one in found]
        for others in bytes_of:
            assert not others & read
        bytes_of.append({*read})
    wanted = [entry for entry in operator.entries("last") if len(entry.keys)]
    assert by_range == [(one.key_group, one.keys.arrow(), one.values.arrow()) for one in wanted]
    assert all(bytes_of)


@pytest.mark.long
@pytest.mark.slow
def test_a_range_reads_no_files_of_other_subtasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = Golden("2.3_rocksdb_incremental")
    place = golden.unpack(tmp_path)
    moved = {golden.about["written_at"]: str(tmp_path)}
    read: set[str] = set()
    whole = LocalStorage.read_range

    def noted(storage: LocalStorage, file: str, start: int, stop: int) -> bytes:
        read.add(file)
        return whole(storage, file, start, stop)

    (operator,) = (
        one
        for one in open_savepoint(str(place), access=SavepointAccess(moved=moved)).operators
        if one.metadata.id == operator_id("by_long")
    )
    monkeypatch.setattr(LocalStorage, "read_range", noted)
    files, rows = list[set[str]](), 0
    assert len(operator.parts) > 1
    for part in operator.parts:
        read.clear()
        rows += sum(
            len(entry.keys) for entry in operator.entries("last", key_groups=part.key_groups)
        )
        assert read
        assert all(others.isdisjoint(read) for others in files)
        files.append({*read})
    assert rows == sum(len(entry.keys) for entry in operator.entries("last"))


def test_only_the_needed_chunks_of_a_compressed_key_group_are_read() -> None:
    plain = random.Random(1).randbytes(300_000)
    stored = b"before" + b"".join(frame_pieces([plain]))
    asked: list[tuple[int, int]] = []

    @dataclass(frozen=True)
    class Source:
        name: str = "f"
        size: int = len(stored)

        def read(self, start: int, stop: int) -> bytes:
            asked.append((start, stop))
            return stored[start:stop]

    group = GroupBytes(Source(), 5, 6, len(stored), [])
    assert group.window().load_all().data == plain
    for begin, end in ((0, 10), (65_536, 65_537), (70_000, 140_000), (299_990, 300_000)):
        asked.clear()
        assert group.window(begin, end).load_all().data == plain[begin:end]
        ((start, stop),) = asked
        assert stop - start < end - begin + 140_000


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.sampled_from(
    ["x" * 126, "x" * 127, "x" * 300, "\u0416" * 130]
)
numbers = st.integers(-(2**63), 2**63 - 1)


def raw(kind: FlinkType, values: list[Any]) -> list[bytes]:
    found: list[bytes] = kind.write(pa.array(values, kind.arrow_type())).to_pylist()
    return found


def heap(kind: StateForm, value: FlinkType) -> FlinkState:
    return flink_state("s", kind, STRING, STRING, value)


def canonical(state: FlinkState, data: bytes) -> list[tuple[bytes, bytes]]:
    """Read the entries of a state as the content of key group 7 out of more than 128."""
    reader = Reader(b"head" + data, "f", position=4)
    entries = list(state.heap_entries(state.walk(reader), 0, 7, 2))
    reader.end("the entries")
    return [
        pair
        for entry in entries
        for pair in zip(
            entry.keys.arrow().to_pylist(), entry.values.arrow().to_pylist(), strict=True
        )
    ]


def places(rows: list[tuple[str, str]]) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return namespaces, keys, and the two combined as in a canonical key."""
    namespaces, keys = (raw(STRING, [row[at] for row in rows]) for at in (0, 1))
    whole = [
        b"\0\7" + key + mark(key) + namespace + mark(namespace)
        for namespace, key in zip(namespaces, keys, strict=True)
    ]
    return namespaces, keys, whole


def mark(data: bytes) -> bytes:
    return len(data).to_bytes(1 + (len(data) > 255), "little")


@given(st.lists(st.tuples(texts, texts, texts)))
def test_values_of_the_hashmap_backend_become_canonical(rows: list[tuple[str, str, str]]) -> None:
    namespaces, keys, whole = places([row[:2] for row in rows])
    values = raw(STRING, [row[2] for row in rows])
    data = i32(len(rows)) + b"".join(map(b"".join, zip(namespaces, keys, values, strict=True)))
    assert canonical(heap("value", STRING), data) == list(zip(whole, values, strict=True))
    for cut in {len(data) - 1, len(data) // 2} - {-1}:
        with pytest.raises(DamagedFileError):
            canonical(heap("value", STRING), data[:cut])


@given(st.lists(st.tuples(texts, texts, st.lists(texts, min_size=1, max_size=3))))
def test_lists_of_the_hashmap_backend_become_canonical(
    rows: list[tuple[str, str, list[str]]],
) -> None:
    namespaces, keys, whole = places([row[:2] for row in rows])
    elements = [raw(STRING, row[2]) for row in rows]
    data = i32(len(rows)) + b"".join(
        namespace + key + i32(len(some)) + b"".join(some)
        for namespace, key, some in zip(namespaces, keys, elements, strict=True)
    )
    wanted = list(zip(whole, map(b",".join, elements), strict=True))
    assert canonical(heap("list", ListType(STRING)), data) == wanted


@given(st.lists(st.tuples(texts, texts, st.dictionaries(texts, st.none() | numbers, max_size=3))))
def test_maps_of_the_hashmap_backend_become_canonical(
    rows: list[tuple[str, str, dict[str, int | None]]],
) -> None:
    namespaces, keys, whole = places([row[:2] for row in rows])
    data, wanted = i32(len(rows)), []
    for namespace, key, place, row in zip(namespaces, keys, whole, rows, strict=True):
        own = raw(STRING, list(row[2]))
        values = [b"\1" if one is None else b"\0" + raw(LONG, [one])[0] for one in row[2].values()]
        data += namespace + key + i32(len(own)) + b"".join(map(b"".join, zip(own, values)))  # noqa: B905
        wanted += [(place + one, value) for one, value in zip(own, values, strict=True)]
    assert canonical(heap("map", MapType(STRING, LONG)), data) == wanted


@given(st.lists(st.tuples(numbers, texts, texts)))
def test_timers_of_the_hashmap_backend_become_canonical(
    rows: list[tuple[int, str, str]],
) -> None:
    parts = (
        raw(LONG, [row[0] for row in rows]),
        *(raw(STRING, [r[at] for r in rows]) for at in (1, 2)),
    )
    timers = list(map(b"".join, zip(*parts, strict=True)))
    state = heap("timers", TimerType(STRING, STRING))
    found = canonical(state, i32(len(rows)) + b"".join(timers))
    assert found == [(b"\0\7" + timer, b"") for timer in timers]


def test_a_count_of_entries_that_is_too_large_is_damage() -> None:
    with pytest.raises(DamagedFileError, match="9 entries of 's' do not fit"):
        canonical(heap("value", LONG), i32(9) + bytes(8))
    with pytest.raises(DamagedFileError, match="exceeds its key group"):
        canonical(heap("value", LONG), i32(2) + bytes(11))
