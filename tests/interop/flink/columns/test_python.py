"""States of real PyFlink: declared types become columns, and every byte survives a round trip."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink import (
    ImportedSavepoint,
    export_savepoint,
    import_savepoint,
    open_savepoint,
)
from statestore.interop.flink.columns.state_columns import EntryForm
from statestore.interop.flink.importing.import_record import ImportedState, SavepointRecord
from statestore.interop.flink.options import ExportSelection, SavepointHints
from statestore.jobgraph.operators import operator_id
from statestore.store import StateStore
from tests.interop.flink.exporting.test_export_imported import entries
from tests.servers.pyflink import run_pyflink

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[3] / "golden" / "pyflink"
OPERATORS = ("by_string", "by_long", "by_tuple", "by_row", "by_decimal", "by_bytes")
IN_EACH_RUN = ("by_string", "by_long")
PREFIX = "python-state-"
VALUES = {
    "string": "STRING",
    "byte": "BYTE",
    "boolean": "BOOLEAN",
    "short": "SHORT",
    "int": "INT",
    "long": "LONG",
    "big_int": "BIG_INT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "decimal": "BIG_DEC",
    "date": "SQL_DATE",
    "time": "SQL_TIME",
    "timestamp": "SQL_TIMESTAMP",
    "pickled": "PICKLED_BYTE_ARRAY",
    "tuple": "TUPLE<STRING, LONG>",
    "row": "ROW<STRING, INT, ROW<DOUBLE, BIG_DEC>>",
    "wide": f"ROW<{', '.join(['INT'] * 9)}>",
    "bytes": "PRIMITIVE_ARRAY<BYTE>",
    "ints": "PRIMITIVE_ARRAY<INT>",
    "texts": "BASIC_ARRAY<STRING>",
    "rows": "OBJECT_ARRAY<TUPLE<INT, BOOLEAN>>",
    "list": "LIST<LONG>",
    "map": "MAP<STRING, LONG>",
    "ttl_value": "LONG",
}
DECLARED = {name: f"ValueState<{kind}>" for name, kind in VALUES.items()} | {
    "list_string": "ListState<STRING>",
    "list_tuple": "ListState<TUPLE<LONG, STRING>>",
    "map_string_long": "MapState<STRING, LONG>",
    "map_int_row": "MapState<INT, ROW<STRING, LONG>>",
    "ttl_map": "MapState<LONG, STRING>",
    "sum": "ReducingState<LONG>",
    "mean": "AggregatingState<TUPLE<INT, DOUBLE>>",
}
OWN = {
    PREFIX + name
    for name in (
        *("long", "string", "double", "date", "decimal", "bytes", "list", "map"),
        *("list_string", "map_string_long"),
    )
}
TABLES = {PREFIX + name: {"type": declared} for name, declared in DECLARED.items()}


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pyflink")
    packed = lzma.decompress((GOLDEN / "savepoint.tar.xz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")
    return folder / "savepoint"


def imported(
    savepoint: Path, folder: Path, tables: dict[str, Any], **options: Any
) -> tuple[StateStore, ImportedSavepoint]:
    store = StateStore.open(str(folder / "store"), table_format="parquet", layout="ranged")
    columns = {one: {"states": tables} for one in options.get("operators", OPERATORS)}
    return store, import_savepoint(
        str(savepoint), store, hints=SavepointHints(columns=columns), **options
    )


StoreOf = Callable[[tuple[str, ...]], StateStore]


@pytest.fixture(scope="module")
def store_of(savepoint: Path, tmp_path_factory: pytest.TempPathFactory) -> StoreOf:
    """Import operators with all types declared, so nothing is refused; return the store."""

    @cache
    def store_of(operators: tuple[str, ...]) -> StateStore:
        folder = tmp_path_factory.mktemp("store")
        return imported(savepoint, folder, TABLES, strict=True, operators=operators)[0]

    return store_of


@pytest.fixture
def store(store_of: StoreOf) -> StateStore:
    """A store with all operators."""
    return store_of(OPERATORS)


def said() -> list[dict[str, Any]]:
    text = lzma.decompress((GOLDEN / "rows.jsonl.xz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def shown(value: Any) -> Any:
    """Return a value of a column in the form of the job's output."""
    if isinstance(value, dict):
        fields = [shown(one) for name, one in value.items() if name != "row_kind"]
        return {"row": fields, "kind": value["row_kind"]} if "row_kind" in value else fields
    if isinstance(value, list):
        is_map = bool(value) and isinstance(value[0], tuple)
        return [list(map(shown, one)) for one in value] if is_map else list(map(shown, value))
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, date | datetime | time) else value


