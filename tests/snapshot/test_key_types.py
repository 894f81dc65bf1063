"""The type for hashing a key can be given, is stored with the state, and stays by default."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from statestore import StateStore, key_group_of
from statestore.errors import (
    InvalidArgumentError,
    SchemaMismatchError,
    StateStoreError,
    UnsupportedTypeError,
)
from statestore.snapshot.state_spec import Changes
from tests.support.stores import opened

SQL: dict[str, Any] = {"hash_scheme": "flink-sql", "max_parallelism": 128}
MOMENTS = [datetime(2026, 1, day, 12, 30, 15, 250_000) for day in range(1, 29)]


def groups_of(store: StateStore, key_type: Any, **options: Any) -> None:
    """Compare the key group of each stored row with the one computed from its key alone."""
    restored = store.restore(parallelism=1).keyed("u", "n").to_arrow(0)
    assert restored.num_rows
    for row in restored.to_pylist():
        assert row["key_group"] == key_group_of(
            row["k"], max_parallelism=128, key_type=key_type, **options
        )


@pytest.mark.parametrize("zone", [None, UTC])
@pytest.mark.parametrize("digits", [0, 1, 3, 6, 9])
def test_a_timestamp_has_the_given_precision(store: StateStore, digits: int, zone: Any) -> None:
    """The key groups are Flink's for that precision, and the state can be changed later."""
    moments = [m.replace(tzinfo=zone, microsecond=0) for m in MOMENTS]
    name = f"{'TIMESTAMP' if zone is None else 'TIMESTAMP_LTZ'}({digits})"
    rows = pa.table({"k": moments, "v": range(28)})
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "n", rows, key="k", **SQL, key_types=name)
    assert store.checkpoint().manifest.keyed_entry("u", "n").state.key_types == (name,)
    groups_of(store, name, hash_scheme="flink-sql")
    again = store.restore(parallelism=1).keyed("u", "n").to_arrow(0)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "n", again.drop_columns(["key_group"]), key="k")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "n", Changes(deletes=[{"k": moments[0]}]), key="k")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "n", [{"k": moments[1], "v": 99}], key="k")
    state = store.restore(parallelism=3).keyed("u", "n")
    assert (state.get(moments[0]), state.get(moments[1])[0]["v"]) == ([], 99)
    groups_of(store, name, hash_scheme="flink-sql")
    with (
        pytest.raises(SchemaMismatchError, match="key types"),
        store.snapshot(parallelism=2) as checkpoint,
    ):
        checkpoint.write_keyed("u", "n", rows, key="k", key_types=name.replace(str(digits), "2"))


@pytest.mark.parametrize("asked", ["int", "Integer", ["INTEGER"], {"k": "java.lang.Integer"}])
def test_a_type_has_one_stored_name(store: StateStore, asked: Any) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        rows = pa.table({"k": range(-20, 20), "v": range(40)})
        checkpoint.write_keyed("u", "n", rows, key="k", max_parallelism=128, key_types=asked)
    assert store.checkpoint().manifest.keyed_entry("u", "n").state.key_types == ("Integer",)
    groups_of(store, "int")


def test_a_type_that_does_not_fit_the_key_is_refused(store: StateStore) -> None:
    """Before any write, with the reason."""
    rows = pa.table({"k": ["a"], "v": [1]})
    for asked, error, match in (
        ("Integer", UnsupportedTypeError, "hashed as String"),
        ({"v": "Integer"}, InvalidArgumentError, "'v', which is not a key column"),
        (["String", "String"], InvalidArgumentError, "1 key columns .* but 2 key types"),
        ("Strung", StateStoreError, "Strung"),
    ):
        with pytest.raises(error, match=match), store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "n", rows, key="k", key_types=asked)
    assert list(store.checkpoints()) == []


