"""When a row expires, and which TTLs a state can have."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, MalformedManifestError, UnsupportedTypeError
from statestore.format.layers import change_state
from statestore.format.manifest import KeyedEntry, Manifest, TableRef, Writer
from statestore.format.manifest_json import (
    keyed_from_json,
    keyed_to_json,
    manifest_from_json,
    manifest_to_json,
)
from statestore.format.names import keyed_table
from statestore.format.schema import Field, Schema
from statestore.format.state import (
    KeyedState,
    StateKind,
    TimeToLive,
    TtlUpdate,
    TtlVisibility,
    check_time,
    is_expired,
)
from tests.support.vectors import cases

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
LONGS = st.integers(LONG_MIN, LONG_MAX)
DURATIONS = st.integers(1, LONG_MAX)
STATE = KeyedState(
    uid="u",
    name="n",
    kind=StateKind.MAP,
    schema=Schema(
        (
            Field("k", "string"),
            Field("m", "long"),
            Field("v", "double"),
            Field("at", "long"),
            Field("when", "timestamp"),
            Field("local", "timestamp_ntz"),
        )
    ),
    key=("k",),
    entry=("m",),
    key_types=("String",),
    max_parallelism=128,
    hash_scheme="java",
)


def test_expiry_equals_flinks() -> None:
    """This covers every golden case."""
    for case in cases("ttl"):
        asked = case["in"]
        assert asked["op"] == "ttl"
        assert is_expired(asked["ts"], asked["ttl"], asked["now"]) is case["out"]


@given(LONGS, DURATIONS, LONGS)
def test_a_row_expires_at_its_end_which_is_never_past_the_last_millisecond(
    at: int, duration: int, now: int
) -> None:
    """The same rule is computed with numbers that cannot overflow."""
    assert is_expired(at, duration, now) == (min(at + duration, LONG_MAX) <= now)


@given(LONGS, DURATIONS, LONGS, LONGS)
def test_an_expired_row_stays_expired(at: int, duration: int, now: int, later: int) -> None:
    """A later row, or a longer TTL, never expires earlier."""
    first, last = sorted((now, later))
    assert is_expired(at, duration, last) or not is_expired(at, duration, first)
    assert is_expired(first, duration, at) or not is_expired(last, duration, at)


def test_a_ttl_accepts_strings_and_has_flinks_defaults() -> None:
    """It updates on create and write, and never returns expired rows."""
    plain = TimeToLive("5ms", "at")
    assert plain.update is TtlUpdate.ON_CREATE_AND_WRITE
    assert plain.visibility is TtlVisibility.NEVER_RETURN_EXPIRED
    assert plain.hides
    given_strings: Any = ("on_read_and_write", "return_expired_if_not_cleaned_up")
    other = TimeToLive("5ms", "at", *given_strings)
    assert other.update is TtlUpdate.ON_READ_AND_WRITE
    assert not other.hides
    assert str(plain) == "5ms after at, on_create_and_write, never_return_expired"


@pytest.mark.parametrize(
    ("duration", "problem"),
    [
        ("0", "invalid TTL duration '0'"),
        (timedelta(0), "of at least 1 ms"),
        (timedelta(-1), "is negative"),
        (f"{2**63}ms", "is too long"),
        ("1.5ms", "not a whole number of milliseconds"),
        ("1", "'1' is not a duration"),
        *((value, "pass a timedelta, or text such as '36h'") for value in (1, 1.5, True, None)),
    ],
)
def test_an_invalid_duration_is_refused(duration: Any, problem: str) -> None:
    """It has at least 1 millisecond, and their number fits into 64 bits."""
    with pytest.raises(InvalidArgumentError, match=problem):
        TimeToLive(duration, "at")


def test_equal_durations_are_equal_in_any_form() -> None:
    forms = ("36h", "1.5d", "129600s", timedelta(days=1, hours=12))
    assert {TimeToLive(form, "at") for form in forms} == {TimeToLive("36h", "at")}
    assert TimeToLive("36h", "at").duration_ms == 129_600_000


@pytest.mark.parametrize(
    "bad", [{"column": ""}, {"column": None}, {"update": "x"}, {"visibility": 3}]
)
def test_other_values_are_refused_by_name(bad: dict[str, Any]) -> None:
    """The message lists the valid values."""
    with pytest.raises(InvalidArgumentError, match="TTL"):
        TimeToLive(**({"duration": "1ms", "column": "at"} | bad))


@pytest.mark.parametrize("now", [2**63, -(2**63) - 1, 1.0, True, "1"])
def test_a_clock_is_a_long(now: Any) -> None:
    """Fractional seconds are refused, because they are a likely mistake."""
    with pytest.raises(InvalidArgumentError, match="now_ms"):
        check_time(now)


def test_a_clock_can_be_any_long() -> None:
    """This includes times before 1970."""
    assert [check_time(now) for now in (LONG_MIN, -1, 0, LONG_MAX)] == [LONG_MIN, -1, 0, LONG_MAX]


@pytest.mark.parametrize("column", ["at", "when"])
def test_the_ttl_column_is_a_long_or_timestamp_among_the_values(column: str) -> None:
    """It must be a value, because the identity of a row never changes."""
    assert replace(STATE, ttl=TimeToLive("1ms", column)).ttl == TimeToLive("1ms", column)


@pytest.mark.parametrize(
    ("column", "error"),
    [
        ("m", InvalidArgumentError),
        ("k", InvalidArgumentError),
        ("x", InvalidArgumentError),
        ("v", UnsupportedTypeError),
        ("local", UnsupportedTypeError),
    ],
)
def test_no_other_column_can_be_the_ttl_column(column: str, error: type[Exception]) -> None:
    """Keys, entries, missing columns and other types are refused."""
    with pytest.raises(error, match=f"'n' of operator 'u'.*{column!r}"):
        replace(STATE, ttl=TimeToLive("1ms", column))


def test_layers_of_changes_have_no_ttl_of_their_own() -> None:
    """An expired row of a layer still hides an older row."""
    assert change_state(replace(STATE, ttl=TimeToLive("1ms", "at"))) == change_state(STATE)


@pytest.mark.parametrize("update", TtlUpdate)
@pytest.mark.parametrize("visibility", TtlVisibility)
def test_a_manifest_keeps_the_ttl(update: TtlUpdate, visibility: TtlVisibility) -> None:
    """It also has a version that readers without TTL support refuse."""
    ttl = TimeToLive(f"{LONG_MAX}ms", "when", update, visibility)
    new, old = manifest_of(replace(STATE, ttl=ttl)), manifest_of(STATE)
    raw = manifest_to_json(new)
    assert manifest_from_json(raw, name="m") == new
    assert b'"format_version":2' in raw
    plain = manifest_to_json(old)
    assert b'"format_version":1' in plain
    assert b"ttl" not in plain


@pytest.mark.parametrize(
    "bad",
    [
        {"duration_ms": 0},
        {"duration_ms": "1"},
        {"column": "k"},
        {"update": "x"},
        {"visibility": None},
    ],
)
def test_a_damaged_ttl_has_its_position_named(bad: dict[str, Any]) -> None:
    """Every other member of a manifest has such an error."""
    document = keyed_to_json(entry_of(replace(STATE, ttl=TimeToLive("1ms", "at"))))
    document["ttl"] = document["ttl"] | bad
    for name in ("key", "key_types", "namespace", "entry"):
        document[name] = list(document[name])
    with pytest.raises(MalformedManifestError, match=r"\$"):
        keyed_from_json(document, "u", "m")


def entry_of(state: KeyedState) -> KeyedEntry:
    return KeyedEntry(state, TableRef("parquet", keyed_table(state.uid, state.name)), ())


def manifest_of(state: KeyedState) -> Manifest:
    return Manifest(
        store_id="s",
        checkpoint_id=1,
        parallelism=1,
        started_at_ms=0,
        created_at_ms=0,
        writer=Writer("r", "w", "t"),
        keyed=(entry_of(state),),
        operator=(),
    )
