"""The registry of the types of Flink's serializers.

A type is parsed from the snapshot of its serializer
(:mod:`statestore.interop.flink.types.serializer_snapshots`). Its class defines everything that
depends on the type: its name, its snapshots, its Arrow type, and how values are skipped, read and
written.
"""

from __future__ import annotations

from statestore.interop.flink.types import (
    avro,
    cep,
    internal_types,
    java_types,
    kryo,
    pojos,
    scala_types,
    scalars,
    sql_types,
)
from statestore.interop.flink.types.base import FlinkType

TYPES: tuple[type[FlinkType], ...] = (
    scalars.Scalar,
    java_types.TupleType,
    java_types.RowType,
    java_types.ListType,
    java_types.ArrayType,
    java_types.MapType,
    java_types.EitherType,
    java_types.NullableType,
    java_types.EnumType,
    pojos.PojoType,
    avro.AvroType,
    scala_types.CaseClassType,
    scala_types.TraversableType,
    scala_types.ScalaEnumType,
    scala_types.OptionType,
    scala_types.TryType,
    sql_types.RowDataType,
    sql_types.BinaryRowType,
    sql_types.ExternalType,
    sql_types.RawType,
    sql_types.DecimalDataType,
    sql_types.TimestampDataType,
    sql_types.SqlCollection,
    cep.CepType,
    internal_types.TtlType,
    internal_types.TtlAwareType,
    internal_types.TimerType,
    internal_types.StreamElementType,
    internal_types.PythonType,
    internal_types.UndecodedType,
    internal_types.JavaObjectType,
    internal_types.UnknownType,
    kryo.KryoType,
)
"""All types. The types without parameters share the class ``Scalar``, and are in ``SCALARS``."""
