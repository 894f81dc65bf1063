"""State restored from a checkpoint into Spark's own state store, before the first event."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from statestore import StateStore
from statestore.snapshot.state_spec import Changes
from statestore.streaming import initial_state

pytestmark = pytest.mark.spark

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
OUTPUT = "user string, n long, total long"


class Totals(StatefulProcessor):
    """The number and sum of a user's amounts, emitted after each micro-batch with events."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.state = handle.getValueState("totals", "n long, total long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Take over the stored state: a row, or a frame with one row."""
        row = initialState.iloc[0] if isinstance(initialState, pd.DataFrame) else initialState
        self.state.update((int(row["n"]), int(row["total"])))

    def add(self, amounts: list[int]) -> tuple[int, int]:
        """Add an amount; return the user's new totals."""
        n, total = self.state.get() or (0, 0)
        self.state.update((n + len(amounts), total + sum(amounts)))
        return n + len(amounts), total + sum(amounts)

    def close(self) -> None:
        """Do nothing."""


class RowTotals(Totals):
    """The same totals with rows."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the events of a user."""
        n, total = self.add([row.amount for row in rows])
        yield Row(user=key[0], n=n, total=total)


class PandasTotals(Totals):
    """The same totals with frames."""

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Add the events of a user."""
        n, total = self.add([int(a) for frame in rows for a in frame["amount"]])
        yield pd.DataFrame({"user": [key[0]], "n": [n], "total": [total]})


def by_rows(events: Any, initial: Any) -> DataFrame:
    frame: DataFrame = events.transformWithState(
        RowTotals(), OUTPUT, "Update", "None", initialState=initial
    )
    return frame


def by_frames(events: Any, initial: Any) -> DataFrame:
    frame: DataFrame = events.transformWithStateInPandas(
        PandasTotals(), OUTPUT, "Update", "None", initialState=initial
    )
    return frame


@pytest.mark.long
@pytest.mark.parametrize("transform", [by_rows, by_frames])
def test_it_is_available_with_the_first_events(
    spark: SparkSession, tmp_path: Path, transform: Callable[[Any, Any], DataFrame]
) -> None:
    """A state with a base and changes, restored at another parallelism.

    Keys without events keep their state until their first event, several micro-batches later.
    """
    store = StateStore.open(str(tmp_path / "store"), spark=spark, table_format="parquet")
    rows = [{"user": f"u{i}", "n": i, "total": 10 * i} for i in range(20)]
    with store.snapshot(parallelism=4) as checkpoint:
        checkpoint.write_keyed("totals", "per-user", rows, key="user", max_parallelism=8)
    with store.snapshot(parallelism=4) as checkpoint:
        changes = [{"user": "u1", "n": 100, "total": 1000}]
        checkpoint.write_changes(
            "totals", "per-user", Changes(changes, [{"user": "u2"}]), key="user"
        )
    restored = store.restore(parallelism=3).keyed("totals", "per-user")

    events: Iterable[list[tuple[str, int]]] = (
        [("u1", 5), ("u2", 6), ("new", 7)],
        [("u3", 1), ("u1", 1)],
    )
    (tmp_path / "in").mkdir()
    for number, batch in enumerate(events):
        lines = [json.dumps({"user": user, "amount": amount}) for user, amount in batch]
        file = tmp_path / "in" / f"{number}.json"
        file.write_text("\n".join(lines))
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    spark.conf.set(PROVIDER, ROCKSDB)
    try:
        reader = spark.readStream.schema("user string, amount long").option("maxFilesPerTrigger", 1)
        grouped = reader.json(str(tmp_path / "in")).groupBy("user")
        said: list[set[tuple[Any, ...]]] = []
        query = (
            transform(grouped, initial_state(restored))
            .writeStream.foreachBatch(
                lambda frame, number: said.append({tuple(row) for row in frame.collect()})
            )
            .outputMode("update")
            .option("checkpointLocation", str(tmp_path / "progress"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        spark.conf.unset(PROVIDER)
    assert said == [
        {("u1", 101, 1005), ("u2", 1, 6), ("new", 1, 7)},
        {("u3", 4, 31), ("u1", 102, 1006)},
    ]
