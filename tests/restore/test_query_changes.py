"""SQL over states with changes: the rows of a restore, however often a view is named."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from statestore.errors import DamagedFileError, MissingFileError
from statestore.format.names import manifest_path
from statestore.store import StateStore
from tests.support.layered import Layered, entries_of, users


@pytest.fixture(params=["ranged", "partitioned"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Layered:
    state = Layered(tmp_path, layout=request.param, compaction=None)
    state.full(users(60, entries=2), parallelism=4)
    state.change({("u001", 0): 100, ("new", 7): 1}, entries=[("u002", 1)], cleared=["u003"])
    state.change({("u003", 5): 5, ("u002", 1): 6}, cleared=["u004", "new"])
    return state


def asked(state: Layered, sql: str, checkpoint: int | str = "latest") -> list[dict[str, object]]:
    rows = state.store.query(sql, checkpoint=checkpoint).read_all()
    found: list[dict[str, object]] = rows.to_pylist()
    return found


def test_a_view_has_the_rows_of_its_checkpoint(state: Layered) -> None:
    for checkpoint_id, rows in state.taken.items():
        assert entries_of(asked(state, "SELECT * FROM s", checkpoint_id)) == rows


def test_a_view_may_be_named_twice(state: Layered) -> None:
    joined = "SELECT count(*) AS n FROM s AS a JOIN s AS b ON a.k = b.k AND a.m = b.m"
    assert asked(state, joined) == [{"n": len(state.rows)}]
    twice = "SELECT (SELECT sum(v) FROM s) + (SELECT sum(v) FROM s WHERE k = 'u003') AS n"
    assert asked(state, twice) == [{"n": sum(state.rows.values()) + 5}]


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("v > 50 AND k <> 'u055'", lambda k, m, v: v > 50 and k != "u055"),
        ("m IN (5, 7)", lambda k, m, v: m in (5, 7)),
        ("k IS NULL", lambda k, m, v: False),
        ("k BETWEEN 'u001' AND 'u004'", lambda k, m, v: "u001" <= k <= "u004"),
    ],
)
def test_conditions_are_about_the_merged_rows(state: Layered, where: str, holds: object) -> None:
    assert callable(holds)
    expected = {(k, m): v for (k, m), v in state.rows.items() if holds(k, m, v)}
    assert entries_of(asked(state, f"SELECT v, k, m FROM s WHERE {where}")) == expected
    assert asked(state, f"SELECT count(*) AS n FROM s WHERE {where}") == [{"n": len(expected)}]


def test_key_groups_that_are_not_asked_for_are_not_read(state: Layered) -> None:
    every = asked(state, "SELECT * FROM s")
    for where, wanted in (("= 3", {3}), ("IN (2, 3, 9)", {2, 3, 9}), (">= 14", {14, 15})):
        some = asked(state, f"SELECT * FROM s WHERE key_group {where}")
        assert some == [row for row in every if row["key_group"] in wanted]
    before = state.storage.bytes_read
    assert asked(state, "SELECT * FROM s WHERE key_group > 15") == []
    assert asked(state, "SELECT * FROM s WHERE key_group < 0") == []
    manifest = state.storage.size(manifest_path(3))
    assert state.storage.bytes_read - before <= 2 * manifest


def test_rows_that_come_first_are_seen_before_all_are_read(state: Layered) -> None:
    assert len(asked(state, "SELECT * FROM s LIMIT 1")) == 1


def test_a_file_that_is_missing_or_damaged_is_named(state: Layered, tmp_path: Path) -> None:
    (file, *_) = sorted((tmp_path / "operators/u/changes/s").rglob("*.parquet"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    with pytest.raises(DamagedFileError, match=file.name):
        asked(state, "SELECT sum(v) FROM s")
    file.unlink()
    with pytest.raises(MissingFileError, match=file.name):
        asked(state, "SELECT sum(v) FROM s")


def typed(first: int, stop: int, value: int = 0) -> pa.Table:
    """Return rows with a column of many types each."""
    numbers = range(first, stop)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    return pa.table(
        {
            "k": pa.array([Decimal(i) / 4 for i in numbers], pa.decimal128(12, 2)),
            "day": pa.array([date(2026, 1, 1 + i % 28) for i in numbers]),
            "moment": pa.array([noon + timedelta(hours=i) for i in numbers]),
            "raw": pa.array([bytes([i % 256]) for i in numbers]),
            "x": pa.array([None if i % 3 else i / 2 for i in numbers], pa.float64()),
            "small": pa.array([i % 100 for i in numbers], pa.int16()),
            "tags": pa.array([[("a", i)] for i in numbers], pa.map_(pa.string(), pa.int64())),
            "nested": pa.array([{"a": i, "b": {"c": str(i)}} for i in numbers]),
            "v": pa.array([i + value for i in numbers]),
        }
    )


def test_columns_of_all_types_are_asked_as_in_a_full_state(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet", compaction=None)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.keyed("u", "s", typed(0, 130), key="k", max_parallelism=16)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.changes("u", "s", typed(100, 120, 1000), typed(0, 20).select(["k"]), key="k")
    pieces = [typed(20, 100), typed(100, 120, 1000), typed(120, 130)]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.keyed("u", "s", pa.concat_tables(pieces), key="k", max_parallelism=16)
    for where in (
        "k > 10.5",
        "day = DATE '2026-01-05' OR small = 3",
        "moment > TIMESTAMPTZ '2026-01-05 00:00:00+00'",
        "raw = '\\x20'::BLOB",
        "x IS NULL",
        "x > 20 AND small IN (1, 60)",
        "tags['a'] = 110 OR nested.a = 60 OR nested.b.c = '61'",
        "key_group = 4 OR v = 1101",
        "k IN (SELECT k FROM s WHERE v > 1115)",
    ):
        sql = f"SELECT * FROM s WHERE {where} ORDER BY k"
        merged, full = (store.query(sql, checkpoint=one).read_all() for one in (2, 3))
        assert merged.num_rows
        assert merged.equals(full)
