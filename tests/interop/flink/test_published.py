"""Savepoints of Flink 1.3 to 2.1 that Flink publishes: the real files of its own jobs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.errors import FormatVersionError, InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink import (
    FlinkSavepoint,
    export_savepoint,
    import_savepoint,
    open_savepoint,
    show_savepoint,
)
from statestore.interop.flink.metadata.metadata_file import read_metadata
from statestore.keys.hashing import key_group_of
from tests.servers.published import FLINK_1_13, FLINK_1_20, FLINK_SQL, PublishedJar

JOB = "new-stateful-udf-migration-itcase-flink"
SINCE_1_15 = [
    f"{backend}-{form}"
    for backend in ("hashmap", "rocksdb")
    for form in ("checkpoint", "savepoint", "savepoint-native")
]
DRAGONS = [
    *("Here be dragons!", "Here be more dragons!"),
    *("Here be yet more dragons!", "Here be the mostest dragons!"),
]
CHANGELOG = (
    "subtask 1 has its state in the changelog state backend: take a canonical savepoint, carry the "
    "operator in the export (--carry), or drop it (--drop changelog)"
)
ONE_OF_EACH_FORM = {
    *("1.8-rocksdb-savepoint", "1.10-rocksdb-savepoint", "1.13-rocksdb-savepoint"),
    *("1.15-rocksdb-checkpoint", "1.16-hashmap-savepoint-native", "1.17-rocksdb-checkpoint"),
}
"""Raw timers, canonical state under a plain handle, a canonical savepoint, canonical
state of a RocksDB checkpoint, the native form of the heap, and RocksDB files with empty channels.
"""


def jobs() -> list[Any]:
    """Return the savepoints of one job by all versions of Flink and both state backends."""
    versions = [(f"1.{minor}", "rocksdb-savepoint") for minor in range(8, 15)]
    versions += [(f"1.{minor}", "savepoint") for minor in range(8, 15)]
    versions += [(f"1.{minor}", form) for minor in range(15, 20) for form in SINCE_1_15]
    versions.remove(("1.17", "hashmap-checkpoint"))  # a changelog, which has a test of its own
    return [
        pytest.param(
            FLINK_1_20 if int(version.removeprefix("1.")) > 13 else FLINK_1_13,
            f"{JOB}{version}-{form}",
            id=f"{version}-{form}",
            marks=() if f"{version}-{form}" in ONE_OF_EACH_FORM else (pytest.mark.long,),
        )
        for version, form in versions
    ]


def states(savepoint: FlinkSavepoint) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
    """Return the sorted rows of each keyed state: key, namespace, and value or time.

    Times of processing timers are left out, because they differ from run to run.
    """
    found: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for operator in savepoint.operators:
        for state in operator.states:
            rows = found.setdefault((operator.title[:6], state.name), [])
            for part in operator.rows(state.name):
                last = part.value if part.value is not None else part.time
                assert last is not None
                columns = [
                    part.key,
                    part.namespace,
                    *([] if "processing" in state.name else [last]),
                ]
                rows += zip(*(column.to_pylist() for column in columns), strict=True)
            rows.sort(key=repr)
    return found


def expected_states() -> dict[tuple[str, str], list[tuple[Any, ...]]]:
    """Return what the job stored, in all versions: the same for four keys."""
    keys = [({"f0": key}, key) for key in range(4)]
    found: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for operator in ("d5c8b1", "dab258"):
        found[operator, "state-name"] = [(key, None, number) for key, number in keys]
    for operator in ("41e91a", "4b818c"):
        found[operator, "state-name"] = [(key, number, number) for key, number in keys]
        found[operator, "_timer_state/event_timer"] = [(*key, 10 - 2**63) for key in keys]
        found[operator, "_timer_state/processing_timer"] = list(keys)
    return found


@pytest.mark.parametrize(("jar", "name"), jobs())
def test_each_form_of_the_same_state_has_the_same_rows(
    jar: PublishedJar, name: str, tmp_path: Path
) -> None:
    savepoint = open_savepoint(str(jar.unpack(name, tmp_path)))
    assert [operator.problem for operator in savepoint.operators] == [None] * 8
    assert states(savepoint) == expected_states()
    sources = [
        elements.values().to_pylist()
        for operator in savepoint.operators
        for elements in operator.operator_state()
    ]
    assert sources == [DRAGONS, DRAGONS]


@pytest.mark.slow
def test_timers_of_raw_state_are_stored_and_exported(tmp_path: Path) -> None:
    place = str(FLINK_1_13.unpack(f"{JOB}1.8-rocksdb-savepoint", tmp_path))
    store = StateStore.open(str(tmp_path / "store"))
    done = import_savepoint(place, store)
    assert not done.left_out
    export_savepoint(store, str(tmp_path / "to"))
    assert states(open_savepoint(str(tmp_path / "to"))) == expected_states()


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("1.4", "operator state of version 2, which Flink 1.3 and 1.4 wrote"),
        ("1.5", "operator state of version 3, which Flink 1.5 wrote"),
        ("1.6", "operator state of version 4, which Flink 1.6 wrote"),
        ("1.7", "which Flink 1.7 or before wrote"),
    ],
)
def test_an_older_flink_is_named_and_what_to_do(version: str, said: str, tmp_path: Path) -> None:
    place = str(FLINK_1_13.unpack(f"{JOB}{version}-rocksdb-savepoint", tmp_path))
    done = import_savepoint(place, StateStore.open(str(tmp_path / "store")))
    reasons = [left_out.reason for left_out in done.left_out]
    assert any(said in reason for reason in reasons)
    assert all("Restore the job with a Flink of 1.8 to 1.16" in reason for reason in reasons)
    shown = show_savepoint(place)
    assert not any(operator.is_damaged for operator in shown.operators)


@pytest.mark.parametrize("job", ["nonKeyed", pytest.param("complexKeyed", marks=pytest.mark.long)])
def test_operator_state_of_flink_1_7_names_flink_and_what_to_do(job: str, tmp_path: Path) -> None:
    place = str(FLINK_1_13.unpack(f"operatorstate/{job}-flink1.7", tmp_path))
    done = import_savepoint(place, StateStore.open(str(tmp_path / "store")))
    reasons = {left_out.reason for left_out in done.left_out}
    said = (
        "has a serializer snapshot ParameterlessTypeSerializerConfig, which Flink 1.7 or before "
        "wrote. Savepoints of Flink 1.8 and later can be read. Restore the job with a Flink of "
        "1.8 to 1.16, and take a new savepoint"
    )
    assert any(reason.endswith(said) for reason in reasons)
    assert all("Restore the job with a Flink of 1.8 to 1.16" in reason for reason in reasons)


@pytest.mark.slow
@pytest.mark.parametrize(
    "jar",
    [
        pytest.param(FLINK_1_13, id="1.3 to 1.13"),
        pytest.param(FLINK_1_20, id="1.15 to 1.19", marks=pytest.mark.long),
        pytest.param(FLINK_SQL, id="SQL", marks=pytest.mark.long),
    ],
)
def test_no_healthy_savepoint_is_called_damaged(jar: PublishedJar, tmp_path: Path) -> None:
    damaged = []
    for folder in jar.folders():
        savepoint = open_savepoint(str(jar.unpack(folder, tmp_path)))
        for operator in savepoint.operators:
            with suppress(FormatVersionError, UnsupportedTypeError):  # that is not damage
                list(operator.operator_state())
            if operator.is_damaged:
                damaged.append((folder, operator.problem))
    assert damaged == []


@pytest.mark.slow
def test_in_flight_records_of_length_0_are_nothing(tmp_path: Path) -> None:
    name = f"{JOB}1.17-rocksdb-checkpoint"
    place = FLINK_1_20.unpack(name, tmp_path)
    data = (place / "_metadata").read_bytes()
    channels = [
        channel
        for operator in read_metadata(data, "m").operators
        for subtask in operator.subtasks
        for channel in subtask.channels
    ]
    assert channels == []
    done = import_savepoint(str(place), StateStore.open(str(tmp_path / "store")))
    assert not done.left_out


def test_a_changelog_with_changes_is_left_out_with_what_to_do(tmp_path: Path) -> None:
    place = str(FLINK_1_20.unpack(f"{JOB}1.17-hashmap-checkpoint", tmp_path))
    done = import_savepoint(place, StateStore.open(str(tmp_path / "store")))
    assert {left_out.reason for left_out in done.left_out} == {CHANGELOG}


SCALA = "stateful-scala-udf-migration-itcase-flink"


def scala_jobs() -> list[Any]:
    """Return the savepoints of a job in Scala by all versions of Flink and both backends."""
    versions = [(f"1.{minor}", "jobmanager-savepoint") for minor in range(8, 14)]
    versions += [("1.14", "hashmap-savepoint")]
    versions += [(f"1.{minor}", form) for minor in range(15, 20) for form in SINCE_1_15]
    for version in ("1.16-rocksdb-checkpoint", "1.19-hashmap-checkpoint"):  # changelogs
        versions.remove(tuple(version.split("-", 1)))  # type: ignore[arg-type]
    in_each_run = {"1.15-rocksdb-savepoint", "1.17-hashmap-savepoint-native"}
    return [
        pytest.param(
            FLINK_1_20 if int(version.removeprefix("1.")) > 13 else FLINK_1_13,
            f"{SCALA}{version}-{form}",
            id=f"{version}-{form}",
            marks=() if f"{version}-{form}" in in_each_run else (pytest.mark.long,),
        )
        for version, form in versions
    ]


@pytest.mark.long_cases("1.17-hashmap-savepoint-native")
@pytest.mark.slow
@pytest.mark.parametrize(("jar", "name"), scala_jobs())
def test_state_of_scala_has_columns_and_is_exported_unchanged(
    jar: PublishedJar, name: str, tmp_path: Path
) -> None:
    """The keys are Kryo's ``Object``, and each is a ``Long``."""
    place = str(jar.unpack(name, tmp_path))
    store = StateStore.open(str(tmp_path / "store"))
    done = import_savepoint(place, store)
    assert not done.left_out
    (operator,) = {state.operator for state in done.record.states if state.is_keyed}
    restored = store.restore(parallelism=1)

    def values(state: str) -> dict[int, Any]:
        rows = restored.keyed(operator, state).to_arrow()
        names = [name for name in rows.column_names if "key" not in name]
        return dict(
            zip(
                rows.column("key").to_pylist(),
                [tuple(row.values()) for row in rows.select(names).to_pylist()],
                strict=True,
            )
        )

    pairs = [{"f0": str(key), "f1": 2 * key} for key in range(4)]
    expected: dict[str, list[tuple[Any, ...]]] = {
        "caseClassState": [tuple(pair.values()) for pair in pairs],
        "caseClassWithNestingState": [*enumerate(pairs)],
        "collectionState": [([pair],) for pair in pairs],
        "tryState": [({"f0": str(key), "f1": 5 * key},) for key in range(4)],
        "optionState": [(pair,) for pair in pairs],
        "optionNoneState": [(None,)] * 4,
        "eitherLeftState": [(True, pair, None) for pair in pairs],
        "eitherRightState": [(False, None, str(3 * key)) for key in range(4)],
        "enumOneState": [("THREE",)] * 4,
    }
    for state, rows in expected.items():
        assert values(state) == dict(enumerate(rows)), state
    assert len(values("tryFailureState")) == 4
    export_savepoint(store, str(tmp_path / "to"))
    assert entries(open_savepoint(str(tmp_path / "to"))) == entries(open_savepoint(place))


