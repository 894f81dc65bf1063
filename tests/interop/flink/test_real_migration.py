"""State that real Flink 1.20 wrote is converted, and real Flink 2.3 reads the same values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statestore.interop.flink import export_savepoint, import_savepoint
from statestore.interop.flink.options import ExportSelection, FlinkTarget
from statestore.store import StateStore
from tests.interop.flink.test_real_flink import HEAP, NEWEST, OLDER, comparable, read
from tests.servers.flink import Flink
from tests.servers.published import FLINK_1_20

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
    record = import_savepoint(source, store).record
    classes = {state.name: state.value_class for state in record.states}
    assert classes["double"] == "Double"
    done = export_savepoint(store, str(tmp_path / "to"), target=FlinkTarget(version="2.3"))
    after = dumped(NEWEST, done.savepoint, tmp_path / "after.jsonl")
    assert comparable(after) == comparable(before)
    # Without the conversion Flink 2 reads other values, and reports no error for numbers.
    kept = export_savepoint(store, str(tmp_path / "kept"))
    assert comparable(dumped(OLDER, kept.savepoint, tmp_path / "kept.jsonl")) == comparable(before)
    states = {row.get("state") for row in before}
    assert states >= {"double", "list", "maps", "by_name", "pair"}


JOB_IN_SCALA = "stateful-scala-udf-migration-itcase-flink1.19-rocksdb-savepoint"
STATEFUL = "d1392353922252257afa15351a98bae9"
MIGRATION = "org.apache.flink.api.scala.migration"
PAIR = {"pojo": "golden.Replaced$Pair", "fields": ["name", "number"]}
CLASSES = {
    f"{MIGRATION}.CustomCaseClass": PAIR,
    f"{MIGRATION}.CustomCaseClassWithNesting": {
        "pojo": "golden.Replaced$Nesting",
        "fields": ["value", "pair"],
    },
    f"{MIGRATION}.CustomEnum$": {"enum": "golden.Replaced$Count"},
}
WITHOUT = ("optionState", "optionNoneState", "tryState", "tryFailureState", "enumThreeState")


def test_flink_2_reads_what_a_job_in_scala_wrote(tmp_path: Path) -> None:
    """Case classes become POJOs, whose fields Flink orders by name, and an enumeration an enum."""
    source = FLINK_1_20.unpack(JOB_IN_SCALA, tmp_path)
    store = StateStore.open(str(tmp_path / "store"))
    import_savepoint(str(source), store)
    left_out = [f"{STATEFUL}/{name}" for name in WITHOUT]
    done = export_savepoint(
        store,
        str(tmp_path / "to"),
        selection=ExportSelection(operators=[STATEFUL], leave_out=left_out),
        target=FlinkTarget(version="2.3", classes=CLASSES),
    )
    flink, rows = Flink(NEWEST, main="golden.Replaced"), tmp_path / "rows.jsonl"
    step = {"do": "dump", "from": done.savepoint, "to": str(rows), "max": "4", "hash": STATEFUL}
    flink.run([{"parallelism": "2", "operators": "1"} | HEAP | step])
    states = [row for row in read(rows) if "key" in row]
    found = {(row["state"], row["key"]): row["value"] for row in states}
    for name, text in TEXTS.items():
        stored = store.restore(parallelism=1).keyed(STATEFUL, name).to_arrow(0).to_pylist()
        expected = {row["key"]: text(row) for row in stored}
        assert len(expected) == 4
        assert {key: _texts(found[name, key]) for key in expected} == expected


def _texts(value: Any) -> Any:
    """Return the texts of all POJOs in a value."""
    if isinstance(value, list):
        return [_texts(item) for item in value]
    return value.get("text", value) if isinstance(value, dict) else value


def pair(stored: dict[str, Any]) -> str:
    return f"{stored['f0']} {stored['f1']}"


TEXTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "caseClassState": pair,
    "caseClassWithNestingState": lambda row: f"{row['f0']} ({pair(row['f1'])})",
    "collectionState": lambda row: [pair(item) for item in row["value"]],
    "eitherRightState": lambda row: {"right": row["right"]},
    "enumOneState": lambda row: row["value"],
}
