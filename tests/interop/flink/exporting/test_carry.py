"""Operators that an import omitted are copied unchanged from its savepoint (I16)."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from statestore import StateStore
from statestore.errors import (
    DamagedFileError,
    IncompatibleStateError,
    InvalidArgumentError,
    LeftOutStateError,
    MissingFileError,
    ParallelismError,
    StateNotFoundError,
)
from statestore.format.left_out import LeftOutState
from statestore.interop.flink import export_savepoint, import_savepoint, open_savepoint
from statestore.interop.flink.exporting.export_state import select_carried_operators
from statestore.interop.flink.importing.import_record import SavepointRecord
from statestore.interop.flink.metadata.handles import (
    ChangelogHandle,
    FileChanges,
    FileHandle,
    IncrementalHandle,
    InlineChanges,
    KeyGroupsHandle,
    OperatorHandle,
    OperatorHandles,
    SavepointMetadata,
    SegmentHandle,
    StreamHandle,
)
from statestore.interop.flink.metadata.metadata_file import metadata_v3, read_metadata
from statestore.interop.flink.options import ExportSelection, FlinkTarget, SavepointAccess
from statestore.interop.flink.read.savepoint_files import SavepointFiles, open_source
from statestore.jobgraph.operators import operator_id
from statestore.storage import open_storage
from tests.interop.flink.goldens import Golden
from tests.interop.flink.importing.test_refusals import IN_FLIGHT, one_operator
from tests.servers.published import FLINK_1_15

pytestmark = pytest.mark.slow

KINDS = operator_id("kinds")


def metadata_of(place: Path | str) -> SavepointMetadata:
    return read_metadata((Path(place) / "_metadata").read_bytes(), "m")


def operator_of(place: Path | str, number: str = KINDS) -> OperatorHandles:
    (found,) = (operator for operator in metadata_of(place).operators if operator.id == number)
    return found


def streams(operator: OperatorHandles) -> list[StreamHandle]:
    """Return the handles of all bytes of an operator, in order."""
    found: list[StreamHandle] = []
    for subtask in operator.subtasks:
        for handle in (subtask.operator, subtask.raw_operator, subtask.keyed, subtask.raw_keyed):
            if isinstance(handle, IncrementalHandle):
                found.append(handle.meta)
                found += [file for _, file in (*handle.shared, *handle.private)]
            elif isinstance(handle, KeyGroupsHandle | OperatorHandle):
                found.append(handle.stream)
    return found


def contents(operator: OperatorHandles, place: Path | str, moved: dict[str, str]) -> list[bytes]:
    """Return the bytes of each handle."""
    places = SavepointFiles(open_storage(str(place)), None, moved)
    sources = (open_source(stream, places, "test") for stream in streams(operator))
    return [one.read(0, one.size) for one in sources]


def unplaced(operator: OperatorHandles) -> OperatorHandles:
    """Return an operator without its handles, and without the parts that version 3 does
    not have.
    """
    subtasks = []
    for subtask in operator.subtasks:
        keyed = subtask.keyed
        if isinstance(keyed, KeyGroupsHandle):
            keyed = replace(keyed, stream=None)
        elif isinstance(keyed, IncrementalHandle):
            keyed = replace(keyed, meta=None, shared=(), private=())
        operator_handle = subtask.operator
        if operator_handle is not None:
            operator_handle = replace(operator_handle, stream=None)
        subtasks.append(replace(subtask, keyed=keyed, operator=operator_handle))
    return replace(operator, name=None, uid=None, subtasks=tuple(subtasks))


def unpacked(folder: Path) -> Path:
    return Golden("2.3_heap_native").unpack(folder / "from")


def imported(source: Path, folder: Path) -> StateStore:
    """Return a store that imported a savepoint in which one operator, ``kinds``, is unreadable."""
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    import_savepoint(str(source), store)
    return store


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The savepoint of ``store``, which no test changes."""
    return unpacked(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def store(source: Path, tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    """A store that no test changes."""
    return imported(source, tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("name", ["kinds", KINDS])
def test_an_operator_is_copied_with_its_entry(
    store: StateStore, source: Path, tmp_path: Path, name: str
) -> None:
    done = export_savepoint(
        store, str(tmp_path / "to"), parallelism=3, selection=ExportSelection(carry=[name])
    )
    assert (done.carried, done.left_out, done.is_complete) == (("kinds",), (), True)
    before, after = operator_of(source), operator_of(tmp_path / "to")
    assert unplaced(after) == unplaced(before)
    assert contents(after, tmp_path / "to", {}) == contents(before, source, {})
    assert len(contents(after, tmp_path / "to", {})) == 4
    # Sinks compare Flink's checkpoint id with the ids in their state.
    assert metadata_of(tmp_path / "to").checkpoint_id == metadata_of(source).checkpoint_id == 2
    ids = {operator.id for operator in metadata_of(tmp_path / "to").operators}
    assert ids == {operator.id for operator in metadata_of(source).operators}


@pytest.mark.long
def test_a_carried_operator_survives_the_next_import(store: StateStore, tmp_path: Path) -> None:
    place = export_savepoint(
        store, str(tmp_path / "to"), selection=ExportSelection(carry=["kinds"])
    ).savepoint
    again = StateStore.open(str(tmp_path / "again"), table_format="parquet")
    assert [one.operator for one in import_savepoint(place, again).left_out] == [KINDS]
    export_savepoint(again, str(tmp_path / "twice"), selection=ExportSelection(carry=["kinds"]))
    first, second = operator_of(tmp_path / "to"), operator_of(tmp_path / "twice")
    assert unplaced(first) == unplaced(second)
    assert contents(first, tmp_path / "to", {}) == contents(second, tmp_path / "twice", {})


@pytest.mark.long
def test_the_files_of_an_incremental_checkpoint_are_copied(tmp_path: Path) -> None:
    """Absolute paths become relative ones, so that the copy does not depend on the source."""
    golden = Golden("2.3_rocksdb_incremental")
    source = golden.unpack(tmp_path / "from")
    moved = {golden.about["written_at"]: str(tmp_path / "from")}
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    import_savepoint(str(source), store, operators=["by_long"], access=SavepointAccess(moved=moved))
    others = {one.operator for one in store.checkpoint().manifest.left_out} - {"kinds"}
    with pytest.raises(InvalidArgumentError, match=r"--allow URL.*--allow OLD=NEW"):
        export_savepoint(
            store,
            str(tmp_path / "to"),
            selection=ExportSelection(carry=["kinds"], leave_out=others),
        )
    done = export_savepoint(
        store,
        str(tmp_path / "to"),
        access=SavepointAccess(moved=moved),
        selection=ExportSelection(carry=["kinds"], leave_out=others),
    )
    assert done.carried == ("kinds",)
    before, after = operator_of(source), operator_of(tmp_path / "to")
    assert any(isinstance(subtask.keyed, IncrementalHandle) for subtask in after.subtasks)
    assert any(isinstance(stream, FileHandle) for stream in streams(before))
    assert not any(isinstance(stream, FileHandle) for stream in streams(after))
    assert unplaced(after) == unplaced(before)
    expected = contents(before, source, moved)
    (tmp_path / "from").rename(tmp_path / "gone")
    assert contents(after, tmp_path / "to", {}) == expected
    copied = open_savepoint(str(tmp_path / "to")).operator("kinds")
    assert sum(len(entry.keys) for entry in copied.entries()) > 0


@pytest.mark.long
def test_raw_state_and_shared_files_are_copied_once(tmp_path: Path) -> None:
    """A synthetic operator has all four places of state, two of which name parts of one file."""
    source = unpacked(tmp_path)
    (source / "merged").write_bytes(b"0123456789" * 9)
    segment = SegmentHandle(10, 30, 0, str(source / "merged"), "id")
    metadata = metadata_of(source)
    (kinds,) = (operator for operator in metadata.operators if operator.id == KINDS)
    first, *rest = kinds.subtasks
    raw = KeyGroupsHandle(0, (3, 4), segment, is_savepoint=False, handle_id="one")
    crafted = replace(
        first,
        raw_keyed=raw,
        raw_operator=OperatorHandle(first.operator.parts, segment),  # type: ignore[union-attr]
    )
    changed = replace(kinds, subtasks=(crafted, *rest))
    operators = tuple(changed if operator is kinds else operator for operator in metadata.operators)
    (source / "_metadata").write_bytes(metadata_v3(SavepointMetadata(3, 7, operators)))
    store = imported(source, tmp_path)
    export_savepoint(store, str(tmp_path / "to"), selection=ExportSelection(carry=["kinds"]))
    after = operator_of(tmp_path / "to")
    assert contents(after, tmp_path / "to", {}) == contents(changed, source, {})
    copy = after.subtasks[0]
    assert isinstance(copy.raw_keyed, KeyGroupsHandle)
    assert isinstance(copy.raw_operator, OperatorHandle)
    assert copy.raw_keyed == replace(raw, stream=copy.raw_operator.stream)
    assert metadata_of(tmp_path / "to").checkpoint_id == 7


def test_a_dry_run_copies_nothing(store: StateStore, tmp_path: Path) -> None:
    done = export_savepoint(
        store, str(tmp_path / "to"), dry_run=True, selection=ExportSelection(carry=["kinds"])
    )
    assert done.carried == ("kinds",)
    assert not (tmp_path / "to").exists()


def test_another_number_of_key_groups_is_refused(store: StateStore, tmp_path: Path) -> None:
    with pytest.raises(ParallelismError, match=r"'kinds' has 128 key groups .* to 720"):
        export_savepoint(
            store,
            str(tmp_path / "to"),
            max_parallelism=720,
            selection=ExportSelection(carry=["kinds"]),
        )
    export_savepoint(
        store, str(tmp_path / "to"), max_parallelism=128, selection=ExportSelection(carry=["kinds"])
    )


def test_operators_that_are_not_missing_are_refused(store: StateStore, tmp_path: Path) -> None:
    with pytest.raises(
        StateNotFoundError, match=r"no operator 'by_long' .* whole operators: kinds \("
    ):
        export_savepoint(store, str(tmp_path / "to"), selection=ExportSelection(carry=["by_long"]))


@pytest.mark.long
def test_a_changed_or_missing_savepoint_is_refused(tmp_path: Path) -> None:
    """Each failure leaves an empty folder, and never an incomplete savepoint."""
    source = unpacked(tmp_path)
    store = imported(source, tmp_path)
    handle = operator_of(source).subtasks[0].keyed
    assert isinstance(handle, KeyGroupsHandle)
    file = source / handle.stream.path  # type: ignore[union-attr]
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(DamagedFileError, match="bytes, but the savepoint says"):
        export_savepoint(store, str(tmp_path / "to"), selection=ExportSelection(carry=["kinds"]))
    file.unlink()
    with pytest.raises(MissingFileError, match="does not exist"):
        export_savepoint(store, str(tmp_path / "to"), selection=ExportSelection(carry=["kinds"]))
    file.write_bytes(whole)
    metadata = (source / "_metadata").read_bytes()
    (source / "_metadata").write_bytes(metadata + b"\0")
    with pytest.raises(InvalidArgumentError, match="has changed since the import"):
        export_savepoint(store, str(tmp_path / "to"), selection=ExportSelection(carry=["kinds"]))
    (source / "_metadata").unlink()
    with pytest.raises(MissingFileError, match="no longer has _metadata"):
        export_savepoint(store, str(tmp_path / "to"), selection=ExportSelection(carry=["kinds"]))
    assert not any((tmp_path / "to").glob("*"))
    with pytest.raises(LeftOutStateError, match="--carry copies a whole operator unchanged"):
        export_savepoint(store, str(tmp_path / "to"))


@pytest.mark.long_cases("1.15")
@pytest.mark.parametrize("storage", [None, "filesystem"], ids=["1.15", "later"])
def test_a_changelog_is_copied_with_its_files(storage: str | None, tmp_path: Path) -> None:
    """A synthetic subtask has materialized state, and changes in a file and in the metadata."""
    source = unpacked(tmp_path)
    (source / "merged").write_bytes(b"0123456789" * 9)
    materialized = KeyGroupsHandle(
        0, (3, 4), SegmentHandle(10, 30, 0, str(source / "merged"), "id"), is_savepoint=False
    )
    in_file = FileChanges(
        0,
        2,
        ((5, SegmentHandle(40, 20, 0, str(source / "merged"), "id")),),
        b"b" * 16,
        "f",
        storage,
    )
    inline = InlineChanges(0, 2, ((1, b"change"),), b"s" * 16, "i")
    changelog = ChangelogHandle(0, 2, 99, (materialized,), (in_file, inline), b"m" * 16, "c")
    metadata = metadata_of(source)
    (kinds,) = (operator for operator in metadata.operators if operator.id == KINDS)
    first, *rest = kinds.subtasks
    changed = replace(kinds, subtasks=(replace(first, keyed=changelog), *rest))
    operators = tuple(changed if operator is kinds else operator for operator in metadata.operators)
    (source / "_metadata").write_bytes(metadata_v3(SavepointMetadata(3, 7, operators)))
    store = imported(source, tmp_path)
    export_savepoint(store, str(tmp_path / "to"), selection=ExportSelection(carry=["kinds"]))
    copy = operator_of(tmp_path / "to").subtasks[0].keyed
    assert isinstance(copy, ChangelogHandle)
    (state,), (written, kept) = copy.materialized, copy.changes
    assert isinstance(state, KeyGroupsHandle)
    assert isinstance(written, FileChanges)
    assert kept == inline
    places = SavepointFiles(open_storage(str(tmp_path / "to")), None, {})
    files = [open_source(stream, places, "m") for stream in (state.stream, written.streams[0][1])]
    assert [file.read(0, file.size) for file in files] == [b"0123456789" * 3, b"0123456789" * 2]
    assert replace(written, streams=in_file.streams) == in_file
    assert replace(copy, materialized=(materialized,), changes=(in_file, inline)) == changelog
    with pytest.raises(ParallelismError, match="cannot be carried to 720"):
        export_savepoint(
            store,
            str(tmp_path / "more"),
            max_parallelism=720,
            selection=ExportSelection(carry=["kinds"]),
        )


@pytest.mark.long
def test_a_changelog_outside_of_the_savepoint_is_refused(tmp_path: Path) -> None:
    source = unpacked(tmp_path)
    elsewhere = FileHandle(str(tmp_path / "elsewhere"), 3)
    changes = FileChanges(0, 1, ((0, elsewhere),), bytes(16), "f", None)
    changelog = ChangelogHandle(0, 1, 0, (), (changes,), bytes(16), "c")
    metadata = metadata_of(source)
    operators = tuple(
        replace(operator, subtasks=(replace(operator.subtasks[0], keyed=changelog),))
        if operator.id == KINDS
        else operator
        for operator in metadata.operators
    )
    (source / "_metadata").write_bytes(metadata_v3(SavepointMetadata(3, 7, operators)))
    store = imported(source, tmp_path)
    with pytest.raises(InvalidArgumentError, match="elsewhere"):
        export_savepoint(store, str(tmp_path / "to"), selection=ExportSelection(carry=["kinds"]))


def test_an_operator_of_flink_1_is_not_carried_to_flink_2(tmp_path: Path) -> None:
    source = Golden("1.20_heap_native").unpack(tmp_path / "from")
    store = imported(source, tmp_path)
    (missing,) = store.checkpoint().manifest.left_out
    with pytest.raises(IncompatibleStateError, match="cannot be carried to Flink 2: its state is"):
        export_savepoint(
            store,
            str(tmp_path / "to"),
            target=FlinkTarget(version="2.3"),
            selection=ExportSelection(carry=[missing.operator]),
        )
    assert not any((tmp_path / "to").glob("*"))


def test_a_savepoint_can_consist_of_carried_operators(tmp_path: Path) -> None:
    """Flink 1.4 wrote this one, of which no operator can be read."""
    source = FLINK_1_15.unpack(
        "type-serializer-snapshot-migration-itcase-flink1.4-savepoint", tmp_path
    )
    store = imported(source, tmp_path)
    unread = {missing.operator for missing in store.checkpoint().manifest.left_out}
    selection = ExportSelection(carry=sorted(unread))
    done = export_savepoint(store, str(tmp_path / "to"), selection=selection)
    assert (set(done.carried), done.operators) == (unread, ())
    before, after = (
        {
            operator.id: unplaced(operator)
            for operator in metadata_of(place).operators
            if operator.id in unread
        }
        for place in (source, tmp_path / "to")
    )
    assert after == before
    assert len(unread) == 2


def test_in_flight_records_are_not_carried(tmp_path: Path) -> None:
    data = one_operator(IN_FLIGHT)
    (tmp_path / "_metadata").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    savepoint = SavepointRecord(str(tmp_path), 1, 4, digest, (), ())
    record = LeftOutState(
        operator="sums", state=None, reason="r", command="flink import", id="0" * 32
    )
    with pytest.raises(IncompatibleStateError, match="'sums' cannot be carried: subtask 0 has"):
        select_carried_operators([record], savepoint, None, SavepointAccess())