def test_a_value_that_the_type_cannot_hold_is_refused(store: StateStore) -> None:
    rows = pa.table({"k": [datetime(2026, 1, 1, 0, 0, 0, 1)], "v": [1]})
    with (
        pytest.raises(InvalidArgumentError, match="precision 3"),
        store.snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.write_keyed("u", "n", rows, key="k", **SQL, key_types="TIMESTAMP(3)")


IDS = [UUID(int=number * 3**75) for number in range(40)]


@pytest.mark.parametrize("form", ["uuid", "fixed", "bytes", "text"])
def test_a_uuid_can_be_a_key(store: StateStore, form: str) -> None:
    """As Arrow's own type, as 16 bytes or as text; it can be looked up and written again."""
    raw = pa.array([one.bytes for one in IDS], pa.binary(16))
    column = {
        "uuid": raw.cast(pa.uuid()),
        "fixed": raw,
        "bytes": raw.cast(pa.binary()),
        "text": pa.array(map(str, IDS)),
    }[form]
    said = None if form == "uuid" else "UUID"
    with store.snapshot(parallelism=2) as checkpoint:
        rows = pa.table({"k": column, "v": range(40)})
        checkpoint.write_keyed("u", "n", rows, key="k", max_parallelism=128, key_types=said)
    assert store.checkpoint().manifest.keyed_entry("u", "n").state.key_types == ("UUID",)
    groups_of(store, "UUID")
    state = store.restore(parallelism=2).keyed("u", "n")
    assert [state.get(one)[0]["v"] for one in IDS] == list(range(40))
    with store.snapshot(parallelism=2) as checkpoint:
        gone = pa.table({"k": state.to_arrow(0)["k"]})
        checkpoint.write_changes("u", "n", Changes(deletes=gone), key="k")
    assert store.restore(parallelism=2).keyed("u", "n").to_arrow(0).num_rows == 0


@pytest.mark.parametrize("form", ["bytes", "text"])
def test_uuids_in_dictionaries_can_be_keys(store: StateStore, form: str) -> None:
    """If the key has that type: in every call, equal to a column."""

    def held(numbers: Any) -> list[Any]:
        return [IDS[at].bytes if form == "bytes" else str(IDS[at]) for at in numbers]

    def check(wanted: dict[int, int]) -> None:
        rows = store.restore(parallelism=1).keyed("u", "n").to_arrow(0).to_pylist()
        found = {row["k"]: row["v"] for row in rows}
        assert found == dict(zip(held(wanted), wanted.values(), strict=True))
        groups_of(store, "UUID")

    rows = [{"k": held([at])[0], "v": at} for at in range(4)]
    with store.snapshot(parallelism=2) as checkpoint:
        if form == "bytes":
            rows[:3] = [{"k": IDS[at], "v": at} for at in range(3)]
        checkpoint.write_keyed("u", "n", rows, key="k", max_parallelism=128, key_types="uuid")
    check({0: 0, 1: 1, 2: 2, 3: 3})
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "n", [{"k": IDS[at], "v": at} for at in range(6)], key="k")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes(
            "u",
            "n",
            Changes([{"k": IDS[5], "v": 50}], [{"k": IDS[0]}], cleared=[{"k": IDS[1]}]),
            key="k",
        )
    check({2: 2, 3: 3, 4: 4, 5: 50})
    state = store.restore(parallelism=1).keyed("u", "n")
    assert state.lookup([{"k": IDS[5]}, {"k": IDS[9]}]).column("v").to_pylist() == [50]
    assert state.get(IDS[5]) == state.get({"k": IDS[5]}) == [{"k": held([5])[0], "v": 50}]
    store.maintenance.edit("u", "n", delete=[IDS[2]], put=[{"k": IDS[7], "v": 7}])
    check({3: 3, 4: 4, 5: 50, 7: 7})
    store.maintenance.edit("u", "n", rows=[{"k": IDS[7], "v": 8}])
    check({7: 8})


def test_an_error_about_a_value_of_a_key_type_names_the_state(tmp_path: Path) -> None:
    with (
        pytest.raises(
            InvalidArgumentError, match=r"n.*u.*: 'bb' is not a Character: .* code unit$"
        ),
        opened(tmp_path / "store").snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.write_keyed(
            "u",
            "n",
            [{"k": "a"}, {"k": "bb"}],
            key="k",
            key_types="Character",
        )


def test_a_uuid_in_another_column_is_refused(store: StateStore) -> None:
    """It would be returned as bytes or text."""
    with (
        pytest.raises(InvalidArgumentError, match=r"a key, pass key_types='UUID'"),
        store.snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.write_keyed("u", "n", [{"k": IDS[0]}], key="k")
    rows = [{"k": IDS[0], "v": b"", "s": ""}]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", rows, key="k", key_types={"k": "java.util.UUID"})
    for column in "vs":
        row = {"k": IDS[1], "v": b"", "s": "", column: IDS[1]}
        with (
            pytest.raises(SchemaMismatchError, match="UUID does not fit"),
            store.snapshot(parallelism=1) as checkpoint,
        ):
            checkpoint.write_changes("u", "n", [row], key="k")


@pytest.mark.parametrize(
    ("key_type", "values", "scheme"),
    [
        ("LocalTime", [0, 1, 86_399_999_999_999], "java"),
        ("Instant", [0, -1, 2**62], "java"),
        ("BigInteger", ["0", "-1", "1" * 60], "java"),
        ("Row<Integer, String>", [{"a": 1, "b": "x"}, {"a": None, "b": ""}], "java"),
        ("CHAR(3)", ["", "abc"], "flink-sql"),
        ("TIME(3)", [0, 10**6, 86_399_999 * 10**6], "flink-sql"),
    ],
)
def test_a_column_can_contain_a_key_of_another_type(
    store: StateStore, key_type: str, values: list[Any], scheme: str
) -> None:
    """The state has Flink's key groups and stores the type."""
    kind = pa.struct([("a", pa.int32()), ("b", pa.string())]) if "Row" in key_type else None
    with store.snapshot(parallelism=2) as checkpoint:
        rows = pa.table({"k": pa.array(values, kind), "v": range(len(values))})
        checkpoint.write_keyed(
            "u",
            "n",
            rows,
            key="k",
            max_parallelism=128,
            key_types=key_type,
            hash_scheme=scheme,
        )
    restored = store.restore(parallelism=1).keyed("u", "n")
    for row in restored.to_arrow(0).to_pylist():
        key = list(row["k"].values()) if kind is not None else row["k"]
        assert row["key_group"] == key_group_of(
            key, max_parallelism=128, key_type=key_type, hash_scheme=scheme
        )
    assert [restored.get(value)[0]["v"] for value in values] == list(range(len(values)))
