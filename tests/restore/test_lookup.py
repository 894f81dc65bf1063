"""Rows of one key: valid and invalid keys, and how little a lookup reads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statestore.errors import DamagedFileError, InvalidArgumentError, MissingFileError, NullKeyError
from statestore.keys.groups import KeyGroupRange
from statestore.restore.restored import RestoredKeyedState
from statestore.snapshot.state_spec import Changes
from statestore.store import StateStore
from tests.support.damage import change_unread_byte
from tests.support.forms import FORMS, Checkpoints, Form, entries_of, newest_file, users

READERS: dict[str, Callable[[RestoredKeyedState], Any]] = {
    "to_batches": lambda state: state.to_batches(0).read_all(),
    "to_arrow": lambda state: state.to_arrow(),
    "to_pandas": lambda state: state.to_pandas(),
    "to_polars": lambda state: state.to_polars(),
    "key_groups": lambda state: state.key_groups(KeyGroupRange(0, 0)).read_all(),
    "lookup": lambda state: state.lookup([{"k": "a"}]),
    "lazy": lambda state: state.lazy(0).get("a"),
    "get": lambda state: state.get("a"),
}
NOON = datetime(2020, 1, 1, 12)
NAN = float("nan")


def state(folder: Path, keys: pa.Array | pa.Table, **options: Any) -> RestoredKeyedState:
    """Return a state of rows with these keys, and their position as ``v``."""
    rows = keys if isinstance(keys, pa.Table) else pa.table({"k": keys})
    rows = rows.append_column("v", pa.array(range(len(rows))))
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    options.setdefault("key", "k")
    options.setdefault("max_parallelism", 2)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", rows, **options)
    return store.restore().keyed("u", "n")


def found(restored: RestoredKeyedState, key: Any) -> list[int]:
    return [row["v"] for row in restored.get(key)]


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        (pa.array([1, 2]), 2),
        (pa.array([1, 2]), 2.0),
        (pa.array([1, 2]), Decimal(2)),
        (pa.array([1, 2]), np.int16(2)),
        (pa.array([1, -2], pa.int8()), -2),
        (pa.array([1.0, 2.0]), 2),
        (pa.array([0.0, -0.0]), -0.0),
        (pa.array([-0.0, 0.0]), 0.0),
        (pa.array([1.0, NAN]), NAN),
        (pa.array([1.0, 0.1], pa.float32()), 0.1),
        (pa.array([True, False]), False),
        (pa.array(["a", ""]), ""),
        (pa.array(["é", "e\u0301"]), "e\u0301"),
        (pa.array(["a", "x" * 10_000]), "x" * 10_000),
        (pa.array([NOON, NOON + timedelta(1)]), NOON + timedelta(1)),
        (
            pa.array([NOON, datetime(1, 1, 1)], pa.timestamp("us", "UTC")),
            datetime(1, 1, 1, tzinfo=UTC),
        ),
        (
            pa.array([datetime(1, 1, 1), NOON], pa.timestamp("us", "UTC")),
            datetime(2020, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        ),
        (pa.array([date(1, 1, 1), date(2020, 1, 1)]), date(2020, 1, 1)),
        (pa.array([Decimal("1.10"), Decimal("1.20")]), Decimal("1.2")),
        (pa.array([Decimal("1.10"), Decimal("2.00")]), 2),
        (pa.array([{"a": 1, "b": "x"}, {"a": 1, "b": ""}]), {"b": "", "a": 1}),
        (pa.array([3_000_000, 18_262], pa.date32()), date(2020, 1, 1)),
        (pa.array([2**62, 0], pa.timestamp("us")), datetime(1970, 1, 1)),
    ],
    ids=str,
)  # fmt: skip
def test_a_key_is_found_by_its_value(tmp_path: Path, keys: pa.Array, key: Any) -> None:
    """The second of two keys is found, with any Python type that represents it exactly."""
    assert found(state(tmp_path, keys), key) == [1]


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        (pa.array([1]), 1.5),
        (pa.array([1]), True),
        (pa.array([1]), "1"),
        (pa.array([1]), 2**64),
        (pa.array([1], pa.int8()), 300),
        (pa.array([1]), (1, 2)),
        (pa.array([1]), {"other": 1}),
        (pa.array([1.0]), "1"),
        (pa.array([1.0]), 2**53 + 1),
        (pa.array([True]), 1),
        (pa.array(["a"]), b"a"),
        (pa.array(["a"]), 1),
        (pa.array(["a"]), "\ud800"),
        (pa.array([NOON]), NOON.replace(tzinfo=UTC)),
        (pa.array([NOON]), NOON.date()),
        (pa.array([NOON], pa.timestamp("us", "UTC")), NOON),
        (pa.array([NOON.date()]), NOON),
        (pa.array([NOON.date()]), "2020-01-01"),
        (pa.array([Decimal("1.20")]), Decimal("1.234")),
        (pa.array([Decimal("1.20")]), 1.2),
        (pa.array([{"a": 1, "b": "x"}]), {"a": 1}),
        (pa.array([{"a": 1, "b": "x"}]), {"a": 1, "b": "x", "c": 2}),
        (pa.array([{"a": 1}]), {"a": 1.5}),
    ],
    ids=str,
)
def test_an_invalid_key_is_refused(tmp_path: Path, keys: pa.Array, key: Any) -> None:
    """It is not rounded to a valid key, and the result is not empty. The message shows the key."""
    with pytest.raises(
        InvalidArgumentError, match=r"is not a key of state 'n' of operator 'u'.*\(k "
    ):
        state(tmp_path, keys).get(key)


def test_a_null_key_is_refused_if_the_scheme_does_not_allow_it(tmp_path: Path) -> None:
    """The flink-sql scheme allows it."""
    with pytest.raises(NullKeyError):
        state(tmp_path, pa.array([1])).get(None)
    sql = state(tmp_path / "sql", pa.array([1, None]), hash_scheme="flink-sql")
    assert found(sql, None) == [1]


def test_several_key_columns_are_a_tuple_or_a_dictionary(tmp_path: Path) -> None:
    """Each column has its name, in any order."""
    rows = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"]})
    both = state(tmp_path, rows, key=["a", "b"])
    assert found(both, (1, "y")) == found(both, [1, "y"]) == found(both, {"b": "y", "a": 1}) == [1]
    for wrong in (1, (1,), (1, "y", 2), {"a": 1}, "1y"):
        with pytest.raises(InvalidArgumentError, match=r"its key is \(a long, b string\)"):
            both.get(wrong)


def test_one_key_column_can_be_named(tmp_path: Path) -> None:
    """A dictionary works as with several columns."""
    assert found(state(tmp_path, pa.array([1, 2])), {"k": 2}) == [1]


def test_a_missing_key_has_no_rows(tmp_path: Path) -> None:
    """This includes a key whose key group has no file."""
    few = state(tmp_path, pa.array([1]), max_parallelism=128)
    assert [few.get(key) for key in range(2, 40)] == [[]] * 38


@pytest.mark.parametrize("precision", ["s", "ms", "us"])
def test_a_timestamp_of_any_precision_is_found(tmp_path: Path, precision: str) -> None:
    """I1: it is stored in microseconds, and hashed as its recorded type."""
    keys = pa.array([NOON], pa.timestamp(precision))
    for scheme in ("java", "flink-sql"):
        restored = state(tmp_path / scheme, keys, hash_scheme=scheme, max_parallelism=128)
        assert found(restored, NOON) == [0]


def test_a_column_with_a_dot_in_its_name_is_not_a_field_of_a_struct(tmp_path: Path) -> None:
    """Parquet writes ``a.b`` for both, and their bounds must not be confused."""
    rows = pa.table({"a.b": ["x", "y", "z"], "a": [{"b": "0"}, {"b": "0"}, {"b": "1"}]})
    restored = state(tmp_path, rows, key="a.b")
    assert [found(restored, key) for key in "xyz"] == [[0], [1], [2]]


def test_row_groups_that_cannot_hold_the_key_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup reads one row group of a large key group."""
    restored = state(tmp_path, pa.array(range(200_000)), max_parallelism=1)
    assert restored.entry.handles[0].row_groups == 4
    read: list[int] = []
    iter_batches = pq.ParquetFile.iter_batches

    def counting(self: Any, *sizes: int, row_groups: list[int], **options: Any) -> Any:
        read.extend(row_groups)
        return iter_batches(self, *sizes, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counting)
    assert found(restored, 150_000) == [150_000]
    assert found(restored, 200_000) == []
    assert read == [2]


