"""The parts of a state: which column roles each kind has."""

from __future__ import annotations

from typing import Any

import pytest

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.format.schema import Field, Schema
from statestore.format.state import KeyedState, OperatorState, StateKind, TimeDomain
from statestore.jobgraph.redistribution import RedistributionMode

ARRAY = {"type": "array", "elementType": "long", "containsNull": True}
COLUMNS: dict[str, Any] = {
    "user": "string",
    "site": "long",
    "window": "timestamp",
    "country": "string",
    "at": "long",
    "total": "double",
    "items": ARRAY,
}
WITH_ENTRY = {StateKind.LIST: "at", StateKind.MAP: "country", StateKind.TIMERS: "window"}


def schema(columns: dict[str, Any] | None = None) -> Schema:
    return Schema(tuple(Field(name, kind) for name, kind in (columns or COLUMNS).items()))


MAP = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
WITH_MAP = schema({**COLUMNS, "counts": MAP})
WITH_MAPS = schema({**COLUMNS, "items": {**ARRAY, "elementType": MAP}})


def keyed(**changes: Any) -> KeyedState:
    known: dict[str, Any] = {
        "uid": "u",
        "name": "n",
        "kind": StateKind.VALUE,
        "schema": schema(),
        "key": ("user",),
        "key_types": ("String",),
        "max_parallelism": 128,
        "hash_scheme": "java",
        "time_domain": TimeDomain.EVENT if changes.get("kind") is StateKind.TIMERS else None,
    }
    return KeyedState(**(known | changes))


def operator(*columns: str) -> OperatorState:
    return OperatorState(
        uid="u",
        name="n",
        mode=RedistributionMode.UNION,
        schema=schema(dict.fromkeys(columns, "long")),
    )


def test_identity_is_key_namespace_and_entry() -> None:
    """This is their order. All other columns are values, in stored order."""
    state = keyed(
        kind=StateKind.MAP,
        key=("user", "site"),
        key_types=("String", "Long"),
        namespace=("window",),
        entry=("country",),
    )
    assert state.identity == ("user", "site", "window", "country")
    assert state.values == ("at", "total", "items")


@pytest.mark.parametrize("kind", StateKind)
def test_a_kind_has_an_entry_column_or_none(kind: StateKind) -> None:
    """A list has its position, a map its key, and timers their time. The other kinds have none."""
    column = WITH_ENTRY.get(kind)
    state = keyed(kind=kind, entry=(column,) if column else ())
    assert state.kind is kind
    with pytest.raises(InvalidArgumentError, match=f"{kind} state requires"):
        keyed(kind=kind, entry=() if column else ("at",))


def test_timers_have_a_time_domain_and_nothing_else_has() -> None:
    for kind, domain in ((StateKind.TIMERS, None), (StateKind.VALUE, TimeDomain.EVENT)):
        with pytest.raises(InvalidArgumentError, match="time domain"):
            keyed(kind=kind, entry=("at",) if domain is None else (), time_domain=domain)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": ()}, "name at least one key column"),
        ({"key": ("nobody",)}, "no column 'nobody'; the columns are user, site"),
        ({"namespace": ("nobody",)}, "no column 'nobody'"),
        ({"key": ("user", "user"), "key_types": ("String",) * 2}, "'user' has two roles"),
        ({"namespace": ("user",)}, "'user' has two roles"),
        ({"kind": StateKind.MAP, "entry": ("user",)}, "'user' has two roles"),
        ({"key_types": ()}, "1 key columns but 0 key types"),
        (
            {"schema": schema({"user": "string", "key_group": "long"})},
            "'key_group' is reserved for",
        ),
        (
            {"schema": schema({"user": "string", "Key_Group": "long"})},
            "'Key_Group' is reserved for",
        ),
    ],
)
def test_an_invalid_role_is_refused(changes: dict[str, Any], message: str) -> None:
    """The message names the state, the operator and the column."""
    with pytest.raises(InvalidArgumentError, match=message):
        keyed(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": StateKind.LIST, "entry": ("country",)}, "position column 'country' has type st"),
        ({"kind": StateKind.TIMERS, "entry": ("country",)}, "timestamp column 'country' has type"),
        (
            {"kind": StateKind.MAP, "entry": ("counts",), "schema": WITH_MAP},
            "'counts' has type map<string, long>",
        ),
        (
            {"namespace": ("counts",), "schema": WITH_MAP},
            "'counts' has type map<string, long>, which cannot be sorted",
        ),
        (
            {"key": ("counts",), "schema": WITH_MAP},
            "'counts' has .* entries of a map have no order.* other key groups than the map",
        ),
        ({"key": ("items",), "schema": WITH_MAPS}, "'items' has type array<map<string, long>>"),
    ],
)
def test_an_invalid_type_for_a_role_is_refused(changes: dict[str, Any], message: str) -> None:
    """Positions are integers, times are times, and the columns of an identity must be
    comparable.
    """
    with pytest.raises(UnsupportedTypeError, match=message):
        keyed(**changes)


def test_lists_can_identify_rows() -> None:
    """They have an order if their elements do."""
    state = keyed(namespace=("items",))
    assert "items" in state.identity


@pytest.mark.parametrize("column", ["subtask", "position", "Position"])
def test_elements_have_no_reserved_columns(column: str) -> None:
    """Spark could not distinguish them."""
    with pytest.raises(InvalidArgumentError, match=f"'{column}' is reserved for the store"):
        operator("partition", column)


def test_reserved_names_of_the_other_kind_are_available() -> None:
    """A keyed state has no subtask column, and elements have no key group."""
    names = ("user", "subtask", "position")
    assert keyed(schema=schema(dict.fromkeys(names, "long"))).schema.names == names
    assert operator("key_group").schema.names == ("key_group",)


@pytest.mark.parametrize("enum", [StateKind, TimeDomain])
def test_an_unknown_value_lists_the_valid_ones(enum: type[StateKind]) -> None:
    """Every invalid argument has such an error."""
    with pytest.raises(InvalidArgumentError, match=r"'nonsense': use one of '(value|event)', "):
        enum("nonsense")


def test_states_have_a_display_name() -> None:
    """This is the form that messages use."""
    assert str(keyed()) == "state 'n' of operator 'u'"
    assert str(operator("a")) == "union state 'n' of operator 'u'"
