"""Records of Avro have columns; their bytes are those that Flink 1.20 and 2.3 write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import StateStore
from statestore.errors import (
    DamagedFileError,
    FormatVersionError,
    InvalidArgumentError,
    UnsupportedTypeError,
)
from statestore.interop.flink import export_savepoint, import_savepoint
from statestore.interop.flink.columns.state_columns import EntryForm
from statestore.interop.flink.metadata.java_binary import Reader, i32, utf
from statestore.interop.flink.options import SavepointHints
from statestore.interop.flink.types.avro import (
    AvroType,
    Block,
    make_fixed_layout,
    make_map_layout,
    make_union_layout,
)
from statestore.interop.flink.types.base import Layout
from statestore.interop.flink.types.byte_cursor import Spans
from statestore.interop.flink.types.column_bytes import decode_values
from statestore.interop.flink.types.java_types import Scalar
from statestore.interop.flink.types.serializer_snapshots import read_snapshot
from statestore.jobgraph.operators import operator_id
from statestore.keys.arrow import key_groups_of_hashes
from tests.interop.flink.entries import entries_in
from tests.interop.flink.limits import in_time
from tests.interop.flink.written import written_savepoint

GENERIC = "org.apache.avro.generic.GenericRecord"
SNAPSHOT = "org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot"
LONG, INT, TEXT = Scalar("Long"), Scalar("Integer"), Scalar("StringData")

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "All",
        "namespace": "a",
        "fields": [
            {"name": "b", "type": "boolean"},
            {"name": "i", "type": "int"},
            {"name": "l", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "f", "type": "float"},
            {"name": "d", "type": "double"},
            {"name": "s", "type": "string"},
            {"name": "y", "type": "bytes"},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
            {"name": "x", "type": {"type": "fixed", "name": "X", "size": 3}},
            {"name": "a", "type": {"type": "array", "items": "long"}},
            {"name": "m", "type": {"type": "map", "values": "string"}},
            {"name": "n", "type": ["null", "string"], "default": None},
            {"name": "o", "type": ["int", "null"]},
            {"name": "u", "type": ["null", "int", "string"]},
            {
                "name": "r",
                "type": {
                    "type": "record",
                    "name": "R",
                    "fields": [{"name": "p", "type": "string"}, {"name": "q", "type": "E"}],
                },
            },
            {"name": "t", "type": ["null", "R"]},
            {"name": "c", "type": {"type": "array", "items": "R"}},
        ],
    },
    separators=(",", ":"),
)
ALL = AvroType(GENERIC, SCHEMA)
NAMES = (*"bilfdsyexamnourtc",)
MILLIS = 1_700_000_000_000


def row(number: int, **fields: Any) -> dict[str, Any]:
    """Return the record that a job wrote, with the given fields."""
    return {
        "b": number == 1,
        "i": -number,
        "l": MILLIS + number,
        "f": 1.5 * number,
        "d": -2.5 * number,
        "y": bytes(number),
        "e": "B" if number else "A",
        "x": bytes([1, 2, 250 + number]),
        "a": list(range(2 * number)),
        "m": [(f"k{key}", "v") for key in range(number)],
        "r": {"p": f"p{number}", "q": "B"},
        "c": [{"p": f"p{number}", "q": "B"}] if number else [],
        **fields,
    }


RECORDS = {
    "00000000000000018bcfe568000000000080000000000000000000000000000000000000000102fa0000000000"
    "00000000000000000000000000000000027030000000010000000000": row(
        0, s="", n=None, o=0, u={"branch": 0, "f1": None, "f2": None}, t=None
    ),
    "01ffffffff0000018bcfe568013fc00000c00400000000000000000003c3bc780000000100000000010102fb02"
    "000000000000000000000000000000010001000000026b3000000001760000000001000000016e000000010000"
    "0001000000070000000270310000000100000000010000000270310000000100": row(
        1, s="üx", n="n", o=None, u={"branch": 1, "f1": 7, "f2": None}, t=None
    ),
    "00fffffffe0000018bcfe5680240400000c01400000000000000000004f09f9880000000020000000000010102"
    "fc0400000000000000000000000000000001000000000000000200000000000000030002000000026b30000000"
    "0176000000026b3100000001760000000001000000016e00000000000000020000000200000005736576656e00"
    "0000027032000000010000000100000002703200000001010000000270320000000100": row(
        2,
        s="😀",
        n="n",
        o=2,
        u={"branch": 2, "f1": None, "f2": "seven"},
        t={"p": "p2", "q": "B"},
    ),
}
"""The bytes that ``AvroSerializer`` wrote, and the values."""


def record_of(**fields: Any) -> str:
    """Return the schema of a record."""
    members = [{"name": name, "type": field} for name, field in fields.items()]
    return json.dumps({"type": "record", "name": "Top", "fields": members})


def test_values_have_the_bytes_that_flink_writes() -> None:
    raw = [bytes.fromhex(text) for text in RECORDS]
    values = decode_values(ALL, Spans.from_values(raw, "f"))
    assert values.to_pylist() == [*RECORDS.values()]
    assert ALL.write(values).to_pylist() == raw
    assert ALL.write(values.slice(1)).to_pylist() == raw[1:]
    reader = Reader(b"".join(raw), "f")
    for data in raw:
        begin = reader.position
        ALL.skipper()(reader)
        assert reader.position - begin == len(data)


def test_the_snapshot_has_the_class_and_the_schema() -> None:
    raw = utf(SNAPSHOT) + i32(3) + b"\x26" + GENERIC.encode() + b"\xd5\x06" + SCHEMA.encode()
    assert len(raw) == 960  # as Flink writes it
    assert ALL.snapshot() == raw
    reader = Reader(i32(2) + raw + b"more", "f")
    assert read_snapshot(reader).flink_type == ALL
    assert reader.remaining == 4
    old = utf(SNAPSHOT) + i32(2) + utf(GENERIC) + utf(SCHEMA)
    flink_type = read_snapshot(Reader(i32(2) + old, "f")).flink_type
    assert flink_type == AvroType(GENERIC, SCHEMA, 2)
    assert flink_type.snapshot() == old


def test_the_snapshot_of_an_old_flink_is_named() -> None:
    raw = i32(2) + utf(SNAPSHOT) + i32(1) + utf(SCHEMA)
    with pytest.raises(FormatVersionError, match=r"of version 1, which Flink 1\.7 or before"):
        read_snapshot(Reader(raw, "f"))
    raw = i32(2) + utf(SNAPSHOT) + i32(3) + b"\x26" + GENERIC.encode() + b"\0"
    with pytest.raises(DamagedFileError, match="the class or the schema of an Avro type is null"):
        read_snapshot(Reader(raw, "f"))


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(-(2**63), 2**63 - 1)), max_size=5),
    st.integers(0, 300),
    st.lists(st.dictionaries(st.text(), st.binary()), max_size=5),
)
def test_collections_survive_a_round_trip(
    lists: list[list[int]], size: int, maps: list[dict[str, bytes]]
) -> None:
    columns: dict[Layout, list[Any]] = {
        Block(LONG): [*lists, list(range(size))],
        make_map_layout(Scalar("byte[]")): [list(entries.items()) for entries in maps],
    }
    for layout, values in columns.items():
        column = pa.array(values, layout.arrow_type())
        written = layout.write(column)
        assert decode_values(layout, Spans.from_array(written, "f")).equals(column)
        reader = Reader(b"".join(written.to_pylist()), "f")
        for _ in values:
            layout.skipper()(reader)
        assert reader.remaining == 0


@pytest.mark.parametrize(
    ("layout", "raw"),
    [
        (Block(INT), b"\1\0\0\0\7\1"),  # no end
        (Block(INT), b"\1\0\0\0\7"),
        (Block(INT), b"\xff\xff\xff\xff\7"),
        (make_map_layout(INT), b"\1\0\0\0\1a\0\0\0\7\2"),
        (make_union_layout((None, INT)), b"\0\0\0\2\0\0\0\0"),
        (make_union_layout((None, INT, TEXT)), b"\0\0\0\3\0\0\0\0"),
        (make_union_layout((None, INT, TEXT)), b"\xff\xff\xff\xff"),
        (make_fixed_layout(5), b"1234"),
        (ALL, bytes.fromhex(next(iter(RECORDS)))[:-1]),
    ],
    ids=str,
)
def test_bytes_that_flink_does_not_write_are_damage(layout: Layout, raw: bytes) -> None:
    with pytest.raises(DamagedFileError):
        decode_values(layout, Spans.from_values([raw], "f"))
    with pytest.raises(DamagedFileError):
        layout.skipper()(Reader(raw, "f"))


def test_values_that_avro_cannot_represent_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"each value of fixed\(3\) must have 3 bytes"):
        make_fixed_layout(3).write(pa.array([b"12"]))
    union = make_union_layout((None, INT, TEXT))
    wrong = pa.array([{"branch": 3, "f1": 1, "f2": None}], union.arrow_type())
    with pytest.raises(
        InvalidArgumentError, match="branch of a union is 3, but Flink permits 0 to 2"
    ):
        union.write(wrong)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "is not supported"),
        ("7", "7 is no schema"),
        ('{"type": "record", "name": "T", "fields": []}', "it has a record without fields"),
        ('{"type": "record", "name": "T", "fields": [{"type": "int"}]}', "a field without a name"),
        ('{"type": "record", "fields": [{"type": "int", "name": "a"}]}', "a type without a name"),
        (record_of(a="Top"), "it refers to 'Top', which is not defined before"),
        (record_of(a="null"), "it refers to 'null', which is not defined before"),
        (record_of(a=["null"]), "it has a union of nothing but null"),
        (record_of(a={"type": "fixed", "name": "X", "size": 0}), "the size of X is 0"),
        (record_of(a={"type": "enum", "name": "E"}), "the enum E has no symbols"),
        (
            record_of(a={"type": "enum", "name": "E", "symbols": ["A", "A"]}),
            "the enum E has a symbol twice",
        ),
        ('{"type":' * 5000 + '"int"' + "}" * 5000, "nested"),
        ("[" * 100_000, "nested too deeply"),
    ],
    ids=lambda text: text[:40],
)
def test_a_schema_without_a_layout_gives_the_reason(schema: str, said: str) -> None:
    flink_type = AvroType("a.Top", schema)
    with in_time():
        with pytest.raises(UnsupportedTypeError, match=said):
            flink_type.arrow_type()
        with pytest.raises(UnsupportedTypeError, match="take a canonical savepoint"):
            flink_type.skipper()
    assert flink_type.java_name == "Avro<Top>"
    assert not flink_type.is_record


def test_names_that_repeat_types_do_not_make_many_columns() -> None:
    """Each record has two fields of the one before, so 30 records have 2 ** 29 leaves."""
    inner: Any = {"type": "record", "name": "R0", "fields": [{"name": "a", "type": "int"}]}
    for number in range(1, 30):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{number - 1}"}]
        inner = {"type": "record", "name": f"R{number}", "fields": fields}
    with in_time(), pytest.raises(UnsupportedTypeError, match="it has more than 10000 parts"):
        AvroType("a.Top", json.dumps(inner)).arrow_type()


def test_each_field_is_a_column_and_is_exported_unchanged(tmp_path: Path) -> None:
    values = decode_values(ALL, Spans.from_values([*map(bytes.fromhex, RECORDS)], "f"))
    place = written_savepoint(tmp_path / "s", LONG, pa.array([0, 1, 2]), values, value_type=ALL)
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    hints = SavepointHints(uids={operator_id("big"): "big"})
    (state,) = import_savepoint(str(place), store, hints=hints, strict=True).record.states
    assert (state.form, state.names["value"]) == (EntryForm.COLUMNS, NAMES)
    rows = store.restore(parallelism=1).keyed("big", "count").to_arrow(0).sort_by("key")
    assert rows.drop_columns(["key", "key_group"]).to_pylist() == [
        {name: record[name] for name in NAMES} for record in RECORDS.values()
    ]
    export_savepoint(store, str(tmp_path / "to"))
    assert entries_in(tmp_path / "to") == entries_in(place)


def test_values_without_a_layout_are_bytes(tmp_path: Path) -> None:
    """A schema that refers to itself; written with one of the same length and bytes."""
    recursive = AvroType("a.Node", record_of(value="int", next=["null", "Top"]))
    flat = AvroType("a.Node", record_of(value="int", next=["null", "int"]))
    values = decode_values(flat, Spans.from_values([i32(7) + i32(0)], "f"))
    place = written_savepoint(tmp_path / "s", LONG, pa.array([1]), values, value_type=flat)
    for file in place.iterdir():
        data = file.read_bytes()
        file.write_bytes(data.replace(flat.snapshot(), recursive.snapshot()))
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    (state,) = import_savepoint(str(place), store).record.states
    assert state.form is EntryForm.VALUE_BYTES
    assert state.why is not None
    assert "it refers to 'Top', which is not defined before" in state.why
    export_savepoint(store, str(tmp_path / "to"))
    assert entries_in(tmp_path / "to") == entries_in(place)


def test_keys_of_avro_have_columns_and_a_recipe(tmp_path: Path) -> None:
    key = AvroType("a.Key", record_of(id="int", at="long"))
    column = pa.array([{"id": 1, "at": 5}, {"id": 2, "at": -1}], key.arrow_type())
    recipe = "objects(id, at)"  # as GenericData.hashCode
    codes = pa.array([31 * 32 + 5, 31 * 33 + 0], pa.int32()).to_numpy()
    groups = key_groups_of_hashes(codes, 128).tolist()
    place = written_savepoint(tmp_path / "s", key, column, [1, 2], groups=groups)
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    hints = SavepointHints(uids={operator_id("big"): "big"}, key_hash={"big": recipe})
    (state,) = import_savepoint(str(place), store, hints=hints).record.states
    assert (state.form, state.names["key"]) == (EntryForm.KEY_COLUMNS, ("key_id", "key_at"))
    export_savepoint(store, str(tmp_path / "to"), max_parallelism=300)
    found = {group for group, _, _ in entries_in(tmp_path / "to")}
    assert found == set(key_groups_of_hashes(codes, 300).tolist())
