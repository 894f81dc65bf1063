"""Flink imports of older releases are exported without change, because the format is stable."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore import StateStore
from statestore.interop.flink_savepoints import export_savepoint, open_savepoint
from statestore.interop.flink_savepoints.options import ExportSelection
from tests.golden.make_flink_import import OPERATORS
from tests.interop.flink_savepoints.goldens import Golden
from tests.interop.flink_savepoints.test_export_imported import elements, entries

NOT_IMPORTED = ("events", "kinds", "sessions", "lists")

STORES = sorted((Path(__file__).parents[2] / "golden").glob("flink_import_v*"))


def test_there_is_an_old_import() -> None:
    """The test below did not run over an empty list."""
    assert [path.name for path in STORES] == ["flink_import_v1"]


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
