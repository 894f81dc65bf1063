"""Old values of Avro fit a new schema as Avro resolves the two."""

from __future__ import annotations

import json
from typing import Any

import pytest

from statestore.contract.avro_schemas import resolve_schemas
from statestore.contract.model import Fit, Level

AS_IS, MIGRATION, DROPS = Level.AS_IS, Level.MIGRATION, Level.DROPS
UNKNOWN, INCOMPATIBLE = Level.UNKNOWN, Level.INCOMPATIBLE


def fit(old: Any, new: Any, *, is_generic: bool = False) -> Fit:
    return resolve_schemas(json.dumps(old), json.dumps(new), "value", is_generic=is_generic)


def record(*fields: dict[str, Any], name: str = "a.User", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


ID, NAME = {"name": "id", "type": "int"}, {"name": "name", "type": "string"}
LIST = record(ID, {"name": "next", "type": ["null", "User"]})
LONGER = record({**ID, "type": "long"}, {"name": "next", "type": ["null", "a.User"]})


@pytest.mark.parametrize(
    ("old", "new", "level"),
    [
        ("int", "int", AS_IS),
        ("int", "double", MIGRATION),
        ("long", "float", MIGRATION),
        ("long", "int", INCOMPATIBLE),
        ("string", "bytes", MIGRATION),
        ("string", ["null", "string"], MIGRATION),
        (["null", "string"], "string", INCOMPATIBLE),
        (["int", "long"], "long", MIGRATION),
        (["null", "int"], ["int", "null"], MIGRATION),
        (["null", "int"], ["null", "string"], INCOMPATIBLE),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, MIGRATION),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, INCOMPATIBLE),
        ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, INCOMPATIBLE),
        ({"type": {"type": "long"}}, "long", AS_IS),
        (record(ID), record({**ID, "doc": "a"}, doc="b"), AS_IS),
        (record(ID), record(ID, name="b.User"), MIGRATION),
        (record(ID), record(ID, name="a.Other"), INCOMPATIBLE),
        (record(ID), record(ID, name="a.Other", aliases=["User"]), MIGRATION),
        (record(ID, NAME), record(ID), DROPS),
        (record(ID), record(ID, {**NAME, "default": ""}), MIGRATION),
        (record(ID), record(ID, NAME), INCOMPATIBLE),
        (record(ID, NAME), record(ID, {**NAME, "name": "title", "aliases": ["name"]}), MIGRATION),
        (record(ID, NAME), record({**NAME, "aliases": ["id"]}), INCOMPATIBLE),
        (LIST, LIST, AS_IS),
        (LIST, LONGER, MIGRATION),
        (LONGER, LIST, INCOMPATIBLE),
        ({"type": "array"}, {"type": "array", "items": "int"}, UNKNOWN),
        (record({"name": "a", "type": "Missing"}), "int", UNKNOWN),
    ],
)
def test_records_and_numbers(old: Any, new: Any, level: Level) -> None:
    found = fit(old, new)
    assert found.level == level, found
    assert bool(found.text) == (level != AS_IS)


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def test_symbols_and_sizes() -> None:
    assert fit(enum("A", "B"), enum("A", "B", "C")).level == MIGRATION
    assert fit(enum("A", "B"), enum("A")).level == INCOMPATIBLE
    assert fit(enum("A", "B"), enum("A", default="A")).level == DROPS
    four, eight = ({"type": "fixed", "name": "F", "size": size} for size in (4, 8))
    assert fit(four, four).level == AS_IS
    assert fit(four, eight).level == INCOMPATIBLE


def test_generic_records_keep_their_positions() -> None:
    """Flink reads them with the old schema, and writes their fields by position."""
    wide = {**ID, "type": "long"}
    assert fit(record(ID, NAME), record(wide, NAME), is_generic=True).level == MIGRATION
    for fields in ((NAME, ID), (ID, NAME, {**ID, "name": "age", "default": 1}), (ID,)):
        assert fit(record(ID, NAME), record(*fields), is_generic=True).level == INCOMPATIBLE
    assert fit("string", "bytes", is_generic=True).level == INCOMPATIBLE
    assert fit(enum("A", "B"), enum("A", default="A"), is_generic=True).level == INCOMPATIBLE


def test_what_cannot_be_parsed_fits_only_itself() -> None:
    deep = '{"type": "array", "items": ' * 9000 + '"int"' + "}" * 9000
    for text in (deep, "{"):
        assert resolve_schemas(text, text, "value", is_generic=False).level == AS_IS
        assert resolve_schemas(text, '"int"', "value", is_generic=False).level == UNKNOWN
