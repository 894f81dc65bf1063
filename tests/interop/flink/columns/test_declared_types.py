"""States of tables get the types that the user declares for the job, or an error says why not."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import (
    InvalidArgumentError,
    SchemaMismatchError,
    StateNotFoundError,
    StateStoreError,
    UnsupportedTypeError,
)
from statestore.format.state import TimeToLive
from statestore.interop.flink import export_savepoint, open_savepoint
from statestore.interop.flink.columns.declared_types import parse_declared_type
from statestore.interop.flink.options import FlinkTarget
from statestore.keys.hashing import key_group_of

pytestmark = pytest.mark.slow
MOST = 128
ADDRESS = pa.struct([("zip", pa.int32()), ("city", pa.string())])
PAIR = pa.struct([("a", pa.string()), ("b", pa.int64())])
CLASSES: Mapping[str, Any] = {
    "com.acme.Account": {
        "fields": {
            "total": "long",
            "address": "com.acme.Address",
            "level": "com.acme.Level",
            "letter": "Character",
            "at": "java.util.Date",
            "big": "BigInteger",
            "tags": "String[]",
            "numbers": "int[]",
            "best": "Tuple2<String, Long>",
        }
    },
    "com.acme.Address": {"fields": {"city": "String", "zip": "Integer"}},
    "com.acme.Level": {"constants": ["LOW", "HIGH"]},
    "com.acme.Spot": {
        "fields": {"name": "String", "zone": "int"},
        "hash": "record(name, zone)",
    },
}
ACCOUNTS = pa.table(
    {
        "user": ["ann", "bob"],
        "total": [1, 2],
        "address": pa.array([{"zip": 1, "city": None}, None], ADDRESS),
        "level": ["HIGH", None],
        "letter": ["é", None],
        "at": pa.array([1000, None], pa.timestamp("us", "UTC")),
        "big": pa.array([Decimal(-70), None], pa.decimal128(20, 0)),
        "tags": [["x", None], None],
        "numbers": pa.array([[1, 2], None], pa.list_(pa.int32())),
        "best": pa.array([{"a": "k", "b": 5}, None], PAIR),
    }
)


def store_of(folder: Path, rows: pa.Table, **options: Any) -> StateStore:
    """Return a store with the state ``state`` of operator ``uid``, made of a table."""
    store = StateStore.open(str(folder), table_format="parquet")
    given: dict[str, Any] = {"key": "user"} | options
    store.bootstrap("uid", "state", rows, **given)
    return store


def values_in(place: Path) -> dict[str, Any]:
    """Return the values of the exported state by key, as an import decodes them."""
    found: dict[str, Any] = {}
    for part in open_savepoint(str(place)).operator("uid").rows("state"):
        assert part.value is not None
        found.update(zip(map(str, part.key.to_pylist()), part.value.to_pylist(), strict=True))
    return found


def export(store: StateStore, folder: Path, **target: Any) -> dict[str, Any]:
    export_savepoint(store, str(folder / "to"), target=FlinkTarget(**target))
    return values_in(folder / "to")


def refused(kind: type[StateStoreError], store: StateStore, folder: Path, **target: Any) -> str:
    """Return the error of an export, with its notes, after which nothing is there."""
    with pytest.raises(kind) as caught:
        export_savepoint(store, str(folder / "to"), target=FlinkTarget(**target))
    assert not any((folder / "to").glob("**/*"))
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


def test_columns_become_the_fields_of_a_pojo_by_name(tmp_path: Path) -> None:
    """Nested classes, enums, arrays and nulls; the fields have Java's order."""
    store = store_of(tmp_path / "store", ACCOUNTS)
    found = export(store, tmp_path, types={"uid/state": "com.acme.Account"}, classes=CLASSES)
    assert list(found["ann"]) == sorted(CLASSES["com.acme.Account"]["fields"])
    assert found["ann"] | {"at": None} == {
        "address": {"city": None, "zip": 1},
        "at": None,
        "best": {"f0": "k", "f1": 5},
        "big": "-70",
        "letter": ord("é"),
        "level": "HIGH",
        "numbers": [1, 2],
        "tags": ["x", None],
        "total": 1,
    }
    assert {name for name, value in found["bob"].items() if value is None} == {*found["bob"]} - {
        "total"
    }