@pytest.mark.slow
def test_state_by_numbers_of_kryo_is_rescaled(tmp_path: Path) -> None:
    place = str(FLINK_1_20.unpack(f"{SCALA}1.15-rocksdb-savepoint", tmp_path))
    store = StateStore.open(str(tmp_path / "store"))
    done = import_savepoint(place, store)
    assert {state.key_class for state in done.record.states if state.is_keyed} == {"Long"}
    export_savepoint(store, str(tmp_path / "to"), max_parallelism=300)
    exported = entries(open_savepoint(str(tmp_path / "to")))
    assert {(operator, state, key[2:], value) for operator, state, _, key, value in exported} == {
        (operator, state, key[1:], value)
        for operator, state, _, key, value in entries(open_savepoint(place))
    }
    assert {group for _, _, group, key, _ in exported} == {
        key_group_of(key, max_parallelism=300) for key in range(4)
    }


SQL = "restore-tests/stream-exec-"
SQL_IN_EACH_RUN = (
    *("expand_1/expand", "temporal-sort_1/temporal-sort-rowtime"),
    *("over-aggregate_1/over-aggregate-lag", "interval-join_1/interval-join-proc-time"),
    "async-calc_1/async-calc-complex",
)
"""Structured types and arrays, keys without columns, lists of a function's own type, nested
instants, and pending records.
"""


