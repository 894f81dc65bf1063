"""State that real Flink 1.20 wrote is converted, and real Flink 2.3 reads the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statestore.interop.flink_savepoints import export_savepoint, import_savepoint
from statestore.interop.flink_savepoints.options import FlinkTarget
from statestore.store import StateStore
from tests.interop.flink_savepoints.test_real_flink import HEAP, NEWEST, OLDER, comparable, read
from tests.servers.flink import Flink

pytestmark = [pytest.mark.flink, pytest.mark.long]


def run(version: str, **step: str) -> list[str]:
    flink = Flink(version, main="golden.Generic")
    return flink.run([{"parallelism": "2", "operators": "1"} | HEAP | step])


def dumped(version: str, savepoint: str, rows: Path) -> list[dict[str, Any]]:
    """Let Flink restore a savepoint; return the rows that it finds."""
    run(version, **{"do": "dump", "from": savepoint, "to": str(rows)})
    return read(rows)


def test_flink_2_reads_what_flink_1_wrote(tmp_path: Path) -> None:
    step = {"do": "savepoint", "to": str(tmp_path), "events": "300", "format": "CANONICAL"}
    (source,) = run(OLDER, **step)
    before = dumped(OLDER, source, tmp_path / "before.jsonl")
    store = StateStore.open(str(tmp_path / "store"))
    import_savepoint(source, store)
    done = export_savepoint(store, str(tmp_path / "to"), target=FlinkTarget(version="2.3"))
    after = dumped(NEWEST, done.savepoint, tmp_path / "after.jsonl")
    assert comparable(after) == comparable(before)
    # Without the conversion Flink 2 reads other values, and reports no error for numbers.
    kept = export_savepoint(store, str(tmp_path / "kept"))
    assert comparable(dumped(OLDER, kept.savepoint, tmp_path / "kept.jsonl")) == comparable(before)
    states = {row.get("state") for row in before}
    assert states >= {"double", "list", "maps", "by_name", "pair"}