def test_unverified_bounds_hide_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I7: a manifest of an older release has no checksum of the footer with the bounds."""
    monkeypatch.setattr("statestore.parquet.writer.footer_of", lambda _: None)
    restored = state(tmp_path, pa.array(range(200_000)), max_parallelism=1)
    monkeypatch.setattr("statestore.restore.lookup._may_contain", lambda *_: False)
    assert found(restored, 150_000) == [150_000]


@pytest.mark.long_cases(
    "plain-ranged", "plain-partitioned", "layered-partitioned", "compacted-ranged"
)
@pytest.mark.parametrize("layout", ["ranged", "partitioned"])
@pytest.mark.parametrize("form", FORMS)
def test_every_key_has_the_rows_of_a_dictionary(tmp_path: Path, layout: str, form: Form) -> None:
    state = Checkpoints(tmp_path, form, layout)
    state.full(users(40, entries=3))
    state.change({("u001", 0): 100, ("new", 7): 1}, entries=[("u002", 1)], cleared=["u003"])
    state.change({("u003", 5): 5, ("u002", 1): 6}, cleared=["u004", "new"])
    state.change({("u005", 0): 8, ("u005", 9): 9}, cleared=["u005", "nobody"])
    for checkpoint_id, rows in state.taken.items():
        keyed = state.store.restore(checkpoint=checkpoint_id).keyed("u", "s")
        for key in [f"u{i:03}" for i in range(8)] + ["new", "nobody", "u039"]:
            expected = {entry: value for entry, value in rows.items() if entry[0] == key}
            found = keyed.get(key)
            assert entries_of(found) == expected
            assert [row["m"] for row in found] == sorted(m for _, m in expected)


def test_at_most_one_file_of_the_base_and_of_each_layer_is_opened(tmp_path: Path) -> None:
    state = Checkpoints(tmp_path)
    state.full(users(200), parallelism=4)
    state.change({("u001", 0): 1})
    state.change(users(200, value=7))
    keyed = state.store.restore().keyed("u", "s")
    changed = len(keyed.entry.layers[1].entry.handles)
    assert changed >= 1
    state.opened()
    assert [row["v"] for row in keyed.get("u050")] == [57]
    opened = state.opened()
    assert set(opened.values()) == {1}
    assert 2 <= len(opened) <= 3
    assert sum("/changes/" in name for name in opened) == len(opened) - 1


def test_keys_of_changes_are_distinguished_as_in_a_full_state(tmp_path: Path) -> None:
    kind = pa.struct([("a", pa.int64()), ("f", pa.float64())])
    schema = pa.schema([("k", kind), ("n", pa.string()), ("v", pa.int64())])

    def rows(*values: tuple[float, str | None, int]) -> pa.Table:
        found = [{"k": {"a": 1, "f": f}, "n": n, "v": v} for f, n, v in values]
        return pa.Table.from_pylist(found, schema)

    store = StateStore.open(str(tmp_path / "store"), table_format="parquet", compaction=None)
    options: dict[str, Any] = {"key": "k", "namespace": "n", "max_parallelism": 8}
    with store.snapshot(parallelism=1) as checkpoint:
        full = rows((0.0, "x", 1), (-0.0, "x", 2), (NAN, "x", 3), (1.0, None, 4), (1.0, "x", 5))
        checkpoint.write_keyed("u", "s", full, **options)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes(
            "u",
            "s",
            Changes(rows((-0.0, "x", 20), (NAN, "x", 30)), rows((0.0, "x", 0), (1.0, None, 0))),
            **options,
        )
    keyed = store.restore().keyed("u", "s")
    answers = {
        str(f): [row["v"] for row in keyed.get({"k": {"a": 1, "f": f}})]
        for f in (0.0, -0.0, NAN, 1.0)
    }
    assert answers == {"0.0": [], "-0.0": [20], "nan": [30], "1.0": [5]}


@pytest.mark.long_cases("compacted", "plain")
@pytest.mark.slow
def test_a_lookup_names_a_missing_or_damaged_file(taken: Checkpoints) -> None:
    """The error is the same as in a restore that needs the file."""
    restored = taken.store.restore().keyed("u", "s")

    def look() -> None:
        for user in {user for user, _ in taken.rows}:
            restored.get(user)

    look()
    file = Path(taken.store.url, newest_file(taken.store))
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DamagedFileError, match=file.name):
        look()
    file.unlink()
    with pytest.raises(MissingFileError, match=file.name):
        look()


@pytest.mark.parametrize("changed", [False, True], ids=["base", "layer"])
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_of_a_verified_restore_checks_the_whole_file(
    tmp_path: Path, reader: str, changed: bool
) -> None:
    """Other readers accept a change of bytes that they do not read."""
    path = tmp_path / "store"
    store = StateStore.open(str(path), table_format="parquet")
    rows = pa.table({"k": ["a", "b"], "v": [1, 2]})
    with store.snapshot(parallelism=1) as checkpoint:
        entry = checkpoint.write_keyed("u", "n", rows, key="k", max_parallelism=1)
    if changed:
        with store.snapshot(parallelism=1) as checkpoint:
            entry = checkpoint.write_changes("u", "n", rows.slice(0, 1)).layers[-1].entry
    change_unread_byte(path / entry.table.path / entry.handles[0].path)
    READERS[reader](store.restore().keyed("u", "n"))
    with pytest.raises(DamagedFileError, match="has changed since it was written"):
        READERS[reader](store.restore(verify=True).keyed("u", "n"))


def test_every_reader_of_rows_is_tested_with_verification() -> None:
    methods = {name for name, member in vars(RestoredKeyedState).items() if callable(member)}
    methods = {name for name in methods if not name.startswith("_")}
    assert methods == {*READERS, "contents", "to_spark", "lookup_in_spark"}
