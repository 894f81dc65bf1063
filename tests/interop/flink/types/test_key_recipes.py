"""A recipe gives the hash that Java gives, and nothing else is accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink import register_key_hash
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.java_types import (
    ArrayType,
    EnumType,
    ListType,
    Scalar,
    TupleType,
)
from statestore.interop.flink.types.key_recipes import is_computable, recipe_hash_codes
from statestore.interop.flink.types.pojos import PojoField, PojoType, Subclass

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
    "box": (LONG, [None, 5, -1, 1 << 40, 0]),
    "list": (ListType(LONG), [[], [1, -1], None, [1 << 40], [2]]),
    "ids": (Scalar("int[]"), [[], [1, 2], None, [-1], [3, 3, 3]]),
}
KEY = pojo(**{name: flink_type for name, (flink_type, _) in COLUMNS.items()})
ROWS = [
    dict(zip(COLUMNS, values, strict=True))
    for values in zip(*(values for _, values in COLUMNS.values()), strict=True)
]
KEYS = pa.array(ROWS, KEY.arrow_type())

JAVA = {
    "record(name, id)": [0, 96262, -1, -2085016447, 1073745544],
    "record(name,id)": [0, 96262, -1, -2085016447, 1073745544],
    "record(id)": [0, 7, -1, -2147483648, 1073741824],
    "objects(id, big, name, d, flag, box)": [
        *(887541842, -967036503, 1665235123, -1862344115, 1956895874),
    ],
    "record(name, box, flag, d, s, c, list)": [
        *(1136858320, 1762949423, 1625952371, 760954201, -1672848329),
    ],
    "objects(name, box, flag, d, s, c, list)": [
        *(-1415298641, -789207538, -926204590, -1791202760, 69962006),
    ],
    "lombok(flag, d, s, c, box, name, list)": [
        *(1265145186, -1898166254, 630195198, 500992110, -1292371882),
    ],
}
"""Recipes, and what Java 17 gives for the five keys; for Lombok with the code that it generates."""


@pytest.mark.parametrize(("recipe", "codes"), JAVA.items(), ids=JAVA)
def test_a_recipe_gives_what_java_gives(recipe: str, codes: list[int]) -> None:
    assert is_computable(recipe)
    found = recipe_hash_codes(recipe, KEY, KEYS)
    assert found.dtype == np.int32
    assert found.tolist() == codes
    assert recipe_hash_codes(recipe, KEY, KEYS.slice(0, 0)).tolist() == []


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_a_tuple_of_java_is_hashed_like_a_record(numbers: list[int]) -> None:
    key = TupleType("Tuple", (LONG,) * len(numbers))
    names = [f"f{place}" for place in range(len(numbers))]
    column = pa.array([dict(zip(names, numbers, strict=True))], key.arrow_type())
    codes = recipe_hash_codes(f"record({', '.join(names)})", key, column)
    assert codes.tolist() == key.hash_codes(column).tolist()


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("", "the recipe '' is none of scala, record"),
        ("31 * id", "is none of scala, record"),
        ("java:31 * id", "is none of scala, record"),
        ("record", "is none of scala, record"),
        ("record(id", "is none of scala, record"),
        ("kotlin(id)", "is none of scala, record"),
        ("record(id, objects(id))", "is none of scala, record"),
        ("record()", "keys of Key.* have no field ''; the fields are id, big, name"),
        ("record(id,)", "have no field ''"),
        ("record(nobody)", "have no field 'nobody'"),
        ("record(id.x)", "have no field 'id.x'"),
        ("python:nobody", r"no function is registered as 'nobody': call register_key_hash\("),
    ],
)
def test_anything_else_is_refused_with_the_reason(recipe: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        recipe_hash_codes(recipe, KEY, KEYS)


@pytest.mark.parametrize("recipe", ["", "java:31 * id", "record", "kotlin(id)", "python:nobody"])
def test_a_recipe_of_another_release_or_process_cannot_be_computed(recipe: str) -> None:
    assert not is_computable(recipe)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (EnumType("a.E", ("A",)), "enum E differ in every Java process"),
        (Scalar("int[]"), "their hash depends on the job's own class"),
        (ArrayType("a", TEXT), "their hash depends on the job's own class"),
        (pojo(a=INT), "their hash depends on the job's own class"),
    ],
    ids=str,
)
def test_a_field_without_a_known_hash_is_refused(field: FlinkType, said: str) -> None:
    key = pojo(x=field)
    with pytest.raises(UnsupportedTypeError, match=said):
        recipe_hash_codes("record(x)", key, pa.array([], key.arrow_type()))


def test_a_class_with_subclasses_is_refused() -> None:
    key = PojoType("a.B", (), (), (Subclass("a.C", pojo(a=INT)),))
    with pytest.raises(UnsupportedTypeError, match="has subclasses, which can have other hashes"):
        recipe_hash_codes("record(a)", key, pa.array([], key.arrow_type()))


def test_a_function_gets_each_key_and_the_hashes_of_its_fields() -> None:
    calls: list[tuple[Any, Any]] = []

    def hash_key(key: Any, hashes: Any) -> int:
        calls.append((key, hashes))
        code: int = (31 * hashes["name"] + len(key["ids"] or ())) << 32 | key["id"] & 0xFFFFFFFF
        return code

    register_key_hash("id", hash_key)
    assert is_computable("python:id")
    codes = recipe_hash_codes("python:id", KEY, KEYS)
    assert codes.dtype == np.int32
    assert codes.tolist() == COLUMNS["id"][1]
    assert [key["name"] for key, _ in calls] == COLUMNS["name"][1]
    by_record = {
        name: recipe_hash_codes(f"record({name})", KEY, KEYS).tolist()
        for name in COLUMNS
        if name != "ids"
    }
    assert [hashes for _, hashes in calls] == [
        {name: codes[place] for name, codes in by_record.items()} for place in range(len(ROWS))
    ]


def test_a_function_hashes_keys_without_fields() -> None:
    register_key_hash("plain", lambda key, hashes: -7 if key is None and not hashes else key)
    assert recipe_hash_codes("python:plain", LONG, pa.array([5, None, 2**40 + 3])).tolist() == [
        *(5, -7, 3),
    ]


def test_a_function_that_gives_no_number_is_refused() -> None:
    register_key_hash("text", lambda key, hashes: key["name"])
    with pytest.raises(InvalidArgumentError, match="'text' returned something other than a whole"):
        recipe_hash_codes("python:text", KEY, KEYS)


def test_a_function_cannot_see_a_date_that_python_lacks() -> None:
    register_key_hash("day", lambda key, hashes: 0)
    key = TupleType("Tuple1", (Scalar("LocalDate"),))
    days = pa.array([3_000_000], pa.int32()).cast(pa.date32())
    column = pa.StructArray.from_arrays([days], fields=list(key.arrow_type()))
    with pytest.raises(UnsupportedTypeError, match="a key is not a value of Python"):
        recipe_hash_codes("python:day", key, column)
