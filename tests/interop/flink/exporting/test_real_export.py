"""Real Flink restores the export of a store that was written without Flink."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from statestore.interop.flink import export_savepoint, import_savepoint
from statestore.interop.flink.options import ExportSelection, SavepointAccess
from statestore.store import StateStore
from tests.interop.flink.golden_store import TUPLED, golden_rows, write_golden_store
from tests.interop.flink.goldens import Golden
from tests.interop.flink.test_real_flink import (
    HEAP,
    NEWEST,
    OLDER,
    ROCKSDB,
    comparable,
    dumped,
)
from tests.servers.flink import Flink

pytestmark = pytest.mark.flink
GOLDEN = Golden("2.3_heap_canonical")


def restored(
    version: str,
    backend: Mapping[str, str],
    folder: Path,
    *,
    most: int,
    written: int,
    parallelism: int,
) -> None:
    """Export the states of the golden job, and compare Flink's restored rows with the expected
    ones.
    """
    store = write_golden_store(str(folder / "store"), GOLDEN.rows())
    place = str(folder / "savepoint")
    export_savepoint(store, place, target=TUPLED, parallelism=written, max_parallelism=most)
    found = dumped(Flink(version), folder, place, backend, parallelism=parallelism, most=most)
    # Only the job's source prints the state that it was restored without.
    states = [one for one in found if one["operator"] != "numbers"]
    assert golden_rows(states) == states
    assert comparable(states) == comparable(golden_rows(GOLDEN.rows()))


@pytest.mark.long  # in each run, test_real_bootstrap.py restores an export
def test_flink_restores_an_exported_store(tmp_path: Path) -> None:
    """128 key groups become 720. RocksDB restores at another parallelism than the export's."""
    restored(NEWEST, ROCKSDB, tmp_path, most=720, written=5, parallelism=3)


@pytest.mark.long  # in each run, test_carry.py compares the copied entry and its bytes
def test_flink_restores_a_carried_operator(tmp_path: Path) -> None:
    """An unreadable operator is restored with the others, at another parallelism."""
    golden = Golden("2.3_heap_native")
    store = StateStore.open(str(tmp_path / "store"))
    done = import_savepoint(str(golden.unpack(tmp_path / "from")), store)
    assert [one.operator for one in done.left_out] == ["kinds"]
    place = str(tmp_path / "savepoint")
    export_savepoint(store, place, parallelism=5, selection=ExportSelection(carry=["kinds"]))
    found = dumped(Flink(NEWEST), tmp_path, place, HEAP, parallelism=3, most=128)
    assert "kinds" in {one["operator"] for one in found}
    assert comparable(found) == comparable(golden.rows())


@pytest.mark.long
@pytest.mark.parametrize("name", ["2.3_heap_canonical", "2.3_rocksdb_incremental"])
def test_flink_restores_everything_that_was_imported(name: str, tmp_path: Path) -> None:
    """Classes of the job, TTLs and the source's own bytes are unchanged."""
    golden = Golden(name)
    source = golden.unpack(tmp_path / "from")
    store = StateStore.open(str(tmp_path / "store"), layout="ranged")
    moved = {golden.about["written_at"]: str(tmp_path / "from")}
    import_savepoint(str(source), store, access=SavepointAccess(moved=moved))
    place = str(tmp_path / "savepoint")
    export_savepoint(store, place, parallelism=5, max_parallelism=720)
    found = dumped(Flink(NEWEST), tmp_path, place, ROCKSDB, parallelism=3, most=720)
    assert comparable(found) == comparable(golden.rows())


@pytest.mark.long
@pytest.mark.parametrize(
    ("version", "backend", "most", "written", "parallelism"),
    [
        (NEWEST, HEAP, 100, 2, 4),
        (NEWEST, ROCKSDB, 32768, 3, 2),
        (OLDER, HEAP, 720, 7, 3),
        (OLDER, ROCKSDB, 256, 1, 2),
    ],
)
def test_other_versions_and_backends(
    version: str,
    backend: Mapping[str, str],
    most: int,
    written: int,
    parallelism: int,
    tmp_path: Path,
) -> None:
    restored(version, backend, tmp_path, most=most, written=written, parallelism=parallelism)