def held(store: StateStore, operator: str, name: str) -> dict[str, Any]:
    """Return the content of a state, by key as JSON."""
    state = store.restore(parallelism=1).keyed(operator, PREFIX + name)
    kind, keys = state.entry.state.kind, state.entry.state.key
    known = {(one.operator, one.name): one.names for one in states_of(store)}
    names = known[operator, PREFIX + name]
    found: dict[str, Any] = {}
    for row in state.to_arrow(0).to_pylist():
        parts = [shown(row[one]) for one in keys]
        key = json.dumps(parts[0] if operator != "by_tuple" else parts)
        values = {one: row[one] for one in names["value"]}
        value = shown(values if len(values) > 1 else next(iter(values.values())))
        if "row_kind" in values:
            value = {"row": [shown(values[one]) for one in list(values)[1:]], "kind": 0}
        if name == "time":
            value = str(clock(value))
        if kind == "list":
            found.setdefault(key, []).extend(value)
        elif kind == "map":
            found.setdefault(key, []).append([shown(row[names["map_key"][0]]), value])
        else:
            found[key] = value
    return found


def clock(nanos: int) -> time:
    return (datetime.min + timedelta(microseconds=nanos // 1000)).time()


def states_of(store: StateStore) -> tuple[ImportedState, ...]:
    return SavepointRecord.of(store.restore()).states


@pytest.mark.long
@pytest.mark.parametrize("operator", ["by_row", "by_string", "by_long", "by_tuple", "by_decimal"])
def test_columns_equal_the_jobs_output(store: StateStore, operator: str) -> None:
    lines = [one for one in said() if one["operator"] == operator]
    assert len(lines) > 15
    for name in DECLARED:
        if name == "pickled":
            continue
        found = held(store, operator, name)
        wanted = {json.dumps(line["key"]): line["states"][name] for line in lines}
        if operator == "by_row":
            wanted = {json.dumps(line["key"]["row"]): line["states"][name] for line in lines}
        if name.startswith("map_") or name in ("map", "ttl_map"):
            found = {key: sorted(value, key=str) for key, value in found.items()}
        assert found == wanted, name


@pytest.mark.parametrize(
    "operators", [IN_EACH_RUN, pytest.param(OPERATORS, id="all", marks=pytest.mark.long)]
)
def test_each_state_has_columns_and_pyflinks_key_hash(
    store_of: StoreOf, operators: tuple[str, ...]
) -> None:
    store = store_of(operators)
    states = [one for one in states_of(store) if one.operator in operators]
    assert {state.form for state in states} == {EntryForm.COLUMNS}
    assert len(states) == len(operators) * (len(DECLARED) + 2)  # and timers
    manifest = store.checkpoint().manifest
    schemes = {one.state.hash_scheme for one in manifest.keyed}
    assert schemes == {"pyflink"}
    assert store.maintenance.verify(deep=True).is_intact


@pytest.mark.long_cases("stored0-None-operators0")
@pytest.mark.parametrize(
    ("stored", "most", "operators"),
    [
        (IN_EACH_RUN, None, ["by_long"]),
        (IN_EACH_RUN, 720, ["by_string"]),
        pytest.param(OPERATORS, 720, OPERATORS, marks=pytest.mark.long),
    ],
)
def test_every_byte_survives_a_round_trip(
    savepoint: Path,
    store_of: StoreOf,
    tmp_path: Path,
    stored: tuple[str, ...],
    most: int | None,
    operators: list[str],
) -> None:
    """This includes the pieces in which PyFlink appended to a list. The key groups differ."""
    done = export_savepoint(
        store_of(stored),
        str(tmp_path / "to"),
        max_parallelism=most,
        parallelism=3,
        selection=ExportSelection(operators=operators),
    )
    before, after = open_savepoint(str(savepoint)), open_savepoint(done.savepoint)
    for uid in operators:
        old, new = before.operator(uid), after.operator(uid)
        assert entries(new, with_groups=most is None) == entries(old, with_groups=most is None)
        for rows in new.rows():  # this checks their key groups
            assert len(rows)


def test_undeclared_types_are_bytes_and_survive_a_round_trip(
    savepoint: Path, tmp_path: Path
) -> None:
    tables = {PREFIX + "long": TABLES[PREFIX + "long"]}
    store, done = imported(savepoint, tmp_path, tables, operators=["by_long"])
    states = done.record.states
    forms = {state.name: state.form for state in states if state.name.startswith(PREFIX)}
    assert forms.pop(PREFIX + "long") is EntryForm.COLUMNS
    assert set(forms.values()) == {EntryForm.VALUE_BYTES}
    assert {state.why for state in states if state.form is EntryForm.VALUE_BYTES} == {
        (
            "PyFlink stores no types: declare the type of the state, for example "
            "type = 'ValueState<LONG>'"
        )
    }
    others = ["by_tuple", "by_string", "by_decimal", "by_row", "by_bytes"]
    again = open_savepoint(
        export_savepoint(
            store, str(tmp_path / "to"), selection=ExportSelection(leave_out=others)
        ).savepoint
    )
    before = open_savepoint(str(savepoint))
    assert entries(again.operator("by_long")) == entries(before.operator("by_long"))


def test_strict_refuses_undeclared_types(savepoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTypeError, match=r"python-state-long.*PyFlink stores no types"):
        imported(savepoint, tmp_path, {}, strict=True)


@pytest.mark.parametrize(
    ("name", "declared", "message"),
    [
        ("string", "ValueState<LONG>", "by_long is not of the declared type ValueState<LONG>"),
        ("long", "ValueState<INT>", "by_long is not of the declared type"),
        ("long", "ValueState<STRING>", "by_long is not of the declared type"),
        (
            "list_string",
            "ValueState<STRING>",
            "by_long is not of the declared type",
        ),  # it has several
        ("long", "MapState<LONG, LONG>", "does not fit; a list state of PyFlink"),
        ("ttl_map", "ListState<LONG>", "does not fit; a map state of PyFlink"),
        ("long", "ValueState<LONG, LONG>", "does not fit; a list state of PyFlink"),
        ("long", "ValueState<BIGINT>", "'ValueState<BIGINT>' is not a type of a PyFlink state"),
        ("long", "ValueState<LONG", "is not a type of a PyFlink state"),
        ("long", "ValueState<LONG>>", "is not a type of a PyFlink state"),
        ("long", "ValueState<MAP<LONG>>", "is not a type of a PyFlink state"),
        ("long", "ValueState<ROW>", "is not a type of a PyFlink state"),
        ("long", "ValueState", "is not a type of a PyFlink state"),
        ("long", "LONG;", "is not a type of a PyFlink state"),
    ],
)
def test_an_invalid_declaration_is_refused(
    savepoint: Path, tmp_path: Path, name: str, declared: str, message: str
) -> None:
    tables = {PREFIX + name: {"type": declared}}
    with pytest.raises(InvalidArgumentError, match=message):
        imported(savepoint, tmp_path, tables, operators=["by_long"])
    assert not list(tmp_path.glob("store/checkpoints/*.json"))


OWN_VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "long": (pa.int64(), int),
    "string": (pa.string(), str),
    "double": (pa.float64(), float),
    "date": (pa.date32(), date.fromisoformat),
    "decimal": (pa.decimal128(10, 2), Decimal),
    "bytes": (pa.binary(), bytes.fromhex),
    "list": (pa.list_(pa.int64()), list),
    "map": (pa.map_(pa.string(), pa.int64()), lambda value: [tuple(one) for one in value]),
}


def own_values(n: int) -> dict[str, Any]:
    """Return the expected output of the job for a key of a store without Flink's bytes."""
    return {
        "long": n * 7,
        "string": f"ü{n}",
        "double": n / 3,
        "date": str(date(2026, 2, 28) + timedelta(n)),
        "decimal": f"{n}.25",
        "bytes": bytes([n + 10]).hex(),
        "list": [n, None],
        "map": [["a", n]],
        "list_string": [f"a{n}", f"b{n}"],
        "map_string_long": [[f"k{n}", n], ["z", 1]],
    }


def own_store(folder: Path) -> tuple[StateStore, dict[int, dict[str, Any]]]:
    """Return a store that was written without Flink, with some states of operator ``by_long``, and
    its content.
    """
    held_by = {n: own_values(n) for n in range(-10, 10)}
    store = StateStore.open(str(folder / "own"), table_format="parquet", layout="ranged")
    told: dict[str, Any] = {"key": "key", "max_parallelism": 128, "hash_scheme": "pyflink"}
    with store.snapshot(parallelism=2) as checkpoint:
        for name, (kind, of) in OWN_VALUES.items():
            values = pa.array([of(one[name]) for one in held_by.values()], kind)
            rows = pa.table({"key": list(held_by), "value": values})
            checkpoint.write_keyed("by_long", name, rows, **told)
        listed = [
            {"key": n, "at": at, "value": text}
            for n, one in held_by.items()
            for at, text in enumerate(one["list_string"])
        ]
        rows = pa.Table.from_pylist(listed)
        checkpoint.write_keyed(
            "by_long",
            "list_string",
            rows,
            kind="list",
            entry=["at"],
            **told,
        )
        mapped = [
            {"key": n, "name": name, "value": value}
            for n, one in held_by.items()
            for name, value in one["map_string_long"]
        ]
        rows = pa.Table.from_pylist(mapped)
        checkpoint.write_keyed(
            "by_long",
            "map_string_long",
            rows,
            kind="map",
            entry=["name"],
            **told,
        )
    return store, held_by


def test_a_store_written_without_flink_becomes_a_pyflink_savepoint(tmp_path: Path) -> None:
    store, held_by = own_store(tmp_path)
    done = export_savepoint(store, str(tmp_path / "to"), max_parallelism=720)
    columns = {"by_long": {"states": {k: v for k, v in TABLES.items() if k in OWN}}}
    again = StateStore.open(str(tmp_path / "again"), table_format="parquet", layout="ranged")
    uids = {operator_id("by_long"): "by_long"}
    import_savepoint(
        done.savepoint, again, strict=True, hints=SavepointHints(columns=columns, uids=uids)
    )
    for name in next(iter(held_by.values())):
        found = held(again, "by_long", name)
        assert found == {json.dumps(n): one[name] for n, one in held_by.items()}, name


@pytest.mark.flink
@pytest.mark.long
def test_pyflink_restores_a_store_written_without_flink(tmp_path: Path) -> None:
    store, held_by = own_store(tmp_path)
    done = export_savepoint(store, str(tmp_path / "to"), max_parallelism=720, parallelism=3)
    rows = tmp_path / "rows.jsonl"
    run_pyflink("read", Path(done.savepoint), rows, 720)
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    seen = {one["key"]: one["states"] for one in found if one["operator"] == "by_long"}
    assert len(seen) > 15
    for key, states in seen.items():
        assert {name: states[name] for name in held_by[key]} == held_by[key]
        assert states["int"] is None


@pytest.mark.flink
@pytest.mark.long
def test_pyflink_restores_an_exported_savepoint(store: StateStore, tmp_path: Path) -> None:
    """With 720 key groups, the job finds in its own states the values of its earlier output."""
    done = export_savepoint(store, str(tmp_path / "to"), max_parallelism=720, parallelism=3)
    rows = tmp_path / "rows.jsonl"
    run_pyflink("read", Path(done.savepoint), rows, 720)
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    known = {(one["operator"], json.dumps(one["key"])): one["states"] for one in said()}
    same = 0
    for one in found:
        key = one["operator"], json.dumps(one["key"])
        assert key not in known or one["states"] == known[key]
        same += key in known
    assert same > 60  # of 198; the number depends on chance and on the machine's speed
