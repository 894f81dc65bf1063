"""Local times that do not exist or occur twice in a session's time zone: Spark equals Arrow."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from statestore import StateStore
from statestore.errors import UnsupportedTypeError
from statestore.parquet.writer import ParquetOptions
from statestore.snapshot.state_spec import Changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GAP, OVERLAP = datetime(2026, 3, 29, 2), datetime(2026, 10, 25, 2)
TYPE = pa.timestamp("us")
ROWS = pa.schema([("k", TYPE), ("s", pa.struct([("t", TYPE)])), ("l", pa.list_(TYPE))])


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[SparkSession]:
    name = "spark.sql.session.timeZone"
    before = str(spark.conf.get(name))
    spark.conf.set(name, "Europe/Berlin")
    yield spark
    spark.conf.set(name, before)


def times(seed: int) -> list[datetime]:
    """Times around both clock changes, including the middle of the gap."""
    r = random.Random(seed)
    hours = [timedelta(microseconds=r.randrange(-3600 * 10**6, 7200 * 10**6)) for _ in range(12)]
    near = [r.choice([GAP, OVERLAP]) + moved for moved in hours]
    return [GAP + timedelta(minutes=30), OVERLAP + timedelta(minutes=30), *near]


def rows_of(times: list[datetime]) -> pa.Table:
    return pa.table([times, [{"t": t} for t in times], [[t, None] for t in times]], schema=ROWS)


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))


@pytest.mark.long_cases("1")
@pytest.mark.parametrize("most_bytes", [1, 2**20])
def test_a_local_time_is_stored_unchanged_by_any_writer(
    berlin: SparkSession, tmp_path: Path, most_bytes: int
) -> None:
    """In full or as changes, from a DataFrame, from Arrow or from both in one call."""
    parquet = ParquetOptions(driver_bytes=most_bytes)
    first, later, gone = rows_of(times(1)), rows_of(times(2)[2:]), times(1)[3:6]
    keys = pa.table({"k": pa.array(gone, TYPE)})
    given: dict[str, tuple[Any, Any, Any]] = {
        "arrow": (first, later, keys),
        "spark": (frame(berlin, first), frame(berlin, later), frame(berlin, keys)),
        "arrow into spark": (frame(berlin, first), later, frame(berlin, keys)),
        "spark into arrow": (first, frame(berlin, later), keys),
    }
    answers = {}
    for name, (full, upserts, deletes) in given.items():
        store = StateStore.open(
            str(tmp_path / name), spark=berlin, table_format="parquet", parquet=parquet
        )
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("u", "n", full, key="k", max_parallelism=4)
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes("u", "n", Changes(upserts=upserts, deletes=deletes), key="k")
        found = store.restore(parallelism=2).keyed("u", "n")
        stored = [tuple(row) for row in found.to_spark().collect()]
        answers[name] = sorted(stored, key=lambda row: row[1])
        for time in (GAP + timedelta(minutes=30), OVERLAP + timedelta(minutes=30)):
            assert found.get(time) == [{"k": time, "s": {"t": time}, "l": [time, None]}], name
    kept = [*times(1)[:3], *times(1)[6:], *times(2)[2:]]
    assert [row[1] for row in answers["arrow"]] == sorted(kept)
    assert all(row[2].t == row[1] and row[3] == [row[1], None] for row in answers["arrow"])
    assert all(answer == answers["arrow"] for answer in answers.values())


@pytest.mark.parametrize("within", [lambda one: one, pa.list_, lambda one: pa.struct([("a", one)])])
def test_a_delta_table_of_local_times_in_maps_is_refused(
    tmp_path: Path, within: Callable[[pa.DataType], pa.DataType]
) -> None:
    """It is accepted if a column outside a map has such times, or if there is no log."""
    kind = within(pa.map_(pa.string(), pa.timestamp("us")))
    rows = pa.table({"k": pa.array([1]), "v": pa.nulls(1, kind)})
    store = StateStore.open(str(tmp_path / "delta"))
    with (
        pytest.raises(
            UnsupportedTypeError, match="'v' is a map that contains timestamps without a time zone"
        ),
        store.snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=1)
    assert store.checkpoints() == ()
    seen = rows.append_column("t", pa.nulls(1, pa.timestamp("us")))
    plain = StateStore.open(str(tmp_path / "parquet"), table_format="parquet")
    for one, given in ((store, seen), (plain, rows)):
        with one.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "s", given, key="k", max_parallelism=1)
        (found,) = one.restore().keyed("u", "s").get(1)
        assert found["v"] is None
