"""Hashes of case classes and of the types in them equal those of Scala's library."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.java_types import EitherType, EnumType, Scalar, TupleType
from statestore.interop.flink.types.kryo import KryoType
from statestore.interop.flink.types.scala_types import CaseClassType, OptionType, ScalaEnumType
from statestore.keys.hashing import key_hash

LONG, INT, TEXT, DOUBLE, FLOAT = map(Scalar, ("Long", "Integer", "String", "Double", "Float"))
NAN, INFINITY = float("nan"), float("inf")
NO_CLASSES = 3 * bytes.fromhex("000004f2c69a3d70 00000000")


def case(*fields: FlinkType) -> CaseClassType:
    return CaseClassType(f"scala.Tuple{len(fields)}", fields)


def struct(*values: Any) -> dict[str, Any]:
    return {f"f{number}": value for number, value in enumerate(values)}


ONE_FIELD = [
    *((LONG, value, code) for value, code in {
        0: -1669410282, 1: 818387364, -1: 830581559, 1 << 40: -190734184,
        2**63 - 1: 1154328349, -(2**63): 1154328349, -(2**31): 1154328349,
    }.items()),
    *((INT, value, code) for value, code in {
        0: -1669410282, 7: 196037679, -1: 830581559,
    }.items()),
    *((DOUBLE, value, code) for value, code in [
        (0.0, -1669410282), (-0.0, -1669410282), (1.0, 818387364), (1.5, 2075389193),
        (0.1, -1190402584), (3e9, -587899801), (1e19, 334092672), (1e300, 1834726907),
        (NAN, -729094848), (INFINITY, -589841952), (-INFINITY, -802764271),
        (2.0**63, 1154328349), (-(2.0**63), 1154328349), (0.5, 400193470), (5e-324, 818387364),
    ]),
    *((FLOAT, value, code) for value, code in [
        (0.0, -1669410282), (-0.0, -1669410282), (1.0, 818387364), (1.5, 2075389193),
        (0.1, 145900812), (3e9, -587899801), (1e19, 2110750267), (NAN, -567383317),
        (INFINITY, -589841952), (-INFINITY, -802764271), (2.0**63, 1154328349),
    ]),
    (Scalar("Boolean"), True, -1829046767),
    (Scalar("Boolean"), False, -471589850),
    (Scalar("Character"), ord("a"), -1168522918),
    (Scalar("Short"), -2, 631547102),
    (Scalar("Byte"), 3, 937862449),
    (Scalar("BigDecimal"), "1.50", -786452415),
    (Scalar("Date"), 86_400_001, -450764138),
    (TEXT, "ab", 246531783),
    (TEXT, None, -1669410282),
    (OptionType(LONG), None, 1832738665),
]  # fmt: skip
"""The type and value of a single field, and ``hashCode`` of a ``Tuple1`` in Scala 2.12.20."""


def test_a_case_class_with_one_field() -> None:
    for field, value, code in ONE_FIELD:
        key = case(field)
        column = pa.array([struct(value)] * 2, key.arrow_type())
        assert key.hash_codes(column).tolist() == [code, code]


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        (case(TEXT, LONG), struct("key", 2), -1116678910),
        (case(TEXT, LONG, DOUBLE), struct("key", 1 << 40, 2.5), -1809028030),
        (
            case(case(TEXT, INT), OptionType(LONG)),
            struct(struct("a", 1), 7),
            1724960012,
        ),
        (OptionType(LONG), 7, 196037679),
        (OptionType(LONG), None, 2433880),
        (
            EitherType(TEXT, LONG, "ScalaEither"),
            {"is_left": True, "left": "a", "right": None},
            -1168522918,
        ),
        (
            EitherType(TEXT, LONG, "ScalaEither"),
            {"is_left": False, "left": None, "right": 1 << 40},
            -190734184,
        ),
        (ScalaEnumType("a.E", (("one", 7), ("two", -1))), "one", 7),
    ],
    ids=str,
)
def test_nested_values(key: FlinkType, value: Any, code: int) -> None:
    column = pa.array([value, value], key.arrow_type())
    assert key.hash_codes(column).tolist() == [code, code]
    assert key.hash_codes(column.slice(0, 0)).tolist() == []


def test_a_tuple_of_java_hashes_a_long_like_java() -> None:
    inner = case(LONG)
    key = TupleType("Tuple2", (inner, LONG))
    column = pa.array([struct(struct(-1), -1)], key.arrow_type())
    code = 31 * 830581559 + 0  # the hash of a Long of -1 is 0 in Java and -1 in Scala
    assert key.hash_codes(column).tolist() == [(code + 2**31) % 2**32 - 2**31]
    plain = TupleType("Tuple2", (TEXT, LONG))
    values = pa.array([struct("a", 5)], plain.arrow_type())
    assert plain.hash_codes(values).tolist() == [
        key_hash(("a", 5), key_type="Tuple2<String, Long>")
    ]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (KryoType("a.B", NO_CLASSES), "their hash depends on the job's own class"),
        (EnumType("a.E", ("A",)), "differ in every Java process"),
        (Scalar("int[]"), "their hash depends on the job's own class"),
        (EitherType(LONG, TEXT), "their hash depends on the job's own class"),
    ],
    ids=str,
)
def test_types_whose_hash_only_the_job_has_are_refused(field: FlinkType, said: str) -> None:
    key = case(field)
    with pytest.raises(UnsupportedTypeError, match=said):
        key.hash_codes(pa.array([], key.arrow_type()))
