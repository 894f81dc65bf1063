"""Types of Flink's Scala API are replaced by types of Java, in values and in keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink import (
    FlinkOperator,
    export_savepoint,
    import_savepoint,
    open_savepoint,
)
from statestore.interop.flink.exporting.job_types import parse_class_mapping
from statestore.interop.flink.options import FlinkTarget
from statestore.interop.flink.types.base import FlinkType, nested_types
from statestore.interop.flink.types.java_types import Scalar, TupleType
from statestore.interop.flink.types.key_recipes import recipe_hash_codes
from statestore.interop.flink.types.pojos import PojoField, PojoType
from statestore.interop.flink.types.scala_types import (
    CaseClassType,
    OptionType,
    ScalaEnumType,
    TraversableType,
    TryType,
)
from statestore.keys.arrow import key_groups_of_hashes
from tests.interop.flink.written import written_savepoint

LONG, TEXT = Scalar("Long"), Scalar("String")
PAIR = CaseClassType("a.Pair", (TEXT, OptionType(LONG)))
PAIRS: list[dict[str, Any]] = [
    {"f0": "ann", "f1": 1},
    {"f0": "bob", "f1": None},
    {"f0": "", "f1": 1 << 40},
]
POJO = {"pojo": "b.Pair", "fields": ["name", "count"]}
COUNTED = [{"count": pair["f1"], "name": pair["f0"]} for pair in PAIRS]
PLAIN = CaseClassType("a.Plain", (TEXT, LONG))
PLAINS: list[dict[str, Any]] = [
    {"f0": name, "f1": number} for number, name in enumerate(("ann", "bob", "", "ü"))
]


def target(**classes: Any) -> FlinkTarget:
    named = {f"a.{name}": mapping for name, mapping in classes.items()}
    return FlinkTarget(version="2.3", written_by="1.20", classes=named)


def exported(folder: Path, place: Path, wanted: FlinkTarget, **options: Any) -> FlinkOperator:
    """Import a savepoint, export it for Flink 2, and return its operator."""
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    import_savepoint(str(place), store)
    done = export_savepoint(store, str(folder / "to"), target=wanted, **options)
    (operator,) = open_savepoint(done.savepoint).operators
    return operator


def with_values(folder: Path, value_type: FlinkType, values: list[Any]) -> Path:
    keys, column = pa.array(range(len(values))), pa.array(values, value_type.arrow_type())
    return written_savepoint(folder / "from", LONG, keys, column, value_type=value_type)


def values_of(operator: FlinkOperator) -> list[Any]:
    """Return the values of a state by key, and check that they have the type of its header."""
    by_key: dict[Any, Any] = {}
    for rows in operator.rows("count"):
        assert rows.value is not None
        by_key |= zip(rows.key.to_pylist(), rows.value.to_pylist(), strict=True)
    return [value for _, value in sorted(by_key.items())]


PAIR_POJO = PojoType(
    "b.Pair", (PojoField("count", "b.Pair", LONG), PojoField("name", "b.Pair", TEXT))
)
SORTED = {"pojo": "b.Pair", "fields": ["count", "name"]}


@pytest.mark.parametrize(
    ("before", "values", "classes", "after", "found"),
    [
        pytest.param(
            PLAIN, PLAINS, {"Plain": {"tuple": True}},
            TupleType("org.apache.flink.api.java.tuple.Tuple2", (TEXT, LONG)), PLAINS,
            id="a tuple",
        ),
        pytest.param(PAIR, PAIRS, {"Pair": POJO}, PAIR_POJO, COUNTED, id="a POJO"),
        pytest.param(
            CaseClassType("scala.Tuple2$mcJJ$sp", (LONG, LONG)), [{"f0": 1, "f1": 2}], {},
            TupleType("org.apache.flink.api.java.tuple.Tuple2", (LONG, LONG)), [{"f0": 1, "f1": 2}],
            id="a tuple of Scala",
        ),
        pytest.param(
            TraversableType("code", CaseClassType("a.Pair", (LONG, TEXT))),
            [[{"f0": 1, "f1": "x"}], []], {"Pair": SORTED}, None,
            [[{"count": 1, "name": "x"}], []],
            id="POJOs in a collection",
        ),
        pytest.param(
            ScalaEnumType("a.Color$", (("RED", 5), ("BLUE", 7))), ["BLUE", "RED"],
            {"Color$": {"enum": "b.Color"}}, None, ["BLUE", "RED"],
            id="an enum",
        ),
    ],
)  # fmt: skip
def test_values_get_types_of_java(
    before: FlinkType,
    values: list[Any],
    classes: dict[str, Any],
    after: FlinkType | None,
    found: list[Any],
    tmp_path: Path,
) -> None:
    place = with_values(tmp_path, before, values)
    operator = exported(tmp_path, place, target(**classes))
    (state,) = operator.states
    assert after is None or state.value == after
    scala = (CaseClassType, OptionType, ScalaEnumType, TraversableType)
    assert not any(isinstance(nested, scala) for nested in nested_types(state.value))
    assert values_of(operator) == found


@pytest.mark.parametrize(
    ("mapping", "key"),
    [
        ({"tuple": True}, TupleType("org.apache.flink.api.java.tuple.Tuple2", (TEXT, LONG))),
        ({**POJO, "hash": "record(name, count)"}, PAIR_POJO),
    ],
    ids=["tuple", "pojo"],
)
@pytest.mark.parametrize("most", [128, 720])
def test_keys_get_the_key_groups_of_their_new_class(
    mapping: dict[str, Any], key: FlinkType, most: int, tmp_path: Path
) -> None:
    codes = recipe_hash_codes("scala", PLAIN, pa.array(PLAINS, PLAIN.arrow_type()))
    groups = key_groups_of_hashes(codes, 128).tolist()
    keys, values = pa.array(PLAINS, PLAIN.arrow_type()), list(range(len(PLAINS)))
    place = written_savepoint(tmp_path / "from", PLAIN, keys, values, groups=groups)
    operator = exported(tmp_path, place, target(Plain=mapping), max_parallelism=most)
    assert operator.header is not None
    assert operator.header.key.flink_type == key
    found = {}
    for rows in operator.rows("count"):
        assert rows.value is not None
        for name, value in zip(rows.key.to_pylist(), rows.value.to_pylist(), strict=True):
            found[value] = (rows.key_group, tuple(sorted(map(str, name.values()))))
    expected = [tuple(sorted((pair["f0"], str(pair["f1"])))) for pair in PLAINS]
    assert [found[value][1] for value in values] == expected
    hashes = [_hash(mapping, pair["f0"], pair["f1"]) for pair in PLAINS]
    new = key_groups_of_hashes(pa.array(hashes, pa.int32()).to_numpy(), most).tolist()
    assert [found[value][0] for value in values] == new
    assert most != 128 or new != groups


def _hash(mapping: dict[str, Any], name: str, number: int) -> int:
    """Return ``31 * name.hashCode() + number``, as ``Tuple2`` and the recipe of the POJO say."""
    code = 0
    for letter in name:
        code = 31 * code + ord(letter)
    code = (31 * code + number) & 0xFFFFFFFF
    return code - (1 << 32) * (code >> 31)


@pytest.mark.parametrize(
    ("before", "values", "classes", "message"),
    [
        (PAIR, PAIRS, {}, r"class a\.Pair of Scala, .*name the tuple or pojo that replaces it"),
        (PAIR, PAIRS, {"Pair": {"enum": "b.E"}}, r"name the tuple or pojo that replaces it"),
        (PAIR, PAIRS, {"Pair": {"tuple": True}}, "Option<Long>.*as a field of a POJO"),
        (OptionType(LONG), [1], {}, "Option<Long>, which no type of Java replaces"),
        (TryType(LONG, Scalar("String")), [1], {}, "Try<Long>, which no type of Java replaces"),
        (PAIR, PAIRS, {"Pair": {"pojo": "b.P", "fields": ["a"]}}, "has 2 fields, but its POJO"),
        (
            TraversableType("code", CaseClassType("a.Pair", (TEXT, LONG))),
            [[{"f0": "x", "f1": 1}]],
            {"Pair": POJO},
            "not in the order of their names: map it to a tuple",
        ),
        (
            CaseClassType("a.Wide", (LONG,) * 26),
            [{f"f{n}": n for n in range(26)}],
            {"Wide": {"tuple": True}},
            "has at most 25",
        ),
    ],
)
def test_what_cannot_be_replaced_is_refused_before_anything_is_written(
    before: FlinkType, values: list[Any], classes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    place = with_values(tmp_path, before, values)
    with pytest.raises((UnsupportedTypeError, InvalidArgumentError), match=message):
        exported(tmp_path, place, target(**classes))
    assert not [*tmp_path.glob("to/*")]


def test_a_pojo_of_keys_needs_its_hash(tmp_path: Path) -> None:
    codes = recipe_hash_codes("scala", PLAIN, pa.array(PLAINS, PLAIN.arrow_type()))
    groups = key_groups_of_hashes(codes, 128).tolist()
    keys = pa.array(PLAINS, PLAIN.arrow_type())
    place = written_savepoint(tmp_path / "from", PLAIN, keys, [1, 2, 3, 4], groups=groups)
    with pytest.raises(UnsupportedTypeError, match=r"keys that become b\.Pair, .*hash ="):
        exported(tmp_path, place, target(Plain=POJO))


@pytest.mark.parametrize(
    "given",
    [
        "tuple",
        {},
        {"tuple": False},
        {"pojo": "b.P"},
        {"pojo": "b.P", "fields": "ab"},
        {"pojo": "b.P", "fields": ["a", "a"]},
        {"pojo": 1, "fields": ["a"]},
        {"enum": "b.E", "tuple": True},
        {"enum": "b.E", "other": 1},
        {"tuple": True, "hash": 5},
    ],
)
def test_a_mapping_of_another_form_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"the class 'a\.C' is mapped to"):
        parse_class_mapping({"a.C": given})
