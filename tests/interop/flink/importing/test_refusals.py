"""Unsupported state is refused by name, or dropped on request, and lost state is reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore import StateStore
from statestore.cli.main import cli
from statestore.errors import (
    IncompatibleStateError,
    InvalidArgumentError,
    LeftOutStateError,
    UnsupportedTypeError,
)
from statestore.interop.flink import (
    export_savepoint,
    import_savepoint,
    repack_savepoint,
    show_savepoint,
)
from statestore.interop.flink.metadata.handles import (
    ChangelogHandle,
    IncrementalHandle,
    InlineHandle,
    KeyGroupsHandle,
    OperatorHandle,
    OperatorHandles,
    OperatorPart,
    SavepointMetadata,
)
from statestore.interop.flink.metadata.java_binary import i8, i16, i32, i64, utf
from statestore.interop.flink.metadata.metadata_file import metadata_v3, read_metadata
from statestore.interop.flink.options import ExportSelection, SavepointAccess, SavepointHints
from statestore.interop.flink.read.canonical import (
    KeyedHeader,
    StateInfo,
    header_bytes,
    read_header,
    state_info_bytes,
)
from statestore.interop.flink.read.plausibility import lost_timers
from statestore.interop.flink.read.refusals import Refused
from statestore.interop.flink.read.savepoint import open_savepoint
from statestore.interop.flink.types.java_types import Scalar
from statestore.interop.flink.types.serializer_snapshots import SerializerSnapshot
from statestore.jobgraph.operators import operator_id
from tests.interop.flink.goldens import Golden

BYTES = Scalar("byte[]")
TIMERS = ("_timer_state/event_user-timers", "_timer_state/processing_user-timers")
COMMITTER = "streaming_committer_raw_states"
TWO_PHASES = "org.apache.flink.streaming.api.functions.sink.legacy.TwoPhaseCommitSinkFunction"


def written(folder: Path, change: Callable[[OperatorHandles], OperatorHandles]) -> str:
    """Write a savepoint of real Flink again with the operator ``by_long`` changed; return its
    folder.
    """
    golden = Golden("2.3_heap_canonical").unpack(folder)
    found = read_metadata((golden / "_metadata").read_bytes(), "m")
    (one,) = (operator for operator in found.operators if operator.uid == "by_long")
    others = tuple(operator for operator in found.operators if operator.uid == "by_tuple")
    data = metadata_v3(SavepointMetadata(3, 1, (change(one), *others)))
    (golden / "_metadata").write_bytes(data)
    return str(golden)


def with_header(
    operator: OperatorHandles, change: Callable[[KeyedHeader], KeyedHeader]
) -> OperatorHandles:
    """Return an operator with other headers."""
    subtasks = []
    for subtask in operator.subtasks:
        handle = subtask.keyed
        assert isinstance(handle, KeyGroupsHandle)
        assert isinstance(handle.stream, InlineHandle)
        data = handle.stream.data
        header = read_header(data, "h")
        head = header_bytes(change(header))
        stream = InlineHandle("s", head + data[header.length :])
        offsets = tuple(at and at + len(head) - header.length for at in handle.offsets)
        keyed = replace(handle, stream=stream, offsets=offsets)
        subtasks.append(replace(subtask, keyed=keyed))
    return replace(operator, subtasks=tuple(subtasks))


def without_map_key(operator: OperatorHandles) -> OperatorHandles:
    """Return an operator with a map of ForSt whose keys have no type, as Flink 2.0 writes it."""

    def change(header: KeyedHeader) -> KeyedHeader:
        return replace(
            header,
            states=tuple(
                replace(state, kind="asynchronous", options={"KEYED_STATE_TYPE": "MAP"})
                if state.name == "texts"
                else state
                for state in header.states
            ),
        )

    return with_header(operator, change)


def of_a_sink(operator: OperatorHandles, name: str, snapshot: bytes) -> OperatorHandles:
    """Return an operator with an additional operator state of one element."""
    info = StateInfo(
        name,
        "operator",
        {"OPERATOR_STATE_DISTRIBUTION_MODE": "SPLIT_DISTRIBUTE"},
        {"VALUE_SERIALIZER": SerializerSnapshot(BYTES, snapshot)},
    )
    header = i32(5) + i16(1) + state_info_bytes(info) + i16(0)
    stream = InlineHandle("s", header + i32(2) + b"ab")
    handle = OperatorHandle((OperatorPart(name, "split", (len(header),)),), stream)
    first, *others = operator.subtasks
    return replace(operator, subtasks=(replace(first, operator=handle), *others))


def one_operator(subtask: bytes) -> bytes:
    """Return ``_metadata`` of version 4 with an operator of one subtask."""
    head = i32(0x4960672D) + i32(4) + i64(1) + i32(0) + i32(1)
    java = b"\xac\xed\x00\x05sr"
    return head + bytes(16) + i32(1) + i32(128) + i8(0) + i32(1) + i32(0) + subtask + java


IN_FLIGHT = i32(0) + i32(0) + i8(0) + i8(0) + i32(1) + i32(0) * 4 + i64(9) + i8(16) + i32(0)
CHANGES = i8(13) + i32(0) + i32(128) + i32(1) + i64(0) + i8(16) + bytes(16) + utf("a") + utf("b")
CHANGELOG = (
    *(i32(0), i32(0), i8(14), i32(0), i32(128), i64(1), i32(0), i32(1)),
    *(CHANGES, bytes(16), utf("c"), i8(0), i32(0), i32(0)),
)
RAW = i32(0) + i32(0) + i8(0) + i8(3) + i32(0) + i32(1) + i64(0) + i8(16) + i32(0) + i32(0)


@pytest.mark.parametrize(
    ("subtask", "kind", "said"),
    [
        (IN_FLIGHT, Refused.IN_FLIGHT, "1 handles of in-flight records"),
        (b"".join(CHANGELOG), Refused.CHANGELOG, "in the changelog state backend"),
        (RAW, Refused.RAW, "raw state in a format that only the operator knows"),
    ],
)
def test_unsupported_state_is_refused_by_name_and_can_be_dropped(
    subtask: bytes, kind: Refused, said: str, tmp_path: Path
) -> None:
    (tmp_path / "_metadata").write_bytes(one_operator(subtask))
    (operator,) = open_savepoint(str(tmp_path)).operators
    assert operator.problem is not None
    assert said in operator.problem
    assert f"(--drop {kind})" in operator.problem
    (dropped,) = open_savepoint(str(tmp_path), drop=[kind]).operators
    assert (dropped.problem, dropped.states) == (None, ())
    with pytest.raises(IncompatibleStateError, match=f"--drop {kind}"):
        repack_savepoint(str(tmp_path), str(tmp_path / "no"), max_parallelism=9)
    done = repack_savepoint(str(tmp_path), str(tmp_path / "to"), max_parallelism=9, drop=[kind])
    assert [dict(one.left_out) for one in done.operators] == [
        {kind.value: f"dropped with --drop {kind}"}
    ]
    (made,) = open_savepoint(str(tmp_path / "to")).operators
    assert made.problem is None


def test_dropping_one_kind_drops_no_other(tmp_path: Path) -> None:
    (tmp_path / "_metadata").write_bytes(one_operator(RAW))
    (operator,) = open_savepoint(str(tmp_path), drop=[Refused.IN_FLIGHT]).operators
    assert "raw state" in str(operator.problem)


def test_only_known_kinds_can_be_dropped(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="'timers' cannot be dropped"):
        import_savepoint("s", StateStore.open(str(tmp_path)), drop=["timers"])


IN_FILES_OF_1_15 = i8(10) + CHANGES[1:].removesuffix(utf("b"))
IN_METADATA = (
    i8(9) + i32(0) + i32(128) + bytes(16) + i32(2) + i32(7) + i32(3) + b"abc" + i32(-1) + i32(0)
) + utf("d")


@pytest.mark.parametrize(
    "changes", [CHANGES, IN_FILES_OF_1_15, IN_METADATA], ids=["files", "unnamed", "metadata"]
)
@pytest.mark.parametrize("ids", [(8, 8), (14, 16)], ids=["1.15", "later"])
def test_a_changelog_is_written_as_it_was_read(changes: bytes, ids: tuple[int, int]) -> None:
    tag, width = ids
    handle = (
        *(i32(0), i32(0), i8(tag), i32(0), i32(128), i64(1), i32(0), i32(1)),
        *(changes, bytes(range(width)), utf("c"), i8(0), i32(0), i32(0)),
    )
    metadata = read_metadata(one_operator(b"".join(handle)), "m")
    assert isinstance(metadata.operators[0].subtasks[0].keyed, ChangelogHandle)
    written = metadata_v3(metadata)
    assert b"".join(handle[2:-3]) in written
    assert read_metadata(written, "m").operators == metadata.operators


@pytest.mark.slow
def test_a_map_of_forst_without_the_type_of_its_keys_is_refused_and_dropped_on_request(
    tmp_path: Path,
) -> None:
    place = written(tmp_path / "s", without_map_key)
    number = operator_id("by_long")
    by_long, by_tuple = show_savepoint(place).operators
    assert by_long.problem is not None
    assert "the map state 'texts' of ForSt without the type of its keys" in by_long.problem
    assert by_tuple.problem is None
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with pytest.raises(UnsupportedTypeError, match=r"\(--drop async\)"):
        import_savepoint(place, store, operators=[number])
    done = import_savepoint(place, store, drop=["async"], operators=[number])
    states = {state.state: state.rows for state in done.record.states}
    assert set(states) == {"last", "sums", *TIMERS}
    assert states["last"] == 109
    dropped = [one for one in store.checkpoint().manifest.left_out if one.operator == number]
    assert [(one.state, one.reason) for one in dropped] == [("texts", "dropped with --drop async")]
    with pytest.raises(LeftOutStateError, match=f"--leave-out '{number}/texts'"):
        export_savepoint(store, str(tmp_path / "no"), selection=ExportSelection(operators=[number]))
    named = [f"{number}/texts"]
    exported = export_savepoint(
        store, str(tmp_path / "yes"), selection=ExportSelection(operators=[number], leave_out=named)
    )
    assert {state.state for state in exported.operators[0].states} == {"last", "sums", *TIMERS}
    made = str(tmp_path / "to")
    repack_savepoint(place, made, max_parallelism=720, drop=["async"])
    entries = {state.name for state in open_savepoint(made).operators[0].states}
    assert entries == {"last", "sums", *TIMERS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "snapshot", "said"),
    [
        (
            COMMITTER,
            BYTES.snapshot(),
            f"operator state {COMMITTER!r} has open sink transactions",
        ),
        (
            "state",
            utf(f"{TWO_PHASES}$StateSerializerSnapshot") + i32(2) + bytes(20),
            "operator state 'state' has open sink transactions",
        ),
    ],
)
def test_transactions_are_refused_and_the_rest_read_after_a_drop(
    name: str, snapshot: bytes, said: str, tmp_path: Path
) -> None:
    place = written(tmp_path / "s", lambda one: of_a_sink(one, name, snapshot))
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    number = operator_id("by_long")
    with pytest.raises(UnsupportedTypeError, match=said):
        import_savepoint(place, store, operators=[number])
    left = import_savepoint(place, store).record
    problems = {
        operator.id: str(operator.problem)
        for operator in left.operators
        if operator.problem is not None
    }
    assert list(problems) == [number]
    assert "(--drop transactions)" in problems[number]
    other = StateStore.open(str(tmp_path / "other"), table_format="parquet")
    done = import_savepoint(place, other, drop=["transactions"]).record
    names = {state.state for state in done.states if state.operator == number}
    assert names == {"last", "texts", "sums", *TIMERS}


def test_transactions_are_shown(tmp_path: Path) -> None:
    place = written(tmp_path, lambda one: of_a_sink(one, COMMITTER, BYTES.snapshot()))
    said = json.loads(CliRunner().invoke(cli, ["flink", "show", place, "--output", "json"]).stdout)
    (warning,) = said["operators"][0]["warnings"]
    assert warning.startswith(f"{COMMITTER} has open sink transactions")


def without_timers(operator: OperatorHandles) -> OperatorHandles:
    """Return an operator whose state is an empty RocksDB, without timers."""
    subtasks = []
    for subtask in operator.subtasks:
        handle = subtask.keyed
        assert isinstance(handle, KeyGroupsHandle)
        assert isinstance(handle.stream, InlineHandle)
        header = read_header(handle.stream.data, "h")
        states = tuple(state for state in header.states if state.kind != "timers")
        meta = InlineHandle("h", header_bytes(replace(header, states=states)))
        count = len(handle.offsets)
        keyed = IncrementalHandle(1, "b", handle.first, count, meta, (), ())
        subtasks.append(replace(subtask, keyed=keyed))
    return replace(operator, subtasks=tuple(subtasks))


@pytest.mark.slow
def test_timers_that_a_native_savepoint_may_have_lost_are_reported(tmp_path: Path) -> None:
    place = written(tmp_path / "s", without_timers)
    lost = "it has no timers; if the job has timers on the heap, a native RocksDB savepoint"
    by_long, by_tuple = show_savepoint(place).operators
    assert by_long.warnings[0].startswith(lost)
    assert by_tuple.warnings == ()
    run, store = CliRunner(), str(tmp_path / "store")
    assert lost in " ".join(run.invoke(cli, ["flink", "show", place]).stdout.split())
    words = ["flink", "import", place, "--store", store]
    text = " ".join(run.invoke(cli, words).stdout.split())
    assert f"warning: {operator_id('by_long')}: {lost}" in text
    said = json.loads(run.invoke(cli, [*words, "--output", "json"]).stdout)
    assert [one.partition(": ")[0] for one in said["warnings"]] == [operator_id("by_long")]


@pytest.mark.long
def test_windows_without_timers_are_reported_and_checkpoints_lose_none(tmp_path: Path) -> None:
    for name, is_lost in (("2.3_rocksdb_native", True), ("2.3_rocksdb_incremental", False)):
        golden = Golden(name)
        place = golden.unpack(tmp_path / name)
        savepoint = open_savepoint(
            str(place),
            access=SavepointAccess(moved={golden.about["written_at"]: str(tmp_path / name)}),
        )
        sums = savepoint.operator("sums")
        assert lost_timers(savepoint, sums) is None
        kept = tuple(state for state in sums.states if state.kind != "timers")
        said = lost_timers(savepoint, replace(sums, states=kept))
        assert (said is not None) == is_lost
        assert (
            not is_lost
            or "the timers of its windows are missing because they were on the heap" in str(said)
        )


@pytest.mark.long
@pytest.mark.slow
def test_a_later_import_keeps_the_stores_state(tmp_path: Path) -> None:
    def place(number: int) -> str:
        folder = tmp_path / str(number)
        golden = Golden("2.3_heap_canonical").unpack(folder)
        found = read_metadata((golden / "_metadata").read_bytes(), "m")
        some = tuple(
            operator for operator in found.operators if operator.uid in ("by_long", "by_tuple")
        )
        data = metadata_v3(SavepointMetadata(3, number, some))
        (golden / "_metadata").write_bytes(data)
        return str(golden)

    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    uids = {operator_id(uid): uid for uid in ("by_long", "by_tuple")}
    import_savepoint(place(1), store, hints=SavepointHints(uids=uids))
    with pytest.raises(
        LeftOutStateError,
        match="the store has state of by_tuple, which the new checkpoint would lack",
    ):
        import_savepoint(place(2), store, operators=["by_long"], hints=SavepointHints(uids=uids))
    assert store.restore().checkpoint_id == 1
    assert import_savepoint(place(2), store, hints=SavepointHints(uids=uids)).checkpoint_id == 2
    alone = StateStore.open(str(tmp_path / "alone"), table_format="parquet")
    for number in (1, 2):
        done = import_savepoint(
            place(number), alone, operators=["by_long"], hints=SavepointHints(uids=uids)
        )
        assert done.checkpoint_id == number


@pytest.mark.slow
def test_a_later_import_keeps_unreadable_state(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    import_savepoint(written(tmp_path / "1", lambda one: one), store)
    place = Path(written(tmp_path / "2", without_map_key))
    data = (place / "_metadata").read_bytes()
    (place / "_metadata").write_bytes(data[:8] + i64(2) + data[16:])
    with pytest.raises(
        LeftOutStateError, match=r"\(unreadable: .*'texts' of ForSt without the type"
    ):
        import_savepoint(str(place), store)
