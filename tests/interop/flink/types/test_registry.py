"""Each registered type has a name, a column, and bytes that are skipped, read and written."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

import pyarrow as pa
import pytest

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink import types
from statestore.interop.flink.metadata.java_binary import Reader, i32
from statestore.interop.flink.metadata.logical_types import LogicalType, key_logical_type
from statestore.interop.flink.types.avro import (
    AvroType,
    Block,
    make_fixed_layout,
    make_map_layout,
    make_union_layout,
)
from statestore.interop.flink.types.base import FlinkType, Layout
from statestore.interop.flink.types.byte_cursor import Spans
from statestore.interop.flink.types.column_bytes import decode_values
from statestore.interop.flink.types.internal_types import (
    CepType,
    JavaObjectType,
    PythonType,
    StreamElementType,
    TimerType,
    TtlAwareType,
    TtlType,
    UndecodedType,
    UnknownType,
    plain_type,
)
from statestore.interop.flink.types.java_types import (
    SCALARS,
    ArrayType,
    EitherType,
    EnumType,
    ListType,
    MapType,
    NullableType,
    RowType,
    Scalar,
    TupleType,
    present,
)
from statestore.interop.flink.types.kryo import KryoType, is_kryo_bytes
from statestore.interop.flink.types.layouts import Struct, Tagged
from statestore.interop.flink.types.pojos import PojoField, PojoType
from statestore.interop.flink.types.scala_types import (
    CaseClassType,
    OptionType,
    ScalaEnumType,
    TraversableType,
    TryType,
)
from statestore.interop.flink.types.serializer_snapshots import TYPES, read_snapshot
from statestore.interop.flink.types.sql_types import (
    BinaryRowType,
    DecimalDataType,
    ExternalType,
    RawType,
    RowDataType,
    SqlCollection,
    TimestampDataType,
)

LONG, TEXT = Scalar("Long"), Scalar("String")
NO_OBJECT = b"\xac\xed\0\5p"  # a Java object stream with a null
NO_CLASSES = 3 * (bytes.fromhex("000004f2c69a3d70") + i32(0))
EVENT, DEWEY = CepType("EventId"), CepType("DeweyNumber")
NODE = CepType("NodeId", (EVENT,))
EDGE = CepType("Edge", (NODE, DEWEY))
BIGINT, STRING = map(key_logical_type, ("BIGINT", "STRING"))
ARRAY = LogicalType("ARRAY<BIGINT>", b"", "ARRAY", children=(BIGINT,))
MAP = LogicalType("MAP<BIGINT, STRING>", b"", "MAP", children=(BIGINT, STRING))
NESTED_LONG = i32(3) + i32(911108) + i32(1) + i32(1333245) + i32(1) + i32(1) + LONG.snapshot()

EXAMPLES: tuple[FlinkType, ...] = (
    *map(Scalar, SCALARS),
    TupleType("org.apache.flink.api.java.tuple.Tuple2", (LONG, TEXT)),
    RowType((LONG, TEXT)),
    RowType((LONG, TEXT), has_kind=False),
    *(ListType(TEXT, form) for form in ("List", "ArrayList", "Set", "LinkedList")),
    ArrayType("a.B", TEXT),
    MapType(LONG, TEXT),
    MapType(LONG, TEXT, "SortedMap", NO_OBJECT),
    MapType(LONG, TEXT, "NullAwareMap"),
    EitherType(LONG, TEXT),
    EitherType(LONG, TEXT, "TaggedUnion"),
    NullableType(TEXT),
    NullableType(LONG, padding=8),
    TtlType(TEXT),
    TtlAwareType(TEXT, has_ttl=True),
    TimerType(TEXT, Scalar("VoidNamespace")),
    PojoType("a.B", (PojoField("id", "a.B", LONG), PojoField("name", "a.B", TEXT))),
    EnumType("a.E", ("1", "2")),
    CaseClassType("a.C", (LONG, TEXT)),
    TraversableType("canBuildFrom", TEXT),
    ScalaEnumType("a.E$", (("1", 7), ("2", -1))),
    OptionType(TEXT),
    EitherType(LONG, TEXT, "ScalaEither"),
    TryType(TEXT, KryoType("java.lang.Throwable", NO_CLASSES)),
    *(EVENT, DEWEY, NODE, EDGE),
    CepType("Lockable", (TEXT,)),
    CepType("Node", (EDGE,)),
    CepType("NodeV1", (ListType(EDGE),)),
    CepType("NFAState", (DEWEY, NODE, EVENT)),
    CepType("NFAState", (DEWEY, NODE, EVENT), has_previous_time=True),
    AvroType("a.B", '{"type":"record","name":"B","fields":[{"name":"a","type":"int"}]}'),
    AvroType("a.B", '"string"', version=2),
    UndecodedType(LONG),
    RowDataType((BIGINT, STRING), (LONG, Scalar("StringData"))),
    ExternalType(NO_OBJECT + b"\1", LONG),
    RawType(LONG),
    PythonType(LONG),
    PythonType(LONG, many=True),
    BinaryRowType(2),
    *(DecimalDataType(10, 2), DecimalDataType(38, 10)),
    *(TimestampDataType(3), TimestampDataType(6), TimestampDataType(9)),
    SqlCollection(ARRAY, 1, NO_OBJECT),
    SqlCollection(MAP, 1, 2 * NO_OBJECT),
    StreamElementType(LONG),
    KryoType("a.B", NO_CLASSES),
    KryoType("a.B", NO_CLASSES, 2, LONG),
    JavaObjectType(),
    UnknownType("a.OwnSnapshot", NESTED_LONG),
)
LAYOUTS: tuple[Layout, ...] = (
    present(LONG),
    Struct(("id", "name"), (LONG, TEXT)),
    make_fixed_layout(1),
    make_union_layout((None, TEXT)),
    make_union_layout((LONG, None)),
    make_union_layout((LONG, TEXT)),
    Block(TEXT),
    make_map_layout(LONG),
)
"""The layouts of parts of values, which have no serializer of their own."""

OPAQUE = (BinaryRowType, UnknownType)
BYTES = (
    JavaObjectType,
    UndecodedType,
)  # whose columns have bytes; they have tests of their own
PYTHON_SCALARS = ("PythonDate", "PythonTime", "PythonTimestamp")


def two_values(data_type: pa.DataType) -> pa.Array:
    """Return a column of two values, none of which is null unless all values of the type are."""
    types = pa.types
    if types.is_struct(data_type):
        columns = [two_values(field.type) for field in data_type]
        return pa.StructArray.from_arrays(columns, fields=list(data_type))
    if types.is_map(data_type):
        keys, items = two_values(data_type.key_type), two_values(data_type.item_type)
        return pa.MapArray.from_arrays([0, 1, 2], keys, items)
    if types.is_list(data_type):
        return pa.ListArray.from_arrays([0, 1, 2], two_values(data_type.value_type))
    if types.is_null(data_type):
        return pa.nulls(2)
    if types.is_boolean(data_type):
        return pa.array([True, False])
    if types.is_string(data_type) or types.is_binary(data_type):
        return pa.array(["1", "2"]).cast(data_type)
    if types.is_temporal(data_type):
        width = pa.int32() if data_type.bit_width == 32 else pa.int64()
        return pa.array([1, 2], width).cast(data_type)
    return pa.array([1, 2], data_type)


def values_of(layout: Layout) -> pa.Array:
    whole = two_values(layout.arrow_type())
    tagged = layout.layout if isinstance(layout, FlinkType) else layout
    if not isinstance(tagged, Tagged) or tagged.label is None:
        return whole
    label, left, right = whole.flatten()
    if pa.types.is_integer(label.type):
        label = pa.array([0, 1], label.type)
    sides = [left.take(pa.array([0, None])), right.take(pa.array([None, 1]))]
    return pa.StructArray.from_arrays([label, *sides], fields=list(whole.type))


def defined_types() -> set[type[FlinkType]]:
    """Return the types that the modules of the package define."""
    names = [module.name for module in pkgutil.iter_modules(types.__path__)]
    return {
        member
        for name in names
        for member in vars(import_module(f"{types.__name__}.{name}")).values()
        if inspect.isclass(member) and issubclass(member, FlinkType)
        if member is not FlinkType and not inspect.isabstract(member)
    }


def test_every_type_is_registered_and_has_an_example() -> None:
    registered = set(TYPES)
    assert len(registered) == len(TYPES)
    assert defined_types() == registered
    assert {type(example) for example in EXAMPLES} == registered


def test_no_two_types_read_the_same_snapshot() -> None:
    classes = [{form.class_name for form in flink_type.snapshots} for flink_type in TYPES]
    assert sum(map(len, classes)) == len(set().union(*classes))


@pytest.mark.parametrize(
    "layout",
    [
        *(
            example
            for example in EXAMPLES
            if not isinstance(example, (*OPAQUE, *BYTES)) and not is_kryo_bytes(example)
        ),
        *LAYOUTS,
    ],
    ids=str,
)
def test_values_are_written_read_and_skipped(layout: Layout) -> None:
    values = values_of(layout)
    written = layout.write(values)
    raw = written.to_pylist()
    found = decode_values(layout, Spans.from_values(raw, "values"))
    assert found.type == layout.arrow_type()
    assert found.equals(values)
    skip = layout.skipper()
    reader = Reader(b"".join(raw), "values")
    skip(reader)
    assert reader.position == len(raw[0])
    skip(reader)
    assert reader.remaining == 0
    if layout.fixed_width is not None:
        assert {len(value) for value in raw} == {layout.fixed_width}


@pytest.mark.parametrize(
    "flink_type", [example for example in EXAMPLES if isinstance(example, OPAQUE)], ids=str
)
def test_values_that_stay_bytes_are_refused_by_name(flink_type: FlinkType) -> None:
    with pytest.raises(UnsupportedTypeError, match="only be read as bytes"):
        flink_type.arrow_type()
    spans = Spans.from_values([b"123"], "values")
    with pytest.raises(UnsupportedTypeError, match="only be read as bytes") as reading:
        decode_values(flink_type, spans)
    with pytest.raises(UnsupportedTypeError, match="only be written as bytes") as writing:
        flink_type.write(pa.array([b"123"]))
    assert all(flink_type.java_name in str(error.value) for error in (reading, writing))
    if isinstance(flink_type, BinaryRowType):
        reader = Reader(i32(3) + b"1234", "values")
        flink_type.skipper()(reader)
        assert reader.remaining == 1
        return
    with pytest.raises(UnsupportedTypeError, match=r"length of a value of .* is unknown") as length:
        flink_type.skipper()
    assert flink_type.java_name in str(length.value)


def test_its_snapshot_gives_the_type_again() -> None:
    for flink_type in EXAMPLES:
        is_python = isinstance(flink_type, Scalar) and flink_type.name in PYTHON_SCALARS
        if is_python or isinstance(flink_type, PythonType):
            with pytest.raises(UnsupportedTypeError, match=r"no snapshot|no serializer"):
                flink_type.snapshot()
            continue
        raw = i32(2) + flink_type.snapshot()
        reader = Reader(raw, "header")
        expected = plain_type(flink_type)
        if isinstance(flink_type, KryoType):  # only the values tell their class
            expected = KryoType(flink_type.class_name, flink_type.body)
        assert read_snapshot(reader).flink_type == expected
        assert reader.remaining == 0
