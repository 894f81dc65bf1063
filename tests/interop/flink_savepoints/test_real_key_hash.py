"""Real Flink restores state by keys of the job's own class from another number of key groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statestore.errors import InvalidArgumentError
from statestore.interop.flink_savepoints import (
    export_savepoint,
    import_savepoint,
    repack_savepoint,
)
from statestore.interop.flink_savepoints.options import SavepointHints
from statestore.store import StateStore
from tests.interop.flink_savepoints.test_real_flink import HEAP, NEWEST, ROCKSDB, comparable, read
from tests.servers.flink import Flink

pytestmark = [pytest.mark.flink, pytest.mark.long]

HASH = "31 * (31 * name.hashCode() + (int) (number ^ (number >>> 32))) + (isOdd ? 1 : 0)"


def run(*steps: dict[str, str]) -> list[str]:
    flink = Flink(NEWEST, main="golden.ByClass")
    return flink.run([{"parallelism": "2", "operators": "1"} | step for step in steps])


def dump(savepoint: str, rows: Path, most: int) -> dict[str, str]:
    """Return the step that restores a savepoint with RocksDB and writes the rows that it finds."""
    step = {"do": "dump", "from": savepoint, "to": str(rows), "max": str(most), "parallelism": "3"}
    return ROCKSDB | step


def test_keys_of_the_jobs_own_class_move_to_other_key_groups(tmp_path: Path) -> None:
    step = {"do": "savepoint", "to": str(tmp_path), "events": "400", "format": "CANONICAL"}
    (source,) = run(HEAP | step)
    key_hash = {"by_class": f"java:{HASH}"}
    wrong = SavepointHints(key_hash={"by_class": f"java:{HASH} + 1"})
    with pytest.raises(InvalidArgumentError, match=r"does not hold: it puts the key \{'isOdd': "):
        import_savepoint(source, StateStore.open(str(tmp_path / "wrong")), hints=wrong)
    store = StateStore.open(str(tmp_path / "store"))
    import_savepoint(source, store, hints=SavepointHints(key_hash=key_hash))
    exported = export_savepoint(store, str(tmp_path / "to"), max_parallelism=720).savepoint
    packed = str(tmp_path / "packed")
    repack_savepoint(source, packed, max_parallelism=300, key_hash=key_hash)
    places = {name: tmp_path / f"{name}.jsonl" for name in ("source", "exported", "packed")}
    run(
        dump(source, places["source"], 128),
        dump(exported, places["exported"], 720),
        dump(packed, places["packed"], 300),
    )
    found: dict[str, list[dict[str, Any]]] = {name: read(rows) for name, rows in places.items()}
    assert {row.get("state") for row in found["source"]} >= {"last", "texts", "sums"}
    assert comparable(found["exported"]) == comparable(found["source"])
    assert comparable(found["packed"]) == comparable(found["source"])
