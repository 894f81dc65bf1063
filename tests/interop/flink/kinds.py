"""Types for property tests: every form for which a snapshot can be generated."""

from __future__ import annotations

from hypothesis import strategies as st

from statestore.interop.flink.types.avro import AvroType
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.internal_types import CepType, TimerType, TtlAwareType, TtlType
from statestore.interop.flink.types.java_types import (
    ArrayType,
    EitherType,
    EnumType,
    ListType,
    MapType,
    NullableType,
    RowType,
    Scalar,
    TupleType,
)
from statestore.interop.flink.types.pojos import PojoField, PojoType, Subclass
from statestore.interop.flink.types.scala_types import CaseClassType, TraversableType

__all__ = ["SCALARS", "kinds"]

SCALARS = (
    *("Boolean", "Byte", "Short", "Integer", "Long", "Float", "Double", "Character", "String"),
    *("BigDecimal", "BigInteger", "Date", "SqlDate", "SqlTime", "SqlTimestamp", "LocalDate"),
    *("LocalTime", "LocalDateTime", "Instant", "Void", "TimeWindow", "GlobalWindow", "long[]"),
    *("byte[]", "boolean[]", "int[]", "short[]", "float[]", "double[]", "String[]", "char[]"),
    *("CountWindow", "SqlTimeWindow", "VoidNamespace"),
)


def _composites(inner: st.SearchStrategy[FlinkType]) -> st.SearchStrategy[FlinkType]:
    some = st.lists(inner, min_size=1, max_size=3).map(tuple)
    fields = st.lists(inner, min_size=1, max_size=3).map(
        lambda found: tuple(PojoField(f"f{at}", "a.B", one) for at, one in enumerate(found))
    )
    pojos = st.builds(PojoType, st.just("a.B"), fields)
    subclasses = st.builds(
        lambda base, more: PojoType(
            "a.A",
            base,
            (Subclass("a.C", PojoType("a.C", base)),),
            (Subclass("a.B", PojoType("a.B", (*base, PojoField("more", "a.B", more)))),),
        ),
        fields,
        inner,
    )
    return st.one_of(
        st.builds(lambda parts: TupleType(f"{_TUPLE}{len(parts)}", parts), some),
        st.builds(RowType, some, st.booleans()),
        st.builds(ListType, inner, st.sampled_from(["List", "ArrayList", "Set"])),
        st.builds(MapType, inner, inner),
        st.builds(ArrayType, st.just("a.B"), inner),
        st.builds(EitherType, inner, inner),
        st.builds(EitherType, inner, inner, st.just("ScalaEither")),
        st.builds(CaseClassType, st.just("a.C"), some),
        st.builds(TraversableType, st.just("canBuildFrom"), inner),
        st.builds(lambda element: CepType("Lockable", (element,)), inner),
        st.builds(NullableType, inner, st.just(0)),
        st.builds(TtlType, inner),
        st.builds(TtlAwareType, inner, st.booleans()),
        st.builds(TimerType, inner, inner),
        pojos,
        subclasses,
    )


_AVRO = (
    '{"type":"record","name":"R","fields":[{"name":"a","type":["null","int"]},'
    '{"name":"b","type":{"type":"array","items":["string","long"]}},'
    '{"name":"c","type":{"type":"map","values":"bytes"}}]}'
)
_TUPLE = "org.apache.flink.api.java.tuple.Tuple"
kinds: st.SearchStrategy[FlinkType] = st.recursive(
    st.sampled_from(SCALARS).map(Scalar)
    | st.just(EnumType("a.E", ("ONE", "TWO")))
    | st.just(AvroType("a.R", _AVRO)),
    _composites,
    max_leaves=6,
)
