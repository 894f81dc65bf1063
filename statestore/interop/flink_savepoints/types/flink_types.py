"""The registry of the types of Flink's serializers.

A type is parsed from the snapshot of its serializer
(:mod:`statestore.interop.flink_savepoints.metadata.serializer_snapshots`). Its class defines
everything that depends on the type: its name, its Arrow type, and how values are skipped, read and
written.
"""

from __future__ import annotations

from statestore.interop.flink_savepoints.types.families.base import FlinkType
from statestore.interop.flink_savepoints.types.families.eithers import EitherType
from statestore.interop.flink_savepoints.types.families.enums import EnumType
from statestore.interop.flink_savepoints.types.families.lists import (
    ArrayType,
    ListType,
    PresentType,
)
from statestore.interop.flink_savepoints.types.families.maps import MapType
from statestore.interop.flink_savepoints.types.families.nullables import NullableType
from statestore.interop.flink_savepoints.types.families.opaque import KryoType, UnknownType
from statestore.interop.flink_savepoints.types.families.pojos import PojoField, PojoType, Subclass
from statestore.interop.flink_savepoints.types.families.python_bytes import PythonType
from statestore.interop.flink_savepoints.types.families.rows import RowType
from statestore.interop.flink_savepoints.types.families.scalar import Scalar
from statestore.interop.flink_savepoints.types.families.sql_rows import BinaryRowType, RowDataType
from statestore.interop.flink_savepoints.types.families.sql_values import (
    ExternalType,
    RawType,
    SqlScalar,
)
from statestore.interop.flink_savepoints.types.families.timers import TimerType
from statestore.interop.flink_savepoints.types.families.ttl import TtlAwareType, TtlType
from statestore.interop.flink_savepoints.types.families.tuples import TupleType

__all__ = [
    "TYPES",
    "ArrayType",
    "BinaryRowType",
    "EitherType",
    "EnumType",
    "ExternalType",
    "FlinkType",
    "KryoType",
    "ListType",
    "MapType",
    "NullableType",
    "PojoField",
    "PojoType",
    "PresentType",
    "PythonType",
    "RawType",
    "RowDataType",
    "RowType",
    "Scalar",
    "SqlScalar",
    "Subclass",
    "TimerType",
    "TtlAwareType",
    "TtlType",
    "TupleType",
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
    RowDataType,
    BinaryRowType,
    ExternalType,
    RawType,
    SqlScalar,
    PythonType,
    KryoType,
    UnknownType,
)
"""All types. The types without parameters share the class ``Scalar``, and are in ``SCALARS``."""
