"""Real Flink restores state by keys of the job's own class from another number of key groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statestore.errors import InvalidArgumentError
from statestore.interop.flink import (
    export_savepoint,
    import_savepoint,
    register_key_hash,
    repack_savepoint,
)
from statestore.interop.flink.options import SavepointHints
from statestore.store import StateStore
from tests.interop.flink.test_real_flink import (
    HEAP,
    NEWEST,
    OLDER,
    ROCKSDB,
    comparable,
    read,
)
from tests.servers.flink import Flink

pytestmark = [pytest.mark.flink, pytest.mark.long]


def hash_class(key: Any, hashes: Any) -> int:
    """Return ``hashCode()`` of the class of the job's keys."""
    return int(31 * (31 * hashes["name"] + hashes["number"]) + key["isOdd"])


CLASS = Flink(NEWEST, main="golden.ByClass")
CASE_CLASS = Flink(OLDER, main="golden.ByCaseClass", connector="scala")


def run(flink: Flink, *steps: dict[str, str]) -> list[str]:
    return flink.run([{"parallelism": "2", "operators": "1"} | step for step in steps])


def dump(savepoint: str, rows: Path, most: int) -> dict[str, str]:
    """Return the step that restores a savepoint with RocksDB and writes the rows that it finds."""
    step = {"do": "dump", "from": savepoint, "to": str(rows), "max": str(most), "parallelism": "3"}
    return ROCKSDB | step


def restored(flink: Flink, savepoints: list[tuple[str, int]]) -> list[Any]:
    """Return the rows that Flink finds in savepoints with numbers of key groups, comparable."""
    dumps = [dump(place, Path(f"{place}.jsonl"), most) for place, most in savepoints]
    run(flink, *dumps)
    rows = [read(Path(step["to"])) for step in dumps]
    assert {row.get("state") for row in rows[0]} >= {"last", "texts", "sums"}
    return [comparable(found) for found in rows]


def test_keys_of_the_jobs_own_class_move_to_other_key_groups(tmp_path: Path) -> None:
    step = {"do": "savepoint", "to": str(tmp_path), "events": "400", "format": "CANONICAL"}
    (source,) = run(CLASS, HEAP | step)
    register_key_hash("class", hash_class)
    key_hash = {"by_class": "python:class"}
    wrong = SavepointHints(key_hash={"by_class": "record(name, number, isOdd)"})
    with pytest.raises(InvalidArgumentError, match=r"does not hold: it puts the key \{'isOdd': "):
        import_savepoint(source, StateStore.open(str(tmp_path / "wrong")), hints=wrong)
    store = StateStore.open(str(tmp_path / "store"))
    import_savepoint(source, store, hints=SavepointHints(key_hash=key_hash))
    exported = export_savepoint(store, str(tmp_path / "to"), max_parallelism=720).savepoint
    packed = str(tmp_path / "packed")
    repack_savepoint(source, packed, max_parallelism=300, key_hash=key_hash)
    before, *after = restored(CLASS, [(source, 128), (exported, 720), (packed, 300)])
    assert after == [before, before]


def test_case_classes_move_to_other_key_groups_without_a_recipe(tmp_path: Path) -> None:
    step = {"do": "savepoint", "to": str(tmp_path), "events": "400", "format": "CANONICAL"}
    (source,) = run(CASE_CLASS, HEAP | step)
    store = StateStore.open(str(tmp_path / "store"))
    done = import_savepoint(source, store)
    assert {state.key_hash for state in done.record.states if state.is_keyed} == {"scala"}
    exported = export_savepoint(store, str(tmp_path / "to"), max_parallelism=720).savepoint
    packed = str(tmp_path / "packed")
    repack_savepoint(source, packed, max_parallelism=300)
    before, *after = restored(CASE_CLASS, [(source, 128), (exported, 720), (packed, 300)])
    assert after == [before, before]