def import_and_export(folder: Path, work: Path) -> tuple[StateStore, FlinkSavepoint]:
    """Import a savepoint whole and as columns; return the store and the exported savepoint."""
    store = StateStore.open(str(work / "store"))
    done = import_savepoint(str(folder), store)
    assert not done.left_out
    assert {(state.form, state.why) for state in done.record.states} <= {("columns", None)}
    return store, open_savepoint(export_savepoint(store, str(work / "to")).savepoint)


def is_unchanged(savepoint: FlinkSavepoint, exported: FlinkSavepoint) -> bool:
    return (entries(exported), elements(exported)) == (entries(savepoint), elements(savepoint))


@pytest.mark.slow
@pytest.mark.parametrize("program", SQL_IN_EACH_RUN)
def test_state_of_sql_has_columns_and_is_exported_unchanged(program: str, tmp_path: Path) -> None:
    folder = FLINK_SQL.unpack(f"{SQL}{program}/savepoint", tmp_path)
    _, exported = import_and_export(folder, tmp_path)
    savepoint = open_savepoint(str(folder))
    assert entries(savepoint) or elements(savepoint)
    assert is_unchanged(savepoint, exported)


@pytest.mark.long
def test_all_state_of_sql_has_columns_and_is_exported_unchanged(tmp_path: Path) -> None:
    changed = []
    for number, name in enumerate(FLINK_SQL.folders()):
        folder = FLINK_SQL.unpack(name, tmp_path)
        _, exported = import_and_export(folder, tmp_path / str(number))
        if not is_unchanged(open_savepoint(str(folder)), exported):
            changed.append(name)
    assert changed == []
    assert number == 202


