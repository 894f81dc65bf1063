"""The Java expression of a hashCode() gives what Java gives, and nothing else is accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.types.flink_types import (
    ArrayType,
    EnumType,
    FlinkType,
    ListType,
    PojoField,
    PojoType,
    Scalar,
    Subclass,
    TupleType,
)
from statestore.interop.flink.types.java_hashes import java_hash_codes
from tests.interop.flink.limits import in_time

LONG, TEXT, INT = Scalar("Long"), Scalar("String"), Scalar("Integer")
NAN = float("nan")


def pojo(**fields: FlinkType) -> PojoType:
    return PojoType(
        "a.Key", tuple(PojoField(name, "a.Key", value) for name, value in fields.items())
    )


COLUMNS: dict[str, tuple[FlinkType, list[Any]]] = {
    "id": (INT, [0, 7, -1, -(2**31), 1 << 30]),
    "big": (LONG, [0, -1, 1 << 40, -(2**63), 123_456_789_012]),
    "name": (TEXT, ["", "ab", None, "ü😀", "x"]),
    "d": (Scalar("Double"), [0.0, -0.0, 1.5, NAN, 1e300]),
    "f": (Scalar("Float"), [0.0, 1.5, -0.0, NAN, 3.0]),
    "flag": (Scalar("Boolean"), [True, False, True, False, True]),
    "s": (Scalar("Short"), [1, -2, 3, -(2**15), 0]),
    "b": (Scalar("Byte"), [1, -1, 127, -128, 0]),
    "c": (Scalar("Character"), [97, 0, 0xFFFF, 122, 49]),
    "array": (Scalar("int[]"), [[], [1, 2], None, [-1], [3, 3, 3]]),
    "text": (ArrayType("a", TEXT), [[], ["a", None], None, ["b"], ["c", "d"]]),
    "texts": (Scalar("String[]"), [[], ["a", None], None, ["b"], ["c", "d"]]),
    "raw": (Scalar("byte[]"), [b"", b"\x01\xfe", None, b"\xff", b"\3"]),
    "box": (LONG, [None, 5, -1, 1 << 40, 0]),
    "list": (ListType(LONG), [[], [1, -1], None, [1 << 40], [2]]),
    "codes": (Scalar("char[]"), [[], [1, 2], None, [0xFFFF], [3, 3, 3]]),
}
KEY = pojo(**{name: flink_type for name, (flink_type, _) in COLUMNS.items()})
KEYS = pa.array(
    [
        dict(zip(COLUMNS, values, strict=True))
        for values in zip(*(values for _, values in COLUMNS.values()), strict=True)
    ],
    KEY.arrow_type(),
)

JAVA = {
    "31 * id + s": [1, 215, -28, 2147450880, -1073741824],
    "31 * Objects.hashCode(name) + id": [0, 96262, -1, -2085016447, 1073745544],
    "31 * name.hashCode() + this.id": [0, 96262, -1, -2085016447, 1073745544],
    "(int) (big ^ (big >>> 32))": [0, 0, 256, -2147483648, -1097262584],
    "id ^ s << 3 | b & 0x7f": [9, -1, -1, 2147221504, 1073741824],
    "Objects.hash(id, big, name, d, flag, box)": [
        *(887541842, -967036503, 1665235123, -1862344115, 1956895874),
    ],
    "31 * Arrays.hashCode(array) + Arrays.hashCode(text) - Arrays.hashCode(raw)": [
        *(31, 33792, 0, 1029, 1019966),
    ],
    "31 * Arrays.hashCode(array) + Arrays.hashCode(texts) - Arrays.hashCode(raw)": [
        *(31, 33792, 0, 1029, 1019966),
    ],
    "31 * (name != null ? name.hashCode() : 0) + (flag ? 1 : 0)": [1, 96255, 1, 62467201, 3721],
    "Double.hashCode(d) + Float.hashCode(f) * Boolean.hashCode(flag)"
    " + Long.hashCode(id) + Integer.hashCode(id)": [
        *(0, -1967128562, -1074266113, -893911041, 1777832352),
    ],
    "Character.hashCode(c) * 31 + c + Short.hashCode(s) + Byte.hashCode(b)": [
        *(3106, -3, 2097250, -28992, 1568),
    ],
    "2 + 3 * id - -4 ^ ~s >> 1 >>> 2 << 1": [
        *(2147483640, 27, 2147483645, -2147475464, -1073741832),
    ],
    "id * id * 2147483647 + -2147483648": [-2147483648, -49, -1, -2147483648, -2147483648],
    "Objects.hashCode(list) * 17 + Objects.hash(list, name)": [1009, 51682, 961, 2029808, 2665],
    "0xFFFFFFFF ^ id + (int) 0x7fffffffffffffffL + (int) 1_000L": [
        *(-1000, -1007, -999, 2147482648, -1073742824),
    ],
    "big == 0 ? id : id != 7 ? (int) big : 3": [0, 3, 0, 0, -1097262572],
    "(int) ((null == box ? 0L : box) * 31L + id)": [0, 162, -32, -2147483648, 1073741824],
    "(int) (big >> 33) + (int) (big << 65) + (id >> 33) + (id >>> 31)": [
        *(0, 0, 128, -2147483647, -1657654218),
    ],
    "Arrays.hashCode(codes)": [1, 994, 0, 31 + 0xFFFF, 31**3 + 3 * 31**2 + 3 * 31 + 3],
}
"""Expressions, and what Java 17 gives for the five keys."""


@pytest.mark.parametrize(("text", "codes"), JAVA.items(), ids=JAVA)
def test_an_expression_gives_what_java_gives(text: str, codes: list[int]) -> None:
    found = java_hash_codes(text, KEY, KEYS)
    assert found.dtype == np.int32
    assert found.tolist() == codes
    assert java_hash_codes(text, KEY, KEYS.slice(0, 0)).tolist() == []


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_arithmetic_wraps_like_java(small: int, big: int) -> None:
    key = pojo(a=INT, b=LONG)
    column = pa.array([{"a": small, "b": big}], key.arrow_type())
    (code,) = java_hash_codes("(int) (31 * a * b - (b >>> 7) + (a << 5))", key, column).tolist()
    shifted = (small << 5) + 2**31 & 2**32 - 1
    product = ((31 * small + 2**31 & 2**32 - 1) - 2**31) * big
    exact = product - ((big & 2**64 - 1) >> 7) + shifted - 2**31
    assert code == (exact + 2**31 & 2**32 - 1) - 2**31


def test_fields_of_fields_have_names() -> None:
    key = TupleType("Tuple2", (pojo(inner=pojo(x=INT)), INT))
    column = pa.array([{"f0": {"inner": {"x": 5}}, "f1": 2}], key.arrow_type())
    assert java_hash_codes("31 * f0.inner.x + f1", key, column).tolist() == [157]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"at character 1 \(its end\): expected a name or a number"),
        ("31 * ", r"at character 6 \(its end\): expected a name or a number"),
        ("31 * (id", r"expected '\)'"),
        ("id id", r"at character 4 \(id\): unexpected text"),
        ("id / 2", r"at character 4 \(/ 2\): unexpected text"),
        ("id + 'a'", r"at character 6 \('a'\): expected a name or a number"),
        ("flag ? 1", "expected ':'"),
        ("4294967296", "4294967296 is too large"),
        ("0x100000000", "0x100000000 is too large"),
        ("017", "017 is octal in Java"),
        ("(" * 200 + "id" + ")" * 200, "nested more than 30 levels deep"),
        ("id + " * 2000 + "id", "a recipe has 10002 characters: use at most 4000"),
        ("nobody", "have no field 'nobody'; the fields are id, big"),
        ("id.nobody", "keys of Integer have no field 'nobody'; the fields are none"),
        ("name", "the recipe needs a whole number instead of name: use name.hashCode()"),
        ("flag + 1", r"\+ needs a whole number instead of flag"),
        ("null", "instead of null"),
        ("id == 1", "instead of a condition"),
        ("big", "gives a long, and a hash is an int: cast it"),
        ("31 * id + big", "gives a long, and a hash is an int: cast it"),
        ("this.hashCode()", "cannot use the hashCode.. that it defines"),
        ("id ? 1 : 2", "neither a boolean nor a test"),
        ("name.length()", "cannot call a field.length with 0 values: use"),
        ("System.exit(1)", "have no field 'System'"),
        ("Objects.equals(id, id)", "cannot call Objects.equals with 2 values: use"),
        ("Objects.hash()", "cannot call Objects.hash with 0 values: use"),
        ("Arrays.hashCode(id)", "needs a field that is an array"),
        ("Integer.hashCode(big)", "Integer.hashCode in a recipe needs a Integer"),
        ("Double.hashCode(id)", "Double.hashCode in a recipe needs a Double"),
        ("null.x", "asks for 'x' of a value without fields"),
        ("__import__('os')", r"at character 1[0-9] \(.*expected a name or a number|unexpected"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        java_hash_codes(text, KEY, KEYS)


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        (EnumType("a.E", ("A",)), "x.hashCode()", "enum E differ in every Java process"),
        (EnumType("a.E", ("A",)), "x.ordinal", "enum E differ in every Java process"),
        (Scalar("int[]"), "x.hashCode()", "their hash depends on the job's own class"),
        (pojo(a=INT), "x.hashCode()", "their hash depends on the job's own class"),
        (
            PojoType("a.B", (), (), (Subclass("a.C", pojo(a=INT)),)),
            "x.a",
            "has subclasses, which can have other hashes",
        ),
    ],
    ids=str,
)
def test_a_field_without_a_known_hash_is_refused(field: FlinkType, text: str, said: str) -> None:
    key = pojo(x=field)
    with pytest.raises(UnsupportedTypeError, match=said):
        java_hash_codes(text, key, pa.array([], key.arrow_type()))


@given(st.text(alphabet="id+*-^(). 1x0LlnameObjects,hashCd?:=<>", max_size=40))
def test_any_text_is_a_program_or_a_typed_error(text: str) -> None:
    try:
        codes = java_hash_codes(text, KEY, KEYS)
    except (InvalidArgumentError, UnsupportedTypeError):
        return
    assert codes.dtype == np.int32
    assert len(codes) == 5


def test_a_long_expression_is_computed_soon() -> None:
    with in_time():
        assert java_hash_codes("+".join(["id"] * 1000), KEY, KEYS).tolist()[1] == 7000
        with pytest.raises(InvalidArgumentError):
            java_hash_codes("-" * 3990 + "name", KEY, KEYS)