def test_a_class_without_a_description_has_the_columns(tmp_path: Path) -> None:
    rows = ACCOUNTS.select(["user", "total", "letter"])
    store = store_of(tmp_path / "store", rows)
    done = export_savepoint(
        store, str(tmp_path / "to"), target=FlinkTarget(types={"uid/state": "com.acme.Plain"})
    )
    (state,) = done.operators[0].states
    assert state.value_type == "Plain(letter String, total Long)"
    assert values_in(tmp_path / "to")["ann"] == {"letter": "é", "total": 1}


@pytest.mark.parametrize(
    ("declared", "column", "value_type", "found"),
    [
        ("Long", pa.array([7], pa.int8()), "Long", 7),
        ("long", pa.array([7]), "Long", 7),
        ("Double", pa.array([0.5], pa.float32()), "Double", 0.5),
        ("Character", pa.array(["\uffff"]), "Character", 0xFFFF),
        ("BigInteger", pa.array([7]), "BigInteger", "7"),
        ("java.sql.Timestamp", pa.array([1_500_000], pa.timestamp("us", "UTC")), "SqlTimestamp",
         {"second": 1, "nano": 500_000_000}),
        ("java.sql.Time", pa.array([5000]), "SqlTime", None),
        ("LocalTime", pa.array([61_000_000_000]), "LocalTime", None),
        ("LocalDate", pa.array([3], pa.date32()), "LocalDate", None),
        ("List<Long>", pa.array([[1, 2]], pa.list_(pa.int32())), "List<Long>", [1, 2]),
        ("Set<String>", pa.array([["a", "b"]]), "Set<String>", ["a", "b"]),
        ("Map<String, Integer>", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
         "Map<String, Integer>", [("a", 1)]),
        ("long[]", pa.array([[1, 2]]), "long[]", [1, 2]),
        ("byte[]", pa.array([b"x"]), "byte[]", b"x"),
        ("Long[]", pa.array([[1, None]]), "Long[]", [1, None]),
        ("Tuple1<Long>", pa.array([7]), "Tuple1<Long>", {"f0": 7}),
        ("Row<Long>", pa.array([7]), "Row<Long>", {"row_kind": 0, "f0": 7}),
        ("Tuple2<String, Long>", pa.array([{"a": "x", "b": 1}], PAIR), "Tuple2<String, Long>",
         {"f0": "x", "f1": 1}),
        ("Row<b Long, a String>", pa.array([{"a": "x", "b": 1}], PAIR), "Row<Long, String>",
         {"row_kind": 0, "f0": 1, "f1": "x"}),
    ],
)  # fmt: skip
def test_a_value_has_its_declared_type(
    declared: str, column: pa.Array, value_type: str, found: Any, tmp_path: Path
) -> None:
    rows = pa.table({"user": ["ann"], "value": column})
    store = store_of(tmp_path / "store", rows)
    target = FlinkTarget(types={"uid/state": declared})
    done = export_savepoint(store, str(tmp_path / "to"), target=target)
    assert done.operators[0].states[0].value_type == value_type
    (read,) = values_in(tmp_path / "to").values()
    assert found is None or read == found


def test_lists_and_maps_have_the_types_of_their_parts(tmp_path: Path) -> None:
    rows = pa.table({"user": ["ann", "ann"], "at": [0, 1], "a": ["x", "y"], "b": [1, 2]})
    store = store_of(tmp_path / "list", rows, kind="list", entry="at")
    assert export(store, tmp_path, types={"uid/state": "List<Tuple>"}) == {
        "ann": [{"f0": "x", "f1": 1}, {"f0": "y", "f1": 2}]
    }
    store = store_of(tmp_path / "map", rows, kind="map", entry=["at", "a"])
    done = export_savepoint(
        store,
        str(tmp_path / "map-to"),
        target=FlinkTarget(types={"uid/state": "Map<com.acme.Key, Long>"}),
    )
    assert done.operators[0].states[0].value_type == "Map<Key(a String, at Long), Long>"


