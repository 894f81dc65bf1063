"""State that an import omits is recorded, and an export refuses to lose it silently."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from statestore import StateStore
from statestore.errors import LeftOutStateError, StateNotFoundError
from statestore.interop.flink import open_savepoint
from statestore.interop.flink.exporting.export_plan import plan_export
from statestore.interop.flink.exporting.export_state import export_savepoint
from statestore.interop.flink.importing.import_record import SavepointRecord
from statestore.interop.flink.importing.import_state import import_savepoint
from statestore.interop.flink.metadata.handles import MasterState, SavepointMetadata
from statestore.interop.flink.metadata.metadata_file import metadata_v3, read_metadata
from statestore.interop.flink.options import ExportSelection
from statestore.jobgraph.operators import operator_id
from tests.interop.flink.goldens import Golden

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a savepoint and a store that imported it.

    The operator ``kinds`` in the middle of the savepoint is unreadable, so the store has the
    others.
    """
    folder = tmp_path_factory.mktemp("imported")
    store = StateStore.open(str(folder / "store"))
    done = import_savepoint(str(Golden("2.3_heap_native").unpack(folder / "from")), store)
    titles = [operator.title for operator in open_savepoint(str(folder / "from")).operators]
    assert "kinds" in titles or operator_id("kinds") in titles
    (left,) = done.left_out
    assert (left.operator, left.state, left.id) == ("kinds", None, operator_id("kinds"))
    assert done.not_read == done.left_out
    return folder


@pytest.fixture
def partial(imported: Path, tmp_path: Path) -> StateStore:
    """A copy of the store and the savepoint, which the test can change."""
    for name in ("from", "store"):
        shutil.copytree(imported / name, tmp_path / name)
    return StateStore.open(str(tmp_path / "store"))


def test_the_manifest_records_it_and_an_export_is_refused(
    partial: StateStore, tmp_path: Path
) -> None:
    (left,) = partial.checkpoint().manifest.left_out
    assert left.command == "flink import"
    with pytest.raises(LeftOutStateError, match=r"kinds \(state 'opaque': .*--leave-out 'kinds'"):
        export_savepoint(partial, str(tmp_path / "to"))
    assert not (tmp_path / "to" / "_metadata").exists()


@pytest.mark.long_cases("3681dd3b43c36f87b626db636033d1db")
@pytest.mark.parametrize("name", ["kinds", operator_id("kinds")])
def test_an_export_succeeds_if_the_missing_operator_is_named(
    partial: StateStore, tmp_path: Path, name: str
) -> None:
    done = export_savepoint(
        partial, str(tmp_path / "to"), selection=ExportSelection(leave_out=[name])
    )
    assert not done.is_complete
    assert ("kinds", "") in {(one.operator, one.state) for one in done.left_out}
    ids = {operator.metadata.id for operator in open_savepoint(done.savepoint).operators}
    before = {operator.metadata.id for operator in open_savepoint(str(tmp_path / "from")).operators}
    assert before - ids == {operator_id("kinds")}


def test_an_unknown_name_is_refused_with_the_missing_ones(
    partial: StateStore, tmp_path: Path
) -> None:
    with pytest.raises(StateNotFoundError, match=r"'kind' cannot be left out.*lacks kinds \("):
        export_savepoint(
            partial, str(tmp_path / "to"), selection=ExportSelection(leave_out=["kind"])
        )


def test_selected_other_operators_are_exported(partial: StateStore, tmp_path: Path) -> None:
    done = export_savepoint(
        partial, str(tmp_path / "to"), selection=ExportSelection(operators=["by_long"])
    )
    assert [operator.operator for operator in done.operators] == ["by_long"]
    assert not done.is_complete


