"""Collections in fields of POJOs get the serializers that Flink 2 has for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import DamagedFileError, InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink import FlinkTarget, export_savepoint, import_savepoint, open_savepoint
from statestore.interop.flink.exporting.flink_versions import parse_collection
from statestore.interop.flink.exporting.job_types import parse_class_mapping
from statestore.interop.flink.options import ExportSelection
from statestore.interop.flink.types.byte_cursor import BYTES, Spans
from statestore.interop.flink.types.column_bytes import decode_values
from statestore.interop.flink.types.kryo import KryoType
from statestore.jobgraph.operators import operator_id
from tests.interop.flink.goldens import Golden
from tests.interop.flink.test_real_flink import HEAP, NEWEST, comparable, dumped
from tests.servers.flink import Flink

NO_CLASSES = 3 * bytes.fromhex("000004f2c69a3d70 00000000")
KINDS = operator_id("kinds")
PERSON = "golden.Shapes$Person"
FIELDS = {"tags": "List<String>", "marks": "Map<String, Integer>"}
WITHOUT_OPAQUE = ExportSelection(leave_out=[f"{KINDS}/opaque"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    """The state of a job on Flink 1.20, which no test changes."""
    folder = tmp_path_factory.mktemp("kinds")
    source = Golden("1.20_rocksdb_canonical").unpack(folder / "from")
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    import_savepoint(str(source), store)
    return store


def export(store: StateStore, to: Path, **fields: str) -> None:
    target = FlinkTarget(version="2.3", classes={PERSON: {"collections": fields}})
    export_savepoint(store, str(to), target=target, selection=WITHOUT_OPAQUE)


# In each run, test_kryo_conversion.py compares the converted values with those of Flink 2.
@pytest.mark.long
@pytest.mark.flink
def test_flink_2_restores_pojos_with_its_own_collections(store: StateStore, tmp_path: Path) -> None:
    """The job has Flink's default settings, with which Kryo in these fields is incompatible."""
    export(store, tmp_path / "to", **FIELDS)
    rows = dumped(Flink(NEWEST), tmp_path, str(tmp_path / "to"), HEAP, parallelism=2, most=128)
    golden = Golden("1.20_rocksdb_canonical").rows()
    expected = [row for row in golden if row.get("state") != "opaque"]
    assert {row.get("state") for row in expected} >= {"person", "list_person"}
    assert comparable(rows) == comparable(expected)


@pytest.mark.long
@pytest.mark.slow
def test_fields_have_the_types_that_flink_2_derives(store: StateStore, tmp_path: Path) -> None:
    """A field without a declaration keeps Kryo, in values, in lists and in subclasses."""
    export(store, tmp_path / "to", tags="List<String>")
    operator = open_savepoint(str(tmp_path / "to")).operator(KINDS)
    types = {state.name: state.value.java_name for state in operator.states}
    for name in ("person", "list_person"):
        assert "tags Nullable<List<Nullable<String>>>" in types[name]
        assert "marks Kryo<java.util.Map>" in types[name]


@pytest.mark.long
@pytest.mark.slow
def test_a_field_of_another_type_is_refused(store: StateStore, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTypeError, match=r"'person' .* String, which is not a Long"):
        export(store, tmp_path / "to", tags="List<Long>")
    assert not any((tmp_path / "to").glob("*"))


@pytest.mark.parametrize(
    "text", ["List<String>", "Map<String, Set<Long>>", "Set<List<Map<Integer, Double>>>"]
)
def test_types_are_declared_as_in_java(text: str) -> None:
    assert parse_collection(text, "a.B.c").java_name == text
    spaced = text.replace("<", " < ").replace(",", " ,")
    assert parse_collection(spaced, "a.B.c") == parse_collection(text, "a.B.c")


@pytest.mark.parametrize(
    "text",
    ["", "Long", "List", "List<", "List<>", "List<String>>", "Map<String>", "Queue<Long>", 7],
)
def test_other_declarations_are_refused(text: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"the field a\.B\.c is declared as"):
        parse_class_mapping({"a.B": {"collections": {"c": text}}})


@pytest.mark.parametrize(
    "mapping", [{"collections": {}}, {"collections": {"c": "List<Long>"}, "tuple": True}]
)
def test_a_mapping_of_collections_has_nothing_else(mapping: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"the class 'a\.B' is mapped to"):
        parse_class_mapping({"a.B": mapping})


ARRAY_LIST = b"\1\0java.util.ArrayLis\xf4"
HASH_MAP = b"\1\0java.util.HashMa\xf0"


@pytest.mark.parametrize(
    ("declared", "raw", "value"),
    [
        ("List<String>", ARRAY_LIST + b"\1\2\3\1a\xe2\3\1c\xe4", ["ab", "cd"]),
        # The second element is the object with the number 1, the first text.
        ("List<String>", ARRAY_LIST + b"\1\2\3\1a\xe2\3\3", ["ab", "ab"]),
        ("List<Long>", ARRAY_LIST + b"\1\3\t\2\0\t\3", [1, None, -2]),
        ("Set<Integer>", b"\1\0java.util.HashSe\xf4\1\1\2\4", [2]),
        ("Map<String, Double>", HASH_MAP + b"\1\1\3\1\x82k\n\x3f\xf8" + bytes(6), [("k", 1.5)]),
        # The class of the inner list has the number 1 of the names in this value.
        (
            "List<List<Integer>>",
            ARRAY_LIST + b"\1\2\1\1java.util.LinkedLis\xf4\1\1\2\2\1\0\1\0",
            [[1], []],
        ),
        ("List<Short>", b"\1\0java.util.Collections$EmptyLis\xf4\1", []),
        ("Map<Long, Long>", b"\0", None),
    ],
)
def test_objects_are_read_as_declared(declared: str, raw: bytes, value: object) -> None:
    assert read(declared, raw) == [value]


@pytest.mark.parametrize(
    ("declared", "raw", "error", "said"),
    [
        (
            "Map<Long, Long>",
            b"\1\0java.util.TreeMa\xf0\1\0\0",
            UnsupportedTypeError,
            "the class java.util.TreeMap, which is not a Map<Long, Long>",
        ),
        ("Set<Long>", ARRAY_LIST + b"\1\0", UnsupportedTypeError, "class java.util.ArrayList"),
        ("List<Long>", b"\3\1a\xe2", UnsupportedTypeError, "class String, which is not a List"),
        ("Map<Long, Long>", HASH_MAP + b"\1\1\0\0", UnsupportedTypeError, "a map with a null key"),
        ("List<Long>", ARRAY_LIST + b"\3", DamagedFileError, "an object that it has not written"),
    ],
)
def test_other_objects_are_refused(
    declared: str, raw: bytes, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        read(declared, raw)


def read(declared: str, raw: bytes) -> list[Any]:
    spans = Spans.from_array(pa.array([raw], BYTES), "a value")
    content = KryoType("a.B", NO_CLASSES, 2, parse_collection(declared, "a.B.c"))
    found: list[Any] = decode_values(content, spans).to_pylist()
    return found