def test_a_ttl_and_a_window_are_no_part_of_the_type(tmp_path: Path) -> None:
    rows = pa.table(
        {"user": ["ann"], "start": [0], "end": [5], "a": ["x"], "used": [7_000], "b": [1]}
    )
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    store.bootstrap(
        "uid",
        "state",
        rows,
        key="user",
        namespace=["start", "end"],
        ttl=TimeToLive("36500d", "used"),
    )
    found = export(store, tmp_path, types={"uid/state": "com.acme.Pair"})
    assert found == {"ann": {"last_access": 7_000, "value": {"a": "x", "b": 1}}}


def test_broadcast_state_is_a_map_by_its_first_column(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    rules = pa.table({"key": pa.array([{"a": "x", "b": 1}], PAIR), "rule": ["r"], "most": [5]})
    store.bootstrap("uid", "rules", rules, mode="broadcast")
    types = {"uid/rules": "Map<com.acme.Key, com.acme.Rule>"}
    done = export_savepoint(store, str(tmp_path / "to"), target=FlinkTarget(types=types))
    (state,) = done.operators[0].states
    assert (state.key_type, state.value_type) == (
        "Key(a String, b Long)",
        "Rule(most Long, rule String)",
    )
    assert "the state is a broadcast state, so its type is Map<…>, not List<Row>" in refused(
        SchemaMismatchError, store, tmp_path / "list", types={"uid/rules": "List<Row>"}
    )
    twice = pa.concat_tables([rules, rules])
    store.bootstrap("uid", "rules", twice, mode="broadcast", replace=True)
    said = refused(UnsupportedTypeError, store, tmp_path / "twice", types=types)
    assert "the elements of broadcast state 'rules' of operator 'uid' cannot be written" in said
    assert "a map has the key {'a': 'x', 'b': 1} twice" in said


def test_timers_of_a_named_service_have_its_domain(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    rows = pa.table({"user": ["ann"], "at": [5]})
    for service, domain in (("event_cleanup", "event"), ("event_retry", "processing")):
        name = f"_timer_state/{service}"
        options: dict[str, Any] = {"kind": "timers", "entry": "at", "time_domain": domain}
        store.bootstrap("uid", name, rows, key="user", **options)
    said = refused(UnsupportedTypeError, store, tmp_path)
    assert "are timers of processing time, but Flink would read timers of another time" in said
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.carry("uid", "_timer_state/event_cleanup")
        checkpoint.drop("uid", "_timer_state/event_retry")
    export_savepoint(store, str(tmp_path / "to"))
    (state,) = open_savepoint(str(tmp_path / "to")).operator("uid").states
    assert (state.name, state.kind) == ("_timer_state/event_cleanup", "timers")


def test_a_key_of_a_class_is_in_the_key_group_of_its_hash(tmp_path: Path) -> None:
    """At any number of key groups: also states with lists, whose rows stay together."""
    rows = pa.table({"name": ["a", "b", "a"], "zone": pa.array([1, 2, 1], pa.int32()),
                     "at": [0, 0, 1], "total": [5, 6, 7]})  # fmt: skip
    store = store_of(tmp_path / "store", rows, key=["name", "zone"], kind="list", entry="at")
    types = {"uid": "com.acme.Spot"}
    for most in (MOST, 720):
        place = str(tmp_path / f"to-{most}")
        target = FlinkTarget(types=types, classes=CLASSES)
        done = export_savepoint(store, place, target=target, max_parallelism=most)
        assert done.operators[0].states[0].key_type == "Spot(name String, zone Integer)"
        found = {
            key["name"]: (part.key_group, value)
            for part in open_savepoint(place).operator("uid").rows("state")
            if part.value is not None
            for key, value in zip(part.key.to_pylist(), part.value.to_pylist(), strict=True)
        }
        # An Integer is its own hash.
        groups = {
            name: key_group_of(31 * ord(name) + zone, max_parallelism=most, key_type="Integer")
            for name, zone in (("a", 1), ("b", 2))
        }
        assert found == {"a": (groups["a"], [5, 7]), "b": (groups["b"], [6])}


@pytest.mark.parametrize(
    ("rows", "key_types", "declared", "said"),
    [
        ({"user": pa.array([1])}, None, "Integer",
         "but the job has keys of Integer, which Flink hashes otherwise: make it with --key-"),
        ({"user": pa.array([{"a": "x", "b": 1}], PAIR)}, None, "Row",
         "are hashed as Tuple2<String, Long>, but the job has keys of Row"),
        ({"user": pa.array([{"a": "x", "b": 1}], PAIR)}, "Row", "Row<b Long, a String>",
         "are hashed as Row<String, Long>, but the job has keys of Row<b Long, a String>"),
        ({"user": pa.array([{"a": "x", "b": "y"}])}, "Row", "Row<b String, a String>",
         "their order decides the hash"),
    ],
)  # fmt: skip
def test_a_key_with_another_hash_is_refused(
    rows: dict[str, pa.Array], key_types: str | None, declared: str, said: str, tmp_path: Path
) -> None:
    store = store_of(tmp_path / "store", pa.table(rows), key_types=key_types)
    assert said in refused(SchemaMismatchError, store, tmp_path, types={"uid": declared})


@pytest.mark.parametrize(
    ("declared", "classes", "said"),
    [
        ("com.acme.Other", {}, "whose hashCode() decides their key groups"),
        ("com.acme.Level", CLASSES, "hashes differ in every Java process"),
        ("com.acme.K", {"com.acme.K": {"fields": {"user": "String"}, "hash": "record("}},
         "the hash of com.acme.K: "),
        ("com.acme.K", {"com.acme.K": {"fields": {"user": "String"}, "hash": "record(nobody)"}},
         "have no field 'nobody'; the fields are user"),
        ("com.acme.K", {"com.acme.K": {"fields": {"user": "String"}, "hash": "scala"}},
         "whose hashCode() decides"),
        ("Tuple1<com.acme.Spot>", CLASSES, "no key can be hashed as com.acme.Spot"),
        ("byte[]", {}, "no key can be hashed as byte[]"),
    ],
)  # fmt: skip
def test_a_key_whose_hash_nobody_can_say_is_refused(
    declared: str, classes: Mapping[str, Any], said: str, tmp_path: Path
) -> None:
    store = store_of(tmp_path / "store", pa.table({"user": ["ann"]}))
    target = {"types": {"uid": declared}, "classes": classes}
    assert said in refused(InvalidArgumentError, store, tmp_path, **target)


def test_a_row_that_is_hashed_by_its_names_is_no_key(tmp_path: Path) -> None:
    rows = pa.table({"user": pa.array([{"a": "x", "b": 1}], PAIR)})
    store = store_of(tmp_path / "store", rows, key_types="NamedRow")
    assert "by position from then on" in refused(UnsupportedTypeError, store, tmp_path)


def test_each_column_that_does_not_fit_is_named(tmp_path: Path) -> None:
    wrong = ACCOUNTS.drop_columns(["big", "level"]).append_column("more", pa.array([1, 2]))
    wrong = wrong.set_column(1, "total", pa.array(["1", "2"]))
    narrow = pa.struct([("zip", pa.int64()), ("city", pa.string())])
    address = pa.array([{"zip": 1, "city": None}, None], narrow)
    store = store_of(tmp_path / "store", wrong.set_column(2, "address", address))
    said = refused(
        SchemaMismatchError,
        store,
        tmp_path,
        types={"uid/state": "com.acme.Account", "uid": "Long"},
        classes=CLASSES,
    )
    first, *others = said.splitlines()
    assert first.startswith("6 columns do not fit the types of the job; bootstrap the states with")
    assert {line.removeprefix("state 'state' of operator 'uid': ") for line in others} == {
        (
            "its keys (user) are hashed as String, but the job has keys of Long, which Flink "
            "hashes otherwise: make it with --key-column user=Long"
        ),
        "the column 'big' of BigInteger is missing",
        "the column 'level' of com.acme.Level is missing",
        (
            "the column 'more' is no field; the fields are address, at, best, big, letter, level, "
            "numbers, tags, total"
        ),
        "the column 'total' is string, but the job has long",
        "the column 'address.zip' is long, but the job has Integer",
    }


@pytest.mark.parametrize(
    ("declared", "columns", "said"),
    [
        ("Tuple3<Long, Long, Long>", 2, "it has 2 columns (a, b), but Tuple3<"),
        ("List<Long>", 1, "the column 'a' is long, but the job has List<Long>"),
        ("Long", 2, "the value is struct<a: long, b: long>, but the job has Long"),
        ("Short", 1, "the column 'a' is long, but the job has Short"),
        ("com.acme.Level", 1, "the column 'a' is long, but the job has com.acme.Level"),
        ("java.util.Date", 2, "the job has java.util.Date"),
        ("byte[]", 1, "the job has byte[]"),
        ("Long[]", 1, "the job has Long[]"),
        ("Tuple1<Tuple1<Long>>", 1, "the column 'a' is long, but the job has Tuple1<Long>"),
        ("Long", 0, "it has no column for a value of Long"),
    ],
)  # fmt: skip
def test_a_value_of_another_shape_is_refused(
    declared: str, columns: int, said: str, tmp_path: Path
) -> None:
    rows = pa.table({"user": ["ann"], "a": [1], "b": [2]}).select(["user", "a", "b"][: 1 + columns])
    store = store_of(tmp_path / "store", rows)
    target = {"types": {"uid/state": declared}, "classes": CLASSES}
    assert said in refused(SchemaMismatchError, store, tmp_path, **target)


def test_the_kind_of_a_state_and_its_type_must_agree(tmp_path: Path) -> None:
    rows = pa.table({"user": ["ann"], "at": [0], "a": [1]})
    cases: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("list", {"kind": "list", "entry": "at"}, "the state is a list, so its type is List<…>"),
        ("map", {"kind": "map", "entry": "at"}, "the state is a map, so its type is Map<…, …>"),
        ("python", {"hash_scheme": "pyflink"}, "PyFlink's own types are those of the job"),
    )
    for name, options, said in cases:
        store = store_of(tmp_path / name, rows, **options)
        assert said in refused(SchemaMismatchError, store, tmp_path, types={"uid/state": "Long"})
    timers = store_of(
        tmp_path / "timers",
        rows.drop_columns(["a"]),
        kind="timers",
        entry="at",
        time_domain="event",
    )
    assert "no type can be declared, because timers have those of the job" in refused(
        SchemaMismatchError, timers, tmp_path, types={"uid/state": "Long"}
    )
    sql = store_of(tmp_path / "sql", rows, hash_scheme="flink-sql")
    assert "hashed by the scheme flink-sql" in refused(
        SchemaMismatchError, sql, tmp_path, types={"uid": "String"}
    )


@pytest.mark.parametrize(
    ("field", "column", "version", "said"),
    [
        ("LocalDate", pa.array([3], pa.date32()), "2.3", "use Instant, java.sql.Timestamp"),
        ("LocalDateTime", pa.array([3], pa.timestamp("us")), None, "use Instant"),
        ("Row", pa.array([{"a": "x", "b": 1}], PAIR), "2.3", "Row in a class, which Flink writes"),
        ("List<Long>", pa.array([[1]]), "1.20", "Flink 2 alone has a serializer for it"),
        ("List<Long>", pa.array([[1]]), None, "say --flink 2.3 if the job has it"),
        ("List<List<Long>>", pa.array([[[1]]]), "2.3", "if its parts have no types in brackets"),
        ("List<Tuple2<String, Long>>", pa.array([[{"a": "x", "b": 1}]]), "2.3", "no types in br"),
        (
            "Tuple1<List<Long>>",
            pa.array([{"a": [1]}]),
            "2.3",
            "if its parts have no types in brackets",
        ),
        ("java.util.UUID", pa.array(["x"]), "2.3", "java.util.UUID, which Flink writes with Kryo"),
        ("Duration", pa.array([1]), "2.3", "Duration, which Flink writes with Kryo"),
        ("char[]", pa.array([[1]]), "2.3", "an array that cannot be written"),
    ],
)
def test_fields_that_flink_writes_with_kryo_are_refused(
    field: str, column: pa.Array, version: str | None, said: str, tmp_path: Path
) -> None:
    rows = pa.table({"user": ["ann"], "a": column, "b": [1]})
    store = store_of(tmp_path / "store", rows)
    error = refused(
        UnsupportedTypeError,
        store,
        tmp_path,
        types={"uid/state": "com.acme.Box"},
        classes={"com.acme.Box": {"fields": {"a": field, "b": "Long"}}},
        version=version,
    )
    assert "state 'state' of operator 'uid': the column 'a" in error
    assert said in error


@pytest.mark.parametrize(
    ("declared", "column", "said"),
    [
        ("com.acme.Level", pa.array(["LOW", "ODD"]), "no constant 'ODD'; the constants are LOW"),
        ("Character", pa.array(["x", "ab"]), "it has the text 'ab': a char of Java is one"),
        ("Character", pa.array(["x", "🦊"]), "a char of Java is one UTF-16 unit"),
        ("LocalTime", pa.array([0, -1]), "LocalTime, but no day has the nanosecond -1"),
        ("java.util.Date", pa.array([0, 1], pa.timestamp("us", "UTC")), "column in milliseconds: "),
        ("Set<Long>", pa.array([[1], [2, 2]]), "a set has the element 2 twice"),
        ("com.acme.Prim", pa.array([1, None]), "'value', is a primitive of Java, but 1 rows have"),
        ("Tuple1<Long>", pa.array([1, None]), "the column value cannot be written as Tuple1<Long>"),
    ],
)
def test_a_value_that_the_type_does_not_have_is_refused(
    declared: str, column: pa.Array, said: str, tmp_path: Path
) -> None:
    store = store_of(tmp_path / "store", pa.table({"user": ["ann", "bob"], "value": column}))
    classes = {**CLASSES, "com.acme.Prim": {"fields": {"value": "long"}}}
    target = {"types": {"uid/state": declared}, "classes": classes}
    error = refused(UnsupportedTypeError, store, tmp_path, **target)
    assert said in error
    assert error.count("state 'state' of operator 'uid'") == 1
    assert "state 'state' of operator 'uid'" in error


@pytest.mark.parametrize(
    ("types", "classes", "kind", "said"),
    [
        ({"nobody": "Long"}, {}, StateNotFoundError, "a type is given for 'nobody'"),
        ({"uid/other": "Long"}, {}, StateNotFoundError, "The checkpoint has uid/state"),
        ({"uid": "Long<"}, {}, InvalidArgumentError, "the type of 'uid': 'Long<' is not a type"),
        ({}, {"a.B": {"fields": {"x": "Map<"}}}, InvalidArgumentError, "the field 'x' of a.B"),
        (
            {},
            {"a.B": {"fields": {"x": 1}}},
            InvalidArgumentError,
            "has a field or hash that is not",
        ),
        ({}, {"a.B": {"constants": ["A", "A"]}}, InvalidArgumentError, "list each name once"),
        ({}, {"a.B": {"constants": []}}, InvalidArgumentError, "the class 'a.B' is mapped to"),
    ],
)
def test_a_wrong_declaration_is_refused(
    types: dict[str, str], classes: Any, kind: type[StateStoreError], said: str, tmp_path: Path
) -> None:
    store = store_of(tmp_path / "store", pa.table({"user": ["ann"], "value": [1]}))
    assert said in refused(kind, store, tmp_path, types=types, classes=classes)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("java.lang.Long", "Long"),
        (" Map < String,Tuple2<a.B$C , long[ ]>> ", "Map<String, Tuple2<a.B$C, long[]>>"),
        ("org.apache.flink.api.java.tuple.Tuple2<Long, a.B>", "Tuple2<Long, a.B>"),
        ("org.apache.flink.types.Row<id Long, of List<String>>", "Row<id Long, of List<String>>"),
        ("java.util.List<java.util.Date>", "List<java.util.Date>"),
        ("Tuple", "Tuple"),
    ],
)
def test_types_are_written_as_in_java(text: str, canonical: str) -> None:
    assert str(parse_declared_type(text, "it")) == canonical


@pytest.mark.parametrize(
    "text",
    [
        *("", "Long<", "Long>", "<Long>", "Row<>", "Tuple2", "Tuple2<Long>", "Map<String>"),
        *("List<a Long>", "Row<a Long, String>", "Row<a Long, a Long>", "a.B<String>", "1x"),
        *(
            "List<" * 2000 + "Long" + ">" * 2000,
            "long" + "[]" * 5000,
            "Long Long",
            "Long[",
            "Row<a.b Long>",
            "Row<List<Long> Long>",
        ),
    ],
)
def test_other_text_is_no_type(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a type: write it as in Java"):
        parse_declared_type(text, "it")
