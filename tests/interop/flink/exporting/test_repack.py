"""A repacked savepoint has the same entries, each in its new key group."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.errors import (
    DamagedFileError,
    IncompatibleStateError,
    InvalidArgumentError,
    ParallelismError,
    StateStoreError,
    UnsupportedTypeError,
)
from statestore.interop.flink import RepackResult, repack_savepoint
from statestore.interop.flink.options import SavepointAccess
from statestore.interop.flink.read.savepoint import open_savepoint
from statestore.keys.groups import KeyGroupAssignment
from statestore.storage import LocalStorage
from tests.interop.flink.goldens import GOLDENS, Golden, few
from tests.interop.flink.written import LONG, written_savepoint

pytestmark = pytest.mark.slow

Entry = tuple[str, bytes, bytes]
# Kryo values in the hashmap backend's own format have no length.
READ = [one for one in GOLDENS if "sql" not in one.name and not one.name.endswith("heap_native")]


def repacked(golden: Golden, folder: Path, most: int, **options: Any) -> RepackResult:
    source = golden.unpack(folder / "from")
    moved = {golden.about["written_at"]: str(folder / "from")}
    target = str(folder / "to")
    return repack_savepoint(
        str(source), target, max_parallelism=most, access=SavepointAccess(moved=moved), **options
    )


def entries(place: str | Path, prefix_of: dict[str, int]) -> dict[str, Counter[Entry]]:
    """Return the entries of each operator, without the key group."""
    found: dict[str, Counter[Entry]] = {}
    for operator in open_savepoint(str(place)).operators:
        prefix = prefix_of[operator.metadata.id]
        found[operator.metadata.id] = Counter(
            (entry.state.name, key[prefix:], value)
            for entry in operator.entries()
            for key, value in zip(
                entry.keys.arrow().to_pylist(), entry.values.arrow().to_pylist(), strict=True
            )
        )
    return found


@pytest.mark.long
@pytest.mark.parametrize("golden", few(READ, ("1.20_rescaled",)))
def test_all_rows_are_in_the_key_groups_of_their_keys(golden: Golden, tmp_path: Path) -> None:
    done = repacked(golden, tmp_path, 720, parallelism=5)
    made = open_savepoint(done.savepoint)
    assert made.metadata.version == 3
    for operator, said in zip(made.operators, done.operators, strict=True):
        assert operator.metadata.max_parallelism == 720
        rows: Counter[str] = Counter()
        for row in operator.rows(as_bytes=["opaque", "person", "list_person", "nested_list"]):
            rows[row.state.name] += len(row)  # this also compares the key group of each row
        assert rows == Counter({name: count for name, count in said.entries.items() if count})
        shares = KeyGroupAssignment(max_parallelism=720, parallelism=said.parallelism).ranges()
        for subtask in operator.metadata.subtasks:
            keyed: Any = subtask.keyed
            if keyed is not None:
                assert keyed.first == shares[subtask.index].first
                assert len(keyed.offsets) == len(shares[subtask.index])
        if operator.parts:
            assert said.parallelism == 5


@pytest.mark.long
@pytest.mark.parametrize("name", ["2.3_heap_snappy", "1.20_rescaled"])
def test_a_round_trip_gives_the_same_savepoint(name: str, tmp_path: Path) -> None:
    golden = Golden(name)
    source = golden.unpack(tmp_path / "from")
    there = repack_savepoint(str(source), str(tmp_path / "there"), max_parallelism=32768)
    back = repack_savepoint(there.savepoint, str(tmp_path / "back"), max_parallelism=128)
    width = {
        operator.operator_id: 1 if operator.max_parallelism_before <= 128 else 2
        for operator in there.operators
    }
    assert entries(back.savepoint, dict.fromkeys(width, 1)) == entries(source, width)


def test_keyed_state_moves_to_fewer_subtasks(tmp_path: Path) -> None:
    """Subtasks that have nothing any more are left out: Flink refuses one above the parallelism."""
    place = written_savepoint(tmp_path / "two", LONG, pa.array(range(99)), [*range(99)])
    (before,) = open_savepoint(str(place)).operators
    assert len(before.metadata.subtasks) == 2
    done = repack_savepoint(str(place), str(tmp_path / "one"), max_parallelism=64, parallelism=1)
    (after,) = open_savepoint(done.savepoint).operators
    assert (after.metadata.parallelism, len(after.metadata.subtasks)) == (1, 1)
    widths = {before.metadata.id: 1}
    assert entries(done.savepoint, widths) == entries(place, widths)


def test_a_non_parallel_operator_keeps_its_key_group(tmp_path: Path) -> None:
    """It is an aggregate over all rows, which Flink would not restore with more key groups."""
    done = repacked(Golden("2.3_sql"), tmp_path, 720, parallelism=5)
    made = open_savepoint(done.savepoint).operators
    most = {one.metadata.id: one.metadata.max_parallelism for one in made}
    assert most == {
        operator.operator_id: 1 if operator.max_parallelism_before == 1 else 720
        for operator in done.operators
    }
    (alone,) = (
        operator
        for operator in done.operators
        if operator.max_parallelism_before == 1 and operator.entries
    )
    assert (alone.operator, alone.parallelism) == ("GroupAggregate[29]", 1)


@pytest.mark.long
def test_operator_state_and_the_coordinator_are_kept(tmp_path: Path) -> None:
    golden = Golden("2.3_rocksdb_canonical")
    done = repacked(golden, tmp_path, 720)
    before, after = open_savepoint(str(tmp_path / "from")), open_savepoint(done.savepoint)
    assert any(one.metadata.coordinator for one in before.operators)
    for old, new in zip(before.operators, after.operators, strict=True):
        assert new.metadata.coordinator == old.metadata.coordinator
        known, found = (
            [
                (one.info, one.subtask, one.raw.arrow().to_pylist())
                for one in operator.operator_state()
            ]
            for operator in (old, new)
        )
        assert found == known


def test_invalid_numbers_are_refused(tmp_path: Path) -> None:
    golden = Golden("2.3_heap_canonical")
    with pytest.raises(ParallelismError):
        repacked(golden, tmp_path, 4, parallelism=5)
    with pytest.raises(InvalidArgumentError):
        repacked(golden, tmp_path, 32769)
    assert not (tmp_path / "to").exists()


def test_a_folder_with_files_is_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "_metadata").write_bytes(b"mine")
    with pytest.raises(InvalidArgumentError, match="not empty"):
        repacked(Golden("2.3_heap_canonical"), tmp_path, 720)
    assert (tmp_path / "to" / "_metadata").read_bytes() == b"mine"


@pytest.mark.long
def test_a_failed_repack_is_not_a_savepoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``_metadata`` is written last, so a failure at any point leaves no savepoint."""
    golden = Golden("2.3_heap_canonical")
    written = 0

    def fails(self: LocalStorage, name: str) -> Any:
        nonlocal written
        written += 1
        if written > stop:
            raise StateStoreError("the disk is full")
        return opened(self, name)

    opened = LocalStorage.open_write
    monkeypatch.setattr(LocalStorage, "open_write", fails)
    for stop in (0, 3, 11):
        written = 0
        folder = tmp_path / str(stop)
        with pytest.raises(StateStoreError, match="full") as error:
            repacked(golden, folder, 720)
        assert error.value.__notes__[-1].startswith("operator ")
        assert not (folder / "to" / "_metadata").exists()
    with pytest.raises(InvalidArgumentError, match="is not a Flink savepoint"):
        open_savepoint(str(tmp_path / "11" / "to"))


def test_a_value_without_a_length_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTypeError, match="canonical") as error:
        repacked(Golden("2.3_heap_native"), tmp_path, 720)
    assert "operator kinds" in error.value.__notes__[-1]


def test_a_key_in_the_wrong_key_group_is_refused(tmp_path: Path) -> None:
    """One byte of a key differs, and its hash shows that."""
    golden = Golden("2.3_heap_canonical")
    source = golden.unpack(tmp_path / "from")
    metadata = source / "_metadata"
    data = metadata.read_bytes()
    key = b"\x0d" + b"long word "
    assert data.count(key) > 10
    metadata.write_bytes(data.replace(key, key[:-2] + b"D "))
    with pytest.raises((IncompatibleStateError, DamagedFileError), match="key group"):
        repack_savepoint(str(source), str(tmp_path / "to"), max_parallelism=720)
    assert not (tmp_path / "to" / "_metadata").exists()
