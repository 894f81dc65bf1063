"""Flink imports of older releases are exported without change, and a later savepoint continues."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.interop.flink import (
    FlinkSavepoint,
    export_savepoint,
    import_savepoint,
    open_savepoint,
)
from statestore.interop.flink.importing.import_record import SavepointRecord
from statestore.interop.flink.options import ExportSelection
from tests.golden.make_flink_import import OPERATORS, SQL_PROGRAMS
from tests.interop.flink.exporting.test_export_imported import elements, entries
from tests.interop.flink.goldens import Golden
from tests.servers.published import FLINK_SQL

NOT_IMPORTED = ("events", "kinds", "sessions", "lists")

GOLDEN = Path(__file__).parents[3] / "golden"
STORES = sorted(GOLDEN.glob("flink_import_v*"))


def test_there_is_an_old_import() -> None:
    """The test below did not run over an empty list."""
    assert [path.name for path in STORES] == ["flink_import_v1"]


@pytest.mark.slow
@pytest.mark.parametrize("path", STORES, ids=lambda path: path.name)
def test_an_old_import_is_exported(tmp_path: Path, path: Path) -> None:
    before = open_savepoint(str(Golden("2.3_heap_canonical").unpack(tmp_path / "from")))
    done = export_savepoint(
        StateStore.open(str(path)),
        str(tmp_path / "to"),
        selection=ExportSelection(leave_out=NOT_IMPORTED),
    )
    after = open_savepoint(done.savepoint)
    for uid in OPERATORS:
        old, new = before.operator(uid), after.operator(uid)
        assert old.metadata.coordinator == new.metadata.coordinator
        assert entries(new) == entries(old)
        assert elements(new) == elements(old)


def content(savepoint: FlinkSavepoint) -> dict[str, tuple[object, object]]:
    """Return the entries and elements of each operator, by its id."""
    return {
        operator.metadata.id: (entries(operator), elements(operator))
        for operator in savepoint.operators
    }


def later(savepoint: Path, folder: Path) -> Path:
    """Return a copy of a savepoint with the next number, which is the i64 after the header."""
    shutil.copytree(savepoint, folder)
    metadata = folder / "_metadata"
    data = metadata.read_bytes()
    number = int.from_bytes(data[8:16], "big") + 1
    metadata.write_bytes(data[:8] + number.to_bytes(8, "big") + data[16:])
    return folder


@pytest.mark.long_cases("multi_join", "temporal_sort")
@pytest.mark.slow
@pytest.mark.parametrize("name", SQL_PROGRAMS)
def test_an_old_import_of_sql_continues_with_a_later_savepoint(tmp_path: Path, name: str) -> None:
    """Each state keeps its form, also where a new import has columns instead of bytes."""
    published = FLINK_SQL.unpack(f"restore-tests/{SQL_PROGRAMS[name]}/savepoint", tmp_path)
    shutil.copytree(GOLDEN / "flink_sql_v1" / name, tmp_path / "store")
    store = StateStore.open(str(tmp_path / "store"))
    forms = {state.form for state in SavepointRecord.of(store.restore()).states}
    exported = open_savepoint(export_savepoint(store, str(tmp_path / "old")).savepoint)
    before = content(open_savepoint(str(published)))
    assert content(exported) == before
    done = import_savepoint(str(later(published, tmp_path / "later")), store)
    assert done.is_incremental
    assert {state.form for state in done.record.states} == forms
    assert "columns" in forms
    exported = open_savepoint(export_savepoint(store, str(tmp_path / "new")).savepoint)
    assert content(exported) == before


@pytest.mark.slow
def test_a_nested_instant_keeps_the_type_that_the_store_has(tmp_path: Path) -> None:
    """A store of an older release has it without a time zone, with the same values."""
    program = f"restore-tests/{SQL_PROGRAMS['multi_join']}/savepoint"
    published = FLINK_SQL.unpack(program, tmp_path)
    shutil.copytree(GOLDEN / "flink_sql_v1" / "multi_join", tmp_path / "store")
    old, new = (StateStore.open(str(tmp_path / name)) for name in ("store", "fresh"))
    import_savepoint(str(later(published, tmp_path / "later")), old)
    import_savepoint(str(published), new)
    found = {}
    for store, zone in ((old, None), (new, "UTC")):
        values = store.restore().keyed("56_multi-join", "multi-join-input-0").to_arrow()
        instants = values["value"].combine_chunks().field("f2")
        assert instants.type == pa.timestamp("us", zone)
        found[zone] = instants.cast(pa.int64()).to_pylist()
    assert found[None] == found["UTC"] == [1751403030999000]
