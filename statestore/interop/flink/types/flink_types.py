"""The registry of the types of Flink's serializers.

A type is parsed from the snapshot of its serializer
(:mod:`statestore.interop.flink.types.serializer_snapshots`). Its class defines
everything that depends on the type: its name, its Arrow type, and how values are skipped, read and
written.
"""

from __future__ import annotations

from statestore.interop.flink.types.families.avro import AvroType
from statestore.interop.flink.types.families.avro_parts import (
    AvroArrayType,
    AvroFixedType,
    AvroMapType,
    AvroOptionalType,
    AvroUnionType,
)
from statestore.interop.flink.types.families.base import FlinkType
from statestore.interop.flink.types.families.cep import CepType, RecordType
from statestore.interop.flink.types.families.eithers import EitherType
from statestore.interop.flink.types.families.enums import EnumType
from statestore.interop.flink.types.families.java_objects import JavaObjectType
from statestore.interop.flink.types.families.kryo import KryoType
from statestore.interop.flink.types.families.kryo_keys import KryoKeyType
from statestore.interop.flink.types.families.lists import ArrayType, ListType, PresentType
from statestore.interop.flink.types.families.maps import MapType
from statestore.interop.flink.types.families.nullables import NullableType
from statestore.interop.flink.types.families.opaque import UnknownType
from statestore.interop.flink.types.families.pojos import PojoField, PojoType, Subclass
from statestore.interop.flink.types.families.python_bytes import PythonType
from statestore.interop.flink.types.families.rows import RowType
from statestore.interop.flink.types.families.scala_types import (
    CaseClassType,
    OptionType,
    ScalaEnumType,
    TraversableType,
    TryType,
)
from statestore.interop.flink.types.families.scalar import Scalar
from statestore.interop.flink.types.families.sql_rows import BinaryRowType, RowDataType
from statestore.interop.flink.types.families.sql_scalars import DecimalDataType, TimestampDataType
from statestore.interop.flink.types.families.sql_values import ExternalType, RawType, SqlCollection
from statestore.interop.flink.types.families.stream_elements import StreamElementType
from statestore.interop.flink.types.families.timers import TimerType
from statestore.interop.flink.types.families.ttl import TtlAwareType, TtlType
from statestore.interop.flink.types.families.tuples import TupleType
from statestore.interop.flink.types.families.undecoded import UndecodedType

__all__ = [
    "TYPES",
    "ArrayType",
    "AvroArrayType",
    "AvroFixedType",
    "AvroMapType",
    "AvroOptionalType",
    "AvroType",
    "AvroUnionType",
    "BinaryRowType",
    "CaseClassType",
    "CepType",
    "DecimalDataType",
    "EitherType",
    "EnumType",
    "ExternalType",
    "FlinkType",
    "JavaObjectType",
    "KryoKeyType",
    "KryoType",
    "ListType",
    "MapType",
    "NullableType",
    "OptionType",
    "PojoField",
    "PojoType",
    "PresentType",
    "PythonType",
    "RawType",
    "RecordType",
    "RowDataType",
    "RowType",
    "ScalaEnumType",
    "Scalar",
    "SqlCollection",
    "StreamElementType",
    "Subclass",
    "TimerType",
    "TimestampDataType",
    "TraversableType",
    "TryType",
    "TtlAwareType",
    "TtlType",
    "TupleType",
    "UndecodedType",
    "UnknownType",
]

TYPES: tuple[type[FlinkType], ...] = (
    Scalar,
    TupleType,
    RowType,
    ListType,
    ArrayType,
    PresentType,
    MapType,
    EitherType,
    NullableType,
    TtlType,
    TtlAwareType,
    TimerType,
    PojoType,
    EnumType,
    CaseClassType,
    TraversableType,
    ScalaEnumType,
    OptionType,
    TryType,
    CepType,
    RecordType,
    AvroType,
    AvroFixedType,
    AvroOptionalType,
    AvroUnionType,
    AvroArrayType,
    AvroMapType,
    RowDataType,
    BinaryRowType,
    ExternalType,
    RawType,
    DecimalDataType,
    TimestampDataType,
    SqlCollection,
    StreamElementType,
    PythonType,
    UndecodedType,
    KryoType,
    KryoKeyType,
    JavaObjectType,
    UnknownType,
)
"""All types. The types without parameters share the class ``Scalar``, and are in ``SCALARS``."""