def sql_rows(program: str, work: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each keyed state of a savepoint, sorted, without the key group."""
    folder = FLINK_SQL.unpack(f"{SQL}{program}/savepoint", work)
    store = StateStore.open(str(work / "store"))
    done = import_savepoint(str(folder), store)
    restored = store.restore(parallelism=1)
    found: dict[str, list[dict[str, Any]]] = {}
    for state in done.record.states:
        if state.is_keyed:
            table = restored.keyed(state.operator, state.state).to_arrow()
            rows = table.drop_columns(["key_group"]).to_pylist()
            found.setdefault(state.name, []).extend(sorted(rows, key=repr))
    return found


@pytest.mark.slow
def test_a_structured_accumulator_and_an_array_are_columns(tmp_path: Path) -> None:
    found = sql_rows("expand_1/expand", tmp_path)
    assert {
        "row_kind": 0,
        "firstValue": "Hello",
        "firstOrder": 1700520692080,
        "valueToOrderMap": b"\0",
        "orderToValueMap": b"\0",
    } in [row["f1"] for row in found["accState"]]
    assert [(row["map_key"], row["value"]) for row in found["agg1$orderToValueMap"]] == [
        (1700520692079, ["Hi"]),
        (1700520692080, ["Hello"]),
        (1700520692081, ["Hello world"]),
    ]


def test_a_key_without_columns_is_the_number_in_its_key_group(tmp_path: Path) -> None:
    found = sql_rows("temporal-sort_1/temporal-sort-rowtime", tmp_path)
    assert found["lastTriggeringTsState"] == [{"no_key": -1404071217, "value": 1602288008000}]


@pytest.mark.slow
def test_another_key_than_the_only_one_is_not_exported(tmp_path: Path) -> None:
    folder = FLINK_SQL.unpack(f"{SQL}temporal-sort_1/temporal-sort-rowtime/savepoint", tmp_path)
    store = StateStore.open(str(tmp_path / "store"))
    done = import_savepoint(str(folder), store)
    (operator,) = {state.operator for state in done.record.states if state.name == "dataState"}
    other = {"no_key": 7, "value": 1}
    store.maintenance.edit(operator, "lastTriggeringTsState", put=[other])
    with pytest.raises(InvalidArgumentError, match="has the key 7, but its keys in Flink have no"):
        export_savepoint(store, str(tmp_path / "to"))


MATCH = "restore-tests/stream-exec-match_1"
PROGRAMS = [
    pytest.param(program, marks=() if program == "complex" else (pytest.mark.long,))
    for program in (
        *("complex", "simple", "skip-past-last-row", "skip-to-first", "skip-to-last"),
        *("skip-to-next-row", "order-by-int-column-with-out-of-order-data"),
        "order-by-event-time-with-out-of-order-data",
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_state_of_cep_has_columns_and_is_exported_unchanged(program: str, tmp_path: Path) -> None:
    place = str(FLINK_SQL.unpack(f"{MATCH}/match-{program}/savepoint", tmp_path))
    store = StateStore.open(str(tmp_path / "store"))
    done = import_savepoint(place, store)
    assert not done.left_out
    assert {state.form for state in done.record.states} <= {"columns", "key_bytes"}
    export_savepoint(store, str(tmp_path / "to"))
    before = entries(open_savepoint(place))
    assert before
    assert entries(open_savepoint(str(tmp_path / "to"))) == before


def test_partial_matches_of_cep_and_their_events_are_rows(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"))
    done = import_savepoint(
        str(FLINK_SQL.unpack(f"{MATCH}/match-complex/savepoint", tmp_path)), store
    )
    (operator,) = {state.operator for state in done.record.states if state.name == "nfaStateName"}
    restored = store.restore(parallelism=1)
    first, second = ({"id": 0, "timestamp": 1701784717828 + number} for number in range(2))
    started = {"target": None, "version": [1]}
    matches = {
        row["key_f0"]: row
        for row in restored.keyed(operator, "nfaStateName").to_arrow().to_pylist()
    }
    assert matches["BETA"]["completed_matches"] == []
    assert matches["BETA"]["partial_matches"][0] == {
        "state_name": "DOWN",
        "previous_entry": {"event_id": second, "page_name": "DOWN"},
        "version": [1, 0, 0],
        "start_timestamp": first["timestamp"],
        "previous_timestamp": second["timestamp"],
        "start_event": first,
    }
    events = restored.keyed(operator, "sharedBuffer-events").to_arrow().to_pylist()
    assert {
        (row["key_f0"], row["map_key_timestamp"], row["value"]["element"]["f2"])
        for row in events
        if row["key_f0"] == "BETA"
    } == {("BETA", first["timestamp"], 18), ("BETA", second["timestamp"], 16)}
    edges = restored.keyed(operator, "sharedBuffer-entries-with-lockable-edges").to_arrow()
    (row,) = (
        row
        for row in edges.to_pylist()
        if row["key_f0"] == "BETA" and row["map_key"]["event_id"] == first
    )
    assert row["value"] == {"ref_counter": 1, "element": [{"ref_counter": 1, "edge": started}]}


OPERATOR_STATE = [
    pytest.param(
        f"operatorstate/{job}-flink1.{minor}",
        marks=()
        if (job, minor) in {("complexKeyed", 8), ("nonKeyed", 13)}
        else (pytest.mark.long,),
    )
    for job in ("complexKeyed", "nonKeyed")
    for minor in range(8, 14)
]


@pytest.mark.parametrize("name", OPERATOR_STATE)
def test_elements_of_java_are_bytes_and_exported_unchanged(name: str, tmp_path: Path) -> None:
    place = str(FLINK_1_13.unpack(name, tmp_path))
    store = StateStore.open(str(tmp_path / "store"))
    done = import_savepoint(place, store)
    assert not done.left_out
    assert {state.form for state in done.record.states if not state.is_keyed} == {"columns"}
    export_savepoint(store, str(tmp_path / "to"))
    before = elements(open_savepoint(place))
    texts = [element[7:] for element in before if element.startswith(b"\xac\xed\0\5t")]
    assert b"first0" in texts or b"second0" in texts
    exported = open_savepoint(str(tmp_path / "to"))
    assert elements(exported) == before
    assert entries(exported) == entries(open_savepoint(place))


OWN_SERIALIZER = "type-serializer-snapshot-migration-itcase-flink"
CANONICAL = [f"1.{minor}-rocksdb-savepoint" for minor in range(8, 14)]
CANONICAL += ["1.13-savepoint", "1.16-hashmap-savepoint", "1.16-rocksdb-savepoint"]
ROCKSDB = ["1.16-rocksdb-checkpoint", "1.16-rocksdb-savepoint-native"]
HEAP = [f"1.{minor}-savepoint" for minor in range(8, 13)]
HEAP += ["1.16-hashmap-checkpoint", "1.16-hashmap-savepoint-native"]


def own_serializer_jobs(versions: list[str], in_each_run: set[str]) -> list[Any]:
    """Return the savepoints of a job with a serializer of its own."""
    return [
        pytest.param(
            FLINK_1_20 if version.startswith("1.16") else FLINK_1_13,
            f"{OWN_SERIALIZER}{version}",
            id=version,
            marks=() if version in in_each_run else (pytest.mark.long,),
        )
        for version in versions
    ]


@pytest.mark.parametrize(
    ("jar", "name"),
    own_serializer_jobs(
        CANONICAL + ROCKSDB, {"1.8-rocksdb-savepoint", "1.13-savepoint", "1.16-rocksdb-checkpoint"}
    ),
)
def test_values_of_the_jobs_own_serializer_are_bytes_and_exported_unchanged(
    jar: PublishedJar, name: str, tmp_path: Path
) -> None:
    place = str(jar.unpack(name, tmp_path))
    store = StateStore.open(str(tmp_path / "store"))
    done = import_savepoint(place, store)
    assert not done.left_out
    assert [(state.name, state.form) for state in done.record.states if state.is_keyed] == [
        ("testState", "value_bytes")
    ]
    export_savepoint(store, str(tmp_path / "to"))
    before = entries(open_savepoint(place))
    assert before
    assert entries(open_savepoint(str(tmp_path / "to"))) == before


@pytest.mark.parametrize(
    ("jar", "name"), own_serializer_jobs(HEAP, {"1.12-savepoint", "1.16-hashmap-savepoint-native"})
)
def test_values_of_the_jobs_own_serializer_have_no_end_on_the_heap(
    jar: PublishedJar, name: str, tmp_path: Path
) -> None:
    place = str(jar.unpack(name, tmp_path))
    done = import_savepoint(place, StateStore.open(str(tmp_path / "store")))
    (left_out,) = done.left_out
    assert left_out.reason == (
        "state 'testState': the length of a value of "
        "TypeSerializerSnapshotMigrationITCase$TestSerializerSnapshot is unknown: take a canonical "
        "savepoint, which has the length of each value"
    )


def elements(savepoint: FlinkSavepoint) -> list[bytes]:
    """Return the bytes of all elements of operator state, in order."""
    return sorted(
        element
        for operator in savepoint.operators
        for part in operator.operator_state()
        for element in part.raw.arrow().to_pylist()
    )


def entries(savepoint: FlinkSavepoint) -> set[tuple[str, str, int, bytes, bytes]]:
    """Return the bytes of all entries of keyed states."""
    return {
        (operator.metadata.id, part.state.name, part.key_group, key, value)
        for operator in savepoint.operators
        for part in operator.entries()
        for key, value in zip(
            part.keys.arrow().to_pylist(), part.values.arrow().to_pylist(), strict=True
        )
    }