@pytest.mark.long
def test_derived_checkpoints_copies_and_forks_keep_the_record(
    partial: StateStore, tmp_path: Path
) -> None:
    left = partial.checkpoint().manifest.left_out
    with partial.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_broadcast("notes", "rules", [{"rule": 1}])
        checkpoint.carry_rest()
    assert partial.checkpoint().manifest.left_out == left
    partial.maintenance.rekey("by_long", max_parallelism=256)
    assert partial.checkpoint().manifest.left_out == left
    made = {
        "copy": partial.maintenance.copy("latest", str(tmp_path / "copy")),
        "fork": partial.maintenance.copy("latest", str(tmp_path / "fork"), linked=True),
    }
    for name, done in made.items():
        place = str(tmp_path / name)
        assert done.left_out == left
        other = StateStore.open(place)
        assert other.checkpoint().manifest.left_out == left
        with pytest.raises(LeftOutStateError):
            export_savepoint(other, str(tmp_path / f"of-{name}"))


def test_state_that_is_written_is_no_longer_missing(partial: StateStore) -> None:
    with partial.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("kinds", "value", [{"k": 1, "v": 2}], key="k")
        checkpoint.carry_rest()
    assert partial.checkpoint().manifest.left_out == ()


@pytest.mark.long
def test_operators_that_were_not_selected_are_recorded(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"))
    place = str(Golden("2.3_heap_canonical").unpack(tmp_path / "from"))
    done = import_savepoint(place, store, operators=["kinds"])
    assert done.not_read == ()
    assert "by_long" in {one.operator for one in store.checkpoint().manifest.left_out}
    with pytest.raises(LeftOutStateError, match=r"by_long \(the import did not select it\)"):
        export_savepoint(store, str(tmp_path / "to"))


@pytest.mark.long
def test_a_complete_import_records_nothing(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"))
    done = import_savepoint(str(Golden("2.3_heap_canonical").unpack(tmp_path / "from")), store)
    assert (done.left_out, store.checkpoint().manifest.left_out) == ((), ())
    assert export_savepoint(store, str(tmp_path / "to")).is_complete


def test_an_import_of_an_older_release_is_compared_with_its_operators(partial: StateStore) -> None:
    """Its manifest has no record of missing state, but lists the operators of its savepoint."""
    restored = partial.restore()
    older = replace(restored.manifest, left_out=())
    with pytest.raises(LeftOutStateError, match="kinds"):
        plan_export(older, SavepointRecord.of(restored))
    named = plan_export(
        older, SavepointRecord.of(restored), selection=ExportSelection(leave_out=["kinds"])
    )
    assert ("kinds", "") in {(one.operator, one.state) for one in named.left_out}


def test_the_state_of_a_jobs_hook_is_recorded(tmp_path: Path) -> None:
    place = Golden("2.3_heap_canonical").unpack(tmp_path / "from")
    found = read_metadata((place / "_metadata").read_bytes(), "m")
    operators = tuple(operator for operator in found.operators if operator.uid == "by_long")
    hook = MasterState("hook", 1, b"x")
    (place / "_metadata").write_bytes(metadata_v3(SavepointMetadata(3, 2, operators, (hook,))))
    store = StateStore.open(str(tmp_path / "store"))
    import_savepoint(str(place), store)
    assert [one.label for one in store.checkpoint().manifest.left_out] == ["hook/master-state"]
    with pytest.raises(LeftOutStateError, match="--leave-out 'hook/master-state'"):
        export_savepoint(store, str(tmp_path / "to"))
    done = export_savepoint(
        store, str(tmp_path / "to"), selection=ExportSelection(leave_out=["hook"])
    )
    assert [(one.operator, one.state) for one in done.left_out] == [("hook", "master-state")]


@pytest.mark.long
def test_imported_state_that_was_dropped_later_is_recorded(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"))
    import_savepoint(str(Golden("2.3_heap_canonical").unpack(tmp_path / "from")), store)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.drop("by_long", "texts")
        checkpoint.carry_rest()
    refused = r"by_long/texts \(imported, but dropped later\).*--leave-out 'by_long/texts'"
    with pytest.raises(LeftOutStateError, match=refused):
        export_savepoint(store, str(tmp_path / "to"))
    done = export_savepoint(
        store, str(tmp_path / "to"), selection=ExportSelection(leave_out=["by_long/texts"])
    )
    assert [(one.operator, one.state) for one in done.left_out] == [("by_long", "texts")]
    assert not done.is_complete
