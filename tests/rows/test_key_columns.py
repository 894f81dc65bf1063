"""Key columns of another type than the declared one, and nested keys: three engines give one
result.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.keys.arrow import key_hashes
from statestore.keys.arrow_types import check_key_type
from statestore.keys.hashing import key_hash
from statestore.spark.hashing import key_hash_column
from tests.support.examples import examples

Random = random.Random
DAY = 86_400 * 10**9
ROWS = 60


class Carried(NamedTuple):
    """A column type, the declared key type, and a generator of values."""

    type: pa.DataType
    key_type: str | None
    draw: Callable[[Random], Any]
    scheme: str = "java"


def whole(bits: int) -> Callable[[Random], int]:
    edges = [0, 1, -1, (1 << bits - 1) - 1, -1 << bits - 1]
    return lambda r: r.choice([*edges, r.randrange(-1 << bits - 1, 1 << bits - 1), r.randrange(99)])


def big(digits: int) -> Callable[[Random], int]:
    largest = 10**digits - 1
    edges = [0, 1, -1, largest, -largest, min(2**32, largest), max(-(2**64), -largest)]
    return lambda r: r.choice([*edges, r.randrange(10 ** r.randint(1, digits)) * r.choice([1, -1])])


def text(r: Random) -> str:
    return "".join(r.choice("abz \0é日😀") for _ in range(r.randrange(9)))


def maybe(draw: Callable[[Random], Any]) -> Callable[[Random], Any]:
    return lambda r: None if r.random() < 0.2 else draw(r)


def several(draw: Callable[[Random], Any], most: int = 5) -> Callable[[Random], list[Any]]:
    return lambda r: [draw(r) for _ in range(r.randrange(most))]


def fields(**draws: Callable[[Random], Any]) -> Callable[[Random], dict[str, Any]]:
    return lambda r: {name: draw(r) for name, draw in draws.items()}


def decimal_of(scale: int, digits: int) -> Callable[[Random], Decimal]:
    return lambda r: Decimal(f"{big(digits)(r)}E-{scale}")


def decimal_text(r: Random) -> str:
    return str(
        Decimal(f"{big(r.choice([2, 30, 70]))(r)}E{r.choice([0, r.randint(-40, 9), 10**9])}")
    )


def in_day(r: Random) -> int:
    return r.choice([0, DAY - 1, r.randrange(DAY)])


uuid_text = lambda r: str(UUID(int=r.getrandbits(128)))  # noqa: E731
uuid_bytes = lambda r: r.randbytes(16)  # noqa: E731
longs = pa.int64()
pair = pa.struct([("a", pa.int32()), ("b", pa.string())])
draw_pair = fields(a=maybe(whole(32)), b=maybe(text))
deep = pa.struct([("id", pa.string()), ("l", pa.list_(pa.int64())), ("p", pair)])
draw_deep = fields(id=maybe(uuid_text), l=maybe(several(maybe(whole(64)))), p=maybe(draw_pair))

CARRIED = [
    Carried(pa.string(), "UUID", uuid_text),
    Carried(pa.string(), "java.util.UUID", uuid_text, "pyflink"),
    Carried(pa.binary(), "UUID", uuid_bytes),
    Carried(pa.string(), "BigInteger", lambda r: str(big(70)(r))),
    Carried(pa.string(), "BigDecimal", decimal_text),
    Carried(pa.string(), "BigDecimal", decimal_text, "pyflink"),
    Carried(pa.decimal128(38, 0), "BigInteger", big(38)),
    Carried(pa.decimal128(9, 0), "BigInteger", big(9), "pyflink"),
    Carried(longs, "BigInteger", whole(64)),
    Carried(pa.decimal128(20, 2), "BigDecimal(38,4)", decimal_of(2, 20)),
    Carried(pa.decimal128(38, 38), None, decimal_of(38, 38)),
    Carried(pa.decimal128(18, 18), None, decimal_of(18, 18), "pyflink"),
    Carried(longs, "BigDecimal(38,3)", whole(64)),
    Carried(pa.string(), "Character", lambda r: chr(r.choice([0, 65, 0xFFFF, 0xD7FF]))),
    Carried(pa.int32(), "char", lambda r: r.randrange(1 << 16)),
    Carried(longs, "LocalTime", in_day),
    Carried(longs, "LocalDateTime", whole(64)),
    Carried(longs, "Instant", whole(64)),
    Carried(longs, "Duration", whole(64)),
    Carried(longs, "LocalDate", lambda r: r.randint(-365_241_780_471, 365_241_780_471)),
    Carried(pa.date32(), None, lambda r: r.randint(-2_000_000, 2_000_000)),
    Carried(longs, "java.sql.Timestamp", whole(64)),
    Carried(longs, "java.sql.Date", whole(64), "pyflink"),
    Carried(pa.duration("us"), None, whole(50)),
    Carried(pair, "Row", draw_pair),
    Carried(pair, "Row<Integer, String>", draw_pair, "pyflink"),
    Carried(pair, "NamedRow", draw_pair),
    Carried(pa.list_(pa.int32()), None, several(maybe(whole(32)))),
    Carried(pa.list_(pa.string()), "List<UUID>", several(uuid_text)),
    Carried(pa.list_(pa.list_(pa.string())), None, several(maybe(several(maybe(text)))), "pyflink"),
    Carried(pa.list_(pa.int32()), "int[]", several(whole(32)), "pyflink"),
    Carried(pa.list_(pa.int64()), "long[]", several(whole(64)), "pyflink"),
    Carried(pa.list_(pa.string()), "String[]", several(maybe(text)), "pyflink"),
    Carried(pa.list_(pa.binary()), None, several(lambda r: r.randbytes(3)), "pyflink"),
    Carried(deep, "Row<UUID, List<Long>, Row<Integer, String>>", draw_deep),
    Carried(deep, "Tuple3<UUID, List<Long>, Row>", draw_deep),
    Carried(pa.list_(deep), "List<Row<String, long[], Tuple2<Integer, String>>>", several(
        fields(id=text, l=several(whole(64)), p=draw_pair), 3), "pyflink"),
    Carried(pa.string(), "CHAR(9)", text, "flink-sql"),
    Carried(pa.binary(), "VARBINARY(8)", lambda r: r.randbytes(r.randrange(9)), "flink-sql"),
    Carried(longs, "TIME(3)", lambda r: r.randrange(DAY // 10**6) * 10**6, "flink-sql"),
    Carried(longs, "TIMESTAMP(9)", whole(64), "flink-sql"),
    Carried(longs, "TIMESTAMP_LTZ(9)", whole(64), "flink-sql"),
    Carried(longs, "TIMESTAMP(0)", lambda r: whole(32)(r) * 10**9, "flink-sql"),
    Carried(longs, "DATE", whole(22), "flink-sql"),
    Carried(longs, "DECIMAL(30, 5)", whole(64), "flink-sql"),
    Carried(pa.decimal128(20, 2), "DECIMAL(38, 4)", decimal_of(2, 20), "flink-sql"),
    Carried(pa.decimal128(38, 38), None, decimal_of(38, 38), "flink-sql"),
]  # fmt: skip


def name_of(case: Carried) -> str:
    return f"{case.scheme}-{case.type}-{case.key_type}"


def in_python(value: Any, case: Carried) -> int:
    """Return the hash of a value from the column, under the recorded type name."""
    recorded = check_key_type(case.type, case.scheme, case.key_type)
    if recorded.startswith("Duration") and pa.types.is_duration(case.type):
        value *= 1000
    return key_hash(plain(value, recorded), key_type=recorded, hash_scheme=case.scheme)


def plain(value: Any, recorded: str) -> Any:
    if isinstance(value, dict):
        parts = [plain(part, "") for part in value.values()]
        return dict(value) if recorded.startswith("NamedRow") else parts
    return [plain(one, "") for one in value] if isinstance(value, list) else value


def column_of(values: list[Any], case: Carried) -> pa.Array:
    """Return the values as a slice, between two other values, so that offsets matter."""
    padded = [values[-1], *values, values[0]]
    if pa.types.is_date(case.type) or pa.types.is_duration(case.type):
        array = pa.array(padded, pa.int32() if pa.types.is_date(case.type) else longs)
        array = array.cast(case.type)
    else:
        array = pa.array(padded, case.type)
    return array.slice(1, len(values))


@pytest.mark.parametrize("case", CARRIED, ids=name_of)
@examples(100, share=10)
@given(seed=st.integers(0, 2**32))
def test_columns_and_values_agree(case: Carried, seed: int) -> None:
    """I1: an Arrow column has the hashes of its values."""
    r = random.Random(seed)
    values = [case.draw(r) for _ in range(r.randrange(1, 8))]
    types = None if case.key_type is None else [case.key_type]
    found = key_hashes([column_of(values, case)], hash_scheme=case.scheme, key_types=types)
    assert found.tolist() == [in_python(value, case) for value in values]


@pytest.mark.long
@pytest.mark.long_cases("16", "32")
@pytest.mark.parametrize("start", range(0, len(CARRIED), 16))
def test_spark_and_values_agree(spark: SparkSession, start: int) -> None:
    """I1: a Spark column has the same hashes, in one query over many values."""
    r = random.Random(start)
    cases = CARRIED[start : start + 16]
    drawn = [[case.draw(r) for _ in range(ROWS)] for case in cases]
    arrays = [column_of(values, case) for values, case in zip(drawn, cases, strict=True)]
    table = pa.table(arrays, [f"c{number}" for number in range(len(cases))])
    df = spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))
    asked = [
        key_hash_column(
            df.schema,
            [f"c{number}"],
            hash_scheme=case.scheme,
            key_types=None if case.key_type is None else [case.key_type],
        ).alias(f"c{number}")
        for number, case in enumerate(cases)
    ]
    found = df.select(*asked).toArrow()
    for number, (values, case) in enumerate(zip(drawn, cases, strict=True)):
        expected = [in_python(value, case) for value in values]
        assert found[f"c{number}"].to_pylist() == expected, name_of(case)


def test_a_column_of_uuids_needs_no_declaration() -> None:
    values = [UUID(int=i * 3**77) for i in range(20)]
    column = pa.array([value.bytes for value in values], pa.binary(16))
    expected = [key_hash(value) for value in values]
    assert key_hashes([column], key_types=["UUID"]).tolist() == expected
    assert key_hashes([column.cast(pa.uuid())]).tolist() == expected
    assert check_key_type(pa.uuid()) == "UUID"


WRONG: list[tuple[pa.DataType, str, str, Any]] = [
    (pa.string(), "java", "UUID", "123E4567-e89b-12d3-a456-426614174000"),
    (pa.string(), "java", "UUID", "123e4567e89b12d3a456426614174000"),
    (pa.binary(), "java", "UUID", b"123"),
    (pa.string(), "java", "BigInteger", "+1"),
    (pa.string(), "java", "BigInteger", "01"),
    (pa.string(), "java", "BigInteger", "-0"),
    *(
        (pa.string(), "java", "BigDecimal", text)
        for text in (
            "-0",
            "01",
            "+1",
            "1.",
            ".5",
            "0.0000001",
            "0.0000000",
            "1e3",
            "1E3",
            "1E+0",
            "1E-3",
            "10E+3",
            "1.5E+1",
            "1.50E+2",
            "0E+0",
            "0E-6",
            "-0E+1",
            "-0.0",
            "",
            "NaN",
            "1 ",
        )
    ),
    (pa.string(), "java", "Character", "😀"),
    (pa.string(), "java", "Character", ""),
    (longs, "java", "Character", -1),
    (longs, "java", "LocalTime", DAY),
    (longs, "java", "LocalDate", 2**62),
    (pa.decimal128(9, 2), "java", "BigDecimal(9,1)", Decimal("1.25")),
    (pa.string(), "flink-sql", "CHAR(2)", "abc"),
    (longs, "flink-sql", "TIME(3)", 1),
    (longs, "flink-sql", "TIMESTAMP(3)", 1),
]
# The first value of each type.
IN_EACH_RUN = [
    next(wrong for wrong in WRONG if wrong[:3] == of_type)
    for of_type in dict.fromkeys(wrong[:3] for wrong in WRONG)
]


def test_a_value_that_the_type_cannot_hold_is_refused() -> None:
    """Nothing is rounded, and each value has one representation."""
    for kind, scheme, key_type, value in WRONG:
        with pytest.raises(InvalidArgumentError):
            key_hash(value, key_type=key_type, hash_scheme=scheme)
        with pytest.raises(InvalidArgumentError):
            key_hashes([pa.array([value], kind)], hash_scheme=scheme, key_types=[key_type])


@pytest.mark.usefixtures("uncompiled")  # an error for each value, each with a query of its own
@pytest.mark.parametrize(
    ("kind", "scheme", "key_type", "value"),
    [
        pytest.param(*wrong, marks=[] if wrong in IN_EACH_RUN else pytest.mark.long)
        for wrong in WRONG
    ],
)
def test_spark_refuses_a_value_that_the_type_cannot_hold(
    spark: SparkSession, kind: pa.DataType, scheme: str, key_type: str, value: Any
) -> None:
    df = spark.createDataFrame(pa.table({"k": pa.array([value], kind)}))
    ask = partial(key_hash_column, df.schema, ["k"], hash_scheme=scheme, key_types=[key_type])
    with pytest.raises(Exception, match=r"a key|a value"):
        df.select(ask()).collect()


@pytest.mark.parametrize(
    ("kind", "key_type", "scheme"),
    [
        (pa.list_(pa.int32()), "int[]", "java"), (pa.binary(), None, "java"),
        (pa.list_(pa.binary()), None, "java"), (pa.struct([("a", pa.binary())]), None, "pyflink"),
        (pa.list_(pa.int64()), "int[]", "pyflink"), (pa.decimal128(9, 2), "BigInteger", "java"),
        (pa.binary(15), "UUID", "java"), (pa.int64(), "UUID", "java"), (pair, "List", "java"),
        (pair, "Tuple3<Integer, String, Long>", "java"), (pair, None, "flink-sql"),
        (pa.list_(pa.int32()), None, "flink-sql"), (pa.uuid(), None, "flink-sql"),
    ],
)  # fmt: skip
def test_a_column_that_cannot_hold_the_key_type_is_refused(
    kind: pa.DataType, key_type: str | None, scheme: str
) -> None:
    with pytest.raises(UnsupportedTypeError):
        check_key_type(kind, scheme, key_type)


@given(st.sampled_from(CARRIED))
def test_a_recorded_name_means_itself(case: Carried) -> None:
    """A recorded type name can be declared again with the same result."""
    recorded = check_key_type(case.type, case.scheme, case.key_type)
    assert check_key_type(case.type, case.scheme, recorded) == recorded


ELEMENTS = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.float16(),
    pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.null(), pa.date64(),
    pa.decimal256(40, 2), pa.list_(pa.int32()), pa.dictionary(pa.int8(), pa.string()),
]  # fmt: skip
SAID = (
    "boolean", "byte", "short", "int", "long", "float", "double", "char", "Character", "String",
    "UUID", "Object", "BigDecimal", "List", "Row", "Map", "nothing", "int[]",
)  # fmt: skip


@given(st.sampled_from(ELEMENTS), st.sampled_from(SAID), st.sampled_from(["java", "pyflink"]))
def test_lists_declared_as_any_array_are_hashed_or_refused_by_name(
    element: pa.DataType, said: str, scheme: str
) -> None:
    for kind, name in (
        (pa.list_(element), f"{said}[]"),
        (pa.list_(element), f"List<{said}>"),
        (pa.list_(pa.list_(element)), f"List<{said}[]>"),
        (pa.struct([("a", pa.list_(element))]), f"Row<{said}[]>"),
        (pa.map_(pa.string(), pa.list_(element)), f"Map<String, {said}[]>"),
    ):
        try:
            hashes = key_hashes([pa.array([], kind)], hash_scheme=scheme, key_types=[name])
        except InvalidArgumentError:
            continue
        assert hashes.tolist() == []
